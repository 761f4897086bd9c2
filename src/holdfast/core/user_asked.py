"""Decisions about what a user asks a live driver for: done, or refused in words. Either way it is a fact.

Must never read a request: an edge has turned it into an observation.
"""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.answers import answer, interrupt
from holdfast.core.ending import terminate
from holdfast.core.events import Action
from holdfast.core.state import DriverMemory, Status, Trial
from holdfast.core.turn import Turn
from holdfast.core.user_facts import STOPPED_BY_USER

MAX_NOTES = 200
"""Of one trial, or of the experiment."""

MAX_TAGS = 32

STOPPED_ALL = "the user stopped the experiment"
"""Why a driver ended that a user has stopped."""


def user_asked(turn: Turn, o: ob.UserAsked) -> None:
    """Follow a request, or say why not; one that was answered is not answered again."""
    state = turn.state
    if o.id in state.requests:
        return
    n = state.by_id.get(o.trial, -1) if o.trial else -1
    refused = o.refused or _why_not(turn, o)
    if refused:
        turn.add(ev.UserRequested(turn.at, n, o.id, o.action, by=o.by, refused=refused))
    elif o.action == Action.SAMPLES:
        words = f"num_samples {_count(_samples(turn))} -> {_count(o.num_samples)}"
        turn.add(
            ev.SettingsChanged(turn.at, num_samples=o.num_samples, total=o.total, words=(words,), request=o.id, by=o.by)
        )
    else:
        turn.add(ev.UserRequested(turn.at, n, o.id, o.action, o.text, o.tags, o.by))
        if o.action == Action.STOP and o.trial:
            _stop(turn, state.trials[n])
        elif o.action == Action.STOP:
            interrupt(turn, STOPPED_ALL)


def end_stopped(turn: Turn) -> None:
    """End the trials that users want to end and that do not run; those that run end with their next report."""
    for n in list(turn.state.user_stops):
        trial = turn.state.trials[n]
        if trial.status in (Status.PENDING, Status.PAUSED):
            terminate(turn, trial, STOPPED_BY_USER)


def _stop(turn: Turn, trial: Trial) -> None:
    """As a stop rule does: after the iteration in hand; with time to unwind, but not for ever."""
    memory = turn.memory
    if trial.status != Status.RUNNING:
        end_stopped(turn)
    elif trial.n in memory.owed:  # it waits for storage, and need not any more
        memory.crowded.pop(trial.n, None)
        answer(turn, trial, memory.owed.pop(trial.n))
    else:
        turn.commands.append(cmd.Halt(trial.n, trial.attempt, turn.policies.rules.unwind_grace_s))


def _why_not(turn: Turn, o: ob.UserAsked) -> str:
    """Why a request cannot be followed; "" if it can."""
    state = turn.state
    if o.trial and o.trial not in state.by_id:
        return f"there is no trial {o.trial}"
    trial = state.trials[state.by_id[o.trial]] if o.trial else None
    match o.action:
        case Action.STOP if trial is None:
            ending = turn.memory.draining
            return f"the driver is shutting down already ({ending})" if ending else ""
        case Action.STOP:
            return _why_not_stop(trial)
        case Action.SAMPLES:
            return _why_not_more(turn, o.num_samples)
        case Action.NOTE:
            full = len((trial or state).notes) >= MAX_NOTES
            return (
                f"there are {MAX_NOTES} notes already, which is the most that {_whose(trial)} can have" if full else ""
            )
        case Action.TAG:
            count = len({*(trial or state).tags, *o.tags})
            return f"it would have {count} tags, and {MAX_TAGS} is the most" if count > MAX_TAGS else ""
    return ""


def _whose(trial: Trial | None) -> str:
    return "an experiment" if trial is None else "a trial"


def _why_not_stop(trial: Trial | None) -> str:
    assert trial is not None
    if trial.final:
        why = trial.reason or trial.cause.replace("_", " ")
        return f"trial {trial.id} has ended already: {trial.status}{f' ({why})' if why else ''}"
    return f"trial {trial.id} was told to stop already, and ends with its next report" if trial.user_stop else ""


def _why_not_more(turn: Turn, wanted: int) -> str:
    """As for a restore: the number is that of the whole experiment, and may only grow."""
    state, now = turn.state, _samples(turn)
    if turn.memory.draining:
        return f"the driver is shutting down ({turn.memory.draining})"
    if state.stopping:
        return (
            f"nothing more is started, because the experiment was stopped: {state.stopping}. Restore it with another "
            "time_budget_s or stop"
        )
    if wanted == now:
        return f"num_samples is {_count(now)} already"
    if now == -1 or -1 < wanted < now:
        return (
            f"num_samples={wanted} is smaller than what this experiment has: {_count(now)}. The number is that of the "
            "whole experiment, and may only grow"
        )
    return ""


def _samples(turn: Turn) -> int:
    changed = turn.state.settings.num_samples
    return turn.policies.rules.num_samples if changed is None else changed


def _count(samples: int) -> str:
    return "no limit" if samples == -1 else f"{samples}"


def is_stopping_all(memory: DriverMemory) -> bool:
    """Whether this driver ends because a user asked for that."""
    return memory.draining == STOPPED_ALL
