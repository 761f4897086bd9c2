"""Pickles of others, read as plain records: nothing is imported, and nothing that is named in them is called.

Owns the unpickler. Must never return an object of any class but Python's own containers and scalars, `Named` and
`Record`: whatever a pickle wants to call becomes a `Record` of that call.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any


class Unreadable(Exception):
    """A pickle could not be read; says why."""


class Named:
    """Stands for a class or function of some module."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class Record:
    """Stands for an object: what would have made it, and the state that it would have been given.

    Attributes:
        maker: What would have been called.
        args: With which arguments.
        state: The attributes that it would have.
        items: What would have been added to it.
    """

    __slots__ = ("args", "items", "maker", "state")

    def __init__(self, maker: Any, args: Any) -> None:
        self.maker = maker
        self.args = args if isinstance(args, tuple) else ()
        self.state: dict[Any, Any] = {}
        self.items: list[Any] = []

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.state.get(name, default)

    # What the machine of the unpickler calls in the place of the object's own methods.

    def append(self, item: Any) -> None:
        self.items.append(item)

    add = append

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


def load(data: bytes) -> Any:
    """What a pickle says, as plain data and records.

    Raises:
        Unreadable: It is no pickle, is cut short, or needs what is not in it.
    """
    try:
        return _Unpickler(data).load()
    except Exception as error:  # a forged or torn pickle fails in any way that Python knows
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def type_name(value: Any) -> str:
    """The class of a value, ``module.Class``, as far as its pickle tells."""
    if isinstance(value, Named):
        return f"{value.module}.{value.name}"
    if not isinstance(value, Record):
        return f"builtins.{type(value).__name__}"
    maker, args = value.maker, value.args
    if isinstance(maker, Record):  # a class of the user's script, which cloudpickle has sent along
        return _class_name(maker)
    if isinstance(maker, Named) and maker.name.startswith("_make_") and maker.module.startswith("cloudpickle"):
        return _class_name(value)
    if isinstance(maker, Named) and maker.name in ("_reconstructor", "_reconstruct") and args:
        return type_name(args[0]) if isinstance(args[0], Named) else _class_name(args[0])
    return type_name(maker) if isinstance(maker, Named) else "an object"


def _class_name(made: Any) -> str:
    """The name of a class that is made anew: (its type, its name, its bases, its namespace, ...)."""
    if not isinstance(made, Record):
        return "an object"
    if isinstance(made.maker, Named) and made.maker.name == "_make_function":
        return "builtins.function"
    args = made.args
    name = args[1] if len(args) > 1 and isinstance(args[1], str) else "object"
    namespace = next((each for each in args if isinstance(each, dict)), {})
    module = namespace.get("__module__", "__main__")
    return f"{module if isinstance(module, str) else '__main__'}.{name}"


_InPython: Any = pickle._Unpickler  # the one written in Python, whose instructions can be replaced one by one


class _Unpickler(_InPython):  # type: ignore[misc]
    """Python's own unpickler, with every instruction replaced that calls something."""

    dispatch: dict[int, Callable[..., Any]] = dict(_InPython.dispatch)

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._size = len(data)

    def find_class(self, module: str, name: str) -> Any:
        return Named(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of it")

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError("it refers to a class by a number")

    def _instantiate(self, klass: Any, args: Any) -> None:
        self.append(Record(klass, tuple(args)))

    def _reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = Record(self.stack[-1], args)

    def _newobj_ex(self) -> None:
        self.stack.pop()  # keyword arguments
        self._reduce()

    def _build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, Record):
            raise pickle.UnpicklingError(f"it gives a state to a {type(made).__name__}")
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                made.state.update(part)

    def _bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        if size > self._size:  # memory would be reserved for it
            raise pickle.UnpicklingError("it is truncated")
        self.append(bytearray(self.read(size)))

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _reduce
    dispatch[pickle.NEWOBJ_EX[0]] = _newobj_ex
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray8
