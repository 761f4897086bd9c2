"""Carrying out what a scheduler requests for trials other than the one it judges."""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.ending import drop_released, terminate
from holdfast.core.policies import Reconfigure, Resize, Stop, Verdict
from holdfast.core.state import Status, Stored
from holdfast.core.turn import Turn

WAITING = (Status.PENDING, Status.PAUSED)


def apply_requests(turn: Turn) -> None:
    """Turn the scheduler's requests into facts, as far as they can be applied now. The others stand."""
    returning = turn.memory.returning
    for wanted in list(turn.policies.scheduler.requests(turn.state)):
        trial = turn.state.trials[wanted.n]
        waits = trial.status in WAITING
        match wanted:
            case Stop(_, why):
                if waits:
                    terminate(turn, trial, why)
            case Resize(n, request, why):
                if waits:
                    turn.add(ev.TrialResized(turn.at, n, request, why=why))
            case Reconfigure(n, config, tag, donor, parent, params, why):
                leaves = trial.status == Status.RUNNING and trial.verdict == Verdict.PAUSE and n not in returning
                if (waits or leaves) and (donor is None or _is_there(turn, donor)):
                    former = trial.origin
                    turn.add(ev.TrialReconfigured(turn.at, n, config, tag, donor, parent, params, why))
                    drop_released(turn, former)


def _is_there(turn: Turn, donor: tuple[int, int]) -> bool:
    record = turn.state.trials[donor[0]].find(donor[1])
    return record is not None and record.stored == Stored.COMMITTED
