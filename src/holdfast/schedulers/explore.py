"""New configs out of old ones: what may be mutated, and how.

Everything follows from the arguments and the random numbers that are passed in. User functions may draw from the global
generators, so these are seeded while such a function runs. Configs are plain data with markers in place of objects;
markers are carried along and never made up.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.schedulers.base import CORRECT_IT, number
from holdfast.space.domains import Categorical, Domain, Function
from holdfast.space.exact import VALUE, is_exact, is_mapping, pack, unpack
from holdfast.space.naming import format_vars
from holdfast.space.nested import Path, copy_tree, is_grid, joined
from holdfast.space.objects import is_marker
from holdfast.space.resolve import SeededGlobals
from holdfast.space.rng import Rng

Mutations: TypeAlias = dict[str, Any]
"""Nested dicts; at their leaves a list of plain options, a domain, or a function without arguments."""

_MISSING = object()


def prepare(mutations: Any, argument: str = "hyperparam_mutations") -> Mutations:
    """The user's mutations, checked; options as plain data.

    Raises:
        InvalidTypeError: A value is nothing that values can be drawn from.
        InvalidInputError: It is a ``sample_from`` object, a grid, or an option cannot be stored.
    """
    if not isinstance(mutations, dict):
        raise InvalidTypeError(
            f"{argument} must be a dict of keys of the config, got {mutations!r}. "
            f'For example {argument}={{"lr": tune.loguniform(1e-4, 1e-1)}}.'
        )
    return {key: _source(value, (key,), argument) for key, value in mutations.items()}


def _source(value: Any, path: Path, argument: str) -> Any:
    where = f"{argument} at {joined(path)!r}"
    if is_grid(value):
        raise InvalidInputError(
            f"{where} is a grid, of which every option would be tried. Give the options themselves: "
            f"{value['grid_search']!r}."
        )
    if isinstance(value, dict):
        return {key: _source(each, (*path, key), argument) for key, each in value.items()}
    if isinstance(value, Function):
        raise InvalidInputError(
            f"{where} is a sample_from object, which needs a config to draw from. Give a function without arguments, "
            "a list of options, or a domain such as tune.uniform(0, 1)."
        )
    if isinstance(value, list | tuple | Categorical):
        options = value.categories if isinstance(value, Categorical) else value
        if not options:
            raise InvalidInputError(f"{where} has no options to choose from. Give at least one.")
        return [plain(option, where) for option in options]
    if isinstance(value, Domain) or callable(value):
        return value
    raise InvalidTypeError(
        f"{where} must be a list, a tuple, a dict, a domain such as tune.uniform(0, 1), or a function without "
        f"arguments; got {value!r} ({type(value).__name__})."
    )


def leaves(mutations: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every path that is mutated and where its values come from."""
    for key, source in mutations.items():
        if isinstance(source, dict):
            yield from leaves(source, (*path, key))
        else:
            yield (*path, key), source


def find(config: Any, path: Path, default: Any = None) -> Any:
    """The value at a path of a config."""
    for part in path:
        config, key = _step(config, part)
        if not isinstance(config, dict) or key not in config:
            return default
        config = config[key]
    return config


def _step(node: Any, key: Any) -> tuple[Any, Any]:
    """The plain dict inside a node, and how it spells a key: other keys than strings are texts there."""
    if not is_mapping(node):
        return node, key
    texts = {unpack(real): text for text, real in node.get("keys", {}).items() if not is_marker(real)}
    return node[VALUE], texts.get(key, key)


def place(config: dict[str, Any], path: Path, value: Any) -> None:
    """Put a value at a path of a config, making the dicts on the way.

    Raises:
        InvalidInputError: There is a value on the way that is no dict.
    """
    node: Any = config
    for depth, part in enumerate(path[:-1], start=1):
        node, key = _step(node, part)
        node = node.setdefault(key, {})
        if not isinstance(node, dict) or is_marker(node) or (is_exact(node) and not is_mapping(node)):
            raise InvalidInputError(
                f"{joined(path)!r} is to be mutated, but the config has the value {node!r} at "
                f"{joined(path[:depth])!r}, which is no dict. Use the same nesting in both."
            )
    node, key = _step(node, path[-1])
    node[key] = value


def fill(config: Mapping[str, Any], mutations: Mutations, rng: Rng) -> tuple[dict[str, Any], list[str]]:
    """A copy of ``config`` with a value for every key that is mutated and missing, and the paths of these."""
    filled: dict[str, Any] = copy_tree(dict(config))
    missing = [(path, source) for path, source in leaves(mutations) if find(config, path, _MISSING) is _MISSING]
    for path, source in missing:
        place(filled, path, draw(source, rng, path))
    return filled, [joined(path) for path, _ in missing]


