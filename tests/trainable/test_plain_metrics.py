from __future__ import annotations

import datetime
import enum
from collections import OrderedDict, defaultdict
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.trainable.metrics import MAX_DEPTH, plain_metrics


class Colour(enum.IntEnum):
    RED = 3


class Odd:
    def __repr__(self) -> str:
        return "an odd thing"


def convert(metrics: object) -> dict[str, object]:
    return plain_metrics(metrics, set())


def test_simple_values_stay_and_the_dict_is_a_copy() -> None:
    given = {"a": 1, "b": 0.5, "c": "x", "d": True, "e": None}
    plain = convert(given)
    assert plain == given
    given["a"] = 2
    assert plain["a"] == 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.longdouble(0.5), 0.5),
        (np.array(2.5), 2.5),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.str_("s"), "s"),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        ((1, (2, 3)), [1, [2, 3]]),
        ({3, 1, 2}, [1, 2, 3]),
        ({"x": {"y": np.int8(1)}}, {"x": {"y": 1}}),
        ({0: 0.9, 1: 0.8}, {"0": 0.9, "1": 0.8}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"x"), b"x"),
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.timedelta(seconds=90), 90.0),
        (Decimal("0.25"), 0.25),
        (Path("/a/b"), "/a/b"),
        (Colour.RED, 3),
        (2**70, float(2**70)),
        (10**400, float("inf")),
        (-(10**400), float("-inf")),
        ("ünï", "ünï"),
        ("lone \ud800", "lone \\ud800"),
    ],
)
def test_values_become_plain_data_of_plain_types(value: object, plain: object) -> None:
    converted = convert({"k": value})["k"]
    assert converted == plain
    assert type(converted) is type(plain)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(converted)) == plain


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_an_array_of_one_element_is_its_number(dtype: str) -> None:
    one = np.ones(1, dtype)
    metrics = convert({"loss": one, "deep": {"er": one.reshape(1, 1)}, "two": np.ones(2, dtype)})
    assert metrics == {"loss": 1, "deep": {"er": 1}, "two": [1, 1]}
    assert type(metrics["loss"]) is type(one.item())


def test_nan_and_infinity_pass() -> None:
    plain = convert({"a": float("nan"), "b": np.float32("inf")})
    assert plain["a"] != plain["a"]
    assert plain["b"] == float("inf")


def test_later_changes_to_nested_values_do_not_reach_the_report() -> None:
    array, inner = np.zeros(2), {"x": [1]}
    plain = convert({"array": array, "inner": inner})
    array[0] = 5
    inner["x"].append(2)
    assert plain == {"array": [0.0, 0.0], "inner": {"x": [1]}}


def test_other_objects_become_text_with_one_warning_per_key() -> None:
    warned: set[str] = set()
    told: list[str] = []
    for _ in range(3):
        assert plain_metrics({"a": Odd(), "b": {"c": 2j}}, warned, tell=told.append)["a"] == "an odd thing"
    assert [text.partition(" Report")[0] for text in told] == [
        "The metric 'a' is a Odd, which is stored as text (its repr).",
        "The metric 'b/c' is a complex, which is stored as text (its repr).",
    ]


def test_an_int_that_cannot_be_kept_exactly_is_a_float_with_a_warning() -> None:
    told: list[str] = []
    values = {"small": 2**64 - 1, "large": 2**80}
    assert plain_metrics(values, set(), tell=told.append) == {"small": 2**64 - 1, "large": float(2**80)}
    assert [text.partition(",")[0] for text in told] == ["The metric 'large' is an int of more than 64 bits"]


def test_a_broken_repr_does_not_break_the_report() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert convert({"a": Broken()}) == {"a": "<Broken object>"}


def test_metrics_that_are_no_dict_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"needs a dict of metrics, got list: \[1\]"):
        convert([1])


def test_a_metric_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="metric names must be strings, got 1"):
        convert({1: 2})


class FakeTensor:
    def tolist(self) -> list[float]:
        return [1.0]


FakeTensor.__module__ = "torch"
FakeTensor.__name__ = "Tensor"


class Parameter(FakeTensor):
    pass


@pytest.mark.parametrize("metrics", [{"loss": FakeTensor()}, {"a": {"loss": [Parameter()]}}])
def test_torch_tensors_are_refused_wherever_they_are(metrics: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"loss.* is a Torch tensor"):
        convert(metrics)


def test_tensors_from_classes_become_numbers() -> None:
    assert plain_metrics({"loss": FakeTensor()}, set(), refuse_tensors=False) == {"loss": [1.0]}


def test_metrics_that_contain_themselves_are_refused() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    with pytest.raises(InvalidInputError, match=f"more than {MAX_DEPTH} levels"):
        convert(loop)
