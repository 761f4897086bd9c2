"""What requests of users change in the state: a fold of ``UserRequested`` events.

Owns the effect of a request. One record is the whole effect, so a crash leaves either all of it or nothing. Must never
ask whether a request can be followed: see ``user_asked``.
"""

from __future__ import annotations

from holdfast.core.changed_settings import remember_request
from holdfast.core.events import Action, UserRequested
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Trial, UserNote
from holdfast.errors import IllegalTransitionError

STOPPED_BY_USER = "stopped by the user"
"""Why a trial ended that a user has stopped."""


def user_requested(state: State, event: UserRequested, _: Retention) -> None:
    """Fold a request into the state; one that was refused is only remembered."""
    trial = None if event.n < 0 else state.trials[event.n]
    remember_request(state, event.id)
    if event.refused:
        return
    subject = state if trial is None else trial
    match event.action:
        case Action.STOP:
            if trial is not None:  # else this driver ends, which is no fact about the experiment
                _stop(state, trial)
        case Action.NOTE:
            subject.notes = (*subject.notes, UserNote(event.at, event.text, event.by))
        case Action.TAG:
            subject.tags = tuple(dict.fromkeys((*subject.tags, *event.tags)))
        case Action.UNTAG:
            subject.tags = tuple(tag for tag in subject.tags if tag not in event.tags)
        case _:
            raise IllegalTransitionError(f"a user asked for {event.action!r}, which no driver knows")


def _stop(state: State, trial: Trial) -> None:
    """It ends as soon as it can: the request stands until it has, whatever happens to drivers and attempts."""
    if trial.final:
        raise IllegalTransitionError(f"trial {trial.id} was stopped by a user when it was {trial.status}")
    trial.user_stop = True
    state.user_stops[trial.n] = None
    if trial.status == Status.RUNNING:
        trial.verdict, trial.why = "stop", STOPPED_BY_USER


def stop_is_done(state: State, trial: Trial) -> None:
    """The trial has ended: nobody waits for that any more."""
    if trial.user_stop:
        trial.user_stop = False
        state.user_stops.pop(trial.n, None)
