"""Search as BOHB does: HyperBand decides how long configurations run, and a model of good and bad ones which are next.

Owns which results stand for which budget. The library of BOHB's authors is not maintained any more, so the model is our
own (``kde``), after their paper (Falkner, Klein and Hutter, 2018) and with the settings of their library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.retention import lookup
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import number
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.kde import KDESettings, fit
from holdfast.search.searcher import Suggestion
from holdfast.space.domains import Categorical, Float, Integer
from holdfast.space.rng import Rng

BUDGET = "hyperband_info/budget"
TIME = "training_iteration"


class TuneBOHB(LibrarySearcher):
    """The searching half of BOHB; the other is the scheduler ``HyperBandForBOHB``.

    Every domain can be used. The model learns from results at the milestones of HyperBand, and proposes from those with
    the largest budget that has enough of them. If results do not say for which budget they stand
    (``hyperband_info``), those count at which a trial was paused or has ended, and their ``training_iteration``.

    Args:
        space: The search space, if ``param_space`` has none: domains, or a ``ConfigurationSpace`` of ConfigSpace,
            without conditions.
        bohb_config: Settings of the model: ``min_points_in_model``, ``top_n_percent``, ``num_samples``,
            ``random_fraction``, ``bandwidth_factor``, ``min_bandwidth``.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.
        seed: Instead of the experiment's seed.
        max_concurrent: How many trials may run at once, those that are paused not counted; 0 for any number.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as worse than any other.

    Durability: continues exactly where it was.

    Raises:
        ImportError: NumPy is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = TuneBOHB({"x": uniform(0, 1)}, metric="loss", mode="min", seed=1)
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    def __init__(
        self,
        space: Any = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        load_library("numpy", "TuneBOHB", "bohb")
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 0:
            raise InvalidInputError(f"max_concurrent must be 0 or a whole number above, got {max_concurrent!r}.")
        super().__init__(_domains(space), metric, mode, points_to_evaluate, seed)
        self._settings = _checked_settings(bohb_config)
        self._max_concurrent = max_concurrent
        self._paused: set[str] = set()
        self._latest: dict[str, tuple[float | None, float]] = {}  # open trial -> time and loss of its last result
        self._results: dict[float, dict[str, tuple[list[float], float]]] = {}  # budget -> trial -> place and loss
        self._is_told_budgets = False

    def _make(self, seed: int) -> None:
        self._options = [int(axis.upper) + 1 if axis.kind == "option" else 0 for axis in self._searched]

    # --- asking

    def _ask(self) -> ChosenPoint | Suggestion:
        running = len(self._open.keys() - self._paused)
        if self._max_concurrent and running >= self._max_concurrent:
            return None
        rng = Rng([self._seed or 0, 2, self._asked])
        place = self._proposal(rng)
        raw = {
            axis.name: int(at) if axis.kind == "option" else axis.from_share(at)
            for axis, at in zip(self._searched, place, strict=True)
        }
        return ChosenPoint(self._adopt(raw), raw)

    def _proposal(self, rng: Rng) -> list[float]:
        if rng.random() >= self._settings.random_fraction:
            for budget in sorted(self._results, reverse=True):
                places, losses = zip(*self._results[budget].values(), strict=True)
                model = fit(places, losses, self._options, self._settings)
                if model is not None:
                    return model.propose(rng, self._settings)
        return [float(rng.integers(0, options)) if options else rng.random() for options in self._options]

    def _adopt(self, raw: Raw) -> list[float]:
        filled = self._filled(raw)
        return [
            float(filled[axis.name]) if axis.kind == "option" else axis.share(filled[axis.name])
            for axis in self._searched
        ]

    # --- telling

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        asked = self._open.get(trial_id)
        if asked is None or asked.key is None:
            return
        loss = self._loss(lookup(result, str(self._metric)))
        time = number(lookup(result, TIME))
        self._latest[trial_id] = time, math.inf if loss is None else loss
        budget = number(lookup(result, BUDGET))
        if budget is not None:
            self._is_told_budgets = True
            self._record(trial_id, budget)
        elif time in self._results and not self._is_told_budgets:
            self._record(trial_id, time)

    def on_pause(self, trial_id: str) -> None:
        self._paused.add(trial_id)
        self._record_latest(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._paused.discard(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        asked = self._open.get(trial_id)
        if asked is None:
            return
        if asked.key is not None:
            if error or result is None:
                self._record_failure(trial_id)
            else:
                self.on_trial_result(trial_id, result)
                self._record_latest(trial_id)
        self._open.pop(trial_id)
        self._latest.pop(trial_id, None)
        self._paused.discard(trial_id)

    def _record_failure(self, trial_id: str) -> None:
        """What it has reached counts; at the next budget it is worse than any other."""
        missing = [budget for budget in sorted(self._results) if trial_id not in self._results[budget]]
        if missing:
            self._latest[trial_id] = None, math.inf
            self._record(trial_id, missing[0])

    def _record_latest(self, trial_id: str) -> None:
        """The last result stands for a budget, because HyperBand has stopped the trial here."""
        time, _ = self._latest.get(trial_id, (None, math.inf))
        if time is not None and not self._is_told_budgets:
            self._record(trial_id, time)

    def _record(self, trial_id: str, budget: float) -> None:
        if math.isfinite(budget):
            self._results.setdefault(budget, {})[trial_id] = self._open[trial_id].key, self._latest[trial_id][1]

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: Any,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """It cannot be told: nobody knows with which budget the point was evaluated."""
        raise NotImplementedError("TuneBOHB cannot learn from points that were evaluated elsewhere.")


def _checked_settings(given: Mapping[str, Any] | None) -> KDESettings:
    unknown = [key for key in given or {} if key not in KDESettings._fields]
    if unknown:
        raise InvalidInputError(f"bohb_config has no setting {unknown[0]!r}; there are {list(KDESettings._fields)}.")
    settings = KDESettings(**(given or {}))
    limits = {
        "top_n_percent": 0 < settings.top_n_percent < 100,
        "num_samples": settings.num_samples >= 1,
        "random_fraction": 0 <= settings.random_fraction <= 1,
        "bandwidth_factor": settings.bandwidth_factor > 0,
        "min_bandwidth": settings.min_bandwidth > 0,
    }
    for key, is_valid in limits.items():
        if not is_valid:
            raise InvalidInputError(
                f"bohb_config has {key}={getattr(settings, key)!r}, which cannot be. The default is "
                f"{getattr(KDESettings(), key)!r}."
            )
    return settings


def _domains(space: Any) -> Any:
    """A space in which the hyperparameters of a ``ConfigurationSpace`` have become domains."""
    if space is None or (isinstance(space, Mapping) and not hasattr(space, "sample_configuration")):
        return space
    if not hasattr(space, "sample_configuration"):
        raise InvalidInputError(f"`space` must be a dict of domains or a ConfigurationSpace, got {space!r}.")
    if space.conditions or space.forbidden_clauses:
        raise InvalidInputError(
            "TuneBOHB cannot search a ConfigurationSpace with conditions or forbidden clauses. Write it with domains: "
            "the options of tune.choice(...) may have domains of their own."
        )
    return {name: _domain(name, space[name]) for name in space}


def _domain(name: str, parameter: Any) -> Any:
    kind = type(parameter).__name__
    if kind == "Constant":
        return parameter.value
    if kind == "CategoricalHyperparameter":
        return Categorical(parameter.choices).uniform()
    if kind == "OrdinalHyperparameter":
        return Categorical(parameter.sequence).uniform()
    if kind in ("UniformFloatHyperparameter", "UniformIntegerHyperparameter"):
        low, high = parameter.lower, parameter.upper
        domain = Float(low, high) if kind == "UniformFloatHyperparameter" else Integer(low, high + 1)
        return domain.loguniform() if parameter.log else domain.uniform()
    raise InvalidInputError(
        f"TuneBOHB does not know {kind} of ConfigSpace, at {name!r}. Write the space with domains such as "
        "tune.uniform(0, 1)."
    )
