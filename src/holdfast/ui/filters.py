"""The filter language of the trial table: ``loss < 0.3 and status == ERROR``.

Owns its grammar in Python; the page has the same grammar in TypeScript, and both run the same examples. Must never
evaluate anything but comparisons: a filter is text from a browser.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast.cli.printing import to_json
from holdfast.core.state import Status
from holdfast.errors import InvalidInputError

MAX_LENGTH = 4000
MAX_DEPTH = 40
MAX_COMPARISONS = 200

STATUS = "status"
_SHOWN = {"done": Status.TERMINATED, "failed": Status.ERROR}
"""What tables and counts say for a status, if that is another word."""
_STATUSES = {status.lower(): status for status in Status.ALL} | _SHOWN

Lookup: TypeAlias = Callable[[str], Any]
"""Returns a trial's value of a name; None if it has none."""

Predicate: TypeAlias = Callable[[Lookup], bool]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign>==|!=|<=|>=|<|>|=|!|\(|\))
      | `(?P<name>[^`]*)`
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^'\\]|\\.)*)'
      | (?P<word>[^\s()<>=!`"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf)", re.ASCII)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = ("==", "!=", *_ORDER, "contains")
_KEYWORDS = ("and", "or", "not", "contains")


class BadFilter(InvalidInputError):
    """A text that is not a filter.

    Attributes:
        place: Where, counted in characters from 0.
    """

    def __init__(self, message: str, place: int = 0) -> None:
        super().__init__(message)
        self.place = place


class _Token(NamedTuple):
    kind: str  # "sign", "name", "text", "word" or "end"
    text: str
    at: int


class Filter:
    """A filter that was understood.

    Args:
        text: As somebody typed it; empty accepts all.
        resolve: Returns the column that is meant by a name; None if there is no such column.

    Raises:
        BadFilter: It is not of the language, or compares what does not exist; the message names the place.
    """

    def __init__(self, text: str, resolve: Callable[[str], str | None]) -> None:
        if len(text) > MAX_LENGTH:
            raise BadFilter(f"The filter has {len(text):,} characters; the limit is {MAX_LENGTH:,}.")
        self._accepts: Predicate = _Parser(text, resolve).parse() if text.strip() else lambda lookup: True

    def accepts(self, lookup: Lookup) -> bool:
        """Whether the trial with these values is to be shown."""
        return self._accepts(lookup)


class _Parser:
    def __init__(self, text: str, resolve: Callable[[str], str | None]) -> None:
        self._tokens = _tokens(text)
        self._resolve = resolve
        self._at = 0
        self._comparisons = 0

    def parse(self) -> Predicate:
        found = self._any(0)
        if self._next.kind != "end":
            raise _error(self._next, '"and", "or" or the end')
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, keyword: str) -> bool:
        if self._next.kind == "word" and self._next.text.lower() == keyword:
            self._at += 1
            return True
        return False

    def _any(self, depth: int) -> Predicate:
        parts = [self._all(depth)]
        while self._takes("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else lambda lookup: any(part(lookup) for part in parts)

    def _all(self, depth: int) -> Predicate:
        parts = [self._one(depth)]
        while self._takes("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda lookup: all(part(lookup) for part in parts)

    def _one(self, depth: int) -> Predicate:
        if depth > MAX_DEPTH:
            raise BadFilter(f"The filter is nested more than {MAX_DEPTH} levels deep.", self._next.at)
        if self._takes("not"):
            part = self._one(depth + 1)
            return lambda lookup: not part(lookup)
        if self._next.kind == "sign" and self._next.text == "(":
            self._take()
            part = self._any(depth + 1)
            if self._next.text != ")" or self._next.kind != "sign":
                raise _error(self._next, '")"')
            self._take()
            return part
        return self._comparison()

    def _comparison(self) -> Predicate:
        name = self._take()
        if name.kind not in ("name", "word") or (name.kind == "word" and name.text.lower() in _KEYWORDS):
            raise _error(name, "a name")
        key = self._resolve(name.text)
        if key is None:
            raise BadFilter(f"No trial has {name.text[:80]!r} (character {name.at + 1} of the filter).", name.at)
        sign = self._take()
        operation = sign.text.lower() if sign.kind in ("sign", "word") else ""
        if operation not in _OPERATORS:
            raise _error(sign, f"one of {' '.join(_OPERATORS)}")
        literal = self._take()
        if literal.kind not in ("text", "word") or (literal.kind == "word" and literal.text.lower() in _KEYWORDS):
            raise _error(literal, "a value")
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise BadFilter(f"The filter has more than {MAX_COMPARISONS} comparisons.", name.at)
        wanted = _literal(literal)
        if key == STATUS and operation in ("==", "!="):
            wanted = _status(wanted, literal)
        return lambda lookup: compare(lookup(key), operation, wanted)


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            what = "a quote that is not closed" if text[at] in "\"'`" else repr(text[at])
            raise BadFilter(f"The filter cannot be read at character {at + 1}: {what}.", at)
        kind = match.lastgroup or ""
        start, value = match.end() - len(match[0].lstrip()), match[kind]
        if kind in ("double", "single"):
            kind, value = "text", re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        found.append(_Token(kind, value, start))
        at = match.end()
    return [*found, _Token("end", "", end)]


def _error(token: _Token, wanted: str) -> BadFilter:
    found = "the end of the filter" if token.kind == "end" else repr(token.text[:40])
    place = f"character {token.at + 1}"
    return BadFilter(f"The filter cannot be read at {place}: expected {wanted}, found {found}.", token.at)


_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
"""As JSON and as Python write them; any other spelling is a text."""


def _literal(token: _Token) -> Any:
    if token.kind == "text":
        return token.text
    if _NUMBER.fullmatch(token.text):
        return float(token.text)
    return _CONSTANTS.get(token.text, token.text)


def _status(wanted: Any, token: _Token) -> Any:
    """The status that somebody means, in any case, also by the word that is shown for it."""
    if wanted is None:
        return None
    found = _STATUSES.get(str(wanted).lower())
    if found is None:
        known = ", ".join([*Status.ALL, *_SHOWN])
        place = f"character {token.at + 1}"
        raise BadFilter(f"No status is called {token.text[:40]!r} ({place}). There are: {known}.", token.at)
    return found


def compare(value: Any, operation: str, wanted: Any) -> bool:
    """One comparison. A missing value, and NaN, is equal to ``null`` alone, and neither less nor greater."""
    if isinstance(value, float) and math.isnan(value):
        value = None
    if operation == "contains":
        return value is not None and wanted is not None and _text(wanted).lower() in _text(value).lower()
    if operation in ("==", "!="):
        return _equal(value, wanted) == (operation == "==")
    if (_is_number(value) and _is_number(wanted)) or (isinstance(value, str) and isinstance(wanted, str)):
        return bool(_ORDER[operation](value, wanted))
    return False


def _equal(value: Any, wanted: Any) -> bool:
    """As JSON sees it: the number 3 is not the text "3"; what is neither number nor text is compared as text."""
    if isinstance(value, bool) or isinstance(wanted, bool) or value is None or wanted is None:
        return value is wanted
    if _is_number(value) or _is_number(wanted) or isinstance(value, str):
        return bool(value == wanted)
    return bool(_text(value) == wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return to_json(value, indent=False).decode()
