"""A driver, or its storage agent, dies at every named place of its dealings with a store, and the next one resumes."""

from __future__ import annotations

import pytest
from lab import mostly_slow
from remote_experiments import AGENT_CRASH, RemotePlan
from remote_lab import RemoteLab
from remote_points import AGENT_POINTS, CATCHING_UP_POINTS, OPENING_POINTS, RUNNING_POINTS

from holdfast.core import events as ev

PLAN = RemotePlan(trials=2, steps=8, every=2, keep=1, pause_s=0.02, max_failures=0, merging=4)


@pytest.fixture
def long(lab: RemoteLab) -> RemotePlan:
    """Not at its end when many drivers have died: slow while ``lab.folder/slow`` exists."""
    (lab.folder / "slow").touch()
    slow = str(lab.folder / "slow")
    return RemotePlan(trials=2, steps=45, every=3, keep=1, pause_s=0.02, max_failures=0, merging=4, slow=slow)


def finish(lab: RemoteLab, plan: RemotePlan, machine: str) -> None:
    (lab.folder / "slow").unlink()
    lab.run(plan, machine).must_finish()


def forget_lost(lab: RemoteLab) -> None:
    """What had not been shipped when a machine was lost is no ground truth any more."""
    tokens = {event.metrics["token"].encode() for event in lab.stored_history() if isinstance(event, ev.Reported)}
    lines = lab.side.read_bytes().splitlines(keepends=True) if lab.side.exists() else []
    lab.side.write_bytes(b"".join(line for line in lines if any(token in line for token in tokens)))


def check(lab: RemoteLab, plan: RemotePlan = PLAN) -> None:
    assert lab.check_finished(plan).total_failures == 0
    lab.check_stored()
    lab.check_no_process_left()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["its machine stays", "its machine is lost"])
def test_a_driver_that_dies_here_is_continued_by_the_next(lab: RemoteLab, long: RemotePlan, lost: bool) -> None:
    """One experiment, whose drivers die at one place after the other."""
    past: list[ev.AnyEvent] = []
    for life, point in enumerate(RUNNING_POINTS[::2] if lost else RUNNING_POINTS):
        driver = lab.run(long, f"m{life}" if lost else "a", HOLDFAST_CRASH=point)
        assert driver.process.returncode == -9, f"{point}: {driver.output}"
        lab.check_no_process_left()
        lab.check_nothing_lost()
        lab.check_manifests_are_whole()
        stored, here = lab.stored_history(), lab.history()
        assert here[: len(stored)] == stored, point
        assert stored[: len(past)] == past, point
        past = stored
        if lost:
            lab.lose(f"m{life}")
            forget_lost(lab)
    finish(lab, long, "last" if lost else "a")
    assert lab.history()[: len(past)] == past
    check(lab, long)


def begun(lab: RemoteLab, plan: RemotePlan) -> list[ev.AnyEvent]:
    """An experiment whose trials are in the middle, with checkpoints in the store; its driver is dead."""
    assert lab.run(plan, "a", HOLDFAST_CRASH="O3.after:4").process.returncode == -9
    lab.check_no_process_left()
    forget_lost(lab)
    return lab.stored_history()


@pytest.mark.slow
def test_drivers_that_die_while_they_open_the_experiment_elsewhere_change_nothing(
    lab: RemoteLab, long: RemotePlan
) -> None:
    """At each place in turn, and one after the other on the same machine."""
    before = begun(lab, long)
    for point in OPENING_POINTS:
        driver = lab.run(long, "b", HOLDFAST_CRASH=point)
        assert driver.process.returncode == -9, f"{point}: {driver.output}"
        if point != "fetch.before_rename":
            lab.lose("b")  # or there would be nothing to restore_mirror
        assert lab.stored_history()[: len(before)] == before
    forget_lost(lab)
    finish(lab, long, "b")
    check(lab, long)


@pytest.mark.slow
def test_a_driver_that_dies_while_its_mirror_catches_up_changes_nothing(lab: RemoteLab, long: RemotePlan) -> None:
    begun(lab, long)
    other = lab.run(long, "b", HOLDFAST_CRASH="O3.after:3")
    assert other.process.returncode == -9, other.output
    forget_lost(lab)
    before = lab.stored_history()
    for point in CATCHING_UP_POINTS:
        driver = lab.run(long, "a", HOLDFAST_CRASH=point)
        assert driver.process.returncode == -9, f"{point}: {driver.output}"
        assert lab.stored_history() == before
    finish(lab, long, "a")
    assert lab.history()[: len(before)] == before
    check(lab, long)


@pytest.mark.parametrize("point", mostly_slow(AGENT_POINTS, "store.after_create:5"))
def test_an_agent_that_dies_here_is_replaced_and_nobody_notices(lab: RemoteLab, point: str) -> None:
    plan = PLAN
    if point.startswith("store.part_sent"):  # only large files are sent in parts
        plan = RemotePlan(trials=1, steps=2, every=2, bytes=17_000_000, max_failures=0)
    driver = lab.run(plan, "a", **{AGENT_CRASH: point})
    driver.must_finish()
    check(lab, plan)
