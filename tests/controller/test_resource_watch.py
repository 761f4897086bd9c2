"""What the user reads while trials wait and nothing runs."""

from __future__ import annotations

from holdfast.controller.watches import ResourceWatch
from holdfast.core.state import UNIT, DriverMemory, State, Trial


def waiting(running: int = 0, pending: int = 0) -> State:
    state = State()
    for n in range(running + pending):
        state.trials.append(Trial(n, f"t{n}", {}, "", (), None, None, "", "", 0.0))
    state.running.update(dict.fromkeys(range(running)))
    state.pending.extend(range(running, running + pending))
    return state


def warned(state: State, memory: DriverMemory, *, elsewhere: bool) -> list[str]:
    said: list[str] = []
    watch = ResourceWatch(state, memory, said.append, 60.0, elsewhere=elsewhere)
    for at in (0.0, 1.0, 59.0):
        watch.look(at)
    return said


def test_it_is_said_that_all_machines_are_lost() -> None:
    """Also if trials were given to the engine already, and wait there."""
    for running in (0, 1):
        (text,) = warned(waiting(running, 2 - running), DriverMemory(), elsewhere=True)
        assert "All machines of the cluster are lost, and 2 trials wait for one" in text


def test_nothing_is_said_before_this_machine_has_told_what_it_has() -> None:
    assert warned(waiting(pending=1), DriverMemory(), elsewhere=False) == []


def test_it_is_said_that_no_machine_is_large_enough() -> None:
    memory = DriverMemory()
    memory.capacity = {"CPU": UNIT // 2}
    (text,) = warned(waiting(pending=1), memory, elsewhere=True)
    assert "Trial t0 waits for a machine: it asks for CPU 1" in text
    assert "an autoscaler is not asked" in text
    assert warned(waiting(), memory, elsewhere=True) == []
