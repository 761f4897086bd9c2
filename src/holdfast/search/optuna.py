"""Search with any sampler of Optuna.

Owns the study and what it is told. The study lives in memory and is rebuilt from the experiment's journal, so that a
search continues exactly after a crash; a storage of the user's own gets a copy (``optuna_storage``). Must never import
Optuna before somebody makes an ``OptunaSearch``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

from holdfast.core.retention import DEFAULT_METRIC, lookup
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.warn import warn_user
from holdfast.search.optuna_space import (
    ask,
    distribution_of,
    distributions_for,
    distributions_of,
    given_for,
    load_optuna,
    seed_all,
    with_domains,
)
from holdfast.search.optuna_storage import StudyCopy, constraints_of, quietly
from holdfast.search.parameters import Parameters, has_objects
from holdfast.search.points import Point, read_point
from holdfast.search.searcher import PickledSearcher, Suggestion
from holdfast.search.spaces import has_domains
from holdfast.space.nested import SCALARS, flatten_dict, unflatten_dict
from holdfast.space.variants import check_points

DEFAULT_STUDY = "optuna"
DIRECTIONS = {"min": "minimize", "max": "maximize"}


class StudyStop:
    """Takes the place of ``Study.stop``, which samplers call when they have tried everything."""

    called = False

    def __call__(self) -> None:
        self.called = True


class OptunaSearch(PickledSearcher):
    """Optuna: TPE, Gaussian processes, CMA-ES, NSGA-II and III, quasi-random sequences, and samplers of your own.

    A choice whose options have domains of their own becomes a conditional space. Domains that Optuna does not have are
    searched by their quantile, so every domain can be used; ``grid_search`` and ``sample_from`` cannot.

    Args:
        space: The search space, if ``param_space`` has none: domains, or Optuna's distributions, or a function that is
            given an ``optuna.Trial``, calls its ``suggest_...`` methods, and may return a dict of constants.
        metric: What to optimise, or a list for several objectives. None takes the experiment's.
        mode: "min" or "max", or a list of them. "obs" in a list does not optimise the metric, but keeps it for
            constraints.
        points_to_evaluate: Configurations to try first. Each may leave values out, which are then sampled. From one
            with a value outside of its domain nothing is learned.
        sampler: One of Optuna's samplers; ``TPESampler`` if None. Whatever in it was not given a seed gets one.
        study_name: The study's name in ``storage``.
        storage: A URL or a storage of Optuna. Finished trials that are there when the experiment begins are learned
            from, and every trial of the experiment is copied there when it has ended, with its intermediate results.
            The search itself does not depend on it: the experiment's journal remembers everything.
        seed: Instead of the experiment's seed.
        evaluated_rewards: The metric's values for ``points_to_evaluate``, if they are known: these are then learned
            from rather than tried. For several objectives each is a list.

    A trial that failed, or whose metric is missing, NaN, no number, or infinitely good, is told to Optuna as failed,
    which samplers ignore; infinitely bad is learned from. ``constraints_func`` of a sampler finds the last result in
    ``trial.user_attrs``.

    Durability: with a seed, given or the experiment's, every sampler of Optuna continues exactly where it was.

    Raises:
        ImportError: Optuna is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = OptunaSearch({"x": uniform(0, 1)}, metric="loss", mode="min", seed=1)
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], dict[str, Any] | None] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        study_name: str | None = None,
        storage: Any = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[Any] | None = None,
    ) -> None:
        optuna = load_optuna()
        super().__init__(metric, mode)
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise InvalidTypeError(
                f"`sampler` must be an instance of optuna.samplers.BaseSampler, got {sampler!r}. Write for example "
                "sampler=optuna.samplers.TPESampler()."
            )
        if storage is not None and not isinstance(storage, str | optuna.storages.BaseStorage):
            raise InvalidTypeError(
                f"`storage` must be a URL or an instance of optuna.storages.BaseStorage, got {storage!r}."
            )
        self._own_space = _checked_space(space)
        self._points = check_points(points_to_evaluate)
        self._rewards = _checked_rewards(self._points, evaluated_rewards)
        self._sampler = sampler
        self._study_name = study_name or DEFAULT_STUDY
        self._storage = storage
        self._seed = seed
        self._space: Any = self._own_space
        self._learned: list[Any] = []  # points, or trials of Optuna, that are known before the study is
        self._study: Any = None
        self._stop = StudyStop()
        self._copy: StudyCopy | None = None
        self._parameters: Parameters | None = None
        self._first: list[Point] = []  # points that are still to be tried
        self._open: dict[str, Any] = {}  # trial id -> Optuna's trial
        self._outside: set[str] = set()  # trials with values that the study does not know
        self._failed: dict[str, int] = {}  # trial id -> number of a trial that was told as failed, and may run again

    @property
    def trials_given(self) -> int:
        return 0 if self._rewards else len(self._points)  # those whose values are known are not tried

    @property
    def uses_intermediate_results(self) -> bool:
        """No sampler looks at them; but those who look at the storage do."""
        return self._storage is not None and (self._metric is None or isinstance(self._metric, str))

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any], *_: Any) -> dict[str, Any]:
        """A space of domains as Optuna's distributions, by name; the searcher's ``space`` takes them.

        Raises:
            InvalidInputError: Optuna has no distribution of one of them.
        """
        return distributions_of(Parameters(spec, "OptunaSearch").all())

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        if has_domains(config) and (self._own_space is not None or not self._fits(config)):
            return False
        if self._study is not None:
            # It was restored, or used before, and keeps what it has learned. Trials of that experiment end in no other.
            self._open, self._outside, self._failed = {}, set(), {}
            return True
        super().__init__(
            self._metric if self._metric is not None else metric, self._mode if self._mode is not None else mode
        )
        self._seed = spec.get("seed") if self._seed is None else self._seed
        if self._own_space is None:
            self._space = dict(config)
        self._begin()
        return True

    def _fits(self, config: Mapping[str, Any]) -> bool:
        """Whether the study, if there is one, searches that space."""
        if self._parameters is None:
            return True
        spaces = (self._parameters, Parameters(config, "OptunaSearch"))
        known, given = ([(name, repr(domain)) for name, domain in space.all().items()] for space in spaces)
        return known == given

    # --- beginning

    def _begin(self) -> None:
        """Make the study, once everything is known that it depends on."""
        if self._space is None:
            raise InvalidInputError(
                "OptunaSearch has no search space yet. Give it one, OptunaSearch(space={'x': tune.uniform(0, 1)}), or "
                "pass it to a Tuner with a param_space."
            )
        if self._metric is None and self._mode is not None:
            self._metric = DEFAULT_METRIC
        if not self._metric or not self._mode:
            raise InvalidInputError(
                f"OptunaSearch needs a metric and a mode, got metric={self._metric!r} and mode={self._mode!r}. Pass "
                "both to TuneConfig(metric=..., mode='min' or 'max'), or to OptunaSearch(...)."
            )
        optuna = load_optuna()
        directions = [direction for _, direction in self._objectives()]
        if not directions:
            raise InvalidInputError(f"OptunaSearch has nothing to optimise: mode={self._mode!r}.")
        sampler = optuna.samplers.TPESampler() if self._sampler is None else self._sampler
        if self._seed is not None:
            seed_all(sampler, self._seed)
        with quietly():
            self._study = optuna.create_study(
                directions=directions, sampler=sampler, pruner=optuna.pruners.NopPruner(), study_name=DEFAULT_STUDY
            )
        self._study.stop = self._stop
        if not callable(self._space):
            self._parameters = Parameters(self._space, "OptunaSearch")
        if self._rewards is None:
            self._first = [self._read(point) for point in self._points]
        else:
            for point, reward in zip(self._points, self._rewards, strict=True):
                self.add_evaluated_point(point, reward)
        learned, self._learned = self._learned, []
        for known in learned:
            self._learn(known)

    def _read(self, point: Mapping[str, Any]) -> Point:
        if self._parameters is not None:
            return read_point(self._space, self._parameters, point, "OptunaSearch")
        if has_objects(point):
            raise InvalidInputError(f"points_to_evaluate may hold plain values only, got {dict(point)!r}.")
        return Point(flatten_dict(point), {}, False)

    def _objectives(self) -> list[tuple[str, str]]:
        """Metric and direction of each objective."""
        metrics = [self._metric] if isinstance(self._metric, str) else list(self._metric or ())
        modes = [self._mode] if isinstance(self._mode, str) else list(self._mode or ())
        pairs = zip(metrics, modes, strict=False)
        return [(str(metric), DIRECTIONS[str(mode)]) for metric, mode in pairs if mode in DIRECTIONS]

    # --- asking

    def suggest(self, trial_id: str) -> Suggestion:
        if self._study is None:
            self._begin()
        if self._storage is not None and self._copy is None:
            directions = [direction for _, direction in self._objectives()]
            copy = StudyCopy(self._storage, self._study_name, directions, trial_id)
            known = self._parameters
            ranges = None if known is None else {name: distribution_of(each) for name, each in known.all().items()}
            for trial in copy.prior(ranges, () if known is None else known.domains):
                self._learn(trial)
            self._copy = copy
        if self._stop.called:
            return self.FINISHED
        point = self._first.pop(0) if self._first else Point({}, {}, False)
        if point.values:
            self._study.enqueue_trial(self._given(point.values))
        trial = self._study.ask()
        config = self._defined_by_run(trial) if self._parameters is None else self._chosen(trial, point)
        self._open[trial_id] = trial
        if point.is_outside:
            self._outside.add(trial_id)
        return config

    def _given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the study would have suggested for these values of parameters."""
        if self._parameters is None:
            return dict(values)
        domains = self._parameters.all()
        return {name: given_for(domains[name], value) for name, value in values.items()}

    def _chosen(self, trial: Any, point: Point) -> dict[str, Any]:
        assert self._parameters is not None
        values = {**self._parameters.choose(partial(ask, trial)), **point.config}
        # Constants of param_space are known to whoever asks; those of our own space are not.
        return values if self._own_space is None else self._parameters.config(values)

    def _defined_by_run(self, trial: Any) -> dict[str, Any]:
        constants = self._space(trial)
        if constants is not None and not (
            isinstance(constants, dict) and all(isinstance(key, str) for key in constants)
        ):
            raise InvalidTypeError(
                "The return value of the define-by-run function passed in the `space` argument should be either None "
                f"or a `dict` with `str` keys, got {constants!r} ({type(constants).__name__})."
            )
        return unflatten_dict({**flatten_dict(constants or {}), **trial.params})

    # --- telling

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        trial = self._open.get(trial_id)
        step = result.get("training_iteration")
        if trial is None or not self.uses_intermediate_results or not isinstance(step, int) or step < 0:
            return
        value = _number(lookup(result, str(self._metric)))
        if value is not None and math.isfinite(value):
            trial.report(value, step)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        values = None if error or trial_id in self._outside else self._values(result or {})
        if trial_id in self._failed and values is not None:
            self._tell_again(trial_id, values)
        trial = self._open.pop(trial_id, None)
        if trial is None:
            return
        self._observe(trial, result or {})
        self._tell(trial, values)
        if trial_id in self._outside:
            self._outside.discard(trial_id)
        elif values is None:
            self._failed[trial_id] = trial.number
        if self._copy is not None:
            self._copy.add(trial_id, self._told(trial.number))

    def _tell(self, trial: Any, values: list[float] | None) -> None:
        states = load_optuna().trial.TrialState
        if values is None:
            self._study.tell(trial, state=states.FAIL)
            return
        try:
            self._study.tell(trial, values)
        except Exception as error:
            if self._told(trial.number).state != states.COMPLETE:
                raise
            # Optuna stores the values all the same; a constraint that could not be worked out counts as violated.
            warn_user(
                f"The sampler's constraints_func failed for trial {trial.number}: {type(error).__name__}: {error}. The "
                "trial counts as one without constraint values.",
                RuntimeWarning,
            )

    def _tell_again(self, trial_id: str, values: list[float]) -> None:
        """A trial that had failed was resumed, and has a value now."""
        failed = self._told(self._failed.pop(trial_id))
        optuna = load_optuna()
        trial = optuna.trial.create_trial(values=values, params=failed.params, distributions=failed.distributions)
        self._study.add_trial(trial)
        if self._copy is not None:
            self._copy.add(trial_id, trial)

    def _told(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _values(self, result: Mapping[str, Any]) -> list[float] | None:
        """The objectives' values; None if one is missing or cannot be learned from."""
        values = []
        for metric, direction in self._objectives():
            value = _number(lookup(result, metric))
            if value is None or math.isnan(value) or value == (-math.inf if direction == "minimize" else math.inf):
                return None
            values.append(value)
        return values

    def _observe(self, trial: Any, result: Mapping[str, Any]) -> None:
        """Keep what constraints are worked out from: metrics with mode "obs", and all if there are constraints."""
        metrics = [] if isinstance(self._metric, str) else list(self._metric or ())
        seen = {
            metric: lookup(result, metric)
            for metric, mode in zip(metrics, self._mode or (), strict=False)
            if mode == "obs"
        }
        if getattr(self._study.sampler, "_constraints_func", None) is not None:
            seen.update((key, value) for key, value in result.items() if key != "config")
        for key, value in seen.items():
            if type(value) in SCALARS:
                trial.set_user_attr(key, value)

    # --- what is known already

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: Any,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was tried elsewhere; one that does not fit the space is left out."""
        self._learn((dict(parameters), value, error, pruned, list(intermediate_values or ())))

    def add_evaluated_trials(self, trials_or_analysis: Any, metric: str | Sequence[str]) -> None:
        """Learn from another experiment, or from a study of Optuna.

        Args:
            trials_or_analysis: A path or URL, a ``ResultGrid``, an ``ExperimentAnalysis``, a list of trials, or an
                ``optuna.Study``.
            metric: What was optimised there; of no importance for a study.
        """
        if isinstance(trials_or_analysis, load_optuna().Study):
            for trial in trials_or_analysis.get_trials():
                if trial.state.is_finished():
                    self._learn(trial)
        else:
            super().add_evaluated_trials(trials_or_analysis, metric)

    def _learn(self, known: Any) -> None:
        if self._study is None:
            self._learned.append(known)
            return
        optuna = load_optuna()
        is_trial = isinstance(known, optuna.trial.FrozenTrial)
        try:
            trial = self._from_trial(known) if is_trial else self._from_point(*known)
        except (ValueError, KeyError) as reason:
            shown = known.params if is_trial else known[0]
            warn_user(f"OptunaSearch does not learn from {shown!r}, which was evaluated elsewhere: {reason}.")
            return
        self._study.add_trial(trial)

    def _from_trial(self, trial: Any) -> Any:
        states = load_optuna().trial.TrialState
        values = trial.values if trial.state == states.COMPLETE else None
        if values is not None and len(values) != len(self._study.directions):
            raise ValueError(f"it has {len(values)} values for {len(self._study.directions)} objectives")
        return self._evaluated(trial.params, trial.state, values, trial.intermediate_values, constraints_of(trial))

    def _from_point(
        self, config: dict[str, Any], value: Any, error: bool, pruned: bool, intermediate: list[float]
    ) -> Any:
        params = flatten_dict(config)
        if self._parameters is not None:
            reading = self._parameters.read(config)
            if reading.missing:
                raise ValueError(f"{reading.missing[0]!r} is missing")
            for name, given in reading.outside.items():
                domain = self._parameters.all()[name]
                raise ValueError(f"{name!r} is {given!r}, which is not within {domain.domain_str}")
            params = self._given(reading.values)
        metrics = [metric for metric, _ in self._objectives()]
        given_values = value if isinstance(value, list | tuple) else [value]
        if len(given_values) != len(metrics):
            raise ValueError(f"it has {len(given_values)} values for {len(metrics)} objectives")
        values = self._values(dict(zip(metrics, given_values, strict=True)))
        states = load_optuna().trial.TrialState
        state = states.FAIL if error or values is None else states.PRUNED if pruned else states.COMPLETE
        return self._evaluated(params, state, None if state == states.FAIL else values, dict(enumerate(intermediate)))

    def _evaluated(
        self,
        params: Mapping[str, Any],
        state: Any,
        values: list[float] | None,
        intermediate: Mapping[int, float],
        constraints: Mapping[str, Any] | None = None,
    ) -> Any:
        """A trial with exactly the parameters that our space has for these.

        Raises:
            ValueError: They are not of our space.
            KeyError: One is missing.
        """
        trials = load_optuna().trial
        if self._parameters is None:
            replayed = trials.FixedTrial(dict(params))
            self._space(replayed)
            distributions = replayed.distributions
        else:
            distributions = distributions_for(self._parameters, params)
        return trials.create_trial(
            state=state,
            values=values,
            params={name: params[name] for name in distributions},
            distributions=distributions,
            intermediate_values=dict(intermediate),
            system_attrs=dict(constraints or {}),
        )


def _checked_space(space: Any) -> Any:
    if space is None or callable(space):
        return space
    if not isinstance(space, Mapping):
        raise InvalidTypeError(
            f"`space` must be a dict of domains or a function of a trial, got {space!r} ({type(space).__name__})."
        )
    converted = with_domains(space)
    if has_objects(converted):
        raise InvalidInputError(
            "The space of OptunaSearch holds a value that is not plain data. Put the space into param_space, where "
            "objects are kept with the experiment, and leave `space` out."
        )
    return converted


def _checked_rewards(points: list[Mapping[str, Any]], rewards: Sequence[Any] | None) -> list[Any] | None:
    if rewards is None:
        return None
    if not isinstance(rewards, list | tuple) or len(rewards) != len(points):
        raise InvalidInputError(
            f"evaluated_rewards must be a list with one value for each of the {len(points)} points_to_evaluate, got "
            f"{rewards!r}."
        )
    return list(rewards)


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, Real) else None
    except OverflowError:
        return None
