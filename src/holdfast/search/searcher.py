"""What every searcher that learns is: asked for configurations, told how they did.

Owns the public interface, the same as users of other tuners know, and its defaults. Must never import a library that
only some searchers need.
"""

from __future__ import annotations

import glob
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.config.arguments import KnownArguments
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.warn import warn_user
from holdfast.space.rng import seed_from
from holdfast.storage.local import write_atomic

Suggestion = dict[str, Any] | None | Literal["FINISHED"]


class Searcher(KnownArguments):
    """Suggests configurations and learns from how they did.

    All methods are called by one thread, one after the other, in an order that the journal fixes: ``suggest`` may take
    its time, trials run on meanwhile.

    Durability: after a crash the experiment's journal is told to the searcher again: the same questions and the same
    results in the same order, each result once. So a searcher that is deterministic (given its arguments and its seed)
    continues exactly; if it has ``save`` and ``restore`` (or ``get_state`` and ``set_state``), only what happened after
    its last snapshot is told again.

    Args:
        metric: What to optimise, or a list of such; None takes the experiment's.
        mode: "min" or "max", or a list of such.
        max_concurrent: Ignored; now ``ConcurrencyLimiter``, or ``TuneConfig(max_concurrent_trials=...)``.
        use_early_stopped_trials: Ignored; searchers learn from trials that a scheduler has stopped, too.
    """

    FINISHED: Literal["FINISHED"] = "FINISHED"
    """Returned by ``suggest`` when there is nothing left to try."""

    CKPT_FILE_TMPL = "searcher-state-{}.pkl"
    """Name of the file that ``save_to_dir`` writes; the braces are replaced by the session's name."""

    scheduler_class = ""
    """Name of the scheduler that carries out what its suggestions say, for those that say more than a config."""

    def __init__(
        self,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        max_concurrent: int | None = None,
        use_early_stopped_trials: bool | None = None,
    ) -> None:
        _check_objectives(metric, mode)
        older = {"max_concurrent": max_concurrent, "use_early_stopped_trials": use_early_stopped_trials}
        _hint({name: value for name, value in older.items() if value is not None})
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> Any:
        """What it optimises."""
        return self._metric

    @property
    def mode(self) -> Any:
        """In which direction."""
        return self._mode

    @property
    def trials_given(self) -> int:
        """How many trials it needs for the configurations that it was given to try first."""
        return 0

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take what the experiment says; False if the searcher cannot use it, or was made with its own.

        Args:
            metric: The experiment's metric.
            mode: "min" or "max".
            config: The search space.
            spec: ``seed``, the experiment's, and ``num_samples``.
        """
        return False

    def suggest(self, trial_id: str) -> Suggestion:
        """A configuration for this trial; None for "not now", ``FINISHED`` for "never again"."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """An intermediate result."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The trial has ended, with its last result if it has one."""
        raise NotImplementedError

    def on_pause(self, trial_id: str) -> None:
        """A scheduler paused the trial."""

    def on_unpause(self, trial_id: str) -> None:
        """The trial continues."""

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Told how many trials will be suggested before the first has ended; True if it sees to that itself."""
        return False

    # --- what is known already

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was tried elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from points that were evaluated elsewhere.")

    def add_evaluated_trials(self, trials_or_analysis: Any, metric: str | Sequence[str]) -> None:
        """Learn from another experiment.

        Args:
            trials_or_analysis: Its path or URL, a ``ResultGrid``, an ``ExperimentAnalysis``, or a list of trials.
            metric: What was optimised there; several for a searcher with several objectives.
        """
        from holdfast.search.warm_start import evaluated_points

        points = list(evaluated_points(trials_or_analysis, metric))
        for point in points:
            self.add_evaluated_point(*point)  # type: ignore[arg-type]
        if not points:
            warn_user(
                f"{type(self).__name__} learns nothing from {trials_or_analysis!r}: none of its trials has reported "
                f"{metric!r} as a number."
            )

    # --- its memory

    def get_state(self) -> dict[str, Any]:
        """Everything that was learned, as a dict that can be pickled; without it, a restore replays the past."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what ``get_state`` has returned."""
        raise NotImplementedError

    def save(self, checkpoint_path: str) -> None:
        """Write the memory to a file."""
        raise NotImplementedError

    def restore(self, checkpoint_path: str) -> None:
        """Read what ``save`` wrote."""
        raise NotImplementedError

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Write the memory to a directory, under a name of its own."""
        self.save(os.path.join(checkpoint_dir, self.CKPT_FILE_TMPL.format(session_str)))

    def restore_from_dir(self, checkpoint_dir: str) -> None:
        """Read the newest memory of a directory."""
        pattern = os.path.join(checkpoint_dir, self.CKPT_FILE_TMPL.format("*"))
        found = sorted(glob.glob(pattern), key=lambda path: (os.path.getmtime(path), path))
        if not found:
            raise InvalidInputError(f"There is no searcher state in {checkpoint_dir!r} (looked for {pattern}).")
        self.restore(found[-1])


class PickledSearcher(Searcher):
    """A searcher whose whole memory is its attributes."""

    _not_saved: tuple[str, ...] = ()
    """Attributes that are made again by ``__init__`` or ``set_search_properties`` and need not be kept."""

    def get_state(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in self._not_saved}

    def set_state(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def save(self, checkpoint_path: str) -> None:
        """Write the memory to a file.

        Durability: the file is complete and fsynced when this returns, or the old one is still there.
        """
        import cloudpickle

        write_atomic(checkpoint_path, cloudpickle.dumps(self.get_state()))

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            self.set_state(pickle.load(file))


def can_snapshot(searcher: Any) -> bool:
    """Can its memory be stored, so that it need not be told everything again?"""
    kind = type(searcher)
    inner = getattr(searcher, "searcher", None)
    if isinstance(inner, Searcher) and not can_snapshot(inner):
        return False
    states = kind.get_state is not Searcher.get_state and kind.set_state is not Searcher.set_state
    files = kind.save is not Searcher.save and kind.restore is not Searcher.restore
    return states or files


def hears_results(searcher: Any) -> bool:
    """Does it want intermediate results? Making them costs the driver time."""
    inner = getattr(searcher, "searcher", None)
    if isinstance(inner, Searcher) and hears_results(inner):
        return True
    overridden = type(searcher).on_trial_result is not Searcher.on_trial_result
    return overridden and getattr(searcher, "uses_intermediate_results", True)


def checked_seed(seed: Any, argument: str = "seed") -> int:
    """A seed that the user gave, under the name that the argument has in this searcher.

    Raises:
        InvalidTypeError: It is neither an int nor a random generator.
        InvalidInputError: It is negative.
    """
    try:
        return seed_from(seed)
    except InvalidTypeError as error:
        raise InvalidTypeError(
            f"{argument} must be an int or a random generator, got {seed!r} ({type(seed).__name__}). Pass for example "
            f"{argument}=42."
        ) from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{argument} must not be negative, got {seed!r}. Pass for example 42.") from error


def _hint(ignored: Mapping[str, Any]) -> None:
    if ignored:
        words = " and ".join(f"{name}={value!r}" for name, value in ignored.items())
        warn_user(
            f"Searcher() ignores {words}, of older versions. To limit trials write ConcurrencyLimiter(searcher, "
            "max_concurrent=...); searchers always learn from trials that were stopped early.",
            DeprecationWarning,
        )


def _check_objectives(metric: Any, mode: Any) -> None:
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    for each in modes:
        if each not in ("min", "max", "obs"):
            raise InvalidInputError(f"`mode` must be one of ['min', 'max'] (or a list of them), got {each!r}.")
    if mode is not None and metric is not None:
        several = not isinstance(metric, str)
        if several != (not isinstance(mode, str)) or (several and len(metric) != len(modes)):
            raise InvalidInputError(
                f"`metric` and `mode` must be both one name or lists of equal length; got {metric!r} and {mode!r}."
            )


def warn_not_deterministic(name: str) -> None:
    """The same questions got other answers than before the crash."""
    warn_user(
        f"{name} does not give the same suggestions on replay, so its state differs from that before the restart. The "
        "recorded suggestions stand. Give it a seed, or implement `save` and `restore`.",
        RuntimeWarning,
    )
