"""One experiment in a store, one writer: on one machine, on several, asleep, and all at once."""

from __future__ import annotations

import re
import signal
import socket
import threading
from typing import Any

import msgspec
import pytest
from lab import Driver, kill, mostly_slow, until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab

from holdfast.core import events as ev
from holdfast.journal.reader import read_journal
from holdfast.shipping import parts
from servers.fault_proxy import FaultProxy, Hold

RESULTS = r"/result\.json$"  # in a path
PLAN = RemotePlan(trials=3, steps=20, every=5, pause_s=0.02)


def epochs(lab: RemoteLab) -> list[int]:
    return [event.epoch for event in lab.stored_history() if isinstance(event, ev.EpochStarted)]


def all_parts(lab: RemoteLab) -> list[parts.PartHeader]:
    keys = [key for key in lab.keys(parts.PREFIX) if parts.parse_key(key)]
    return [part.header for key in keys for part in parts.decode_parts(lab.store.get(key), key)]


def uploaded(lab: RemoteLab) -> list[str]:
    return [key for key in lab.keys("") if re.search(RESULTS, key)]


def held(lab: RemoteLab, **fields: Any) -> RemotePlan:
    """A plan whose trials wait before their next step while ``lab.folder/hold`` exists."""
    return RemotePlan(trials=2, steps=12, every=2, pause_s=0.02, hold=str(lab.folder / "hold"), **fields)


def known_to_the_store(lab: RemoteLab, driver: Driver) -> None:
    """Wait until the store has the beginning of a driver's history, up to a second after the first report."""
    until(lambda: lab.shipped_seq() > 0 or driver.ended, lambda: driver.output)


def stop_in_the_middle(lab: RemoteLab, plan: RemotePlan, machine: str = "a") -> Driver:
    """A driver that is stopped by SIGSTOP, like a suspended laptop, with everything that it started."""
    driver = lab.start(plan, machine)
    lab.started(driver, reports=6, saved=3)
    known_to_the_store(lab, driver)
    for process in lab.processes():
        kill(process.pid, signal.SIGSTOP)
    return driver


def wake(lab: RemoteLab, pids: list[int]) -> None:
    for pid in pids:
        kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("machine", mostly_slow(["a", "b"], "b"))
def test_a_second_driver_is_told_who_has_the_experiment_and_leaves(lab: RemoteLab, machine: str) -> None:
    hold = lab.folder / "hold"
    hold.touch()
    plan = held(lab, hold_at=3)
    first = lab.start(plan)
    lab.started(first, reports=2)
    second = lab.run(plan, machine)
    lab.on("a")
    assert second.process.returncode == 1
    assert "ExperimentLockedError" in second.output
    assert f"pid {first.pid} on {socket.gethostname()}" in second.output
    assert f"Tuner.restore('{lab.url}', takeover=True)" in second.output
    assert str(lab.folder / "machine") not in second.output.splitlines()[-1], "a mirror is no address"
    hold.unlink()
    first.must_finish()
    lab.check_finished(plan)
    lab.check_stored()
    assert epochs(lab) == [1]


@pytest.mark.slow
def test_a_driver_on_another_machine_waits_out_the_silence_of_one_that_died(lab: RemoteLab) -> None:
    """Whether a process of another machine lives cannot be seen, only when the store last heard of it."""
    first = lab.start(RemotePlan(trials=2, steps=40, every=2, pause_s=0.1, machine="a"))
    lab.started(first, reports=4, saved=2)
    known_to_the_store(lab, first)
    first.kill()
    early = lab.run(RemotePlan(machine="b"), "b")
    assert early.process.returncode == 1
    assert "ExperimentLockedError" in early.output
    until(
        lambda: lab.run(RemotePlan(machine="b", silence_s=2.0), "b").process.returncode == 0,
        "the silence of a dead driver is not noticed",
    )
    lab.on("b")
    lab.check_stored()
    assert epochs(lab) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("wake_at", ["while the other runs", "when the other has finished"])
