"""A full disk is an event, not an end: the experiment waits, says so, and continues by itself when there is space."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def is_full(disk: Path) -> bool:
    try:
        (disk / "probe").write_bytes(bytes(4096))
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        (disk / "probe").unlink(missing_ok=True)
    return False


@pytest.fixture
def hold(lab: Lab) -> Path:
    """While this file exists, trials that are held go no further: nobody finishes before the disk is full."""
    lab.folder.mkdir(parents=True, exist_ok=True)
    path = lab.folder / "hold"
    path.touch()
    return path


def at_work(lab: Lab, driver: Driver, reports: int) -> None:
    """Wait until so many reports of all lives have been acknowledged."""
    until(lambda: driver.ended or len(lab.acknowledged()) >= reports, lambda: driver.output)
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
def test_an_experiment_whose_disk_is_filled_by_somebody_else_waits_and_goes_on(
    lab: Lab, disk: Path, hold: Path
) -> None:
    plan = Plan(trials=4, steps=20, every=4, keep=2, bytes=50_000, max_failures=0, hold=str(hold), hold_at=7)
    driver = lab.start(plan)
    at_work(lab, driver, 12)
    for _ in range(2):
        filler = fill(disk)
        assert is_full(disk)
        hold.unlink()
        stands_still(lab, driver, disk, "space")
        lab.check_nothing_lost()
        hold.touch()
        seen = len(lab.acknowledged())
        filler.unlink()
        at_work(lab, driver, seen + 1)  # what waited for space
    hold.unlink()
    output = driver.must_finish()
    assert "No space left on device" in output
    state = lab.check_finished(plan)
    assert state.total_failures == 0
    lab.check_no_process_left()


@pytest.mark.slow
def test_a_trial_whose_checkpoint_does_not_fit_waits_inside_its_report(lab: Lab, disk: Path, hold: Path) -> None:
    """The journal still fits, so the driver is well; the checkpoint is copied by us, so we can wait."""
    plan = Plan(trials=2, steps=12, every=3, keep=1, bytes=1_500_000, max_failures=0, copied="always", **held(hold))
    driver = lab.start(plan)
    until(lambda: all_committed(lab, plan), lambda: driver.output)
    filler = fill(disk, leave=LEAVE)
    hold.unlink()
    until(lambda: driver.ended or driver.output.count("waiting for space to save") == 2, lambda: driver.output)
    lab.check_nothing_lost()
    filler.unlink()
    driver.must_finish()
    state = lab.check_finished(plan)
    assert [trial.attempt for trial in state.trials] == [1, 1]


@pytest.mark.slow
def test_a_trial_that_cannot_write_its_checkpoint_is_tried_again_without_hurry(
    lab: Lab, disk: Path, hold: Path
) -> None:
    """Its own write fails, so it ends; trying again at once would repeat the same steps for ever and fill the disk."""
    plan = Plan(trials=2, steps=12, every=3, keep=1, bytes=1_500_000, max_failures=0, copied="never", **held(hold))
    driver = lab.start(plan)
    until(lambda: all_committed(lab, plan), lambda: driver.output)
    filler = fill(disk, leave=LEAVE)
    hold.unlink()
    until(lambda: driver.ended or min(map(len, full_disk_cuts(lab, plan))) >= 3, lambda: driver.output)
    lab.check_nothing_lost()
    filler.unlink()
    assert "No space left on device" in driver.must_finish()
    assert lab.check_finished(plan).total_failures == 0
    for times in full_disk_cuts(lab, plan):
        assert times[2] - times[1] >= 1.0


def held(hold: Path) -> dict[str, Any]:
    """After the first checkpoint of each trial."""
    return {"hold": str(hold), "hold_at": 4}


def full_disk_cuts(lab: Lab, plan: Plan) -> list[list[float]]:
    """When attempts of each trial were ended by the full disk."""
    cuts = [e for e in lab.history() if isinstance(e, ev.AttemptInterrupted) and e.cause == ev.Cause.STORAGE]
    return [[event.at for event in cuts if event.n == n] for n in range(plan.trials)]


def all_committed(lab: Lab, plan: Plan) -> bool:
    return sum(isinstance(event, ev.CheckpointCommitted) for event in lab.history()) == plan.trials


@pytest.mark.slow
def test_a_driver_killed_on_a_full_disk_has_lost_nothing_and_the_next_one_says_what_is_missing(
    lab: Lab, disk: Path, hold: Path
) -> None:
    plan = Plan(trials=4, steps=20, every=4, bytes=50_000, max_failures=0, hold=str(hold), hold_at=7)
    driver = lab.start(plan)
    at_work(lab, driver, 12)
    filler = fill(disk)
    hold.unlink()
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
