"""The base of all configuration classes, and the checks they share.

Owns: validation at construction and at assignment, the short ``repr``, and the warning for older spellings.
Must never: know a particular setting.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import operator
import textwrap
from collections.abc import Collection
from typing import Any, Self, TypeVar

from holdfast.config.arguments import suggestion
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.warn import warn_user

Kind = TypeVar("Kind", bound=type)


class ConfigBase:
    """Base of the configuration dataclasses: always valid, closed to unknown names, brief when printed.

    Instances can be assigned to, because scripts written for older interfaces do that. Each assignment is
    validated like the constructor's arguments; a refused one leaves the object as it was.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in kwargs:
            if name not in names:
                raise InvalidTypeError(f"{cls.__name__} has no setting {name!r}.{suggestion(name, names)}")
        self = super().__new__(cls)
        self.__dict__["_given"] = {*names[: len(args)], *kwargs}
        return self

    def __post_init__(self) -> None:
        given = {f.name for f in self._fields() if getattr(self, f.name) is not f.default}
        self._settle(given)
        self.__dict__["_sealed"] = True

    def _settle(self, given: Collection[str]) -> None:
        self._accept_legacy(given)
        self._validate()

    def _accept_legacy(self, given: Collection[str]) -> None:
        """Translate older spellings among the names just ``given``; most classes have none."""

    def _validate(self) -> None:
        """Check and normalise every field; subclasses override this."""

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(self)  # type: ignore[arg-type]

    def _set(self, name: str, value: Any) -> None:
        """Store a normalised value without validating again."""
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sealed" not in self.__dict__:
            object.__setattr__(self, name, value)
            return
        names = [f.name for f in self._fields()]
        if name not in names:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}.{suggestion(name, names)}")
        before = dict(self.__dict__)
        object.__setattr__(self, name, value)
        self.__dict__["_given"] = {*before.get("_given", ()), name}
        try:
            self._settle({name})
        except BaseException:
            # A warning turned into an error also lands here, and must not leave half an assignment behind.
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def __repr__(self) -> str:
        default = type(self)()
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in self._fields()
            if not _same(getattr(self, f.name), getattr(default, f.name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class _FieldsDocumented:
    """A class's docstring with those of its fields, put together when somebody asks for it.

    ``help()`` does not show the strings below fields, which editors read. They stay the only place where a field is
    explained; reading the source takes milliseconds, so that it must not happen at import.
    """

    def __init__(self, text: str) -> None:
        self._text = inspect.cleandoc(text)

    def __get__(self, instance: Any, kind: type) -> str:
        try:
            fields = _field_docstrings(kind)
        except (OSError, SyntaxError):  # installed without its source
            return self._text
        wrap = textwrap.TextWrapper(width=100, initial_indent="    ", subsequent_indent="        ")
        lines = [wrap.fill(f"{name}: {' '.join(text.split())}") for name, text in fields.items()]
        return "\n".join([self._text, "", "Args:", *lines])


def documented(kind: Kind) -> Kind:
    """Let ``help()`` explain every field of a configuration class."""
    kind.__doc__ = _FieldsDocumented(kind.__doc__ or "")  # type: ignore[assignment]
    return kind


def _field_docstrings(kind: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = str(below.value.value)
    return found


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    try:
        return bool(left == right)
    except Exception:
        # Arrays and other user objects may refuse to be compared as a whole; then they are worth showing.
        return False


def warn_legacy(old: str, new: str) -> None:
    """Tell the author of the calling line that ``old`` works but is now written ``new``."""
    warn_user(f"{old} still works, but is now written {new}.", DeprecationWarning)


def refuse(what: str, value: Any, expected: str, hint: str = "") -> InvalidInputError:
    """The one shape of a refusal: the setting, what it must be, what it is, and the way out."""
    return InvalidInputError(f"{what} must be {expected}, got {value!r}.{' ' + hint if hint else ''}")


def whole_number(what: str, value: Any, minimum: int, expected: str = "", hint: str = "") -> int:
    """Return ``value`` as an int of at least ``minimum``, or refuse it."""
    expected = expected or f"an integer >= {minimum}"
    if isinstance(value, bool):
        raise refuse(what, value, expected, hint)
    try:
        number = operator.index(value)
    except TypeError:
        raise refuse(what, value, expected, hint) from None
    if number < minimum:
        raise refuse(what, value, expected, hint)
    return number


def real_number(what: str, value: Any, *, positive: bool = False, hint: str = "") -> float:
    """Return ``value`` as a finite number >= 0 (or > 0 if ``positive``), or refuse it."""
    expected = "a number > 0" if positive else "a number >= 0"
    if isinstance(value, bool | str | bytes):
        raise refuse(what, value, expected, hint)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise refuse(what, value, expected, hint) from None
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise refuse(what, value, expected, hint)
    return value if isinstance(value, int) else number


def one_of(what: str, value: Any, choices: Collection[str], hint: str = "") -> None:
    """Refuse a ``value`` that is not one of the strings in ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise refuse(what, value, f"one of {list(choices)}", hint)


def true_or_false(what: str, value: Any) -> None:
    """Refuse a ``value`` that is not a bool."""
    if not isinstance(value, bool):
        raise refuse(what, value, "True or False")


def instance_not_class(what: str, value: Any) -> None:
    """Refuse a class where one of its instances is meant."""
    if isinstance(value, type):
        raise refuse(what, value, "an instance", f"Write {value.__name__}(...) instead of {value.__name__}.")