def explore(
    config: Mapping[str, Any], mutations: Mutations, rng: Rng, resample_probability: float, factors: Sequence[float]
) -> dict[str, Any]:
    """A mutated copy of ``config``.

    Of options, one beside the present one is taken; numbers are multiplied by one of ``factors``. With
    ``resample_probability``, and where that is not possible, the value is drawn anew. An int stays an int.
    """
    mutated: dict[str, Any] = copy_tree(dict(config))
    for path, source in leaves(mutations):
        value = find(config, path, _MISSING)
        resample = rng.random() < resample_probability
        if isinstance(source, list):
            new = rng.choice(source) if resample or value not in source else _neighbour(value, source, rng)
            place(mutated, path, copy_tree(new))
            continue
        value = unpack(value)
        if resample or not isinstance(value, numbers.Real) or isinstance(value, bool):
            new = draw(source, rng, path)
        else:
            new = value * rng.choice(factors)
        if isinstance(value, numbers.Integral) and not isinstance(value, bool) and isinstance(new, float):
            kind: Any = type(value)
            new = kind(int(new))  # a number of NumPy's stays one, too
        place(mutated, path, plain(new, f"the mutation of {joined(path)!r}"))
    return mutated


def _neighbour(value: Any, options: list[Any], rng: Rng) -> Any:
    index = options.index(value) + rng.choice((-1, 1))
    return options[min(max(index, 0), len(options) - 1)]


def draw(source: Any, rng: Rng, path: Path) -> Any:
    """A new value from a list of options, a domain or a function."""
    if isinstance(source, list):
        return copy_tree(rng.choice(source))
    if isinstance(source, Domain):
        return plain(source.draw(rng), f"the domain of {joined(path)!r}")
    what = f"the function of {joined(path)!r}"
    return plain(call_seeded(source, rng, what), what)


def check(factors: Any, function: Any) -> None:
    """Refuse ``perturbation_factors`` and a ``custom_explore_fn`` that cannot work.

    Raises:
        InvalidInputError: It says which, and what it must be.
    """
    given = list(factors) if isinstance(factors, Iterable) else []
    if not given or not all((number(factor) or 0) > 0 for factor in given):
        raise InvalidInputError(f"perturbation_factors must be positive numbers such as (1.2, 0.8), got {factors!r}.")
    if function is not None and not callable(function):
        raise InvalidInputError(
            f"custom_explore_fn must be a function that takes a config and returns one, got {function!r} "
            f"({type(function).__name__})."
        )


def explore_with(
    function: Callable[[dict[str, Any]], Any], config: dict[str, Any], rng: Rng, objects: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the user's ``custom_explore_fn`` makes of a config, as plain data.

    The function sees the objects that markers stand for, as far as they are known. What it returns must be a config
    again, of plain data and of objects that it was given.

    Raises:
        InvalidInputError: The function raised, or returned something else.
    """
    given: dict[int, Any] = {}
    what = "custom_explore_fn"
    leaf = partial(_with_object, objects or {}, given)
    changed = call_seeded(function, rng, what, lambda: unpack(config, leaf))
    if not isinstance(changed, dict):
        raise InvalidInputError(
            f"{what} returned {changed!r} ({type(changed).__name__}). It must return the config that the trial "
            f"continues with, also if it changes the one that it was given. {CORRECT_IT}"
        )
    # Key by key, because the message then names it.
    made: dict[str, Any] = plain({key: plain(each, f"{what} at {key!r}", given) for key, each in changed.items()}, what)
    return made


def _with_object(objects: Mapping[str, Any], given: dict[int, Any], node: Any) -> Any:
    """The object in place of a marker; ``given`` learns which marker it has."""
    if is_marker(node):
        name = node["__object__"]
        if name not in objects:
            return dict(node)
        found = objects[name]
        given[id(found)] = node
        return found
    return node


def call_seeded(function: Callable[..., Any], rng: Rng, what: str, argument: Callable[[], Any] | None = None) -> Any:
    """Call a user's function while ``random`` and ``numpy.random`` are seeded from ``rng``.

    Raises:
        InvalidInputError: The function raised.
    """
    seed = rng.integers(0, 1 << 64)

    def once() -> Any:
        seeded = SeededGlobals(seed)
        try:
            return function() if argument is None else function(argument())
        except Exception as error:
            raise InvalidInputError(f"{what} raised {type(error).__name__}: {error}. {CORRECT_IT}") from error
        finally:
            seeded.put_back()

    numpy_was_loaded = "numpy" in sys.modules
    value = once()
    # If it was the function that imported NumPy, its first draw came from a state that nobody had seeded.
    return value if numpy_was_loaded or "numpy" not in sys.modules else once()


def plain(value: Any, where: str, given: Mapping[int, Any] | None = None) -> Any:
    """The value as the journal holds it: plain data, tagged where needed; objects that were ``given`` as their markers.

    Raises:
        InvalidInputError: It is, or contains, something else.
    """

    def marker(node: Any, _: Any) -> Any:
        if given and id(node) in given:
            return given[id(node)]
        raise InvalidInputError(
            f"{where} gave {node!r} ({type(node).__name__}), which is not plain data. Mutated values are recorded in "
            "the experiment's journal, so they must be numbers, strings, bools, None, or lists, tuples, sets and dicts "
            "of these. Mutate a name, for example, and look the object up in the trainable."
        )

    return pack(value, marker)


def perturbed_tag(tag: str, config: Mapping[str, Any], mutations: Mapping[str, Any]) -> str:
    """How a trial is shown that continues with mutated values.

    Example:
        >>> perturbed_tag("3_lr=1", {"lr": 0.5, "data": "x"}, {"lr": [0.5, 1]})
        '3_lr=1@perturbed[lr=0.5000]'
    """
    values = {joined(path): find(config, path) for path, _ in leaves(mutations)}
    return f"{tag}@perturbed[{format_vars(values)}]"
