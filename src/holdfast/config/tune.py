"""What to search and how: ``TuneConfig``; what a restore does with old trials: ``ResumeConfig``.

Owns: the fields and their validation. Must never: look into a searcher or a scheduler.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from holdfast.config.settings import (
    ConfigBase,
    documented,
    instance_not_class,
    one_of,
    real_number,
    refuse,
    true_or_false,
    warn_legacy,
    whole_number,
)

DEPRECATED = "DEPRECATED"
"""Default of a field that only exists so that older scripts can still pass it."""


@documented
@dataclass(repr=False)
class TuneConfig(ConfigBase):
    """How to search: the objective, the searcher, the scheduler, and how much to try.

    Example:
        >>> TuneConfig(metric="loss", mode="min", num_samples=20)
        TuneConfig(mode='min', metric='loss', num_samples=20)
    """

    mode: str | None = None
    """Whether ``metric`` is better when small ("min") or large ("max")."""

    metric: str | None = None
    """Name of the reported number to optimise; ``a/b`` reaches into nested metrics."""

    search_alg: Any = None
    """Searcher object or its name; None tries the grids and random samples of the space."""

    scheduler: Any = None
    """Scheduler object or its name; None runs every trial to its end."""

    num_samples: int = 1
    """How often to sample the space; each sample repeats a whole grid. -1 continues until stopped."""

    max_concurrent_trials: int | None = None
    """Most trials at once; None or 0 leaves that to the resources."""

    time_budget_s: float | datetime.timedelta | None = None
    """Seconds (or a timedelta) for the whole experiment, counting only time a driver was alive."""

    reuse_actors: bool | None = False
    """Whether a worker may continue with another trial of equal resources through ``reset_config``. Left out: trials
    share warm processes, one after the other, each with its own instance. False, if you say so: each has its own
    process."""

    trial_name_creator: Callable[[Any], str] | None = None
    """Makes a trial's display name from the trial."""

    trial_dirname_creator: Callable[[Any], str] | None = None
    """Makes the name of a trial's directory from the trial; it must not contain '/'."""

    chdir_to_trial_dir: bool | str = DEPRECATED
    """Older spelling of the environment variable HOLDFAST_CHDIR_TO_TRIAL_DIR (or RAY_CHDIR_TO_TRIAL_DIR)."""

    seed: int | None = field(default=None, kw_only=True)
    """Fixes every random choice of searcher and scheduler; None draws one from the global
    generator of NumPy, if you have seeded that, or of Python, and records it."""

    @property
    def own_processes(self) -> bool:
        """Whether every trial gets a process of its own: ``reuse_actors=False`` was said, not left out."""
        return self.reuse_actors is False and "reuse_actors" in self.__dict__.get("_given", ())

    def _accept_legacy(self, given: Collection[str]) -> None:
        if "chdir_to_trial_dir" in given and self.chdir_to_trial_dir != DEPRECATED:
            new = "HOLDFAST_CHDIR_TO_TRIAL_DIR=0 or 1 in the environment"
            warn_legacy("TuneConfig(chdir_to_trial_dir=...)", new)

    def _validate(self) -> None:
        if self.mode is not None:
            one_of("TuneConfig.mode", self.mode, ("min", "max"))
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric):
            raise refuse(
                "TuneConfig.metric",
                self.metric,
                "the name of one metric",
                "Several objectives are given to the searcher itself.",
            )
        for name in ("search_alg", "scheduler"):
            instance_not_class(f"TuneConfig.{name}", getattr(self, name))
        self._check_amounts()
        if self.reuse_actors is not None:
            true_or_false("TuneConfig.reuse_actors", self.reuse_actors)
        for name in ("trial_name_creator", "trial_dirname_creator"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise refuse(f"TuneConfig.{name}", value, "a function of the trial that returns a str")
        if self.chdir_to_trial_dir != DEPRECATED:
            true_or_false("TuneConfig.chdir_to_trial_dir", self.chdir_to_trial_dir)
        if self.seed is not None:
            self._set("seed", whole_number("TuneConfig.seed", self.seed, 0))

    def _check_amounts(self) -> None:
        expected = "-1 (until something stops it) or an integer >= 1"
        self._set("num_samples", whole_number("TuneConfig.num_samples", self.num_samples, -1, expected))
        if self.num_samples == 0:
            raise refuse("TuneConfig.num_samples", 0, expected)
        if self.max_concurrent_trials is not None:
            limit = whole_number(
                "TuneConfig.max_concurrent_trials",
                self.max_concurrent_trials,
                0,
                "None or 0 (no limit) or an integer >= 1",
            )
            self._set("max_concurrent_trials", limit)
        if self.time_budget_s is not None:
            budget = self.time_budget_s
            if isinstance(budget, datetime.timedelta):
                budget = budget.total_seconds()
            hint = "Give seconds or a datetime.timedelta."
            budget = real_number("TuneConfig.time_budget_s", budget, positive=True, hint=hint)
            self._set("time_budget_s", budget)


@documented
@dataclass(repr=False)
class ResumeConfig(ConfigBase):
    """What a restore does with the trials it finds; values may be given as strings.

    Example:
        >>> ResumeConfig(errored="restart").errored is ResumeConfig.ResumeType.RESTART
        True
    """

    class ResumeType(enum.Enum):
        """What to do with the trials of one group."""

        RESUME = "resume"
        """Continue from the latest checkpoint."""

        RESTART = "restart"
        """Begin again from scratch."""

        SKIP = "skip"
        """Leave them as they are."""

    finished: ResumeType = ResumeType.SKIP
    """Trials that ended well."""

    unfinished: ResumeType = ResumeType.RESUME
    """Trials that were waiting, running or paused."""

    errored: ResumeType = ResumeType.SKIP
    """Trials that ended in an error."""

    def _validate(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value = getattr(self, name)
            try:
                kind = self.ResumeType(value.lower() if isinstance(value, str) else value)
            except ValueError:
                choices = [kind.value for kind in self.ResumeType]
                expected = f"a ResumeConfig.ResumeType or one of {choices}"
                raise refuse(f"ResumeConfig.{name}", value, expected) from None
            self._set(name, kind)
