"""The default searcher: every grid, and random samples of everything else.

Owns the settings of the public ``BasicVariantGenerator``; the search itself is ``VariantPlan``. Must never keep
state between proposals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.arguments import KnownArguments
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.space.rng import seed_from
from holdfast.space.variants import VariantPlan, check_points

NAMES = ("random", "variant_generator")


def planner_of(search_alg: Any) -> BasicVariantGenerator | None:
    """What plans all configurations before the first result, given ``TuneConfig.search_alg``; None if nothing does."""
    if search_alg is None or (isinstance(search_alg, str) and search_alg.lower() in NAMES):
        return BasicVariantGenerator()
    return search_alg if isinstance(search_alg, BasicVariantGenerator) else None


class BasicVariantGenerator(KnownArguments):
    """Grid search and random search.

    Args:
        points_to_evaluate: Configurations to try first. Each may leave keys out and may fix grids.
        max_concurrent: Most trials at once; 0 leaves that to the resources.
        constant_grid_search: Draw random values once a sample, for all cells of the grids, rather than once a cell.
        random_state: A seed, or a generator (``random.Random``, NumPy ``Generator`` or ``RandomState``) that is
            asked for one once. None uses the experiment's seed.

    Raises:
        InvalidInputError: ``max_concurrent`` or ``random_state`` is negative.
        InvalidTypeError: An argument is of another type.

    Example:
        >>> from holdfast.space import uniform
        >>> searcher = BasicVariantGenerator(points_to_evaluate=[{"lr": 0.1}], random_state=42)
        >>> searcher.plan({"lr": uniform(0, 1)}, num_samples=2, seed=0).next(None).config
        {'lr': 0.1}
    """

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int):
            raise InvalidTypeError(f"max_concurrent must be a whole number, got {max_concurrent!r}. 0 means no limit.")
        if max_concurrent < 0:
            raise InvalidInputError(f"max_concurrent must not be negative, got {max_concurrent}. 0 means no limit.")
        if not isinstance(constant_grid_search, bool):
            raise InvalidTypeError(f"constant_grid_search must be True or False, got {constant_grid_search!r}.")
        self.points_to_evaluate = check_points(points_to_evaluate)
        self.max_concurrent = max_concurrent
        self.constant_grid_search = constant_grid_search
        self.seed = None if random_state is None else seed_from(random_state)

    def plan(
        self, space: Mapping[str, Any], num_samples: int, seed: int, objects: Mapping[str, Any] | None = None
    ) -> VariantPlan:
        """The proposals for a space.

        Args:
            space: The search space.
            num_samples: How often to go through its grids; -1 for ever.
            seed: The experiment's seed, used if this searcher was not given its own.
            objects: What the markers in ``space`` stand for, if its objects have been taken out.
        """
        return VariantPlan(
            space,
            seed=seed if self.seed is None else self.seed,
            num_samples=num_samples,
            points_to_evaluate=self.points_to_evaluate,
            constant_grid_search=self.constant_grid_search,
            objects=objects,
        )
