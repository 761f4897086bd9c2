"""Values of many kinds for search spaces, and a comparison that no look-alike passes."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import Any

import numpy as np

import holdfast as tune


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ADAM = "adam"


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Layer:
    width: int = 1
    shape: tuple[int, ...] = (1, 2)


class Text(str):
    pass


def double(x: Any) -> Any:
    return 2 * x


PLAIN = [
    (1, 2),
    (1, (2, [3, (4,)])),
    (),
    {1: "a", "b": 2, None: 3, 2.5: 4, (1, 2): 5},
    {1: 1, "1": 2, "1 (int)": 3},
    {True: 1},
    {"a/b": 1, "a": {"b": 2}, "": 3},
    {"__exact__": "tuple"},
    {"__exact__": "tuple", "value": 1, "more": 2},
    {1, 2},
    set(),
    frozenset({"a", (1, 2)}),
    1j,
    2**70,
    -(2**2000),
    "\ud800",
    {"\ud800": 1},
    float("nan"),
    float("-inf"),
    -0.0,
    np.float64(0.5),
    np.float32(0.1),
    np.float16(0.1),
    np.int64(3),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.str_("x"),
    np.complex64(1j),
    [np.float32(1.5), (np.int8(3),)],
    pathlib.Path("/data/train"),
    collections.OrderedDict(b=1, a=(1,)),
    None,
    True,
    1,
    1.0,
    "",
    [],
    {},
]
"""Exact also for those who read an experiment without unpickling anything."""

OBJECTS = [
    Color.RED,
    Level.LOW,
    Name.ADAM,
    {Color.RED: 1, "x": Color.BLUE},
    {Color.RED},
    (Color.RED, [Level.LOW]),
    Point(1, 2),
    Layer(),
    Text("x"),
    double,
    Layer,
    len,
    np.arange(3),
    np.array(3.0),
    np.longdouble(1.5),
    np.datetime64("2020-01-01"),
    b"x",
    bytearray(b"x"),
    datetime.datetime(2020, 1, 1),
    datetime.timedelta(1),
    decimal.Decimal("1.1"),
    fractions.Fraction(1, 3),
    uuid.UUID(int=5),
    pathlib.PureWindowsPath("c:/x"),
    collections.defaultdict(list, a=[1]),
    collections.Counter("aab"),
    range(3),
]

VALUES = PLAIN + OBJECTS


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types all the way down, and equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        keys = len(one) == len(other) and all(map(same, one, other))
        return keys and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return str(one) == str(other)  # -0.0 is not 0.0, and NaN is NaN
    return bool(one == other)


def train(config: dict[str, Any]) -> None:
    """Say in every report whether the values are those that the space has for this number."""
    checkpoint = tune.get_checkpoint()
    done = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(done + 1, 4):
        wrong = [key for key in ("value", "made") if not same(config[key], VALUES[config["i"]])]
        wrong += ["all"] * (not same(config["all"], VALUES))
        checkpoint = tune.Checkpoint.from_dict({"step": step})
        tune.report({"wrong": wrong, "step": step, "resumed": done > 0}, checkpoint=checkpoint)


def space() -> dict[Any, Any]:
    """Every value as an option, as what a function makes and as a constant."""
    return {
        "i": tune.grid_search(list(range(len(VALUES)))),
        "value": tune.sample_from(lambda config: config["options"][config["i"]]),
        "options": VALUES,
        "made": tune.sample_from(lambda config: VALUES[config["i"]]),
        "all": VALUES,
    }


def check(grid: Any) -> None:
    """Every trial has seen its values, and so does whoever reads its config."""
    assert len(grid) == len(VALUES)
    for result in grid:
        expected = VALUES[result.config["i"]]
        assert result.error is None
        assert result.metrics["wrong"] == [], repr(expected)
        assert same(result.config["value"], expected), repr(expected)
        assert same(result.config["made"], expected), repr(expected)
        assert same(result.config["all"], VALUES)
        assert same(result.metrics["config"]["value"], expected)
