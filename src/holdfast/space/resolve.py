"""One cell of one sample: from a space with variables to a config of values.

Domains are drawn first, then functions are called until none waits for another, then the grids that a value
brought along are opened, and so on. Everything follows from the key of the cell: a cell can be resolved at
any time, in any process, with the same outcome.

Owns the order of draws. The one place that touches global random state: it is seeded while user functions
run, because they may draw from it, and put back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from holdfast.errors import InvalidInputError, RecursiveDependencyError
from holdfast.space.domains import Function
from holdfast.space.exact import children, is_exact, is_mapping, pack
from holdfast.space.nested import (
    PENDING,
    Grid,
    Path,
    Pending,
    Slot,
    carve,
    copy_tree,
    joined,
    path_order,
    put_at,
)
from holdfast.space.objects import find_object, is_marker, make_marker, names_of, restore_objects
from holdfast.space.rng import Rng

MAX_PASSES = 20
"""Rounds of calling functions before their dependencies count as circular."""

MAX_LEVELS = 20
"""How often a value may bring along a grid whose options bring along a grid, and so on."""


_OWN = Pending()
"""Stands in the config for the value that the function being called is about to give."""


class Template:
    """A space taken apart once, so that resolving a cell costs the same however many options there are."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        found: list[Slot] = []
        self.skeleton: dict[str, Any] = carve(dict(space), (), found)
        found.sort(key=_by_path)
        self.paths = [slot.path for slot in found]
        self.grids = [slot for slot in found if isinstance(slot.source, Grid)]
        self.others = [slot for slot in found if not isinstance(slot.source, Grid)]
        self.cells = _cell_count(self.grids)


class Resolved(NamedTuple):
    """A cell whose every value is known."""

    config: dict[str, Any]
    raw: tuple[str, ...]
    trail: list[tuple[int, int]]
    """For each level of grids that values brought along: which of its cells this is, and of how many."""


class Resolver:
    """Resolves cells of one plan.

    Args:
        objects: What the markers in the space stand for; functions see the objects themselves.
        on_legacy: Called when a function reads ``spec.config``, the older way to see other values.
    """

    def __init__(self, objects: Mapping[str, Any], on_legacy: Callable[[], None]) -> None:
        self._objects = objects
        self._on_legacy = on_legacy

    def resolve(
        self, template: Template, cell: int, inner: list[int], keys: Callable[[list[int]], list[int]]
    ) -> Resolved:
        """Resolve a cell.

        Args:
            template: The space.
            cell: Number of the cell among the grids of the space itself.
            inner: Which cell to take of each level of grids that values bring along; 0 where it ends.
            keys: The key of the random stream, given the cells taken of the levels so far.
        """
        numpy_was_loaded = "numpy" in sys.modules
        work = _Work(template, self._objects, self._on_legacy)
        resolved = work.run(cell, inner, keys)
        if work.called and not numpy_was_loaded and "numpy" in sys.modules:
            # A function imported NumPy just now, so its first draw came from a state that nobody seeded.
            resolved = _Work(template, self._objects, self._on_legacy).run(cell, inner, keys)
        return resolved