def test_a_driver_that_slept_through_a_take_over_elsewhere_ends_as_fenced(lab: RemoteLab, wake_at: str) -> None:
    """Nothing that it wrote to its mirror, or sends after it woke, becomes part of the experiment."""
    plan = RemotePlan(trials=3, steps=40, every=2, pause_s=0.06, keep=2, sync_period=1.0)
    first = stop_in_the_middle(lab, plan)
    sleepers = [process.pid for process in lab.processes()]
    before = lab.stored_history()
    second = lab.start(RemotePlan(takeover=True), "b")
    if wake_at == "while the other runs":
        lab.started(second, reports=3)
    else:
        second.must_finish()
    there = set(lab.committed_keys())
    wake(lab, sleepers)
    assert first.wait() == 1, first.output
    assert "FencedError" in first.output, first.output
    assert f"taken over by pid {second.pid} on {socket.gethostname()}" in first.output
    assert "fit() has returned" not in first.output
    second.must_finish()
    lab.check_no_process_left()
    if wake_at == "when the other has finished":
        assert there <= set(lab.committed_keys())
    lab.on("b")
    assert epochs(lab) == [1, 2]
    history = lab.stored_history()
    assert history[: len(before)] == before
    writers = [header.by.epoch for header in all_parts(lab)]
    assert writers == sorted(writers), "a part of the old driver came after the take-over"
    forget_void(lab)
    lab.check_finished(plan)
    lab.check_stored(late_uploads=True)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["its first", "a later one"])
def test_a_result_file_that_arrives_after_a_take_over_replaces_nothing(
    proxied: tuple[RemoteLab, FaultProxy], which: str
) -> None:
    """The driver had looked at the fence and sent the file; the network delivers it when its successor has finished."""
    lab, proxy = proxied
    hold, late = lab.folder / "hold", threading.Event()
    hold.touch()
    plan = RemotePlan(trials=2, steps=60, every=2, pause_s=0.05, hold=str(hold), hold_at=4, sync_period=0.2)
    if which == "its first":
        rule = proxy.rule(Hold(late), method="PUT", path=RESULTS, times=1)
    first = lab.start(plan)
    known_to_the_store(lab, first)
    if which == "a later one":
        until(lambda: first.ended or len(uploaded(lab)) == plan.trials, lambda: first.output)
        rule = proxy.rule(Hold(late), method="PUT", path=RESULTS, times=1)
        hold.unlink()
    until(lambda: first.ended or rule.hits == 1, lambda: first.output)
    sleepers = [process.pid for process in lab.processes()]
    for pid in sleepers:
        kill(pid, signal.SIGSTOP)
    hold.unlink(missing_ok=True)
    lab.start(RemotePlan(takeover=True), "b").must_finish()
    late.set()
    wake(lab, sleepers)
    assert first.wait() == 1, first.output
    assert "FencedError" in first.output, first.output
    lab.on("b")
    forget_void(lab)
    lab.check_finished(plan)
    lab.check_stored(late_uploads=True)


def forget_void(lab: RemoteLab) -> None:
    """Reports that a fenced driver acknowledged and could not ship are lost, as it said."""
    tokens = {event.metrics["token"].encode() for event in lab.stored_history() if isinstance(event, ev.Reported)}
    lines = lab.side.read_bytes().splitlines(keepends=True)
    lab.side.write_bytes(b"".join(line for line in lines if any(token in line for token in tokens)))


@pytest.mark.slow
def test_a_mirror_whose_tail_was_never_shipped_is_set_aside(lab: RemoteLab) -> None:
    """Taken over while it slept, killed, and then restored on the machine that slept: the store's history counts."""
    plan = RemotePlan(trials=2, steps=40, every=2, pause_s=0.06)
    stop_in_the_middle(lab, plan)
    tail = [payload for _, payload in read_journal(lab.mirror("a"))]
    lab.kill_all()
    second = lab.start(RemotePlan(takeover=True), "b")
    lab.started(second, reports=4)
    second.kill()
    lab.check_no_process_left()
    stored = lab.stored_history()
    third = lab.start(RemotePlan(), "a")
    third.must_finish()
    assert lab.history()[: len(stored)] == stored
    forget_void(lab)
    lab.check_finished(plan)
    lab.check_stored()
    aside = list(lab.mirror("a").glob(".holdfast.superseded-*"))
    shipped_everything = [ev.decode(payload) for payload in tail] == stored[: len(tail)]
    assert bool(aside) != shipped_everything
    if aside:
        assert "set aside" in third.output


@pytest.mark.slow
def test_a_take_over_of_a_living_driver_ends_it(lab: RemoteLab) -> None:
    hold = lab.folder / "hold"
    hold.touch()
    plan = held(lab, hold_at=3)
    first = lab.start(plan)
    lab.started(first, reports=4)
    second = lab.start(RemotePlan(takeover=True), "b")
    until(lambda: lab.last_epoch() == 2 or second.ended, lambda: second.output)
    hold.unlink()
    assert first.wait() == 1, first.output
    assert f"taken over by pid {second.pid}" in first.output
    second.must_finish()
    lab.check_no_process_left()
    forget_void(lab)
    lab.check_finished(plan)
    lab.check_stored()


