"""Search with ZOOpt's (asynchronous) sequential racos, a classifier of good and bad regions.

Owns the order in which ZOOpt is asked and told, and its random numbers, which it takes from NumPy's global generator.
Must never import ZOOpt before somebody makes a ``ZOOptSearch``, or leave the global generator changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.axes import Axis
from holdfast.search.searcher import Suggestion
from holdfast.search.spaces import has_domains
from holdfast.space.domains import Categorical, Float, Integer

ALGORITHMS = ("asracos", "sracos")

PRECISION = 1e-12
"""To which share of a range ZOOpt rounds what it draws from it."""

SMALLEST_BUDGET = 3
"""With less, ZOOpt ends the process."""


class ZOOptSearch(LibrarySearcher):
    """Classification-based derivative-free optimisation, by ZOOpt.

    Every domain can be used.

    Args:
        algo: "asracos" or "sracos"; both are ZOOpt's sequential racos, which can have several trials open.
        budget: About how many trials there will be, at least 3. From it follows how many of them are drawn at random
            first. The search does not end with it.
        dim_dict: The search space, if ``param_space`` has none: domains, or tuples as ZOOpt's ``Dimension2`` takes
            them, by name.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random. They count among those
            that are drawn at random.
        parallel_num: How many trials may be open at once after the random beginning.
        kwargs: Further arguments of ZOOpt's ``Parameter``, such as ``exploration_rate``; a ``seed`` counts instead of
            the experiment's.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as bad as the worst trial so far. When
    every point of a finite space has been tried, the search is over.

    Durability: continues exactly where it was.

    Raises:
        ImportError: ZOOpt is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = ZOOptSearch(budget=20, dim_dict={"x": uniform(0, 1)}, metric="loss", mode="min")
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    def __init__(
        self,
        algo: str = "asracos",
        budget: int | None = None,
        dim_dict: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parallel_num: int = 1,
        **kwargs: Any,
    ) -> None:
        _library("zoopt")
        if not isinstance(algo, str) or algo.lower() not in ALGORITHMS:
            raise InvalidInputError(f"`algo` must be one of {list(ALGORITHMS)}, got {algo!r}.")
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < SMALLEST_BUDGET:
            raise InvalidInputError(
                f"ZOOptSearch needs a `budget` of at least {SMALLEST_BUDGET} trials, got {budget!r}. Write for example "
                "budget=100, as many as num_samples."
            )
        if isinstance(parallel_num, bool) or not isinstance(parallel_num, int) or parallel_num < 1:
            raise InvalidInputError(f"parallel_num must be a whole number above 0, got {parallel_num!r}.")
        super().__init__(_domains(dim_dict), metric, mode, points_to_evaluate, kwargs.pop("seed", None))
        self._budget = budget
        self._parallel = parallel_num
        self._kwargs = kwargs
        self._racos: Any = None
        self._precisions: list[Any] = []
        self._solutions: list[Any] = []  # every point that it was asked for, or given
        self._told = 0
        self._calls = 0

    def _make(self, seed: int) -> None:
        zoopt = _library("zoopt")
        racos = _library("zoopt.algos.opt_algorithms.racos.sracos").SRacosTune
        try:
            parameter = zoopt.Parameter(budget=self._budget, **self._kwargs)
        except TypeError as error:
            raise InvalidInputError(f"ZOOpt's Parameter does not take {self._kwargs!r}: {error}.") from error
        with self._generator():
            dimension = zoopt.Dimension2([_dimension(zoopt.ValueType, axis) for axis in self._searched])
            self._precisions = _library("zoopt.utils.zoo_global").gl.float_precisions
            self._racos = racos(dimension=dimension, parameter=parameter, parallel_num=self._parallel)

    @contextlib.contextmanager
    def _generator(self) -> Iterator[None]:
        """Let ZOOpt draw from a generator of our own, and keep what it has in global variables."""
        import numpy

        self._calls += 1
        globals_ = _library("zoopt.utils.zoo_global").gl
        before, precisions = numpy.random.get_state(), globals_.float_precisions
        numpy.random.seed(self._seed_for(2, self._calls))
        globals_.float_precisions = self._precisions
        try:
            yield
        finally:
            numpy.random.set_state(before)
            globals_.float_precisions = precisions

    # --- asking and telling

    def _ask(self) -> ChosenPoint | Suggestion:
        beginning = self._racos.get_parameters().get_train_size()
        is_random = len(self._solutions) < beginning
        if not is_random and (self._told < beginning or len(self._solutions) - self._told >= self._parallel):
            return None
        with self._generator():
            solution, is_new = self._draw(is_random)
        if not is_new:
            return self.FINISHED if len(self._solutions) == self._told else None
        self._solutions.append(solution)
        found = zip(self._searched, solution.get_x(), strict=True)
        return ChosenPoint(
            solution, {axis.name: int(x) if _is_counted(axis) else axis.from_share(x) for axis, x in found}
        )

    def _draw(self, is_random: bool) -> tuple[Any, bool | None]:
        """A solution, and whether it is a new one."""
        racos = self._racos
        # Not its `suggest`, which waits for ever if a trial is asked for when all others have ended.
        solution, is_new = racos.tune_init_attribute() if is_random else racos.sample_solution(racos.ub)
        if not is_new and not is_random:
            # The region that it thinks is good has no other point; there may be some elsewhere.
            solution, is_new = racos.distinct_sample(racos.get_objective().get_dim(), self._solutions)
        return solution, is_new

    def _adopt(self, raw: Raw) -> Any:
        filled = self._filled(raw)
        place = [filled[axis.name] if _is_counted(axis) else axis.share(filled[axis.name]) for axis in self._searched]
        self._solutions.append(self._racos.get_objective().construct_solution(place))
        return self._solutions[-1]

    def _tell(self, key: Any, loss: float | None) -> None:
        self._told += 1
        with self._generator():
            self._racos.complete(key, self._loss_or_worst(loss))


def _is_counted(axis: Axis) -> bool:
    """Are its values whole numbers for ZOOpt? Everything else is a share of the range, from 0 to 1."""
    return axis.kind in ("int", "option") and not axis.log


def _dimension(kinds: Any, axis: Axis) -> tuple[Any, ...]:
    if _is_counted(axis):
        return kinds.DISCRETE, [int(axis.lower), int(axis.upper)], axis.kind == "int"  # options have no order
    return kinds.CONTINUOUS, [0.0, 1.0], PRECISION


def _domains(space: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A space in which ZOOpt's dimensions have become domains."""
    if space is None or (isinstance(space, Mapping) and has_domains(space)):
        return space
    kinds = _library("zoopt").ValueType
    found: dict[str, Any] = {}
    for name, given in space.items() if isinstance(space, Mapping) else [("dim_dict", space)]:
        match given:
            case (kinds.CONTINUOUS, [low, high], *_):
                found[name] = Float(low, high).uniform()
            case (kinds.DISCRETE, [int(low), int(high)], *_):
                found[name] = Integer(low, high + 1).uniform()
            case (kinds.GRID, [*options]):
                found[name] = Categorical(options).uniform()
            case _:
                raise InvalidInputError(
                    f"`dim_dict` must be a dict of domains or of ZOOpt's dimensions, got {given!r} for {name!r}. Write "
                    "for example {'x': tune.uniform(0, 1)} or {'x': (ValueType.CONTINUOUS, [0, 1], 1e-6)}."
                )
    return found


def _library(module: str) -> Any:
    return load_library(module, "ZOOptSearch", "zoopt")
