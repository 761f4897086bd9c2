"""What every scheduler is: a policy that answers questions about trials and never acts.

Owns the interface and its defaults. Must never import the controller, keep a clock, or draw a random number that does
not follow from the experiment's seed: a scheduler is rebuilt after a crash by being told the same things again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config.arguments import KnownArguments
from holdfast.core.retention import DEFAULT_METRIC, lookup
from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.space.rng import Rng
from holdfast.storage.local import write_atomic

if TYPE_CHECKING:
    from holdfast.config import TuneConfig
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

MAX_KEYS_SHOWN = 10

CORRECT_IT = "Nothing was lost: correct it, then call Tuner.restore(path, tune_config=TuneConfig(scheduler=...))."
"""How to continue after a mistake in code of the user's that belongs to a scheduler."""


class TrialScheduler(KnownArguments):
    """Judges trials while they run, and picks the next one to run.

    Derive from it, or from ``FIFOScheduler``, and override what matters. Every method is called in one thread, in the
    order of the experiment's history, and gets a frozen view: what a scheduler wants done about other trials than the
    one it judges it asks the view for (``view.stop_trial``, ``view.reconfigure_trial``, ...).

    Durability: after a crash a new object is told all events again, in the same order, from the journal; each step of a
    trial once, even if the trial had to repeat it. So the object must not depend on anything but its arguments, its
    seed and what it was told. A scheduler that has ``get_state`` and ``set_state`` is spared most of the repetition.

    Example:
        >>> class StopAboveOne(TrialScheduler):
        ...     def on_trial_result(self, view, trial, result):
        ...         return self.STOP if result["loss"] > 1 else self.CONTINUE
    """

    CONTINUE = "CONTINUE"
    """The trial continues training."""

    PAUSE = "PAUSE"
    """The trial saves a checkpoint and waits until the scheduler chooses it again."""

    STOP = "STOP"
    """The trial ends."""

    NOOP = "NOOP"
    """The same as ``CONTINUE``."""

    _metric: str | None = None
    _mode: str | None = None
    _seed: int = 0
    _needs_metric = False
    """Whether it compares trials, so that it cannot work without a metric."""

    log_config: bool = True
    """Whether the copies of trials that it asks for are logged, in ``pbt_global.txt`` and a file for each trial."""

    _has_warned_of_time = False

    @property
    def works_with_searchers(self) -> bool:
        """Whether it leaves the choice of configurations to a searcher, if there is one."""
        return True

    @property
    def needed_searcher(self) -> str:
        """The class of searchers without which it cannot work, as advice tells it; "" if it needs none."""
        return ""

    @property
    def trials_ahead(self) -> int:
        """How many trials should exist before there is room for them, to choose among them; 0 if it does not matter."""
        return 0

    # --- what it optimises

    @property
    def metric(self) -> str | None:
        """The metric by which it compares trials; None if it does not, or has not been told yet."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """Whether the metric is better when small ("min") or large ("max")."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the experiment's metric, mode and ``seed``; False if it was made with a metric or mode of its own.

        Args:
            metric: What the experiment optimises.
            mode: "min" or "max".
            spec: ``seed``, the experiment's, and ``num_samples``. What is absent is not known.
        """
        self._seed = spec.get("seed", self._seed)
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric = metric or self._metric
        self._mode = mode or self._mode
        if self._mode and not self._metric:
            self._metric = DEFAULT_METRIC
        return True

    def check_ready(self) -> None:
        """Refuse to begin without what it needs.

        Raises:
            InvalidInputError: It compares trials, and has no metric or no mode.
        """
        if self._needs_metric and not (self._metric and self._mode):
            name = type(self).__name__
            raise InvalidInputError(
                f"{name} has been instantiated without a valid `metric` ({self._metric!r}) or `mode` ({self._mode!r}). "
                f"Pass both to TuneConfig(metric=..., mode='min' or 'max'), or to {name}(...)."
            )

    def check_compatible(self, tune_config: TuneConfig) -> None:
        """Refuse settings that it cannot work with, or warn of them, before anything is written."""

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        """A trial was created, or an ended one is to run again."""

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        """An attempt of the trial begins."""

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        """Judge a report: ``CONTINUE``, ``PAUSE`` or ``STOP``. The trial shows its state before the report."""
        return self.CONTINUE

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        """The trial has left its worker. It waits until ``choose_trial_to_run`` returns it."""

    def on_trial_save(self, view: ExperimentView, trial: TrialView) -> None:
        """A checkpoint of the trial was committed: it, and others, can start from it."""

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        """The trial has ended without an error, with this last result."""

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        """The trial has failed and is not tried again."""

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        """The trial was ended while it was waiting."""

    def on_standstill(self, view: ExperimentView) -> None:
        """Nothing runs, nothing new will come, and this scheduler starts none of the trials that wait.

        The last chance to change that. If it does not, the oldest of them is started, paused ones first.
        """

    # --- what it is asked

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        """The waiting trial to start now, one that fits (``view.fits``), or None. Must not change anything."""
        return view.first_waiting()

    def debug_string(self) -> str:
        """A line for the progress display."""
        return f"Using {type(self).__name__}."

    # --- its memory

    def get_state(self) -> dict[str, Any] | None:
        """Everything it remembers, as plain data; None if it can only be rebuilt by being told everything again."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Remember what ``get_state`` returned, in an object that was made with the same arguments."""
        raise NotImplementedError

    def save(self, checkpoint_path: str) -> None:
        """Write the memory to a file.

        Durability: the file is complete and fsynced when this returns, or the old one is still there.
        """
        write_atomic(checkpoint_path, msgspec.msgpack.encode(self.get_state()))

    def restore(self, checkpoint_path: str) -> None:
        """Read what ``save`` wrote."""
        self.set_state(msgspec.msgpack.decode(Path(checkpoint_path).read_bytes(), strict=False))

    # --- for those who derive from it

    def score_of(self, result: Mapping[str, Any]) -> float | None:
        """The result's metric, turned so that larger is better; None if it is missing, NaN or no number."""
        value = number(lookup(result, self._metric or DEFAULT_METRIC))
        if value is None or math.isnan(value):
            return None
        return -value if self._mode == "min" else value

    def warn_without_time(self, time_attr: str, result: Mapping[str, Any]) -> None:
        """Warn, once, if a result has a metric and no ``time_attr``: it cannot be judged, which nobody would see."""
        if self._has_warned_of_time or number(lookup(result, time_attr)) is not None:
            return
        if lookup(result, self._metric or DEFAULT_METRIC) is None:
            return
        self._has_warned_of_time = True
        keys = [key for key in result if key != "config"]
        name = type(self).__name__
        warn_user(
            f"{name} does not judge results without a number for time_attr={time_attr!r}. This one has: "
            f"{', '.join(map(repr, keys[:MAX_KEYS_SHOWN]))}{', ...' if len(keys) > MAX_KEYS_SHOWN else ''}. Report "
            f"{time_attr!r} with every result, or pass another time_attr to {name}, such as 'training_iteration'."
        )

    def rng(self, *keys: int) -> Rng:
        """Random numbers for one decision. The same keys give the same numbers in every run with the same seed."""
        return Rng([self._seed, *keys])


def number(value: Any) -> float | None:
    """The value as a float if it is a number (also of NumPy), else None."""
    if isinstance(value, bool | int | float):
        return float(value)
    try:
        return float(value) if hasattr(value, "__float__") else None
    except (TypeError, ValueError):
        return None


def check_numbers(**arguments: Any) -> None:
    """Refuse arguments that are no numbers, before they are compared with one.

    Raises:
        InvalidInputError: It names the argument.
    """
    for name, value in arguments.items():
        if number(value) is None:
            raise InvalidInputError(f"{name}={value!r} must be a number, and is of type {type(value).__name__}.")
