"""What a space has in it and all that can be made of it, in the words of users of other tuners: for their searchers.

Owns no rule of its own: which node is a variable is said by ``space.tree``, what it becomes by ``space.variants``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space import grid_search
from holdfast.space.domains import Categorical, Domain
from holdfast.space.exact import Inside
from holdfast.space.naming import format_vars as _format
from holdfast.space.nested import Grid, find_variables, has_variables, path_order
from holdfast.space.objects import restore_objects
from holdfast.space.rng import as_random_source
from holdfast.space.variants import VariantPlan

__all__ = [
    "assign_value",
    "flatten_resolved_vars",
    "format_vars",
    "generate_variants",
    "grid_search",
    "has_unresolved_values",
    "parse_spec_vars",
]

Path = tuple[Any, ...]
SEEDS = 1 << 63


class GridDomain(Categorical):
    """A grid as a domain: all of its options are tried."""

    def is_grid(self) -> bool:
        return True


def parse_spec_vars(
    spec: Mapping[str, Any],
) -> tuple[list[tuple[Path, Any]], list[tuple[Path, Domain]], list[tuple[Path, GridDomain]]]:
    """Take a space apart.

    Returns:
        Its constants, its domains and its grids, each as pairs of a path and what is there. A grid is a domain whose
        ``is_grid()`` is True and whose options are its ``categories``.

    Example:
        >>> constants, domains, grids = parse_spec_vars({"a": 1, "b": {"c": grid_search([1, 2])}})
        >>> constants, domains, grids[0][0], grids[0][1].categories
        ([(('a',), 1)], [], ('b', 'c'), [1, 2])
    """
    found = [(_plain(slot.path), slot.source) for slot in find_variables(spec)]
    grids = [(path, GridDomain(source.options)) for path, source in found if isinstance(source, Grid)]
    domains = [(path, source) for path, source in found if isinstance(source, Domain)]
    taken = {path for path, _ in found}
    return [pair for pair in _leaves(spec, ()) if pair[0] not in taken], domains, grids


def generate_variants(
    unresolved_spec: Mapping[str, Any], constant_grid_search: bool = False, random_state: Any = None
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """All cells of a space's grids, with a value for each of its domains.

    Args:
        unresolved_spec: The space; it is not changed.
        constant_grid_search: Draw values once, rather than once for each cell.
        random_state: A seed or a generator; None for fresh entropy.

    Yields:
        What was chosen, by path, and the whole configuration.

    Example:
        >>> [chosen for chosen, _ in generate_variants({"a": grid_search([1, 2]), "b": 3})]
        [{('a',): 1}, {('a',): 2}]
    """
    seed = as_random_source(random_state).integers(0, SEEDS)
    paths = [_plain(slot.path) for slot in find_variables(unresolved_spec)]
    plan = VariantPlan(unresolved_spec, seed=seed, num_samples=1, constant_grid_search=constant_grid_search)
    variant = plan.next(None)
    while variant is not None:
        config = restore_objects(variant.config, plan.objects)
        yield {path: _at(config, path) for path in paths}, config
        variant = plan.next(variant.mark)


def format_vars(resolved_vars: Mapping[Any, Any]) -> str:
    """Chosen values as ``k=v,k=v``, in the order of their paths: the last name of each, and the indexes in it.

    Example:
        >>> format_vars({("net", "layers", 0): 64, ("lr",): 0.1})
        'lr=0.1000,layers_0=64'
    """
    shown = []
    paths = {path if isinstance(path, tuple) else (path,): value for path, value in resolved_vars.items()}
    for path in sorted(paths, key=path_order):
        last = max((i for i, part in enumerate(path) if not isinstance(part, int)), default=-1)
        parts = [str(part) for i, part in enumerate(path) if isinstance(part, int) or i == last]
        shown.append(_format({"_".join(parts).replace("/", "_"): paths[path]}))
    return ",".join(shown)


def flatten_resolved_vars(resolved_vars: Mapping[Path, Any]) -> dict[str, Any]:
    """The same, by paths that are joined by slashes."""
    return {"/".join(map(str, path)): value for path, value in resolved_vars.items()}


def has_unresolved_values(spec: Mapping[str, Any]) -> bool:
    """Whether there is anything in a space that needs a value."""
    return has_variables(copy.copy(dict(spec)))


def assign_value(spec: Any, path: Path, value: Any) -> None:
    """Put a value at a path of a space, in place.

    Raises:
        InvalidInputError: There is no such place.
    """
    try:
        _at(spec, path[:-1])[path[-1]] = value
    except (LookupError, TypeError) as error:
        raise InvalidInputError(f"There is no place {path!r} in {spec!r} ({type(error).__name__}: {error}).") from error


def _plain(path: Path) -> Path:
    return tuple(part for part in path if type(part) is not Inside)


def _at(node: Any, path: Path) -> Any:
    for part in path:
        node = node[part]
    return node


def _leaves(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value that is no dict and no list; grids and the like are entered, and left out by whoever asks."""
    inside: Any = None
    if isinstance(node, Mapping) and not (len(node) == 1 and ("grid_search" in node or "eval" in node)):
        inside = node.items()
    elif isinstance(node, list):
        inside = enumerate(node)
    if inside is None:
        yield path, node
        return
    for key, value in inside:
        yield from _leaves(value, (*path, key))
