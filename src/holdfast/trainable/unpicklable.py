"""What inside an object cannot be pickled, or makes its pickle large.

Owns the walk through closures, globals, defaults, attributes and items. Must never change what it looks at, and
never raise.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

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
    steps = trace(obj)
    lines = [_describe(obj), *(f"{step.label}: {type(step.obj).__name__}" for step in steps)]
    lines[-1] += f" ({steps[-1].error if steps else error})"
    return lines


def diagnose_serialization(trainable: Any) -> bool | set[str]:
    """Say why a trainable cannot be sent to a worker process: prints the way to what is to blame.

    Returns:
        True if it can be pickled; else the part that cannot, in words.
    """
    lines = diagnose(trainable)
    if not lines:
        return True
    print("\n".join(f"{'  ' * depth}{line}" for depth, line in enumerate(lines)))
    return {lines[-1]}


class Step(NamedTuple):
    """One step from an object to a part of it that cannot be pickled."""

    label: str
    """The step in words: "attribute 'lock'"."""

    code: str
    """The step as one would write it behind the object: ``.lock``, ``['key']``, ``[0]``."""

    obj: Any
    error: str


def trace(obj: Any) -> list[Step]:
    """The way from an object that cannot be pickled down to the part that is to blame; empty if it is the object."""
    steps: list[Step] = []
    seen = {id(obj)}
    for _ in range(MAX_DEPTH):
        found = _first_bad_child(obj, seen)
        if found is None:
            break
        steps.append(found)
        obj = found.obj
        seen.add(id(obj))
    return steps


def largest_parts(obj: Any) -> list[tuple[str, int]]:
    """The parts of ``obj`` that make its pickle large, with their sizes in bytes, largest first."""
    sizes = []
    for label, _, child in _children(obj):
        try:
            sizes.append((label, len(_dumps(child))))
        except Exception:
            continue
    sizes.sort(key=lambda part: -part[1])
    return [part for part in sizes if part[1] > 10_000][:MAX_PARTS]


def _first_bad_child(obj: Any, seen: set[int]) -> Step | None:
    for count, (label, code, child) in enumerate(_children(obj)):
        if count >= MAX_CHILDREN:
            return None
        if id(child) not in seen and (error := _error(child)) is not None:
            return Step(label, code, child, error)
    return None


def _children(obj: Any) -> Iterator[tuple[str, str, Any]]:
    """The parts that pickling ``obj`` has to pickle too, each with the words and the code that lead to it."""
    if isinstance(obj, functools.partial):
        yield "function of the partial", ".func", obj.func
        yield from ((f"argument {i} of the partial", f".args[{i}]", value) for i, value in enumerate(obj.args))
        named = obj.keywords.items()
        yield from ((f"argument {name!r} of the partial", f".keywords[{name!r}]", value) for name, value in named)
    elif isinstance(obj, types.MethodType):
        yield "the method's own object", ".__self__", obj.__self__
        yield "the method's function", ".__func__", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from ((label, f", {label}", value) for label, value in _parts_of_function(obj))
    elif isinstance(obj, type):
        members = ((name, _unwrapped(value)) for name, value in vars(obj).items())
        yield from ((f"class attribute {name!r}", f".{name}", value) for name, value in members if not _is_slot(value))
        bases = (base for base in obj.__bases__ if base is not object)
        yield from ((f"base class {base.__name__!r}", f", base class {base.__name__!r}", base) for base in bases)
    elif isinstance(obj, dict):
        yield from ((f"item {key!r}", f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((f"item {i}", f"[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, (set, frozenset)):
        yield from ((f"item {i}", ", an element of it", value) for i, value in enumerate(obj))
    elif hasattr(obj, "__dict__"):
        yield from ((f"attribute {name!r}", f".{name}", value) for name, value in vars(obj).items())
        yield f"class {type(obj).__name__!r}", ".__class__", type(obj)


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
