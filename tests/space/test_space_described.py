"""A search space is told as plain data."""

from __future__ import annotations

import json
from pathlib import Path

import holdfast as tune
from holdfast.controller.spec import read_spec
from holdfast.space.describe import MAX_OPTIONS, describe_space
from holdfast.storage.layout import Root


class Thing:
    """Not plain data."""

    def __repr__(self) -> str:
        return "a thing"


def test_every_kind_of_domain_is_described() -> None:
    space = {
        "constant": 3,
        "x": tune.uniform(0, 1),
        "lr": tune.loguniform(1e-5, 1e-1),
        "q": tune.quniform(0, 10, 2),
        "n": tune.randint(1, 9),
        "m": tune.lograndint(1, 100),
        "g": tune.randn(1.0, 2.0),
        "opt": tune.choice(["sgd", None, (1, 2), float("inf")]),
        "grid": tune.grid_search([1, 2]),
        "f": tune.sample_from(lambda config: 1),
        "nested": {"deep": tune.choice([Thing()])},
    }
    found = describe_space(space)
    assert "constant" not in found
    assert found["x"] == {"kind": "float", "lower": 0.0, "upper": 1.0, "log": False}
    assert found["lr"] == {"kind": "float", "lower": 1e-5, "upper": 0.1, "log": True}
    assert found["q"] == {"kind": "float", "lower": 0.0, "upper": 10.0, "log": False, "step": 2}
    assert found["n"] == {"kind": "int", "lower": 1, "upper": 9, "log": False}
    assert found["m"]["log"] is True
    assert found["g"] == {"kind": "normal", "mean": 1.0, "sd": 2.0}
    assert found["opt"] == {"kind": "choice", "options": ["sgd", None, "(1, 2)", "inf"]}
    assert found["grid"] == {"kind": "grid", "options": [1, 2]}
    assert found["f"] == {"kind": "function"}
    assert found["nested/deep"] == {"kind": "choice", "options": ["a thing"]}
    json.dumps(found, allow_nan=False)


def test_places_inside_options_are_described() -> None:
    space = {
        "opt": tune.choice(
            [
                {"name": "sgd", "momentum": tune.uniform(0, 1), "seed": tune.grid_search([1, 2]), "lr": 0.1},
                {
                    "name": "adam",
                    "lr": tune.loguniform(1e-4, 1e-1),
                    "net": tune.choice([{"depth": tune.randint(1, 4)}]),
                },
                "default",
            ]
        ),
    }
    found = describe_space(space)
    assert found["opt"]["options"][2] == "default"
    inside = {name: about for name, about in found.items() if name != "opt"}
    assert {about.pop("within") for about in inside.values()} == {"opt"}
    assert inside == {
        "opt/name": {"kind": "choice", "options": ["sgd", "adam"]},
        "opt/momentum": {"kind": "float", "lower": 0.0, "upper": 1.0, "log": False},
        "opt/seed": {"kind": "grid", "options": [1, 2]},
        "opt/lr": {"kind": "other"},
        "opt/net": found["opt/net"],
        "opt/net/depth": {"kind": "int", "lower": 1, "upper": 4, "log": False},
    }
    json.dumps(found, allow_nan=False)


def test_many_options_are_cut() -> None:
    found = describe_space({"x": tune.choice(list(range(MAX_OPTIONS + 5)))})
    assert (len(found["x"]["options"]), found["x"]["more"]) == (MAX_OPTIONS, 5)


def test_the_space_is_in_the_facts_of_an_experiment(tmp_path: Path) -> None:
    grid = tune.Tuner(
        lambda config: {"loss": config["x"]},
        param_space={"x": tune.uniform(0, 1), "thing": tune.choice([Thing()])},
        run_config=tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0),
    ).fit()
    spec = read_spec(Root(grid.experiment_path))
    assert spec.space is not None
    assert spec.space["x"]["upper"] == 1.0
    assert spec.space["thing"]["kind"] == "choice"
