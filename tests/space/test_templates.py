"""Configurations that only JSON files still have are what they were, or it is said what may differ."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

import holdfast as tune
from holdfast.callbacks.json_logger import encode_json
from holdfast.space.objects import extract_objects, restore_objects
from holdfast.space.templates import exact_config, template_of


class Box:
    """A value that is no plain data."""


BOX = Box()


def after_loss(space: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A config as it comes back from the JSON of files, and what may differ."""
    plain, objects = extract_objects(space)
    stored = msgspec.json.decode(msgspec.json.encode(template_of(plain)))
    exact, unsure = exact_config(stored, json.loads(encode_json(config)))
    return restore_objects(exact, objects), unsure


def types_of(value: Any) -> Any:
    inside = value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return type(value), [types_of(each) for each in inside]


OPTIONS = [
    (1, 2),
    ((1, "a"), [2, (3,)]),
    {"size": (1, 2), "rate": 0.5},
    {1: "one", 2.5: (1,)},
    OrderedDict(a=1, b=(2,)),
    {3, 4},
    frozenset({"a", "b"}),
    numpy.float64(0.25),
    numpy.int32(5),
    Path("/data"),
    2 + 3j,
    1 << 70,
    "text",
    7,
    1.5,
    True,
    None,
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: type(option).__name__)
def test_an_option_comes_back_as_what_it_was(option: Any) -> None:
    others = ["other", (9, 9), 0.125]
    for space in (
        {"x": tune.choice([*others, option])},
        {"x": tune.grid_search([option, *others])},
        {"x": option},
        {"x": tune.choice([BOX, option])},
    ):
        config, unsure = after_loss(space, {"x": option})
        assert config == {"x": option}
        assert types_of(config["x"]) == types_of(option)
        assert unsure == []


def test_variables_inside_of_options_and_tuples_come_back_too() -> None:
    space = {
        "opt": tune.choice([{"kind": ("sgd",), "lr": tune.uniform(0, 1)}, {"kind": "adam", "betas": (0.9, 0.99)}]),
        "pair": (tune.randint(0, 9), tune.choice([(1, 2), (3, 4)])),
        "below": {"sizes": tune.choice([(8,), (16,)])},
    }
    for opt in ({"kind": ("sgd",), "lr": 0.5}, {"kind": "adam", "betas": (0.9, 0.99)}):
        config = {"opt": opt, "pair": (3, (3, 4)), "below": {"sizes": (16,)}}
        assert after_loss(space, config) == (config, [])


def test_an_object_comes_back_if_nothing_else_can_have_been_in_its_place() -> None:
    assert after_loss({"data": BOX}, {"data": BOX}) == ({"data": BOX}, [])
    assert after_loss({"data": tune.choice([BOX, None, (1,)])}, {"data": BOX}) == ({"data": BOX}, [])
    config, unsure = after_loss({"data": tune.choice([BOX, Box()])}, {"data": BOX})
    assert isinstance(config["data"], str)
    assert unsure == ["data"]


def test_what_cannot_be_known_is_named() -> None:
    space = {"made": tune.sample_from(lambda _: (1, 2)), "same": tune.choice([(1, 2), [1, 2]]), "x": tune.uniform(0, 1)}
    config, unsure = after_loss(space, {"made": (1, 2), "same": (1, 2), "x": 0.5, "added": [1], "n": 3})
    assert config == {"made": [1, 2], "same": [1, 2], "x": 0.5, "added": [1], "n": 3}
    assert unsure == ["made", "same", "added"]


def test_without_a_template_every_list_may_have_been_a_tuple() -> None:
    assert exact_config(None, {"a": [1], "b": {"c": [2], "d": 1}, "e": "x"}) == (
        {"a": [1], "b": {"c": [2], "d": 1}, "e": "x"},
        ["a", "b"],
    )


@pytest.mark.parametrize("template", [{"x": {"__choice__": 5}}, {"x": {"__exact__": "dict", "value": 1}}])
def test_a_template_that_nobody_has_written_is_not_used(template: dict[str, Any]) -> None:
    assert exact_config(template, {"x": 1}) == ({"x": 1}, [])


def test_no_template_is_kept_of_a_space_that_is_too_large_or_has_its_keys() -> None:
    assert template_of({"x": tune.choice([f"option {n}" for n in range(10_000)])}) is None
    assert template_of({"x": {"__choice__": [1]}}) is None
