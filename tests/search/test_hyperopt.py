"""HyperOptSearch, with the real HyperOpt."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from library_contract import Case, ask, every_check, keep, run
from search_world import MODEL

import holdfast as tune
from holdfast.errors import InvalidInputError, UsageError
from holdfast.search import create_searcher
from holdfast.search.hyperopt import HyperOptSearch
from holdfast.search.replayable import Completed
from holdfast.testing.searcher_contract import trial_name

CASE = Case(HyperOptSearch, "hyperopt", "hyperopt", {"n_initial_points": 4})


def import_libraries() -> None:
    global hyperopt
    hyperopt = pytest.importorskip("hyperopt")


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


def valley(config: dict[str, Any]) -> float:
    return (config["x"] - 0.3) ** 2 + (0 if config["kind"] == "good" else 0.5)


VALLEY = {"x": tune.uniform(-5, 5), "kind": tune.choice(["bad", "good", "worse"])}


def test_tpe_finds_what_random_search_does_not():
    adapter = CASE.adapter(VALLEY)
    found = []
    for n in range(60):
        config = ask(adapter)
        found.append(valley(config))
        adapter.hear(Completed(trial_name(n), {"loss": found[-1]}, False))
    assert sum(found[40:]) / 20 < sum(found[:4]) / 4
    assert min(found) < 0.01


def test_only_parameters_that_count_are_told_to_tpe():
    adapter = CASE.adapter(MODEL)
    for number, config in enumerate(run(adapter, 10)):
        told = {label for label, values in adapter.searcher._trials.trials[number]["misc"]["vals"].items() if values}
        kind = config["model"]["kind"] if isinstance(config["model"], dict) else config["model"]
        inside = {
            "svm": {"model[0]/c", "model[0]/kernel"},
            "tree": {"model[1]/depth", "model[1]/parts/0"},
            "nothing": set(),
        }
        assert told == {"x", "model"} | inside.get(kind, {"model[3]"})


def test_a_space_of_hyperopts_own_is_searched_as_it_is():
    hp = hyperopt.hp
    space = {"x": hp.uniform("x", 0, 1), "c": hp.choice("c", [{"k": "a", "n": hp.randint("n", 5)}, {"k": "b"}]), "d": 4}

    def make() -> HyperOptSearch:
        return HyperOptSearch(
            space, "loss", "max", points_to_evaluate=[{"x": 0.5, "c": 1}], n_initial_points=3, random_state_seed=1
        )

    def answers(search: HyperOptSearch, first: int) -> list[Any]:
        told = []
        for n in range(first, 10):
            told.append(search.suggest(str(n)))
            search.on_trial_complete(str(n), {"loss": told[-1]["x"]} if n % 4 else None)
        return told

    search = make()
    expected = answers(search, 0)
    assert expected[0] == {"x": 0.5, "c": {"k": "b"}, "d": 4}
    assert all(config["d"] == 4 and config["c"]["k"] in "ab" for config in expected)
    assert {type(config["c"].get("n", 0)) for config in expected} == {int}
    assert not search.set_search_properties("loss", "max", {"y": tune.uniform(0, 1)})
    half = make()
    for n in range(5):
        half.suggest(str(n))
        half.on_trial_complete(str(n), {"loss": expected[n]["x"]} if n % 4 else None)
    fresh = make()
    fresh.set_state(pickle.loads(cloudpickle.dumps(half.get_state())))
    assert answers(fresh, 5) == expected[5:]


def test_a_seed_of_its_own_is_stronger_than_the_experiments():
    first, second = (CASE.adapter(seed=seed, random_state_seed=3) for seed in (1, 2))
    assert run(first, 6) == run(second, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_initial_points": 0},
        {"gamma": 1.5},
        {"space": 5},
        {"random_state_seed": -1},
        {"points_to_evaluate": [{}], "space": {"k": 5}, "metric": "loss", "mode": "min"},
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        HyperOptSearch(**wrong).suggest("a")


@pytest.mark.parametrize("seed", ["a", 1.5, -1])
def test_a_wrong_seed_is_named_as_the_argument_is(seed: Any):
    with pytest.raises(UsageError, match=r"^random_state_seed must"):
        HyperOptSearch(random_state_seed=seed)


def test_it_is_found_by_name():
    assert isinstance(create_searcher("hyperopt", gamma=0.2, algo="asracos"), HyperOptSearch)
