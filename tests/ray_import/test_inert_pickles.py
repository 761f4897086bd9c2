"""Pickles of others are read, and nothing that they name is imported or called."""

from __future__ import annotations

import collections
import datetime
import enum
import pathlib
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from holdfast.ray_import import inert

WITNESS: list[str] = []


def spring(*arguments: Any) -> None:
    WITNESS.append("sprung")


class Trap:
    """Calls ``spring`` in each way that a pickle can."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.way == "state":
            return Trap, ("",), {"x": 1}
        if self.way == "items":
            return list, (), None, iter([1, 2]), None
        if self.way == "setter":
            return dict, (), {"x": 1}, None, None, spring
        return spring, (1,)

    def __setstate__(self, state: Any) -> None:
        spring()


@pytest.mark.parametrize("way", ["call", "state", "items", "setter"])
@pytest.mark.parametrize("protocol", range(6))
def test_no_pickle_can_call_anything(way: str, protocol: int) -> None:
    WITNESS.clear()
    inert.load(pickle.dumps([Trap(way), {"inside": (Trap(way),)}], protocol))
    assert WITNESS == []


def test_commands_of_the_oldest_protocol_are_records_too() -> None:
    found = inert.load(b"cposix\nsystem\n(S'false'\ntR.")
    assert isinstance(found, inert.Record)
    assert (inert.type_name(found), found.args) == ("posix.system", ("false",))
    found = inert.load(b"(S'false'\niposix\nsystem\n.")
    assert isinstance(found, inert.Record)


def test_no_module_is_imported() -> None:
    name = "this.module.does.not.exist"
    found = inert.load(b"c" + name.encode() + b"\nThing\n)\x81}S'size'\nK\x03sb.")
    assert isinstance(found, inert.Record)
    assert (found.get("size"), inert.type_name(found)) == (3, f"{name}.Thing")
    assert name not in sys.modules


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle",
        pickle.dumps({"a": [1, 2, 3]})[:-4],
        b"\x80\x04P1\n.",  # something outside of it
        b"\x82\x01.",  # a class by its number
        b"\x96" + (1 << 60).to_bytes(8, "little") + b"x.",  # would reserve memory
        b"K\x01}b.",  # a state for a number
        b"]]a" * 3,
        b"\x80\xff.",
    ],
)
def test_what_is_no_pickle_is_unreadable_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(inert.Unreadable):
        inert.load(data)


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Colour.RED, "Colour"),
        (Trap("call"), "spring"),
        (datetime.timedelta(1), "datetime.timedelta"),
        (pathlib.PurePosixPath("a"), "pathlib.PurePosixPath"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (lambda: 1, "builtins.function"),
    ],
)
def test_records_know_their_class(value: Any, name: str) -> None:
    assert inert.type_name(inert.load(cloudpickle.dumps(value))).endswith(name)


def test_an_object_of_a_script_has_a_name_though_its_class_comes_along() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class Widget:\n    def __init__(self):\n        self.size = 3\n", space)
    record = inert.load(cloudpickle.dumps({"w": space["Widget"]()}))["w"]
    assert inert.type_name(record) == "__main__.Widget"
    assert record.get("size") == 3


def test_plain_data_stays_what_it_is(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "text", b"bytes"], (1, 2): {3, 4}, "f": frozenset({5})}
    for protocol in range(2, 6):
        plain = {k: v for k, v in value.items() if protocol > 3 or k == "a"}  # older ones call set() and bytes
        if protocol == 2:
            plain = {"a": [1, 2.5, None]}
        assert inert.load(pickle.dumps(plain, protocol)) == plain
