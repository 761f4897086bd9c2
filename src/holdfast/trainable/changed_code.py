"""Is the code that is stored with an experiment still the code that the user has?

Owns finding what the user has now (in ``__main__``, in a module that is loaded, in the source file) and comparing the
two. Must never import a module or run anything of the user's: whoever restores an experiment may not want that.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 8
MAX_ITEMS = 1000
MAX_SOURCE_BYTES = 10_000_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MISSING = object()


def is_stored_code(trainable: Any) -> bool:
    """Was this loaded from its own byte code, rather than imported by its name?"""
    bare = _bare(trainable)
    module = sys.modules.get(getattr(bare, "__module__", None) or "")
    return module is None or _at(module, _qualname(bare)) is not bare


def difference(trainable: Any) -> str:
    """How a stored trainable differs from what the user has now, in a few words; "" if it does not, or nobody knows."""
    stored = _bare(trainable)
    for module in _places(stored):
        current = _bare(_at(module, _qualname(stored)))
        if current is stored:
            return ""
        if isinstance(current, types.FunctionType | type) and type(current) is type(stored):
            what = _Comparison().of(stored, current)
            return what and f"{what} is not the same as in {_place(module)}"
    return _from_source(stored)


def _places(stored: Any) -> Iterator[types.ModuleType]:
    for name in ("__main__", getattr(stored, "__module__", None) or ""):
        module = sys.modules.get(name)
        if module is not None:
            yield module


def _place(module: types.ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__


def _bare(trainable: Any) -> Any:
    """The user's own function or class, without what ``with_parameters``, ``with_resources`` or ``partial`` add."""
    for _ in range(MAX_DEPTH):
        own = vars(trainable) if hasattr(trainable, "__dict__") else {}
        if "_holdfast_bound" in own:
            trainable = own["_holdfast_bound"][0]
        elif isinstance(trainable, functools.partial):
            trainable = trainable.func
        else:
            break
    return getattr(trainable, "__func__", trainable)


def _qualname(bare: Any) -> str:
    return getattr(bare, "__qualname__", None) or ""


def _at(module: types.ModuleType, qualname: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None) if name else None
    return found


