"""DEHB: differential evolution on several budgets, with the brackets of HyperBand (Awad, Mallik and Hutter, 2021).

Owns which configuration is tried on which budget. That trials end at their budget is the scheduler's affair
(``schedulers.dehb``), which finds it in the config. Must never draw a random number that does not follow from the seed
and the number of the suggestion.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.retention import DEFAULT_METRIC, lookup
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import number
from holdfast.schedulers.hb_dehb import BUDGET_KEY
from holdfast.search.parameters import Parameters, value_at
from holdfast.search.points import Point, read_point
from holdfast.search.searcher import PickledSearcher, Suggestion, checked_seed
from holdfast.search.spaces import has_domains
from holdfast.space.domains import Categorical, Domain
from holdfast.space.rng import Rng
from holdfast.space.variants import check_points

MUTATION = 0.5
"""How much of the difference of two parents is added to a third one."""

CROSSOVER = 0.5
"""Chance that a value comes from the mutant rather than from the one whose place it wants."""

PARENTS = 3
FEWEST_MEMBERS = 4
"""Of a population: one to compete with, and three parents."""

FEWEST_ON_LOWEST = 10
"""Members of the population on the smallest budget, where everything new comes from."""

WORST = -math.inf
Place = list[float]
"""A configuration: for each parameter the share of its distribution that lies below its value."""


class DEHBMember(msgspec.Struct):
    """A configuration that did well on a budget."""

    place: Place
    score: float


class DEHBBracket(msgspec.Struct):
    """Successive halving: ``sizes[0]`` configurations on the lowest of its budgets, fewer on each higher one."""

    level: int  # its lowest budget
    sizes: list[int]
    promotes: bool  # higher budgets are given to the best configurations themselves, not to their offspring
    rung: int = 0
    given: int = 0  # configurations of this rung that were suggested
    ended: list[tuple[float, Place, dict[str, Any]]] = []
    best: list[tuple[float, Place, dict[str, Any]]] = []  # of the rung before

    @property
    def is_full(self) -> bool:
        """Must it wait for results?"""
        return self.given == self.sizes[self.rung]


class Job(msgspec.Struct):
    """A suggestion whose result is not known yet."""

    bracket: int
    level: int
    slot: int  # the member of the population that it competes with
    place: Place
    exact: dict[str, Any]  # values of a point, as the user wrote them
    is_outside: bool  # a point with values that no place stands for


class DEHBSearch(PickledSearcher):
    """Differential evolution that tries most configurations on small budgets, and learns from these for larger ones.

    Each suggestion has a budget, which is in the trial's config as ``config["dehb_budget"]``. Use it together with
    ``DEHBScheduler``, which ends each trial at its budget::

        TuneConfig(metric="loss", mode="min", num_samples=200, search_alg=DEHBSearch(max_t=81), scheduler="dehb")

    A trainable may also look at its budget, for example to plan its learning rate, and return when it is used up.

    Budgets are ``max_t``, ``max_t / reduction_factor`` and so on, down to ``grace_period``. For each there is a
    population. Configurations come in brackets as in HyperBand; the first time round they are drawn at random and the
    best ones of a budget are tried on the next one. From then on they are offspring: of the population of the same
    budget in the lowest rung of a bracket, of the best ones on the budget below in the others. One that does better
    than the member whose place it wants takes that place. Every trial begins anew.

    All domains can be used, those inside the options of a choice too; ``grid_search`` and ``sample_from`` cannot. A
    trial that failed, or whose metric is missing or not finite, counts as the worst.

    Durability: continues exactly where it was.

    Args:
        space: The search space, if ``param_space`` has none.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first, on the smallest budget. Each may leave values out.
        max_t: The largest budget, in units of the scheduler's ``time_attr``.
        grace_period: The smallest budget is not below this.
        reduction_factor: From one budget to the next, and how many fewer configurations are tried on it.
        seed: Instead of the experiment's seed.

    Raises:
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = DEHBSearch({"x": uniform(0, 1)}, metric="loss", mode="min", max_t=9, seed=1)
        >>> search.suggest("a")["dehb_budget"]
        1
    """

    scheduler_class = "DEHBScheduler"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_t: float = 81,
        grace_period: float = 1,
        reduction_factor: float = 3,
        seed: int | None = None,
    ) -> None:
        if (metric is not None and not isinstance(metric, str)) or (mode is not None and mode not in ("min", "max")):
            raise InvalidInputError(
                f"DEHBSearch optimises one `metric` with a `mode` that is one of ['min', 'max'], got {metric!r} and "
                f"{mode!r}."
            )
        super().__init__(metric, mode)
        self._budgets = budgets(max_t, grace_period, reduction_factor)
        self._factor = reduction_factor
        self._own_space = None if space is None else dict(space)
        self._points = check_points(points_to_evaluate)
        self._seed = None if seed is None else checked_seed(seed)
        self._parameters: Parameters | None = None
        self._names: list[str] = []
        self._domains: list[Domain] = []
        self._first: list[Point] = []  # points that are still to be tried
        self._known: list[tuple[Mapping[str, Any], float]] = []  # points that were evaluated elsewhere
        self._suggested = 0
        self._opened = 0
        self._brackets: dict[int, DEHBBracket] = {}
        self._populations: list[list[DEHBMember | None]] = [[] for _ in self._budgets]
        self._turns = [0] * len(self._budgets)  # whose turn it is to be competed with
        self._jobs: dict[str, Job] = {}
        self._failed: dict[str, Job] = {}  # they may be run again

    @property
    def trials_given(self) -> int:
        return len(self._points)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        if self._own_space is not None and has_domains(config):
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        self._seed = spec.get("seed") if self._seed is None else self._seed
        self._begin(dict(config) if self._own_space is None else self._own_space)
        return True

    def _begin(self, space: Mapping[str, Any]) -> None:
        """Make the populations, once everything is known that they depend on."""
        if self._metric is None and self._mode is not None:
            self._metric = DEFAULT_METRIC
        if not self._metric or not self._mode:
            raise InvalidInputError(
                f"DEHBSearch needs a metric and a mode, got metric={self._metric!r} and mode={self._mode!r}. Pass both "
                "to TuneConfig(metric=..., mode='min' or 'max'), or to DEHBSearch(...)."
            )
        if BUDGET_KEY in space:
            raise InvalidInputError(
                f"The search space has a key {BUDGET_KEY!r}: {space[BUDGET_KEY]!r}. DEHBSearch puts each trial's "
                "budget there. Rename yours."
            )
        self._parameters = Parameters(space, "DEHBSearch")
        domains = self._parameters.all()
        self._names, self._domains = list(domains), list(domains.values())
        self._first = [read_point(space, self._parameters, point, "DEHBSearch") for point in self._points]
        plans = [bracket_of(k, len(self._budgets), self._factor) for k in range(len(self._budgets))]
        for level in range(len(self._budgets)):
            most = max(plan.sizes[level - plan.level] for plan in plans if plan.level <= level)
            self._populations[level] = [None] * max(most, FEWEST_MEMBERS if level else FEWEST_ON_LOWEST)
        for parameters, value in self._known:
            self._learn(parameters, value)

    # --- asking

    def suggest(self, trial_id: str) -> Suggestion:
        if self._parameters is None:
            if self._own_space is None:
                raise InvalidInputError(
                    "DEHBSearch has no search space yet. Give it one, DEHBSearch(space={'x': tune.uniform(0, 1)}), or "
                    "pass it to a Tuner with a param_space."
                )
            self._begin(self._own_space)
        assert self._parameters is not None
        rng = Rng([self._seed or 0, self._suggested])
        k, bracket = self._open_bracket()
        level = bracket.level + bracket.rung
        slot = self._turns[level] % len(self._populations[level])
        point = Point({}, {}, False)
        if bracket.rung and bracket.promotes and bracket.best[bracket.given][0] > WORST:
            _, place, exact = bracket.best[bracket.given]
        else:
            place, exact = self._offspring(level, slot, bracket, rng), {}
            if self._first and not bracket.rung:
                point = self._first.pop(0)
                exact = point.config
                place = self._place_of(point.values, place)
        bracket.given += 1
        self._turns[level] += 1
        self._suggested += 1
        self._jobs[trial_id] = Job(k, level, slot, place, exact, point.is_outside)
        shares = dict(zip(self._names, place, strict=True))
        values = {**self._parameters.choose(lambda name, domain: value_at(domain, shares[name])), **exact}
        if self._own_space is not None:  # nobody else knows its constants
            values = self._parameters.config(values)
        return {**values, BUDGET_KEY: self._budgets[level]}

    def _open_bracket(self) -> tuple[int, DEHBBracket]:
        """The oldest bracket that has something to try; a new one if all of them wait for results."""
        for k, bracket in self._brackets.items():
            if not bracket.is_full:
                return k, bracket
        k = self._opened
        self._opened += 1
        self._brackets[k] = bracket_of(k, len(self._budgets), self._factor)
        return k, self._brackets[k]

    def _offspring(self, level: int, slot: int, bracket: DEHBBracket, rng: Rng) -> Place:
        """Mutation (rand/1) and binomial crossover with the member whose place it wants."""
        rival = self._populations[level][slot]
        pool = self._parents(level, bracket)
        if len(pool) < PARENTS or (bracket.promotes and rival is None):
            return [rng.random() for _ in self._names]
        target = rival.place if rival is not None else [rng.random() for _ in self._names]
        if len(pool) > PARENTS and rival in pool:
            pool.remove(rival)
        a, b, c = (pool.pop(rng.integers(0, len(pool))).place for _ in range(PARENTS))
        sure = rng.integers(0, len(target)) if target else 0
        place = []
        for i, own in enumerate(target):
            chance, fresh = rng.random(), rng.random()
            mutated = a[i] + MUTATION * (b[i] - c[i])
            inside = mutated if 0.0 <= mutated <= 1.0 else fresh
            place.append(inside if chance < CROSSOVER or i == sure else own)
        return place

    def _parents(self, level: int, bracket: DEHBBracket) -> list[DEHBMember]:
        """Members to make offspring of."""
        if bracket.rung:
            # As many as the rung has places, but with fewer than these there would be no variety.
            found = _best(self._populations[level - 1])[: max(bracket.sizes[bracket.rung], FEWEST_MEMBERS)]
        else:
            found = _best(self._populations[level])
        if len(found) < PARENTS:
            others = [member for members in reversed(self._populations) for member in _best(members)]
            found += [member for member in others if member not in found][: FEWEST_MEMBERS - len(found)]
        return found

    def _place_of(self, values: Mapping[str, Any], place: Place) -> Place:
        """``place`` with these values of parameters in it."""
        known = zip(self._names, self._domains, place, strict=True)
        return [share_of(domain, values[name]) if name in values else share for name, domain, share in known]

    # --- telling

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        job = self._jobs.pop(trial_id, None) or self._failed.get(trial_id)
        if job is None:
            return
        score = WORST if error or job.is_outside else self._score(lookup(result or {}, str(self._metric)))
        if score > WORST:
            self._compete(job.level, job.slot, DEHBMember(job.place, score))
        again = self._failed.pop(trial_id, None) is not None
        if score == WORST and not job.is_outside:
            self._failed[trial_id] = job
        if not again:
            self._end(job, score)

    def _score(self, value: Any) -> float:
        """Larger is better; what is not a finite number is the worst."""
        found = number(value)
        if found is None or not math.isfinite(found):
            return WORST
        return -found if self._mode == "min" else found

    def _compete(self, level: int, slot: int, member: DEHBMember) -> None:
        rival = self._populations[level][slot]
        if rival is None or member.score >= rival.score:
            self._populations[level][slot] = member

    def _end(self, job: Job, score: float) -> None:
        bracket = self._brackets[job.bracket]
        bracket.ended.append((score, job.place, job.exact))
        if len(bracket.ended) < bracket.sizes[bracket.rung]:
            return
        if bracket.rung + 1 == len(bracket.sizes):
            del self._brackets[job.bracket]
            return
        bracket.best = sorted(bracket.ended, key=lambda ended: -ended[0])[: bracket.sizes[bracket.rung + 1]]
        bracket.rung, bracket.given, bracket.ended = bracket.rung + 1, 0, []

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a configuration that was tried elsewhere, on the largest budget."""
        if error or pruned:
            return
        if self._parameters is None:
            self._known.append((dict(parameters), value))
        else:
            self._learn(parameters, value)

    def _learn(self, parameters: Mapping[str, Any], value: float) -> None:
        assert self._parameters is not None
        reading, score = self._parameters.read(parameters), self._score(value)
        if reading.outside or reading.missing or score == WORST:
            return
        top = self._populations[-1]
        scores = [WORST if member is None else member.score for member in top]
        place = self._place_of(reading.values, [0.5] * len(self._names))
        self._compete(len(self._budgets) - 1, scores.index(min(scores)), DEHBMember(place, score))


