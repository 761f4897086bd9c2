"""Callbacks: what a user can hang on to the life of an experiment, and the list that calls them.

Owns the hooks and the order of calls. Must never decide what an exception in a hook means: that is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.run import CALLBACK_HOOKS

if TYPE_CHECKING:
    from holdfast.callbacks.file_writer import FileWriter
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.views.trials import TrialView


class Callback:
    """Base class of callbacks: override the hooks you need.

    All hooks are called by keyword, in the driver, one at a time; accept ``**info``, so that hooks may get further
    arguments. ``trials`` is a lazy sequence of all trials; ``iteration`` counts the driver's turns.

    An exception in ``setup``, ``on_step_begin``, ``on_step_end`` or ``on_trial_result`` ends the run (which can be
    restored); one in ``on_trial_complete`` turns that trial into ERROR.

    Example:
        >>> class Announce(Callback):
        ...     def on_trial_complete(self, iteration, trials, trial, **info):
        ...         print(trial, "is done")
    """

    forwards: ClassVar[Mapping[str, str]] = {}
    """Hooks of a base class that do nothing but call another method: ``{hook: method}``."""

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """The experiment is about to run.

        Args:
            stop: The user's stop criterion.
            num_samples: ``TuneConfig.num_samples``.
            total_num_samples: How many trials there will be; None if that is not known.
            **info: May grow.
        """

    def on_step_begin(self, iteration: int, trials: Sequence[TrialView], **info: Any) -> None:
        """A turn of the driver begins."""

    def on_step_end(self, iteration: int, trials: Sequence[TrialView], **info: Any) -> None:
        """A turn of the driver ends."""

    def on_trial_start(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial begins to run, for the first time or again."""

    def on_trial_restore(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial begins to run from a checkpoint; follows ``on_trial_start``."""

    def on_trial_save(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial's newest checkpoint has been committed; follows ``on_checkpoint``."""

    def on_trial_result(
        self, iteration: int, trials: Sequence[TrialView], trial: TrialView, result: dict[str, Any], **info: Any
    ) -> None:
        """The trial has reported. The result is in the journal already."""

    def on_trial_complete(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial has ended without an error."""

    def on_trial_recover(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial has failed and will be tried again."""

    def on_trial_error(self, iteration: int, trials: Sequence[TrialView], trial: TrialView, **info: Any) -> None:
        """The trial has failed for good."""

    def on_checkpoint(
        self, iteration: int, trials: Sequence[TrialView], trial: TrialView, checkpoint: Checkpoint, **info: Any
    ) -> None:
        """A checkpoint of the trial has been committed."""

    def on_experiment_end(self, trials: Sequence[TrialView], **info: Any) -> None:
        """The run is over, whatever the reason."""

    def get_state(self) -> dict[str, Any] | None:
        """What this callback must remember if the driver dies; None if nothing."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Take back what ``get_state`` returned in an earlier driver."""


class CallbackList:
    """Calls hooks on callbacks; a hook that nobody overrides costs nothing.

    Callbacks that write files see each result before all others, so that what a user's callback changes in a result
    never makes the files differ from the journal. Otherwise the order is that of the list.

    Args:
        callbacks: The callbacks, in order; their position identifies them in ``get_state``.
        writer: What callbacks that write files share; None lets each have its own.
    """

    def __init__(self, callbacks: Iterable[Callback], writer: FileWriter | None = None) -> None:
        self.callbacks = list(callbacks)
        ordered = sorted(self.callbacks, key=lambda callback: not hasattr(callback, "use_writer"))
        if writer is not None:
            for callback in self.callbacks:
                use_writer = getattr(callback, "use_writer", None)
                if use_writer is not None:
                    use_writer(writer)
        self._calls = {
            hook: [getattr(each, hook) for each in ordered if _overrides(each, hook)] for hook in CALLBACK_HOOKS
        }
        self._on_result = self._calls["on_trial_result"]

    def wants(self, hook: str) -> bool:
        """Whether any callback overrides the hook; if not, its arguments need not be made."""
        return bool(self._calls[hook])

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook on all callbacks that override it. The first exception ends the calls and is raised."""
        for function in self._calls[hook]:
            function(**arguments)

    def on_trial_result(
        self, iteration: int, trials: Sequence[TrialView], trial: TrialView, result: dict[str, Any]
    ) -> None:
        """``call("on_trial_result", ...)``, for the loop."""
        for function in self._on_result:
            function(iteration=iteration, trials=trials, trial=trial, result=result)

    def get_state(self) -> dict[int, dict[str, Any]]:
        """What callbacks want remembered, by position; empty if none does."""
        found = {}
        for index, callback in enumerate(self.callbacks):
            state = getattr(callback, "get_state", _no_state)()
            if state is not None:
                found[index] = state
        return found

    def set_state(self, states: Mapping[int, dict[str, Any]]) -> None:
        """Give back what ``get_state`` returned; positions that do not exist any more are left out."""
        for index, state in states.items():
            if index < len(self.callbacks):
                self.callbacks[index].set_state(state)


def _no_state() -> None:
    return None


def _overrides(callback: Any, hook: str) -> bool:
    """Whether calling this hook of this callback would do anything."""
    method = getattr(callback, hook, None)
    if method is None:
        return False
    function = getattr(method, "__func__", method)
    if function is getattr(Callback, hook):
        return False
    target = getattr(callback, "forwards", {}).get(hook)
    if target is None:
        return True
    for kind in type(callback).__mro__:
        # The class that says what it forwards is where both methods have their empty form.
        if "forwards" in vars(kind):
            same_hook = function is getattr(kind, hook)
            return not (same_hook and getattr(getattr(callback, target), "__func__", None) is getattr(kind, target))
    return True