class _Work:
    """The config of one cell while its values are being found."""

    def __init__(self, template: Template, objects: Mapping[str, Any], on_legacy: Callable[[], None]) -> None:
        self.template = template
        self.config: dict[str, Any] = copy_tree(template.skeleton)
        self.watch = _Watch(objects, on_legacy)
        self.globals: SeededGlobals | None = None
        self.called = False

    def run(self, cell: int, inner: list[int], keys: Callable[[list[int]], list[int]]) -> Resolved:
        found: list[Slot] = []
        trail: list[tuple[int, int]] = []
        self.pick(self.template.grids, cell, found)
        slots = self.template.others + sorted(found, key=_by_path)
        try:
            grids, waiting = self.settle(slots, keys([]))
            while grids:
                if len(trail) == MAX_LEVELS:
                    raise _circular(grids, f"they bring along grids {MAX_LEVELS} times over")
                grids.sort(key=_by_path)
                chosen = inner[len(trail)] if len(trail) < len(inner) else 0
                trail.append((chosen, _cell_count(grids)))
                found = []
                self.pick(grids, chosen, found)
                grids, waiting = self.settle(waiting + sorted(found, key=_by_path), keys([taken for taken, _ in trail]))
        finally:
            if self.globals is not None:
                self.globals.put_back()
        raw = self.tidy() if self.called else ()
        return Resolved(self.config, raw, trail)

    def pick(self, grids: list[Slot], cell: int, found: list[Slot]) -> None:
        """Place the options of one cell: mixed radix, the first grid varies fastest."""
        for path, grid in grids:
            assert isinstance(grid, Grid)
            cell, digit = divmod(cell, len(grid.options))
            put_at(self.config, path, carve(grid.options[digit], path, found))

    def settle(self, slots: list[Slot], key: list[int]) -> tuple[list[Slot], list[Slot]]:
        """Draw domains and call functions until only grids, and functions that wait for them, are left."""
        grids: list[Slot] = []
        functions: list[Slot] = []
        rng: Rng | None = None
        for _ in range(MAX_PASSES):
            found: list[Slot] = []
            progress = False
            for slot in slots:
                path, source = slot
                if isinstance(source, Grid):
                    grids.append(slot)
                elif isinstance(source, Function):
                    functions.append(slot)
                else:
                    rng = rng or Rng(key)
                    put_at(self.config, path, carve(source.draw(rng), path, found))
                    progress = True
            if functions:
                rng = rng or Rng(key)
                waiting = [slot for slot in functions if not self.call(slot, rng, found)]
                progress = progress or len(waiting) < len(functions)
                functions = waiting
            if not found and not functions:
                return grids, []
            if not progress:
                if grids:
                    return grids, functions
                raise _circular(functions, "each of them waits for a value that is not there yet")
            slots = sorted(found, key=_by_path)
        raise _circular(functions + slots, f"they are not settled after {MAX_PASSES} passes")

    def call(self, slot: Slot, rng: Rng, found: list[Slot]) -> bool:
        """Call a function and place what it returns; False if it waits for another value."""
        if self.globals is None:
            self.globals = SeededGlobals(rng.integers(0, 1 << 64))
        path, function = slot
        assert isinstance(function, Function)
        self.called = True
        self.watch.waited = False
        inside: list[Slot] = []
        put_at(self.config, path, _OWN)
        try:
            root = ConfigView(children(self.config), self.watch, root=True)
            value = carve(function.call(root), path, inside)
        except Exception as error:
            if self.watch.waited:
                return False
            raise InvalidInputError(
                f"Failed to evaluate expression at {joined(path)!r}: {function.domain_str} raised "
                f"{type(error).__name__}: {error}. Correct the function, or the names of the values it reads."
            ) from error
        finally:
            put_at(self.config, path, PENDING)
        # A function that catches everything may have swallowed the refusal, and made up a value without it.
        if self.watch.waited:
            return False
        put_at(self.config, path, value)
        found += inside
        return True

    def tidy(self) -> tuple[str, ...]:
        """Make what functions returned plain; the paths of what cannot be."""
        raw: list[str] = []
        names = names_of(self.watch.objects)

        def named(node: Any, path: Path) -> Any:
            if id(node) in names:
                return make_marker(names[id(node)], node)
            raw.append(joined(path))
            return node

        self.config = pack(self.config, named)
        return tuple(raw)


