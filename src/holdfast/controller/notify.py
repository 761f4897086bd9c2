"""Pass facts to their observers: callbacks, result files, error files, the display.

Owns who gets which event, and in which order. All of them are projections of the journal: losing them loses nothing,
and opening the experiment repairs them. Must never know how one of them does its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from holdfast.callbacks import policy_log
from holdfast.controller.advice import Advisor
from holdfast.controller.callback_edge import CallbackEdge
from holdfast.controller.display_edge import DisplayEdge
from holdfast.controller.result_file_edge import ErrorFileEdge, ResultFileEdge
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State


class Audience(NamedTuple):
    """Who is told of a run.

    Attributes:
        callbacks: The user's callbacks, and loggers.
        files: What loggers write.
        errors: Files about failures.
        display: What the user sees.
        advisor: What the user should know about reports.
    """

    callbacks: CallbackEdge
    files: ResultFileEdge
    errors: ErrorFileEdge
    display: DisplayEdge
    advisor: Advisor

    def repair_files(self, numbers: Iterable[int]) -> None:
        """Give the files of these trials what a crash kept from them."""
        ordered = sorted(numbers)
        self.files.repair_rows(ordered)
        self.errors.repair(ordered)


class Notifier:
    """The ``Hooks`` of a real driver.

    Args:
        state: The experiment.
        stop: The user's stop rule, whose memory of a trial is rewound with the trial.
        audience: Who is told.
    """

    def __init__(self, state: State, stop: UserStopRule, audience: Audience) -> None:
        callbacks, files, errors, display, advisor = audience
        self._state = state
        self._stop = stop
        self._audience = audience
        self.answers_wait = callbacks.answers_wait
        self.before_turn = callbacks.before_turn
        self.wants_save = callbacks.wants_save
        self.take_complaints = callbacks.take_complaints
        self.large = advisor.large
        self.trouble = display.trouble
        # Who sees an event at the moment it is applied.
        self._watch: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys(policy_log.WATCHED, partial(files.watch, state)),
            ev.CheckpointStaged: callbacks.add_checkpoint,
            ev.TrialStarted: self._rewind_stop_rule,
        }
        # Who is told of an event once it is in the journal, in this order.
        self._tell: dict[type, tuple[Callable[[Any], None], ...]] = {
            ev.Reported: (advisor.reported,),
            ev.TrialStarted: (callbacks.started,),
            ev.CheckpointCommitted: (callbacks.committed,),
            ev.AttemptFailed: (errors.attempt_failed, callbacks.attempt_failed),
            ev.TrialErrored: (errors.trial_errored, callbacks.trial_errored, advisor.ended),
            ev.TrialTerminated: (callbacks.trial_terminated, advisor.ended),
            ev.CheckpointRejected: (display.rejected,),
            ev.AttemptInterrupted: (display.interrupted,),
            ev.Noted: (display.noted,),
            ev.UserRequested: (display.user_asked,),
            ev.SettingsChanged: (display.settings_changed,),
            ev.BacklogFilled: (display.backlog_filled,),
        }
        if callbacks.wants_results:
            self._watch[ev.Reported] = callbacks.make_result
            self._tell[ev.Reported] = (advisor.reported, callbacks.reported)

    def watch(self, event: ev.AnyEvent) -> None:
        """Keep what only this moment knows, before later events of the turn are applied."""
        watch = self._watch.get(type(event))
        if watch is not None:
            watch(event)

    def _rewind_stop_rule(self, event: ev.TrialStarted) -> None:
        self._stop.rewind(self._state.trials[event.n])

    def see(self, observations: Iterable[ob.Observation]) -> None:
        """Keep pickled exceptions, which never become facts, and show hints of trials."""
        for observation in observations:
            if type(observation) is ob.Raised:
                self._audience.errors.raised(observation)
            elif type(observation) is ob.Hint:
                self._audience.display.hint(observation.text)

    def after_turn(self, events: list[ev.AnyEvent]) -> None:
        """Tell what has become fact."""
        audience, tell = self._audience, self._tell
        feed = audience.display.feed
        for event in events:
            feed(event)
            for listener in tell.get(type(event), ()):
                listener(event)
        audience.files.after_events()
        self._tell_ends()
        audience.callbacks.after_turn()
        audience.display.update()

    def _tell_ends(self) -> None:
        callbacks, files = self._audience.callbacks, self._audience.files
        due = callbacks.due_ends()
        if not due:
            return
        never_started = [n for n in due if not callbacks.has_started(n)]
        if never_started:  # they ended at opening, and have rows that a killed driver may not have written
            self._audience.repair_files(never_started)
        for n in due:
            files.trial_ended(n)
            callbacks.tell_end(n)