@pytest.mark.slow
@pytest.mark.parametrize(("places", "takeover"), [("aaaa", True), ("bcde", False), ("bcde", True)])
def test_of_four_simultaneous_restores_exactly_one_proceeds(lab: RemoteLab, places: str, takeover: bool) -> None:
    gate, hold = lab.folder / "gate", lab.folder / "hold"
    lab.run(msgspec.structs.replace(PLAN, hold=str(hold)), HOLDFAST_CRASH="L5.after:3")
    lab.check_no_process_left()
    before = epochs(lab)  # of another machine, also the very first records may be lost
    hold.touch()  # nobody finishes before all have tried
    plan = RemotePlan(gate=str(gate), takeover=takeover)
    drivers = [lab.start(plan, machine) for machine in places]
    until(lambda: all("ready" in driver.output for driver in drivers), "not everybody gets ready")
    gate.touch()
    until(lambda: sum(driver.ended for driver in drivers) == 3, lambda: "".join(driver.output for driver in drivers))
    hold.unlink()
    codes = [driver.wait() for driver in drivers]
    story = "\n".join(driver.output for driver in drivers)
    assert sorted(codes) == [0, 1, 1, 1], story
    winner = drivers[codes.index(0)]
    for driver in drivers:
        assert driver is winner or "ExperimentLockedError" in driver.output or "FencedError" in driver.output, story
    lab.on(places[drivers.index(winner)])
    lab.check_no_process_left()
    if takeover or "a" not in places:  # a claim that was overtaken may have acknowledged, and lost, a few
        forget_void(lab)
    lab.check_finished(PLAN, tidy=not takeover)
    lab.check_stored()
    if not takeover:
        assert epochs(lab) == [*before, 2]


@pytest.mark.slow
def test_of_two_machines_that_begin_the_same_experiment_one_does(lab: RemoteLab) -> None:
    """And what it has begun is what is stored: a third machine continues with the same seed, names and code."""
    gate, hold = lab.folder / "gate", lab.folder / "hold"
    hold.touch()  # nobody finishes before both have tried
    plan = RemotePlan(trials=2, steps=6, every=2, seed=None, gate=str(gate), hold=str(hold), hold_at=3)
    drivers = [lab.start(plan, machine) for machine in ("a", "b")]
    until(lambda: all(driver.ended or "ready" in driver.output for driver in drivers), "not everybody gets ready")
    gate.touch()
    until(lambda: any(driver.ended for driver in drivers), lambda: "".join(driver.output for driver in drivers))
    hold.unlink()
    codes = [driver.wait() for driver in drivers]
    story = "\n".join(driver.output for driver in drivers)
    assert sorted(codes) == [0, 1], story
    loser = drivers[codes.index(1)]
    assert "Experiment" in loser.output.splitlines()[-1], story
    machine = "ab"[codes.index(0)]
    lab.on(machine)
    lab.check_finished(plan)
    lab.check_stored()
    spec = (lab.mirror(machine) / ".holdfast" / "spec.json").read_bytes()
    assert lab.store.get(".holdfast/spec.json") == spec
    for name in ("settings.pkl", "trainable.pkl", "values.pkl"):
        mine = (lab.mirror(machine) / ".holdfast" / "objects" / name).read_bytes()
        assert lab.store.get(f".holdfast/objects/{name}") == mine


@pytest.mark.slow
def test_a_tuner_whose_place_another_one_has_taken_is_refused(lab: RemoteLab) -> None:
    """Made on one machine and not run; made on a second one, which replaces it; then the first one is run."""
    gate, other = lab.folder / "gate", lab.folder / "other-gate"
    first = lab.start(RemotePlan(trials=2, steps=4, every=2, seed=1, gate=str(gate)), "a")
    until(lambda: "ready" in first.output, lambda: first.output)
    # It must not be restored, but made anew, as by a second run of the same script.
    second = lab.start(RemotePlan(trials=2, steps=4, every=2, seed=2, gate=str(other), anew=True), "b")
    until(lambda: "ready" in second.output, lambda: second.output)
    gate.touch()
    assert first.wait() == 1, first.output
    assert "ExperimentExistsError" in first.output
    other.touch()
    second.must_finish()
    lab.check_stored()