class _Watch:
    """What one function call may see, and whether it asked for something that is not there yet."""

    __slots__ = ("objects", "on_legacy", "waited")

    def __init__(self, objects: Mapping[str, Any], on_legacy: Callable[[], None]) -> None:
        self.objects = objects
        self.on_legacy = on_legacy
        self.waited = False

    def open(self, node: Any) -> Any:
        """A node as functions see it: objects in place of markers, and a refusal in place of PENDING."""
        if isinstance(node, Pending):
            self.waited = True
            raise RecursiveDependencyError("This value is not resolved yet; the function is called again once it is.")
        if is_marker(node):
            return find_object(node, self.objects)
        if is_exact(node) and not _has_pending(node):
            return restore_objects(node, self.objects)
        if is_exact(node):
            inside = children(node)
            return ConfigView(inside, self) if is_mapping(node) else _ListView(inside, self)
        if isinstance(node, dict):
            return ConfigView(node, self)
        if isinstance(node, list):
            return _ListView(node, self) if _has_pending(node) else restore_objects(node, self.objects)
        return node


class ConfigView(dict[str, Any]):
    """The config as a ``sample_from`` function sees it: a dict that knows which values are still to come.

    Values can also be read as attributes; ``spec.config.x`` works for functions written for a spec.
    """

    __slots__ = ("_root", "_watch")

    is_view = True

    def __init__(self, values: dict[str, Any], watch: _Watch, root: bool = False) -> None:
        super().__init__(values)
        self._watch = watch
        self._root = root

    def __getitem__(self, key: Any) -> Any:
        if key == "config" and self._root and key not in self:
            return self._legacy()
        return self._watch.open(super().__getitem__(key))

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name == "config" and self._root:
            return self._legacy()
        raise AttributeError(f"The config has no value named {name!r}; it has {list(self)}.")

    def _legacy(self) -> ConfigView:
        self._watch.on_legacy()
        return self

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    # Whoever goes through all values does not mean the function's own, so it is left out. `dict(view)` and
    # `{**view}` would read the stored values, markers among them, if iteration were not overridden.
    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> Any:
        """The keys."""
        return [key for key, value in super().items() if value is not _OWN]

    def values(self) -> Any:
        """The values."""
        return [self[key] for key in self]

    def items(self) -> Any:
        """Pairs of key and value."""
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[str, Any]:
        """The values as a dict."""
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class _ListView(list[Any]):
    """A list inside a ConfigView that has values still to come."""

    __slots__ = ("_watch",)

    is_view = True

    def __init__(self, values: list[Any], watch: _Watch) -> None:
        super().__init__(values)
        self._watch = watch

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self._watch.open(value) for value in super().__getitem__(item)]
        return self._watch.open(super().__getitem__(item))

    def __iter__(self) -> Iterator[Any]:
        return map(self._watch.open, super().__iter__())

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class SeededGlobals:
    """Seeds ``random`` and, if it is loaded, ``numpy.random``; ``put_back`` undoes it."""

    def __init__(self, seed: int) -> None:
        import random

        self._random = random.getstate()
        self._numpy: Any = None
        random.seed(seed)
        if "numpy" in sys.modules:
            import numpy.random

            self._numpy = numpy.random.get_state()
            numpy.random.seed(seed & 0xFFFFFFFF)

    def put_back(self) -> None:
        import random

        random.setstate(self._random)
        if self._numpy is not None:
            import numpy.random

            numpy.random.set_state(self._numpy)


def _has_pending(node: Any) -> bool:
    if isinstance(node, dict | list):
        return any(map(_has_pending, node.values() if isinstance(node, dict) else node))
    return isinstance(node, Pending)


def _by_path(slot: Slot) -> list[tuple[int, int, str]]:
    return path_order(slot.path)


def _cell_count(grids: list[Slot]) -> int:
    return prod(len(slot.source.options) for slot in grids if isinstance(slot.source, Grid))


def _circular(slots: list[Slot], why: str) -> RecursiveDependencyError:
    names = ", ".join(repr(joined(slot.path)) for slot in slots)
    return RecursiveDependencyError(
        f"The search space cannot be resolved at {names}: {why}. Let one of them not depend on the others."
    )