class _Comparison:
    """One comparison, of two things and of what they refer to."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def of(self, stored: Any, current: Any, depth: int = MAX_DEPTH) -> str:
        """What of the stored thing is another now; "" if nothing is."""
        pair = (id(stored), id(current))
        if stored is current or pair in self._seen or not depth:
            return ""
        self._seen.add(pair)
        if isinstance(stored, types.FunctionType) and isinstance(current, types.FunctionType):
            return self._of_functions(stored, current, depth - 1)
        if isinstance(stored, type) and isinstance(current, type):
            return self._of_classes(stored, current, depth - 1)
        return ""

    def _of_functions(self, stored: types.FunctionType, current: types.FunctionType, depth: int) -> str:
        name = stored.__qualname__.removesuffix(".<locals>")
        if not same_code(stored.__code__, current.__code__):
            return name
        if self._differ(stored.__defaults__, current.__defaults__, depth) or self._differ(
            stored.__kwdefaults__, current.__kwdefaults__, depth
        ):
            return f"the defaults of {name}"
        for variable, old, new in _referred(stored, current):
            what = self.of(old, new, depth)
            if what or self._differ(old, new, depth):
                return what or f"{variable}, which {name} uses,"
        return ""

    def _of_classes(self, stored: type, current: type, depth: int) -> str:
        for name, old in vars(stored).items():
            if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__"):
                continue
            new = vars(current).get(name, _MISSING)
            what = self.of(_method(old), _method(new), depth)
            if what or self._differ(old, new, depth):
                return what or f"{stored.__qualname__}.{name}"
        added = [name for name in vars(current) if name not in vars(stored) and not name.startswith("__")]
        if added:
            return f"{stored.__qualname__}.{added[0]}"
        bases = zip(stored.__bases__, current.__bases__, strict=False)
        return next(filter(None, (self.of(old, new, depth) for old, new in bases)), "")

    def _differ(self, old: Any, new: Any, depth: int) -> bool:
        """Do plain values differ? Of others nobody can tell."""
        if new is _MISSING:
            return True
        if isinstance(old, _PLAIN) or isinstance(new, _PLAIN):
            return type(old) is not type(new) or (old != new and not (old != old and new != new))
        if not depth or type(old) is not type(new):
            return isinstance(old, types.FunctionType | type) != isinstance(new, types.FunctionType | type)
        if isinstance(old, list | tuple):
            pairs = zip(old[:MAX_ITEMS], new[:MAX_ITEMS], strict=False)
            return len(old) != len(new) or any(self._differ(*pair, depth - 1) for pair in pairs)
        if isinstance(old, dict):
            return old.keys() != new.keys() or any(
                self._differ(old[key], new[key], depth - 1) for key in list(old)[:MAX_ITEMS]
            )
        return False


def _method(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", value)


def _referred(stored: types.FunctionType, current: types.FunctionType) -> Iterator[tuple[str, Any, Any]]:
    """What the two find under the names that they use: global ones, and those of functions around them."""
    for name in _names(stored.__code__):
        if name in stored.__globals__:
            yield name, stored.__globals__[name], current.__globals__.get(name, _MISSING)
    cells = zip(stored.__code__.co_freevars, stored.__closure__ or (), current.__closure__ or (), strict=False)
    for name, old, new in cells:
        try:
            yield name, old.cell_contents, new.cell_contents
        except ValueError:
            continue  # one of them has no value yet


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def same_code(one: types.CodeType, other: types.CodeType) -> bool:
    """Do both do the same, wherever they stand in their files?"""
    facts = (
        "co_code",
        "co_names",
        "co_varnames",
        "co_freevars",
        "co_cellvars",
        "co_argcount",
        "co_posonlyargcount",
        "co_kwonlyargcount",
        "co_exceptiontable",
    )
    if any(getattr(one, fact, None) != getattr(other, fact, None) for fact in facts):
        return False
    return len(one.co_consts) == len(other.co_consts) and all(map(_same_const, one.co_consts, other.co_consts))


def _same_const(one: Any, other: Any) -> bool:
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        return same_code(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same_const, one, other))
    if isinstance(one, frozenset):
        return bool(one == other)
    return type(one) is type(other) and repr(one) == repr(other)


# --- from the source file


def _from_source(stored: Any) -> str:
    """As far as the byte code goes: what it refers to is not looked at, because nothing is run."""
    functions = _functions_of(stored)
    if not functions:
        return ""
    file = next(iter(functions.values())).co_filename
    current = _compiled(file)
    for qualname, code in functions.items():
        known = current.get(qualname, [])
        if known and not any(same_code(code, each) for each in known):
            return f"{qualname} is not the same as in {file}"
    return ""


def _functions_of(stored: Any) -> Mapping[str, types.CodeType]:
    if isinstance(stored, types.FunctionType):
        return {stored.__code__.co_qualname: stored.__code__}
    if not isinstance(stored, type):
        return {}
    methods = (_method(value) for value in vars(stored).values())
    return {each.__code__.co_qualname: each.__code__ for each in methods if isinstance(each, types.FunctionType)}


def _compiled(file: str) -> dict[str, list[types.CodeType]]:
    """The code of everything in a source file, by its qualified name; what is defined twice is there twice."""
    try:
        if not os.path.isabs(file) or not os.path.isfile(file) or os.path.getsize(file) > MAX_SOURCE_BYTES:
            return {}
        if _was_rewritten(file):
            return {}
        with open(file, "rb") as stream:
            top = compile(stream.read(), file, "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    found: dict[str, list[types.CodeType]] = {}
    queue = [top]
    while queue:
        code = queue.pop()
        found.setdefault(code.co_qualname, []).append(code)
        queue.extend(const for const in code.co_consts if isinstance(const, types.CodeType))
    return found


def _was_rewritten(file: str) -> bool:
    """Does a loaded module of this file have other code than its source, because an import hook has changed it?"""
    for module in list(sys.modules.values()):
        loader = getattr(module, "__loader__", None)
        if getattr(module, "__file__", None) == file and loader is not None:
            return type(loader).__module__.partition(".")[0] not in ("importlib", "_frozen_importlib_external")
    return False
