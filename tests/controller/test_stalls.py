"""When the silence of a trial counts as a stall."""

from __future__ import annotations

from holdfast.controller.stop_rule import UserStopRule
from holdfast.controller.watches import Watches
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.stopper import NoopStopper


def running() -> State:
    """A trial runs its first attempt."""
    state = State()
    for event in (
        ev.EpochStarted(0.0, 1, "driver", "host", 1),
        ev.TrialCreated(0.0, 0, "t0", {}, "", (), None, None),
        ev.TrialStarted(0.0, 0, 1, 0, None),
    ):
        apply(state, event, Retention())
    return state


def test_the_time_in_which_an_attempt_waits_for_a_machine_is_no_silence() -> None:
    """Its machine was lost before it had begun, and the next one comes after minutes."""
    waiting = True
    stop = UserStopRule(NoopStopper(), None)
    watches = Watches(stop, stall_timeout_s=30.0, is_waiting=lambda n, attempt: waiting and (n, attempt) == (0, 1))
    state, memory = running(), DriverMemory()
    watches.heard(0, 0.0)
    seconds = iter(range(1, 1000))
    for _ in range(300):
        assert watches.look(state, memory, float(next(seconds))) == []
    waiting = False
    for _ in range(30):
        assert watches.look(state, memory, float(next(seconds))) == []
    assert watches.look(state, memory, float(next(seconds))) == [ob.StalledAttempt(0, 1, 31.0)]
