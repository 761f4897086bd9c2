"""The default search: the grids and random samples of a space, as a list that is never written down.

A ``VariantPlan`` is a pure function from a mark to the variant after it. Whoever remembers the mark of the last
variant can continue from there after any crash, and no size of grid makes that slower.

Owns the order of variants and what presets do. Must never remember which variants were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.warn import warn_user
from holdfast.space.domains import Categorical, Domain, Function
from holdfast.space.exact import VALUE, is_exact, is_mapping
from holdfast.space.nested import SCALARS, Path, copy_tree, get_at, is_eval, is_grid, joined
from holdfast.space.objects import extract_objects, extract_point, is_marker
from holdfast.space.presets import apply_point
from holdfast.space.resolve import Resolved, Resolver, Template
from holdfast.space.rng import seed_from

Mark: TypeAlias = list[int]
"""Where a variant stands: ``[sample, cell]``, and one more number for each level of grids that a value brought
along (a function that returns a grid, an option that contains one)."""


class Variant(msgspec.Struct, frozen=True):
    """One configuration to try."""

    config: dict[str, Any]
    """Every value. Plain data with tags for tuples and the like, and markers for objects; see ``restore_objects``."""

    evaluated: dict[str, Any]
    """The values that the search chose, by path; a chosen dict is listed by its leaves."""

    mark: Mark | None
    """Pass it to ``next`` to get the variant after this one; None if it does not come from a plan."""

    raw: tuple[str, ...] = ()
    """Paths of values in ``config`` that a function returned and that are not plain data."""


class VariantPlan:
    """All variants of a space, in order.

    Every sample goes through all cells of the grids, the grid with the first path varying fastest. The random
    values of a cell come from a stream of their own, keyed by seed, sample and cell.

    Args:
        space: The search space.
        seed: Decides every random value.
        num_samples: How often to go through the grids; -1 for ever.
        points_to_evaluate: Values to use in the first samples, one dict a sample. A point may leave keys out,
            and may fix a grid, which that sample then does not go through. All points are used, even if there
            are more than ``num_samples``.
        constant_grid_search: Draw random values once a sample rather than once a cell.
        objects: What the markers in ``space`` stand for. None if the space has its objects still inside.

    Raises:
        InvalidInputError: The space, a point or the number of samples cannot work.
        InvalidTypeError: The space or a point is not a dict.

    Example:
        >>> from holdfast.space import grid_search
        >>> plan = VariantPlan({"x": grid_search([1, 2]), "y": 3}, seed=0, num_samples=1)
        >>> first = plan.next(None)
        >>> first.config, plan.next(first.mark).config
        ({'x': 1, 'y': 3}, {'x': 2, 'y': 3})
    """

    total: int | None
    """How many variants there are; None if there is no end, or if it depends on what functions return."""

    objects: dict[str, Any]
    """What the markers in configs stand for, those in points included."""

    def __init__(
        self,
        space: Mapping[str, Any],
        *,
        seed: int,
        num_samples: int,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        constant_grid_search: bool = False,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(space, Mapping):
            raise InvalidTypeError(f"A search space must be a dict, got {space!r} ({type(space).__name__}).")
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or (num_samples < 1 and num_samples != -1):
            raise InvalidInputError(
                f"num_samples must be a whole number above 0, or -1 for no limit; got {num_samples!r}."
            )
        self._seed = seed_from(seed)
        self._constant = constant_grid_search
        if objects is None:
            self.space, self.objects = extract_objects(space)
        else:
            self.space, self.objects = dict(space), dict(objects)
        self._base = Template(self.space)
        self._chosen = [(path, joined(path)) for path in self._base.paths]
        settled = frozenset() if objects is None else frozenset(objects)
        spaces = [
            apply_point(self.space, extract_point(point, n, self.objects), settled)
            for n, point in enumerate(check_points(points_to_evaluate))
        ]
        self._presets = [Template(each) for each in spaces]
        self._samples = None if num_samples == -1 else max(num_samples, len(spaces))
        self.total = self._count(spaces)
        self._warned = False
        self._resolver = Resolver(self.objects, self._warn_of_spec)

    def next(self, after: Mark | None) -> Variant | None:
        """The variant after the one with this mark; with None, the first; None if there is no further one.

        Durability: depends on the plan's arguments and the mark alone, never on earlier calls, so a search goes
        on from the last mark that was stored.

        Raises:
            InvalidInputError: The mark is not one of this plan's, or a function failed.
            RecursiveDependencyError: Functions wait for each other.
        """
        if after is None:
            return self._variant(0, 0, [])
        sample, cell, *inner = self._check_mark(after)
        if inner:
            trail = self._resolve(sample, cell, inner).trail
            for level in reversed(range(min(len(inner), len(trail)))):
                if inner[level] + 1 < trail[level][1]:
                    return self._variant(sample, cell, [*inner[:level], inner[level] + 1])
        if cell + 1 < self._template(sample).cells:
            return self._variant(sample, cell + 1, [])
        return self._variant(sample + 1, 0, [])

    def _variant(self, sample: int, cell: int, inner: list[int]) -> Variant | None:
        if self._samples is not None and sample >= self._samples:
            return None
        config, raw, trail = self._resolve(sample, cell, inner)
        evaluated: dict[str, Any] = {}
        for path, name in self._chosen:
            _list_chosen(config, path, name, evaluated)
        return Variant(config, evaluated, [sample, cell, *(taken for taken, _ in trail)], raw)

    def _resolve(self, sample: int, cell: int, inner: list[int]) -> Resolved:
        def keys(taken: list[int]) -> list[int]:
            # Seeds pad with zeros, so a level's first cell must not be a zero: it would repeat the outer stream.
            if self._constant:
                return [self._seed, sample, 0, len(taken)] if taken else [self._seed, sample]
            return [self._seed, sample, cell, *(n + 1 for n in taken)]

        return self._resolver.resolve(self._template(sample), cell, inner, keys)

    def _template(self, sample: int) -> Template:
        return self._presets[sample] if sample < len(self._presets) else self._base

    def _check_mark(self, mark: Mark) -> Mark:
        numbers = len(mark) >= 2 and all(isinstance(n, int) and n >= 0 for n in mark)
        if not numbers or (self._samples is not None and mark[0] >= self._samples):
            raise InvalidInputError(f"The mark {mark!r} is not of this search ({self._samples} samples).")
        if mark[1] >= self._template(mark[0]).cells:
            cells = self._template(mark[0]).cells
            raise InvalidInputError(
                f"The mark {mark!r} is not of this search: sample {mark[0]} has {cells} cells. Grids of an experiment "
                f"must keep their length; start a new experiment for others."
            )
        return mark

    def _count(self, spaces: list[dict[str, Any]]) -> int | None:
        if self._samples is None:
            return None
        counts = [_count_cells(each) for each in spaces]
        if self._samples > len(spaces):
            base = _count_cells(self.space)
            counts.append(None if base is None else base * (self._samples - len(spaces)))
        return sum(filter(None, counts)) if None not in counts else None

    def _warn_of_spec(self) -> None:
        if not self._warned:
            self._warned = True
            warn_user(
                "A sample_from function reads spec.config.x; write config['x'] instead: it is given the config.",
                DeprecationWarning,
            )


def check_points(points: Any) -> list[Mapping[str, Any]]:
    """The points to evaluate as a list.

    Raises:
        InvalidTypeError: They are not a list of dicts.
    """
    if points is None:
        return []
    if not isinstance(points, list | tuple) or not all(isinstance(point, Mapping) for point in points):
        raise InvalidTypeError(
            f"points_to_evaluate must be a list of dicts, got {points!r}. Write for example [{{'lr': 0.1}}]."
        )
    return list(points)


def _list_chosen(config: dict[str, Any], path: Path, name: str, evaluated: dict[str, Any]) -> None:
    try:
        value = get_at(config, path)
    except (KeyError, IndexError, TypeError):
        return  # a point has replaced a whole branch of the space by something else
    _list_leaves(name, value, evaluated)


def leaves_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a searcher chose, by path; a chosen dict is listed by its leaves."""
    evaluated: dict[str, Any] = {}
    for name, value in (values[VALUE] if is_mapping(values) else values).items():
        _list_leaves(str(name), value, evaluated)
    return evaluated


def _list_leaves(name: str, value: Any, evaluated: dict[str, Any]) -> None:
    if is_mapping(value):
        value = value[VALUE]
    if isinstance(value, dict) and value and not is_marker(value) and not is_exact(value):
        for key, below in value.items():
            _list_leaves(f"{name}/{key}", below, evaluated)
    else:
        evaluated[name] = value if type(value) in SCALARS else copy_tree(value)


def _count_cells(node: Any) -> int | None:
    """How many variants one sample of a node has; None if that depends on what is drawn."""
    if type(node) in SCALARS:
        return 1
    if isinstance(node, Function) or is_eval(node):
        return None
    if isinstance(node, Categorical):
        counts = {_count_cells(option) for option in node.categories}
        return counts.pop() if len(counts) == 1 else None
    if isinstance(node, Domain):
        return 1
    if is_grid(node):
        options = [_count_cells(option) for option in node["grid_search"]]
        return None if None in options else sum(filter(None, options))
    if is_exact(node):
        return _count_cells(node[VALUE]) if isinstance(node[VALUE], dict | list) else 1
    below = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list | tuple) else []
    factors = [_count_cells(each) for each in below]
    return None if None in factors else prod(filter(None, factors))
