"""What inside an object cannot be pickled, or makes its pickle large.

Owns the walk through closures, globals, defaults, attributes and items. Must never change what it looks at, and
never raise.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 12
MAX_CHILDREN = 1_000
MAX_PARTS = 3


def diagnose(obj: Any) -> list[str]:
    """The way from ``obj`` down to what cannot be pickled, one line per step; empty if it can be pickled.

    Example:
        >>> lock = threading.Lock()
        >>> def train(config):
        ...     with lock: ...
        >>> diagnose(train)
        ["function 'train'", "global variable 'lock': lock (cannot pickle '_thread.lock' object)"]
    """
    error = _error(obj)
    if error is None:
        return []
    lines = [_describe(obj)]
    seen = {id(obj)}
    for _ in range(MAX_DEPTH):
        found = _first_bad_child(obj, seen)
        if found is None:
            break
        label, obj, error = found
        seen.add(id(obj))
        lines.append(f"{label}: {type(obj).__name__}")
    lines[-1] += f" ({error})"
    return lines


def largest_parts(obj: Any) -> list[tuple[str, int]]:
    """The parts of ``obj`` that make its pickle large, with their sizes in bytes, largest first."""
    sizes = []
    for label, child in _children(obj):
        try:
            sizes.append((label, len(_dumps(child))))
        except Exception:
            continue
    sizes.sort(key=lambda part: -part[1])
    return [part for part in sizes if part[1] > 10_000][:MAX_PARTS]


def _first_bad_child(obj: Any, seen: set[int]) -> tuple[str, Any, str] | None:
    for count, (label, child) in enumerate(_children(obj)):
        if count >= MAX_CHILDREN:
            return None
        if id(child) not in seen and (error := _error(child)) is not None:
            return label, child, error
    return None


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    """The parts that pickling ``obj`` has to pickle too, each with the words that lead to it."""
    if isinstance(obj, functools.partial):
        yield "function of the partial", obj.func
        yield from ((f"argument {i} of the partial", value) for i, value in enumerate(obj.args))
        yield from ((f"argument {name!r} of the partial", value) for name, value in obj.keywords.items())
    elif isinstance(obj, types.MethodType):
        yield "the method's own object", obj.__self__
        yield "the method's function", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, type):
        members = ((name, _unwrapped(value)) for name, value in vars(obj).items())
        yield from ((f"class attribute {name!r}", value) for name, value in members if not _is_slot(value))
        yield from ((f"base class {base.__name__!r}", base) for base in obj.__bases__ if base is not object)
    elif isinstance(obj, dict):
        yield from ((f"item {key!r}", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"item {i}", value) for i, value in enumerate(obj))
    elif hasattr(obj, "__dict__"):
        yield from ((f"attribute {name!r}", value) for name, value in vars(obj).items())
        yield f"class {type(obj).__name__!r}", type(obj)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:  # an empty cell: the variable is assigned later
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    parameters = inspect.signature(function).parameters.values()
    yield from ((f"default of argument {p.name!r}", p.default) for p in parameters if p.default is not p.empty)
    yield from ((f"attribute {name!r}", value) for name, value in vars(function).items())


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Names that a function and the functions inside it look up elsewhere; attribute names are among them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _is_slot(member: Any) -> bool:
    """Whether Python makes this member anew with the class, so that it is never pickled."""
    return isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)) or (
        type(member).__module__ == "_abc"
    )


def _unwrapped(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def _describe(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    kind = "class" if isinstance(obj, type) else type(obj).__name__
    return f"{kind} {name!r}" if isinstance(name, str) else kind


def _error(obj: Any) -> str | None:
    try:
        _dumps(obj)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _dumps(obj: Any) -> bytes:
    import cloudpickle

    data: bytes = cloudpickle.dumps(obj)
    return data
