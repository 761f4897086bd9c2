"""What searchers that stand on somebody's library have in common: the same questions, put to each in its own words.

Owns spaces, points that are tried first, seeds, results that cannot be learned from, and which trials are still open.
An adapter says how its library is made, asked and told. Must never import a library itself.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from holdfast.core.retention import DEFAULT_METRIC, lookup
from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.schedulers.base import number
from holdfast.search.axes import Axis, axis_of
from holdfast.search.parameters import Parameters, has_objects
from holdfast.search.points import Point, read_point
from holdfast.search.replayable import plain
from holdfast.search.searcher import PickledSearcher, Suggestion, checked_seed
from holdfast.search.spaces import has_domains
from holdfast.space.domains import Categorical, Domain
from holdfast.space.nested import flatten_dict
from holdfast.space.rng import Rng
from holdfast.space.variants import check_points

Raw = dict[str, Any]
"""A library's numbers (see ``Axis``) by the name of the parameter; of a library's own space, its values."""

SEEDS = 1 << 31
"""Every library takes seeds below this."""

LARGE_LOSS = 1e20
"""Told to a library that must be told something about a trial which failed before any other succeeded."""


def load_library(module: str, who: str, extra: str) -> Any:
    """A module of the library behind a searcher.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        with warnings.catch_warnings():
            # What libraries deprecate in one another while they are imported is nothing that users could change.
            warnings.simplefilter("ignore")
            return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(
            f"{who} needs {library}, which cannot be imported ({error}). Type: pip install 'holdfast[{extra}]'"
        ) from error


class ChosenPoint(NamedTuple):
    """A point that the library, or the user, has chosen."""

    key: Any
    """By which the library knows it; None if it shall not be told of it."""

    raw: Raw


