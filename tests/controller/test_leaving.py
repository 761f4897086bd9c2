"""Signals and grace: what a second request to end does, and to whom."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.controller import signals
from holdfast.controller.signals import watch_signals
from holdfast.controller.stop_rule import UserStopRule
from holdfast.controller.watches import LOOK_EVERY_S, Watches
from holdfast.core import observations as ob
from holdfast.core.state import DriverMemory, State
from holdfast.stopper import NoopStopper


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_twice_at_once_is_one(told: list[str], number: int) -> None:
    """A supervisor signals the group, and its wrapper passes the signal on: trials must keep their grace."""
    with watch_signals(told.append, lambda: told.append("insists")):
        for _ in range(3):
            os.kill(os.getpid(), number)
    assert told == [signal.Signals(number).name]


def test_a_second_signal_after_a_while_insists(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ECHO_S", -1.0)
    with watch_signals(told.append, lambda: told.append("insists")):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert told == ["SIGTERM", "insists", "SIGTERM"], "Ctrl+C makes the loop leave at once"


def test_whoever_insists_ends_the_wait_for_storage_and_not_the_grace_of_trials() -> None:
    watches = Watches(UserStopRule(NoopStopper(), None), grace_s=100.0)
    state, memory = State(), DriverMemory()
    watches.end("SIGTERM")
    assert watches.look(state, memory, 0.0) == [ob.Interrupted("SIGTERM")]
    memory.draining = "SIGTERM"
    state.running[0] = None
    watches.insist()
    assert watches.look(state, memory, 1.0) == []
    del state.running[0]
    assert watches.look(state, memory, 1.0 + LOOK_EVERY_S) == [ob.GraceOver()]
    assert watches.why_leave(2.0) == "this driver is shutting down (SIGTERM)"


def test_without_insistence_storage_is_waited_for_until_the_grace_is_over() -> None:
    watches = Watches(UserStopRule(NoopStopper(), None), grace_s=100.0)
    assert watches.why_leave(0.0) == ""
    watches.end("SIGINT")
    assert watches.why_leave(1.0) == ""
    assert watches.why_leave(101.0) == "this driver is shutting down (SIGINT)"


def test_grace_counts_from_the_signal_though_the_loop_was_waiting_for_its_storage() -> None:
    watches = Watches(UserStopRule(NoopStopper(), None), grace_s=100.0)
    watches.end("SIGINT", 10.0)
    assert watches.why_leave(109.0) == ""
    assert watches.why_leave(110.0) == "this driver is shutting down (SIGINT)"


def test_free_space_is_measured_at_once_and_then_now_and_then() -> None:
    found = iter([100, None, 50])
    watches = Watches(UserStopRule(NoopStopper(), None), free_space=lambda: next(found))
    seen = [watches.look(State(), DriverMemory(), 1000.0 + at) for at in (0.0, 1.0, 5.1, 5.5, 10.3)]
    assert seen == [[ob.FreeSpace(100)], [], [], [], [ob.FreeSpace(50)]]
