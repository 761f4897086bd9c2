"""Search along a Sobol sequence: as random as random search, and without its clusters and gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search.parameters import Parameters, has_objects, value_at
from holdfast.search.points import Point, read_point
from holdfast.search.searcher import PickledSearcher, Suggestion, checked_seed
from holdfast.search.spaces import has_domains
from holdfast.space.domains import Domain
from holdfast.space.rng import seed_from
from holdfast.space.variants import check_points

MAX_DIMENSIONS = 21_201
"""So many parameters have direction numbers."""


class SobolSearch(PickledSearcher):
    """Spreads configurations evenly over the space, whatever the results are.

    Every kind of domain can be used, conditional spaces (choices whose options have domains of their own) included;
    ``grid_search`` and ``sample_from`` cannot. The n-th configuration depends on the seed and on n alone, so any number
    of samples is a prefix of one sequence; powers of two are spread best.

    Args:
        space: The search space, if ``param_space`` has none.
        metric: Not needed: the search does not learn.
        mode: Not needed.
        points_to_evaluate: Configurations to try first. Each may leave values out, which then come from the sequence.
        seed: Instead of the experiment's seed; without either, one is drawn when the search is made.
        scramble: Randomise the sequence, with the seed. False always gives the same points, the first one in a corner
            of the space.

    Durability: continues exactly; its memory is a number.

    Raises:
        ImportError: SciPy is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = SobolSearch({"x": uniform(0, 1)}, seed=1)
        >>> 0 <= search.suggest("a")["x"] < 1
        True
    """

    _not_saved = ("_engine",)

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        scramble: bool = True,
    ) -> None:
        _check_installed()
        super().__init__(metric, mode)
        if space is not None and not isinstance(space, Mapping):
            raise InvalidTypeError(f"`space` must be a dict of domains, got {space!r} ({type(space).__name__}).")
        if space is not None and has_objects(space):
            raise InvalidInputError(
                "The space of SobolSearch holds a value that is not plain data. Put the space into param_space, where "
                "objects are kept with the experiment, and leave `space` out."
            )
        self._own_space = None if space is None else dict(space)
        self._points = check_points(points_to_evaluate)
        self._scramble = bool(scramble)
        self._has_seed = seed is not None
        self._seed = _any_seed() if seed is None else checked_seed(seed)
        self._parameters: Parameters | None = None
        self._first: list[Point] = []
        self._suggested = 0
        self._engine: Any = None

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        if self._own_space is not None and has_domains(config):
            return False
        if not self._has_seed and spec.get("seed") is not None:
            self._seed = seed_from(spec["seed"])
        self._begin(dict(config) if self._own_space is None else self._own_space)
        return True

    def _begin(self, space: dict[str, Any]) -> None:
        self._parameters = Parameters(space, "SobolSearch")
        count = len(self._parameters.all())
        if count > MAX_DIMENSIONS:
            raise InvalidInputError(f"SobolSearch can search over {MAX_DIMENSIONS} parameters, got {count}.")
        self._first = [read_point(space, self._parameters, point, "SobolSearch") for point in self._points]

    def suggest(self, trial_id: str) -> Suggestion:
        if self._parameters is None:
            if self._own_space is None:
                raise InvalidInputError(
                    "SobolSearch has no search space yet. Give it one, SobolSearch({'x': tune.uniform(0, 1)}), or pass "
                    "it to a Tuner with a param_space."
                )
            self._begin(self._own_space)
        assert self._parameters is not None
        names = list(self._parameters.all())
        shares = dict(zip(names, self._place(self._suggested, len(names)), strict=True))
        given = self._first[self._suggested].config if self._suggested < len(self._first) else {}
        self._suggested += 1

        def pick(name: str, domain: Domain) -> Any:
            return value_at(domain, shares[name])

        values = {**self._parameters.choose(pick), **given}
        return values if self._own_space is None else self._parameters.config(values)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Results make no difference."""

    def _place(self, n: int, dimensions: int) -> list[float]:
        """The n-th point of the sequence."""
        if not dimensions:
            return []
        if self._engine is None:
            # Not before it is needed: it takes longer to import than everything else together.
            generator = import_module("numpy").random.default_rng(self._seed)
            sobol = import_module("scipy.stats.qmc").Sobol
            self._engine = sobol(dimensions, scramble=self._scramble, rng=generator)
            if n:
                self._engine.fast_forward(n)
        return [float(share) for share in self._engine.random(1)[0]]

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._engine = None


def _check_installed() -> None:
    if find_spec("scipy") is None:
        raise ImportError("SobolSearch needs SciPy, which is not installed. Type: pip install 'holdfast[sobol]'")


def _any_seed() -> int:
    import secrets

    return secrets.randbits(64)
