"""What values that are not plain data are called in tables."""

from __future__ import annotations

import datetime
import enum
import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from holdfast.space.exact import tagged
from holdfast.space.objects import make_marker
from holdfast.space.value_names import named, value_names


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 2


class Kind(enum.StrEnum):
    TREE = "a value that is much longer than any name should be, so that only the name is good enough"


@dataclass
class Size:
    width: int
    unit: str = "px"


class Silent:
    pass


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Slow:
    """Has as much text as it has data."""

    def __init__(self) -> None:
        self.data = [0] * 1000

    def __repr__(self) -> str:
        raise AssertionError("somebody asked for all of it")


def local() -> Any:
    def inside() -> None:
        pass

    return inside


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Color.RED, "Color.RED"),
        (Level.HIGH, "Level.HIGH"),
        (Kind.TREE, "Kind.TREE"),
        (Size, "Size"),
        (Size(3), "Size(width=3, unit='px')"),
        (local, "local"),
        (local(), "inside"),
        (len, "len"),
        (b"x", "b'x'"),
        (Fraction(1, 3), "Fraction(1, 3)"),
        (datetime.date(2024, 1, 2), "datetime.date(2024, 1, 2)"),
        (range(3), "range(0, 3)"),
    ],
)
def test_values_are_called_what_their_author_calls_them(value: Any, name: str) -> None:
    assert value_names({"a/0": value}) == {"a/0": name}


@pytest.mark.parametrize(
    "value",
    [Silent(), Broken(), Slow(), Size(1, "x" * 100), b"x" * 100, functools.partial(max, Silent())],
)
def test_what_has_no_short_text_of_its_own_has_no_name(value: Any) -> None:
    assert value_names({"a": value}) == {}


def test_names_replace_markers_wherever_they_are() -> None:
    config = {"a": make_marker("a/0", Color.RED), "b": [tagged("tuple", [make_marker("b/1", Silent())])], "c": 1}
    names = {"a/0": "Color.RED"}
    assert named(config, names) == {**config, "a": "Color.RED"}
    assert named(config, names, lambda marker: "?") == {"a": "Color.RED", "b": [tagged("tuple", ["?"])], "c": 1}