class LibrarySearcher(PickledSearcher):
    """Base of searchers that stand on a library.

    Args:
        space: The search space, or one of the library's own; None takes the experiment's.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.
        seed: Instead of the experiment's.
    """

    _knows_dicts = False
    """Whether spaces of the library's own may be dicts."""

    _seed_argument = "seed"
    """What the argument for the seed is called, for messages."""

    def __init__(
        self,
        space: Any,
        metric: str | None,
        mode: str | None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        seed: Any,
    ) -> None:
        if not (metric is None or isinstance(metric, str)) or not (mode is None or mode in ("min", "max")):
            raise InvalidInputError(
                f"{self._who} optimises one metric, and `mode` must be one of ['min', 'max']; got metric={metric!r} "
                f"and mode={mode!r}. OptunaSearch can optimise several."
            )
        super().__init__(metric, mode)
        self._own_space = space
        self._points = check_points(points_to_evaluate)
        self._seed = None if seed is None else checked_seed(seed, self._seed_argument)
        self._begun = False
        self._parameters: Parameters | None = None  # of a space of domains
        self._axes: dict[str, Axis] = {}
        self._first: list[Point] = []  # points that are still to be tried
        self._known: list[tuple[dict[str, Any], Any, bool]] = []  # evaluated elsewhere, before there was a library
        self._open: dict[str, ChosenPoint] = {}
        self._failed: dict[str, Raw] = {}  # trials without a value, which may be run again and get one
        self._worst = -math.inf
        self._asked = 0
        if self._is_of_domains(space):
            self._read_space(space)
        elif isinstance(space, Mapping) and not self._knows_dicts:
            raise InvalidInputError(
                f"The space of {self._who} has nothing to choose: {dict(space)!r}. Put a domain such as "
                "tune.uniform(0, 1) into it."
            )

    @property
    def trials_given(self) -> int:
        return len(self._points)

    # --- what an adapter says

    def _make(self, seed: int) -> None:
        """Make the library's optimiser, for ``self._searched`` or, if ``self._parameters`` is None, its own space."""
        raise NotImplementedError

    def _ask(self) -> ChosenPoint | Suggestion:
        """What the library proposes; None for "not now", or ``FINISHED``."""
        raise NotImplementedError

    def _adopt(self, raw: Raw) -> Any:
        """The key of a point that the library has not chosen itself and will be told of."""
        raise NotImplementedError

    def _tell(self, key: Any, loss: float | None) -> None:
        """How a point did: less is better; None if it failed."""
        raise NotImplementedError

    def _check_axis(self, axis: Axis) -> None:
        """Refuse what the library has nothing like."""

    # --- the space

    @property
    def _who(self) -> str:
        return type(self).__name__

    @property
    def _searched(self) -> list[Axis]:
        """The parameters that have more than one value."""
        return [axis for axis in self._axes.values() if not axis.is_fixed]

    def _is_of_domains(self, space: Any) -> bool:
        return isinstance(space, Mapping) and has_domains(space)

    def _read_space(self, space: Mapping[str, Any]) -> None:
        if self._own_space is not None and has_objects(space):
            raise InvalidInputError(
                f"The space of {self._who} holds a value that is not plain data. Put the space into param_space, where "
                "objects are kept with the experiment, and leave it out here."
            )
        self._parameters = Parameters(space, self._who)
        self._axes = {name: axis_of(name, domain, self._who) for name, domain in self._parameters.all().items()}
        for axis in self._searched:
            self._check_axis(axis)
        self._first = [self._read_point(space, point) for point in self._points]

    def _read_point(self, space: Mapping[str, Any], given: Mapping[str, Any]) -> Point:
        assert self._parameters is not None
        point = read_point(space, self._parameters, given, self._who)
        # Constants that a point repeats need not be set, and those in lists could not be.
        constants = flatten_dict(space, flatten_list=True)
        own = {k: v for k, v in point.config.items() if k in self._parameters.domains or constants.get(k, point) != v}
        return point._replace(config=own)

    @classmethod
    def convert_search_space(cls, spec: Mapping[str, Any], *_: Any) -> dict[str, Any]:
        """A space in a form that the searcher's ``space`` takes: the domains themselves, which it translates.

        Raises:
            InvalidInputError: There is a grid, a function, or something else in it that the searcher cannot choose.
        """
        for name, domain in Parameters(spec, cls.__name__).all().items():
            axis_of(name, domain, cls.__name__)
        return dict(spec)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        if has_domains(config) and (self._own_space is not None or (self._begun and not self._fits(config))):
            return False
        if self._begun:
            return True  # it was restored, or used before, and keeps what it has learned
        self._metric = metric if self._metric is None else self._metric
        self._mode = mode if self._mode is None else self._mode
        self._seed = spec.get("seed") if self._seed is None else self._seed
        if self._own_space is None and has_domains(config):
            self._read_space(dict(config))
        self._begin()
        return True

    def _fits(self, config: Mapping[str, Any]) -> bool:
        found = Parameters(config, self._who).all()
        return [(name, repr(domain)) for name, domain in found.items()] == [
            (axis.name, repr(axis.domain)) for axis in self._axes.values()
        ]

    def _begin(self) -> None:
        """Make the optimiser, once everything is known that it depends on."""
        if self._own_space is None and self._parameters is None:
            raise InvalidInputError(
                f"{self._who} has no search space: nothing in param_space can be chosen. Put a domain such as "
                "tune.uniform(0, 1) into it, or leave search_alg out."
            )
        if self._mode is not None and self._metric is None:
            self._metric = DEFAULT_METRIC
        if not self._metric or not self._mode:
            raise InvalidInputError(
                f"{self._who} has been instantiated without a valid `metric` ({self._metric!r}) or `mode` "
                f"({self._mode!r}). Pass both to TuneConfig(metric=..., mode='min' or 'max'), or to {self._who}(...)."
            )
        if self._parameters is None:
            self._first = [Point(dict(point), dict(point), False) for point in self._points]
        self._seed = 0 if self._seed is None else self._seed
        if self._parameters is None or self._searched:
            self._make(self._seed_for(0))
        self._begun = True
        known, self._known = self._known, []
        for point in known:
            self._learn_elsewhere(*point)

    def _seed_for(self, *keys: int) -> int:
        """A seed for one purpose: the same in every run with the same seed."""
        return Rng([self._seed or 0, *keys]).integers(0, SEEDS)

    # --- asking

    def suggest(self, trial_id: str) -> Suggestion:
        if not self._begun:
            self._begin()
        if self._first:
            return self._try_point(trial_id, self._first.pop(0))
        if self._parameters is not None and not self._searched:
            return self._config({})
        asked = self._ask()
        if not isinstance(asked, ChosenPoint):
            return asked
        self._asked += 1
        self._open[trial_id] = asked
        return self._config(asked.raw)

    def _try_point(self, trial_id: str, point: Point) -> dict[str, Any]:
        raw = dict(point.values) if self._parameters is None else self._completed(point)
        self._asked += 1
        if self._parameters is None or self._searched:
            self._open[trial_id] = ChosenPoint(None if point.is_outside else self._adopt(raw), raw)
        return self._config(raw, point.config)

    def _completed(self, point: Point) -> Raw:
        """All parameters of a point that count, those that it left out drawn at random."""
        rng = Rng([self._seed or 0, 1, self._asked])
        raw: Raw = {}

        def pick(name: str, domain: Domain) -> Any:
            if name in point.values:
                value = point.values[name]
            else:
                value = rng.integers(0, len(domain)) if isinstance(domain, Categorical) else domain.draw(rng)
            raw[name] = self._axes[name].raw(value)
            return value

        assert self._parameters is not None
        self._parameters.choose(pick)
        return raw

    def _config(self, raw: Raw, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer for a point; ``given`` stands in it as the user wrote it."""
        if self._parameters is None:
            return dict(plain(raw))

        def pick(name: str, domain: Domain) -> Any:
            axis = self._axes[name]
            return axis.value(raw.get(name, axis.lower))

        values = {**self._parameters.choose(pick), **(given or {})}
        # Constants of param_space are known to whoever asks; those of our own space are not.
        return values if self._own_space is None else self._parameters.config(values)

    def _filled(self, raw: Raw) -> Raw:
        """Numbers for all searched parameters, also for those that do not count."""
        return {axis.name: raw[axis.name] if axis.name in raw else axis.middle() for axis in self._searched}

    # --- telling

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        loss = None if error or result is None else self._loss(lookup(result, str(self._metric)))
        asked = self._open.pop(trial_id, None)
        if asked is None:
            if loss is None or trial_id not in self._failed:
                return
            raw = self._failed.pop(trial_id)  # it had failed, was resumed, and has a value now
            asked = ChosenPoint(self._adopt(raw), raw)
        elif loss is None and asked.key is not None:
            self._failed[trial_id] = asked.raw
        if asked.key is not None:
            self._learn(asked.key, loss)

    def _learn(self, key: Any, loss: float | None) -> None:
        if loss is not None:
            self._worst = max(self._worst, loss)
        self._tell(key, loss)

    def _loss(self, value: Any) -> float | None:
        """The metric, turned so that less is better; None if it cannot be learned from."""
        try:
            loss = number(value)
        except OverflowError:
            return None  # an int that no float is as large as
        if loss is None or not math.isfinite(loss):
            return None
        return -loss if self._mode == "max" else loss

    def _loss_or_worst(self, loss: float | None) -> float:
        """For libraries that know no failure: as bad as the worst that is known."""
        if loss is not None:
            return loss
        return self._worst if math.isfinite(self._worst) else LARGE_LOSS

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
        if self._begun:
            self._learn_elsewhere(dict(parameters), value, error)
        else:
            self._known.append((dict(parameters), value, error))

    def _learn_elsewhere(self, config: dict[str, Any], value: Any, error: bool) -> None:
        raw = dict(config)
        if self._parameters is not None:
            reading = self._parameters.read(config)
            wrong = [f"{name!r} is missing" for name in reading.missing]
            wrong += [f"{name!r} is {given!r}, outside of its domain" for name, given in reading.outside.items()]
            if wrong:
                warn_user(f"{self._who} does not learn from {config!r}, which was evaluated elsewhere: {wrong[0]}.")
                return
            raw = {name: self._axes[name].raw(given) for name, given in reading.values.items()}
        if self._parameters is None or self._searched:
            self._learn(self._adopt(raw), None if error else self._loss(value))


def checked_rewards(points: Sequence[Mapping[str, Any]] | None, rewards: Sequence[Any] | None) -> list[Any]:
    """The known values of points to evaluate; empty if they are not known.

    Raises:
        InvalidInputError: There is not one for each point.
    """
    if rewards is None:
        return []
    if not isinstance(rewards, list | tuple) or len(rewards) != len(points or ()):
        raise InvalidInputError(
            f"evaluated_rewards must be a list with one value for each of the {len(points or ())} points_to_evaluate, "
            f"got {rewards!r}."
        )
    return list(rewards)