def budgets(max_t: float, grace_period: float, reduction_factor: float) -> list[float]:
    """All budgets, the smallest first; whole numbers if the bounds are.

    Raises:
        InvalidInputError: There are none.

    Example:
        >>> budgets(81, 1, 3), budgets(10, 1, 3), budgets(1.0, 0.25, 2)
        ([1, 3, 9, 27, 81], [1, 3, 10], [0.25, 0.5, 1.0])
    """
    if not max_t > 0:
        raise InvalidInputError(f"`max_t` must be above 0, got {max_t!r}.")
    if not 0 < grace_period <= max_t:
        raise InvalidInputError(f"`grace_period` must be above 0 and at most max_t={max_t!r}, got {grace_period!r}.")
    if not reduction_factor > 1:
        raise InvalidInputError(f"`reduction_factor` must be above 1, got {reduction_factor!r}.")
    count = math.floor(math.log(max_t / grace_period) / math.log(reduction_factor) + 1e-9) + 1
    found = [max_t / reduction_factor**i for i in reversed(range(count))]
    if isinstance(max_t, int) and isinstance(grace_period, int):
        found = sorted({round(budget) for budget in found})
    return found


def bracket_of(k: int, levels: int, factor: float) -> DEHBBracket:
    """The ``k``-th bracket; the first one begins on the lowest of ``levels`` budgets, the next one higher, and so on.

    Example:
        >>> [bracket_of(k, 5, 3).sizes for k in range(5)]
        [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]
    """
    level = k % levels
    rungs = levels - level
    first = math.ceil(levels / rungs * factor ** (rungs - 1) - 1e-9)
    sizes = [max(1, math.floor(first / factor**i + 1e-9)) for i in range(rungs)]
    return DEHBBracket(level, sizes, promotes=k < levels)


def share_of(domain: Domain, value: Any) -> float:
    """The share of the domain's draws that lies below this value: the inverse of ``value_at``.

    Of values that many shares stand for, as in whole numbers, the middle one.

    Example:
        >>> from holdfast import loguniform, randint
        >>> round(share_of(loguniform(1, 100), 10), 6), round(share_of(randint(0, 10), 3), 6)
        (0.5, 0.35)
    """
    if isinstance(domain, Categorical):
        return (int(value) + 0.5) / len(domain)
    steps = range(1 << 40)

    def at(step: int) -> Any:
        return value_at(domain, step / len(steps))

    return (bisect_left(steps, value, key=at) + bisect_right(steps, value, key=at)) / (2 * len(steps))


def _best(members: Sequence[DEHBMember | None]) -> list[DEHBMember]:
    return sorted((member for member in members if member is not None), key=lambda member: -member.score)
