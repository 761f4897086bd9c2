"""A full disk is an event, not an end: the experiment waits, says so, and goes on by itself when there is space."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiments import Plan
from lab import Driver, Lab, until

from holdfast.core import events as ev

DISK_BYTES = 12 << 20
LEAVE = 600_000  # room for the journal, not for a checkpoint


@pytest.fixture
def disk(lab: Lab) -> Iterator[Path]:
    """A small file system that holds the experiment's root and nothing else."""
    store = lab.root.parent
    store.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(store)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield store
    lab.close()
    subprocess.run(["umount", "--lazy", str(store)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Let somebody else take all space but ``leave`` bytes, while everybody is at work."""
    filler = disk / "somebody else's file"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
        if leave:
            file.truncate(file.tell() - leave)
    return filler


def keep_filled(disk: Path, leave: int) -> None:
    """Take what trials gave back meanwhile by deleting older checkpoints."""
    facts = os.statvfs(disk)
    with contextlib.suppress(OSError), open(disk / "somebody else's file", "ab", buffering=0) as file:
        file.write(bytes(max(0, facts.f_bavail * facts.f_frsize - leave)))


def is_full(disk: Path) -> bool:
    try:
        (disk / "probe").write_bytes(bytes(4096))
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        (disk / "probe").unlink(missing_ok=True)
    return False


def at_work(lab: Lab, driver: Driver, reports: int) -> None:
    goal = len(lab.acknowledged()) + reports
    until(lambda: driver.ended or len(lab.acknowledged()) >= goal, lambda: driver.output)
    assert not driver.ended, driver.output


def stands_still(lab: Lab, driver: Driver, disk: Path, word: str) -> None:
    """Wait until the driver has said that it waits and no report is acknowledged any more."""
    seen: list[int] = []

    def quiet() -> bool:
        fill(disk)  # what a trial or the journal gave back is taken as well
        seen.append(len(lab.acknowledged()))
        return driver.ended or (word in driver.output and seen[-20:] == seen[-1:] * 20)

    until(quiet, lambda: f"it goes on, or does not say why it waits:\n{driver.output}", step_s=0.02)
    assert not driver.ended, driver.output


@pytest.mark.slow
def test_an_experiment_whose_disk_is_filled_by_somebody_else_waits_and_goes_on(lab: Lab, disk: Path) -> None:
    plan = Plan(trials=4, steps=40, every=4, keep=2, pause_s=0.01, bytes=50_000, max_failures=0)
    driver = lab.start(plan)
    for _ in range(2):
        at_work(lab, driver, 12)
        filler = fill(disk)
        assert is_full(disk)
        stands_still(lab, driver, disk, "space")
        lab.check_nothing_lost()
        filler.unlink()
    output = driver.must_finish()
    assert "No space left on device" in output
    state = lab.check_finished(plan)
    assert state.total_failures == 0
    lab.check_no_process_left()


@pytest.mark.slow
def test_a_trial_whose_checkpoint_does_not_fit_waits_inside_its_report(lab: Lab, disk: Path) -> None:
    """The journal still fits, so the driver is well; the checkpoint is copied by us, so we can wait."""
    plan = Plan(trials=2, steps=12, every=3, keep=1, bytes=1_500_000, max_failures=0, copied="always")
    driver = lab.start(plan)
    until(lambda: all_saved(lab, plan), lambda: driver.output)
    filler = fill(disk, leave=LEAVE)

    def both_wait() -> bool:
        keep_filled(disk, LEAVE)
        return driver.ended or driver.output.count("waiting for space to save") == 2

    until(both_wait, lambda: driver.output)
    lab.check_nothing_lost()
    filler.unlink()
    driver.must_finish()
    state = lab.check_finished(plan)
    assert [trial.attempt for trial in state.trials] == [1, 1]


@pytest.mark.slow
def test_a_trial_that_cannot_write_its_checkpoint_is_tried_again_without_hurry(lab: Lab, disk: Path) -> None:
    """Its own write fails, so it ends; trying again at once would repeat the same steps for ever and fill the disk."""
    plan = Plan(trials=2, steps=12, every=3, keep=1, bytes=1_500_000, max_failures=0, copied="never")
    driver = lab.start(plan)
    until(lambda: all_saved(lab, plan), lambda: driver.output)
    filler = fill(disk, leave=LEAVE)
    cuts: list[list[float]] = []

    def tried_three_times() -> bool:
        keep_filled(disk, LEAVE)
        cuts[:] = full_disk_cuts(lab, plan)
        return driver.ended or min(map(len, cuts)) >= 3

    until(tried_three_times, lambda: driver.output)
    lab.check_nothing_lost()
    filler.unlink()
    assert "No space left on device" in driver.must_finish()
    assert lab.check_finished(plan).total_failures == 0
    for times in cuts:
        assert times[2] - times[1] >= 1.0


def full_disk_cuts(lab: Lab, plan: Plan) -> list[list[float]]:
    """When attempts of each trial were ended by the full disk, since it last saved."""
    cuts: list[list[float]] = [[] for _ in range(plan.trials)]
    for event in lab.history():
        if isinstance(event, ev.CheckpointStaged):
            cuts[event.n].clear()
        elif isinstance(event, ev.AttemptInterrupted) and event.cause == ev.Cause.STORAGE:
            cuts[event.n].append(event.at)
    return cuts


def all_saved(lab: Lab, plan: Plan) -> bool:
    return len({line.trial for line in lab.acknowledged() if line.saved}) == plan.trials


@pytest.mark.slow
def test_a_driver_killed_on_a_full_disk_has_lost_nothing_and_the_next_one_says_what_is_missing(
    lab: Lab, disk: Path
) -> None:
    plan = Plan(trials=4, steps=20, every=4, pause_s=0.01, bytes=50_000, max_failures=0)
    driver = lab.start(plan)
    at_work(lab, driver, 12)
    filler = fill(disk)
    stands_still(lab, driver, disk, "space")
    driver.kill()
    lab.check_no_process_left()
    before = lab.check_nothing_lost()
    fill(disk)

    refused = lab.run(plan)
    assert refused.process.returncode == 1
    assert refused.output.splitlines()[-1].startswith("holdfast.errors.StorageFullError"), refused.output
    assert "No space left on device" in refused.output
    assert lab.check_nothing_lost()[: len(before)] == before

    filler.unlink()
    lab.run(plan).must_finish()
    assert lab.check_finished(plan).total_failures == 0
