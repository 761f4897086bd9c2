"""Pass facts to their observers: callbacks, result files, error files, the display.

Owns who gets which event, and in which order. All of them are projections of the journal: losing them loses nothing,
and opening the experiment repairs them. Must never know how one of them does its work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.callbacks import policy_log
from holdfast.callbacks.callback import Callback, CallbackList
from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles, FileLogger
from holdfast.controller.advice import Advisor
from holdfast.controller.callback_edge import CallbackEdge
from holdfast.controller.clock import Clock
from holdfast.controller.display_edge import DisplayEdge
from holdfast.controller.history_reader import Past
from holdfast.controller.loop import JournalWriter
from holdfast.controller.result_file_edge import ErrorFileEdge, ResultFileEdge
from holdfast.controller.spec import Root
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.display.display import Display, Ending, ExperimentFacts
from holdfast.errors import FencedError
from holdfast.journal.epoch import holder
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, TrialList, trial_name

logger = logging.getLogger("holdfast")


class Notifier:
    """The ``Hooks`` of a real driver.

    Args:
        state: The experiment.
        root: Where it is.
        stop: The user's stop rule, whose memory of a trial is rewound with the trial.
        callbacks: The user's callbacks, and loggers.
        files: What loggers write.
        errors: Files about failures.
        display: What the user sees.
        advisor: What the user should know about reports.
    """

    def __init__(
        self,
        state: State,
        root: Root,
        stop: UserStopRule,
        callbacks: CallbackEdge,
        files: ResultFileEdge,
        errors: ErrorFileEdge,
        display: DisplayEdge,
        advisor: Advisor,
    ) -> None:
        self._state = state
        self._root = root
        self._stop = stop
        self._callbacks = callbacks
        self._files = files
        self._errors = errors
        self._display = display
        self.advisor = advisor
        self.answers_wait = callbacks.answers_wait
        self.before_turn = callbacks.before_turn
        self.wants_save = callbacks.wants_save
        self.take_complaints = callbacks.take_complaints
        self.large = advisor.large
        self.trouble = display.trouble
        self.warn = display.warn
        self.be_told_of_end = files.be_told_of_end
        self.take_written = files.take_written
        self.flush_files = files.flush
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
            ev.BacklogFilled: (display.backlog_filled,),
        }
        if callbacks.wants_results:
            self._watch[ev.Reported] = callbacks.make_result
            self._tell[ev.Reported] = (advisor.reported, callbacks.reported)

    @property
    def failure(self) -> tuple[int, bytes] | None:
        """The first trial that ended in ERROR, and its pickled exception."""
        return self._errors.failure

    def advice(self) -> list[str]:
        """What to warn of when the run has ended; in a terminal its notes have said it."""
        return [] if self._display.in_terminal else self.advisor.texts()

    # --- what the loop calls

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
                self._errors.raised(observation)
            elif type(observation) is ob.Hint:
                self._display.hint(observation.text)

    def after_turn(self, events: list[ev.AnyEvent]) -> None:
        """Tell what has become fact."""
        feed, tell = self._display.feed, self._tell
        for event in events:
            feed(event)
            for listener in tell.get(type(event), ()):
                listener(event)
        self._files.after_events()
        self._tell_ends()
        self._callbacks.after_turn()
        self._display.update()

    def _tell_ends(self) -> None:
        due = self._callbacks.due_ends()
        if not due:
            return
        never_started = [n for n in due if not self._callbacks.has_started(n)]
        if never_started:  # they ended at opening, and have rows that a killed driver may not have written
            self._repair_files(never_started)
        for n in due:
            self._files.trial_ended(n)
            self._callbacks.tell_end(n)

    # --- coming and going

    def start(self) -> None:
        """Before the first turn: callbacks get their memory back, files the rows that a crash kept from them."""
        text = self._callbacks.load_states(self._root)
        if text:
            self.warn(text)
        self._callbacks.setup()
        self._repair_files(self._state.touched)
        self._files.repair_policies(self._state)
        self._display.start(self.advisor.metrics)

    def _repair_files(self, numbers: Iterable[int]) -> None:
        ordered = sorted(numbers)
        self._files.repair_rows(ordered)
        self._errors.repair(ordered)

    def keep_states(self) -> None:
        """Store what stateful callbacks remember; with snapshots and at the end."""
        text = self._callbacks.store_states(self._root)
        if text:
            self.warn(text)

    def last_words(self) -> None:
        """After the last fact, and before the backend is asked whether it has all: callbacks may write files now.

        Trials have ended, so what is new in the experiment's directory was written by callbacks.
        """
        began = time.time()
        self._callbacks.tell_experiment_end()
        self.keep_states()
        if self.answers_wait:
            self._files.add_written_since(began)
        self.flush_files()

    def finish(self, interrupted: str, *, failed: bool = False) -> None:
        """Everything is where it belongs; ``interrupted`` says why that is not all, ``failed`` that it is an error."""
        if not self.flush_files():
            self.warn(
                f"result files could not be written ({self._files.trouble}); the journal has every row, "
                "and the next restore writes them"
            )
        outcome = Ending.INTERRUPTED if interrupted else Ending.FINISHED
        self._display.end(Ending.FAILED if failed else outcome, interrupted)

    def failed(self, error: BaseException) -> None:
        """The run ends with an exception: say what is safe and how to continue."""
        outcome, reason = Ending.FAILED, f"{type(error).__name__}: {error}"
        if isinstance(error, FencedError):
            outcome, reason = Ending.TAKEN_OVER, self._successor()
        try:
            self._callbacks.tell_experiment_end()
            if not isinstance(error, FencedError):  # the newer driver's states are there now
                self.keep_states()
        except Exception:
            logger.exception("a callback failed while the run was being ended, after that had failed already")
        self._display.end(outcome, reason, getattr(error, "change", ""))

    def _successor(self) -> str:
        """Who has the experiment now."""
        try:
            now = holder(self._root.path)
        except Exception:  # storage in trouble must not hide why this driver ends
            now = None
        return "another driver" if now is None else now.who

    def close(self) -> None:
        """Whatever happened: give the terminal back and stop the writing."""
        self._display.close()
        self._files.close()


def make_notifier(
    state: State,
    info: ExperimentInfo,
    clock: Clock,
    journal: JournalWriter,
    *,
    root: Root,
    results: ResultBuilder,
    history: Past,
    stop: UserStopRule,
    callbacks: Sequence[Callback],
    display: Display,
    facts: ExperimentFacts,
    is_fenced: Callable[[], bool],
    logs_policies: bool = True,
    metrics: Iterable[str] = (),
    output_files: tuple[str, ...] = (),
) -> Notifier:
    """Put together what a driver tells. Everything that writes files shares one writer."""
    writer = FileWriter(is_void=is_fenced)
    trials = TrialList(state, info, results)
    loggers = [callback for callback in callbacks if isinstance(callback, FileLogger)]
    policies = policy_log.PolicyLog(info.root, writer) if logs_policies else None
    advisor = Advisor(
        state,
        trainable=info.trainable_name,
        is_class=info.is_class,
        metrics=metrics,
        name_of=lambda n: trial_name(info, state.trials[n]),
        say=display.note,
    )
    return Notifier(
        state,
        root,
        stop,
        CallbackEdge(CallbackList(callbacks, writer), state, info, results, trials),
        ResultFileEdge(writer, loggers, policies, history, trials, root, output_files),
        ErrorFileEdge(ErrorFiles(writer), trials, history),
        DisplayEdge(display, facts, state, clock, journal),
        advisor,
    )
