"""The user's callbacks and loggers, called by the loop after their events were journaled.

Owns which hook an event calls, the hook's arguments, and the state of callbacks between drivers. A result is built when
its report is applied, because later events of the same turn change the trial, and is kept with its event until the hook
is called. Must never hold back a fact: an exception in a hook ends the run, or becomes a fact of the next turn.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.callbacks.callback import Callback, CallbackList
from holdfast.callbacks.journal_follower import JournalFollower
from holdfast.callbacks.loggers import FileLogger
from holdfast.controller.spec import read_callback_states, write_callback_states
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State, Status
from holdfast.errors import ObjectDamagedError
from holdfast.storage.layout import Root
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, TrialList, TrialView, checkpoint_at, trial_dirname

logger = logging.getLogger("holdfast")


class CallbackEdge:
    """Calls the callbacks of one run.

    Args:
        callbacks: Who is called.
        state: The experiment.
        info: Its plain facts.
        results: Makes full results.
        trials: What hooks get as ``trials``.

    Attributes:
        answers_wait: Whether somebody else than our own loggers listens, who may want a say in the answer to a report.
        wants_results: Whether anybody wants results; if not, none need be made and no report be told.
    """

    def __init__(
        self,
        callbacks: CallbackList,
        state: State,
        info: ExperimentInfo,
        results: ResultBuilder,
        trials: TrialList,
    ) -> None:
        self._callbacks = callbacks
        self._state = state
        self._info = info
        self._results = results
        self._trials = trials
        self.answers_wait = not all(map(_only_writes, callbacks.callbacks))
        self.wants_results = callbacks.wants("on_trial_result")
        self._followers = [each for each in callbacks.callbacks if isinstance(each, JournalFollower)]
        self._steps = callbacks.wants("on_step_begin") or callbacks.wants("on_step_end")
        self._views: dict[int, TrialView] = {}  # of running trials, because they are shown with every result
        # Results of reports that are not told yet, by the identity of the event: equal reports are different ones.
        self._made: dict[int, dict[str, Any]] = {}
        self._newest: dict[str, Any] | None = None  # of these, in this turn
        self._save: set[int] = set()
        self._started: set[int] = set()
        self._ended: dict[int, str] = {}  # trials whose end is not told yet, and the hook for it
        self._complaints: list[ob.Observation] = []
        self._iteration = 0
        self._end_told = False

    # --- turns

    def before_turn(self) -> None:
        """A turn begins."""
        self._newest = None
        if self._steps:
            self._callbacks.call("on_step_begin", iteration=self._iteration, trials=self._trials)

    def make_result(self, event: ev.Reported) -> None:
        """Make the result of a report that was just applied, before later events of the turn are."""
        result = self._results.last(self._state, self._state.trials[event.n])
        self._made[id(event)] = self._newest = result

    def add_checkpoint(self, event: ev.CheckpointStaged) -> None:
        """A checkpoint was just staged; if it came with the newest report, its result says so."""
        newest = self._newest
        if newest is not None and newest["trial_id"] == self._state.trials[event.n].id:
            self._results.add_checkpoint(newest, event.index)

    def after_turn(self) -> None:
        """Everything of this turn was told."""
        if self._steps:
            self._callbacks.call("on_step_end", iteration=self._iteration, trials=self._trials)
        self._iteration += 1

    def take_complaints(self) -> list[ob.Observation]:
        """Exceptions of hooks that must become fact."""
        complaints, self._complaints = self._complaints, []
        return complaints

    def wants_save(self, n: int) -> bool:
        """Whether a callback asked for a checkpoint after the trial's last result; asked once per answer."""
        if n in self._save:
            self._save.discard(n)
            return True
        return False

    # --- events

    def reported(self, event: ev.Reported) -> None:
        """A report counts; its result was made."""
        result = self._made.pop(id(event))
        before = result.get("should_checkpoint")
        trial = self._view(event.n)
        self._callbacks.on_trial_result(iteration=self._iteration, trials=self._trials, trial=trial, result=result)
        if result.get("should_checkpoint") and not before:
            self._save.add(event.n)

    def started(self, event: ev.TrialStarted) -> None:
        """A trial runs."""
        self._started.add(event.n)
        self._call("on_trial_start", event.n)
        if event.source is not None:
            self._call("on_trial_restore", event.n)

    def committed(self, event: ev.CheckpointCommitted) -> None:
        """A checkpoint exists."""
        if self._callbacks.wants("on_checkpoint"):
            record = self._state.trials[event.n]
            checkpoint = checkpoint_at(self._info, trial_dirname(self._info, record), event.index, event.digest)
            self._call("on_checkpoint", event.n, checkpoint=checkpoint)
        self._call("on_trial_save", event.n)

    def attempt_failed(self, event: ev.AttemptFailed) -> None:
        """An attempt has failed, and the trial is tried again."""
        self._call("on_trial_recover", event.n)

    def trial_errored(self, event: ev.TrialErrored) -> None:
        """A trial has ended with a failure; told when it is due."""
        self._ended[event.n] = "on_trial_error"

    def trial_terminated(self, event: ev.TrialTerminated) -> None:
        """A trial has ended; told when it is due."""
        self._ended[event.n] = "on_trial_complete"

    def due_ends(self) -> list[int]:
        """Ended trials whose checkpoints are all committed: loggers close what they have open when told of an end."""
        return [n for n in self._ended if not self._state.trials[n].staging]

    def has_started(self, n: int) -> bool:
        """Whether the trial was started by this driver, so that its files are up to date."""
        return n in self._started

    def tell_end(self, n: int) -> None:
        """Tell of the end of a trial that is due."""
        hook = self._ended.pop(n)
        self._views.pop(n, None)
        try:
            self._call(hook, n)
        except Exception as error:
            if hook != "on_trial_complete":
                raise
            facts = ev.ErrorFacts(type(error).__name__, str(error), "", "".join(traceback.format_exception(error)))
            self._complaints.append(ob.CallbackRaised(n, facts))

    def _call(self, hook: str, n: int, **more: Any) -> None:
        if self._callbacks.wants(hook):
            trial = self._view(n)
            self._callbacks.call(hook, iteration=self._iteration, trials=self._trials, trial=trial, **more)

    def _view(self, n: int) -> TrialView:
        """The trial as callbacks see it."""
        view = self._views.get(n)
        if view is None:
            view = self._trials[n]
            if view.status == Status.RUNNING:
                self._views[n] = view
        return view

    # --- coming and going

    def setup(self) -> None:
        """The run begins."""
        info = self._info
        if self._callbacks.wants("setup"):
            self._callbacks.call(
                "setup", stop=info.stop, num_samples=info.num_samples, total_num_samples=info.total_samples
            )

    def tell_experiment_end(self) -> None:
        """Once, whether the run ends well or not."""
        told, self._end_told = self._end_told, True
        if not told and self._callbacks.wants("on_experiment_end"):
            self._callbacks.call("on_experiment_end", trials=self._trials)

    def start_followers(self, warn: Callable[[str], None]) -> None:
        """Let those begin that read the journal by themselves; ``warn`` may be called from any thread."""
        for follower in self._followers:
            follower.follow(self._info, warn)

    def finish_followers(self, is_hurried: Callable[[], bool]) -> list[str]:
        """The journal is complete: wait for them a bounded time; returns what they have not shown."""
        for follower in self._followers:
            follower.complete()
        return [missing for follower in self._followers if (missing := follower.leave(is_hurried))]

    def end_followers(self) -> None:
        """Whatever happened: nothing of them is left."""
        for follower in self._followers:
            follower.abandon()

    def load_states(self, root: Root) -> str:
        """Give callbacks their memory back; returns what the user should know if that cannot be."""
        if not root.callback_states_file.exists():
            return ""
        try:
            self._callbacks.set_state(read_callback_states(root))
        except ObjectDamagedError as error:
            return f"callbacks start without their stored state: {error.path} is damaged: {error.reason}"
        except Exception as error:
            logger.warning("the callbacks' stored states cannot be used (%s: %s)", type(error).__name__, error)
        return ""

    def store_states(self, root: Root) -> str:
        """Store what stateful callbacks remember; returns what the user should know if that cannot be."""
        states = self._callbacks.get_state()
        if not states:
            return ""
        try:
            write_callback_states(root, states)
        except Exception as error:  # a full disk, or a state that does not pickle: no reason to end an experiment
            return f"the states of callbacks could not be stored ({type(error).__name__}: {error})"
        return ""


def _only_writes(callback: Callback) -> bool:
    """Whether this is one of our own, which write down what they are told, or read, and change nothing."""
    if isinstance(callback, JournalFollower):
        return type(callback).__module__.startswith("holdfast.integration.")
    return isinstance(callback, FileLogger) and type(callback).__module__.startswith("holdfast.callbacks.")
