"""Tells the outside what became fact: callbacks, result files, error files, the display.

Everything here is a projection of the journal: losing it loses nothing, and opening the experiment repairs it.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from holdfast.callbacks.callback import Callback, CallbackList
from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles, FileLogger
from holdfast.callbacks.policy_log import PolicyLog
from holdfast.callbacks.progress import Display, ExperimentFacts, Outcome, RunSummary
from holdfast.callbacks.rows import ResultBuilder
from holdfast.callbacks.trial_view import ExperimentInfo, TrialList, TrialView, checkpoint_at, trial_dirname
from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.clock import Clock
from holdfast.controller.file_sync import files_since
from holdfast.controller.loop import JournalWriter
from holdfast.controller.past import Past
from holdfast.controller.spec import Root, read_pickle, write_callback_states
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State, Status
from holdfast.errors import FencedError
from holdfast.journal.epoch import holder
from holdfast.journal.reader import read_journal

logger = logging.getLogger("holdfast")

FLUSH_S = 60.0


class Notifier:
    """Calls callbacks and feeds the display, after each batch of events was journaled."""

    def __init__(
        self,
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
    ) -> None:
        self._state = state
        self._info = info
        self._clock = clock
        self._journal = journal
        self._root = root
        self._results = results
        self._history = history
        self._stop = stop
        self._writer = FileWriter(is_void=is_fenced)
        self._callbacks = CallbackList(callbacks, self._writer)
        self._loggers = [callback for callback in callbacks if isinstance(callback, FileLogger)]
        self.answers_wait = not all(map(_only_writes, callbacks))
        self._error_files = ErrorFiles(self._writer)
        self._policies = PolicyLog(info.root, self._writer) if logs_policies else None
        self._display = display
        self._facts = facts
        self._trials = TrialList(state, info, results)
        self._views: dict[int, TrialView] = {}
        self._seen: set[int] = set()  # trials that this driver has started: their files are up to date
        self._needs_results = self._callbacks.wants("on_trial_result")
        self._steps = self._callbacks.wants("on_step_begin") or self._callbacks.wants("on_step_end")
        self._pending: list[dict[str, Any]] = []  # results of reports that are not yet told
        self._save: set[int] = set()
        self._ended: dict[int, str] = {}  # trials whose end is not told yet, and the hook for it
        self._iteration = 0
        self._trouble = ""
        self._lag_since: float | None = None
        self.exceptions: dict[int, bytes] = {}
        self.failure: tuple[int, bytes] | None = None
        self.complaints: list[ob.Observation] = []
        self._end_told = False
        self._late: set[str] = set()  # files of callbacks that do not say what they write

    # --- what the loop calls

    def before_turn(self) -> None:
        if self._steps:
            self._callbacks.call("on_step_begin", iteration=self._iteration, trials=self._trials)

    def watch(self, event: ev.AnyEvent) -> None:
        """Keep what only this moment knows: the full result of a report, before later events of the batch."""
        kind = type(event)
        if kind is ev.Reported:
            if self._needs_results:
                self._pending.append(self._results.last(self._state, self._state.trials[event.n]))  # type: ignore[union-attr]
        elif kind is ev.CheckpointStaged:
            if self._pending and self._pending[-1]["trial_id"] == self._state.trials[event.n].id:  # type: ignore[union-attr]
                self._results.add_checkpoint(self._pending[-1], event.index)  # type: ignore[union-attr]
        elif kind is ev.TrialStarted:
            self._stop.rewind(self._state.trials[event.n])  # type: ignore[union-attr]
        elif self._policies is not None:
            self._policies.watch(self._state, event)

    def see(self, observations: Iterable[ob.Observation]) -> None:
        """Keep pickled exceptions: they are for error files and ``fail_fast="raise"``, never for the journal."""
        for observation in observations:
            if type(observation) is ob.Raised and observation.pickled:
                self.exceptions[observation.n] = observation.pickled

    def after_turn(self, events: list[ev.AnyEvent]) -> None:
        results = iter(self._pending)
        self._pending = []
        feed = self._display.feed
        for event in events:
            feed(event)
            tell = _TELL.get(type(event))
            if tell is not None:
                tell(self, event, results)
        if self._policies is not None:
            self._policies.write()
        if self._ended:
            self._tell_ends()
        if self._steps:
            self._callbacks.call("on_step_end", iteration=self._iteration, trials=self._trials)
        self._iteration += 1
        now = self._clock.now()
        self._display.update(self._state, self._facts, now, self._lag(now))

    def take_complaints(self) -> list[ob.Observation]:
        complaints, self.complaints = self.complaints, []
        return complaints

    def wants_save(self, n: int) -> bool:
        if n in self._save:
            self._save.discard(n)
            return True
        return False

    def trouble(self, text: str) -> None:
        if text and text != self._trouble:
            self._display.note(text)
            logger.debug("%s", text)
        self._trouble = text

    def warn(self, text: str) -> None:
        """Something that the user should act on."""
        self._display.note(text)

    def _lag(self, now: float) -> float:
        """Seconds since the oldest record that would not survive a power cut was written."""
        if self._journal.synced_seq >= self._journal.written_seq:
            self._lag_since = None
            return 0.0
        if self._lag_since is None:
            self._lag_since = now
        return now - self._lag_since

    # --- events

    def _view(self, n: int) -> TrialView:
        """The trial as callbacks see it; kept while it runs, because it is shown with every result."""
        view = self._views.get(n)
        if view is None:
            view = self._trials[n]
            if view.status == Status.RUNNING:
                self._views[n] = view
        return view

    def _reported(self, event: ev.Reported, results: Any) -> None:
        if not self._needs_results:
            return
        result = next(results)
        before = result.get("should_checkpoint")
        trial = self._view(event.n)
        self._callbacks.on_trial_result(iteration=self._iteration, trials=self._trials, trial=trial, result=result)
        if result.get("should_checkpoint") and not before:
            self._save.add(event.n)

    def _tell(self, hook: str, n: int, **more: Any) -> None:
        if self._callbacks.wants(hook):
            trial = self._view(n)
            self._callbacks.call(hook, iteration=self._iteration, trials=self._trials, trial=trial, **more)

    def _started(self, event: ev.TrialStarted, _: Any) -> None:
        self._seen.add(event.n)
        self._tell("on_trial_start", event.n)
        if event.source is not None:
            self._tell("on_trial_restore", event.n)

    def _committed(self, event: ev.CheckpointCommitted, _: Any) -> None:
        if self._callbacks.wants("on_checkpoint"):
            record = self._state.trials[event.n]
            checkpoint = checkpoint_at(self._info, trial_dirname(self._info, record), event.index)
            self._tell("on_checkpoint", event.n, checkpoint=checkpoint)
        self._tell("on_trial_save", event.n)

    def _failed(self, event: ev.AttemptFailed, _: Any) -> None:
        self._error_files.failed(self._view(event.n), event.at, event.error, self.exceptions.pop(event.n, b""))
        self._tell("on_trial_recover", event.n)

    def _errored(self, event: ev.TrialErrored, _: Any) -> None:
        trial = self._view(event.n)
        pickled = self.exceptions.pop(event.n, b"")
        self.failure = self.failure or (event.n, pickled)
        self._error_files.failed(trial, event.at, event.error, pickled)
        self._ended[event.n] = "on_trial_error"

    def _terminated(self, event: ev.TrialTerminated, _: Any) -> None:
        self._ended[event.n] = "on_trial_complete"

    def _tell_ends(self) -> None:
        """Tell of ended trials whose checkpoints are all committed: loggers close what they have open at the end."""
        due = [n for n in self._ended if not self._state.trials[n].staging]
        never_started = [n for n in due if n not in self._seen]
        if never_started:  # they ended at opening, and have rows that a killed driver may not have written
            self._repair_files(never_started)
        for n in due:
            hook = self._ended.pop(n)
            self._views.pop(n, None)
            try:
                self._tell(hook, n)
            except Exception as error:
                if hook != "on_trial_complete":
                    raise
                facts = ev.ErrorFacts(type(error).__name__, str(error), "", "".join(traceback.format_exception(error)))
                self.complaints.append(ob.CallbackRaised(n, facts))

    def _rejected(self, event: ev.CheckpointRejected, _: Any) -> None:
        trial = self._view(event.n)
        name = checkpoint_name(event.index)
        self._display.note(f"{trial}: {name} cannot be used ({event.reason}); an older one is used if there is one")

    def _interrupted(self, event: ev.AttemptInterrupted, _: Any) -> None:
        if event.cause == ev.Cause.STORAGE:
            trial = self._view(event.n)
            self._display.note(f"{trial}: no space left ({event.detail}); it is tried again and not counted as failed")

    def _noted(self, event: ev.Noted, _: Any) -> None:
        self._display.note(event.text if event.n < 0 else f"{self._view(event.n)}: {event.text}")

    # --- coming and going

    def start(self) -> None:
        """Before the first turn: callbacks get their memory back, files the rows that a crash kept from them."""
        if self._root.callback_states_file.exists():
            self._restore_states()
        info = self._info
        if self._callbacks.wants("setup"):
            self._callbacks.call(
                "setup", stop=info.stop, num_samples=info.num_samples, total_num_samples=info.total_samples
            )
        self._repair_files(self._state.touched)
        if self._policies is not None and self._policies.is_needed(self._state):
            self._policies.repair(ev.decode(payload) for _, payload in read_journal(self._root.path))
        self._display.start(self._facts)

    def _repair_files(self, numbers: Iterable[int]) -> None:
        """Give files of finished trials the rows and failures that they lack; the journal is read once for all."""
        trials = [self._trials[n] for n in sorted(numbers)]
        finished = [trial for trial in trials if trial.is_finished() and trial.record.rows]
        behind: set[int] = set()

        def nothing_yet(n: int) -> Iterable[dict[str, Any]]:
            behind.add(n)
            return ()

        self._sync_files(finished, nothing_yet)
        if behind:
            rows = self._history.rows_of(behind)
            self._sync_files([trial for trial in finished if trial.record.n in behind], rows.__getitem__)
        failed = [trial for trial in trials if trial.num_failures]
        failures = cache(lambda: self._history.failures_of({trial.record.n for trial in failed}))
        for trial in failed:
            self._error_files.sync(trial, partial(lambda n: failures()[n], trial.record.n))

    def _sync_files(self, trials: list[TrialView], load: Callable[[int], Iterable[dict[str, Any]]]) -> None:
        for trial in trials:
            for file_logger in self._loggers:
                file_logger.sync_rows(trial, trial.record.rows, partial(load, trial.record.n))

    def _restore_states(self) -> None:
        try:
            self._callbacks.set_state(read_pickle(self._root.callback_states_file))
        except Exception as error:
            logger.warning("the callbacks' stored states cannot be used (%s: %s)", type(error).__name__, error)

    def keep_states(self) -> None:
        """Store what stateful callbacks remember; with snapshots and at the end."""
        states = self._callbacks.get_state()
        if not states:
            return
        try:
            write_callback_states(self._root, states)
        except Exception as error:  # a full disk, or a state that does not pickle: no reason to end an experiment
            self.warn(f"the states of callbacks could not be stored ({type(error).__name__}: {error})")

    def take_written(self) -> set[str]:
        """Paths of the result files that were written since the last call. May be called from any thread."""
        late, self._late = self._late, set()
        return self._writer.take_written() | late

    def flush_files(self) -> bool:
        """Whether every row told so far is in its file. May be called from any thread."""
        return self._writer.flush(FLUSH_S)

    def last_words(self) -> None:
        """After the last fact, and before the home is asked whether it has everything: callbacks may write files now.

        Trials have ended, so what is new in the experiment's directory was written by callbacks.
        """
        began = time.time()
        self._tell_end()
        self.keep_states()
        if self.answers_wait and self._root.remote is not None:
            self._late.update(files_since(self._root.path, began))
        self.flush_files()

    def _tell_end(self) -> None:
        """Once, whether the run ends well or not."""
        told, self._end_told = self._end_told, True
        if not told and self._callbacks.wants("on_experiment_end"):
            self._callbacks.call("on_experiment_end", trials=self._trials)

    def finish(self, interrupted: str) -> None:
        """Everything is where it belongs."""
        if not self.flush_files():
            self._display.note(
                f"result files could not be written ({self._writer.trouble}); the journal has every row, "
                "and the next restore writes them"
            )
        outcome = Outcome.INTERRUPTED if interrupted else Outcome.FINISHED
        self._display.end(
            self._state, self._facts, RunSummary(at=self._clock.now(), outcome=outcome, reason=interrupted)
        )

    def failed(self, error: BaseException) -> None:
        """The run ends with an exception: say what is safe and how to go on."""
        outcome, reason = Outcome.FAILED, f"{type(error).__name__}: {error}"
        if isinstance(error, FencedError):
            outcome, reason = Outcome.TAKEN_OVER, self._successor()
        try:
            self._tell_end()
            if not isinstance(error, FencedError):  # the newer driver's states are there now
                self.keep_states()
        except Exception:
            logger.exception("a callback failed while the run was being ended, after that had failed already")
        self._display.end(self._state, self._facts, RunSummary(at=self._clock.now(), outcome=outcome, reason=reason))

    def _successor(self) -> str:
        """Who has the experiment now."""
        try:
            now = holder(self._root.path)
        except Exception:  # storage in trouble must not hide why this driver ends
            now = None
        return "another driver" if now is None else f"pid {now.claim.pid} on {now.claim.host}"

    def close(self) -> None:
        """Whatever happened: give the terminal back and stop the writing."""
        self._display.close()
        self._writer.close()


def _only_writes(callback: Callback) -> bool:
    """Whether this is one of our own loggers, which write down what they are told and change nothing."""
    return isinstance(callback, FileLogger) and type(callback).__module__.startswith("holdfast.callbacks.")


_TELL: dict[type, Any] = {
    ev.Reported: Notifier._reported,
    ev.TrialStarted: Notifier._started,
    ev.CheckpointCommitted: Notifier._committed,
    ev.AttemptFailed: Notifier._failed,
    ev.TrialErrored: Notifier._errored,
    ev.TrialTerminated: Notifier._terminated,
    ev.CheckpointRejected: Notifier._rejected,
    ev.AttemptInterrupted: Notifier._interrupted,
    ev.Noted: Notifier._noted,
}
