"""OptunaSearch: every space, functions as spaces, and points that are known or wanted."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from optuna.samplers import (
    RandomSampler,
)
from optuna.trial import TrialState
from optuna_world import SAMPLERS, SPACE, learned, score
from search_world import EVERY_DOMAIN, MODEL

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search.optuna import OptunaSearch
from holdfast.space.domains import Domain
from holdfast.space.objects import extract_objects
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live

# --- spaces


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_domain_can_be_searched(name: str) -> None:
    space = EVERY_DOMAIN
    adapter = SearcherHarness(OptunaSearch(sampler=SAMPLERS[name]()), space)
    live(adapter, lambda config: {"loss": config["uniform"]}, trials=25)
    for config in adapter.configs.values():
        nested = {**config, "deep": config["nested"]["deep"]["er"], "first": config["nested"]["list"][0]}
        known = {**space, "deep": space["nested"]["deep"]["er"], "first": space["nested"]["list"][0]}
        for key, domain in known.items():
            assert not isinstance(domain, Domain) or domain.is_valid(nested[key]), (key, nested[key])
        assert config["nested"]["list"][1] == 5
        assert type(config["randint"]) is int
        assert type(config["uniform"]) is float
    assert {type(config["same"]) for config in adapter.configs.values()} <= {int, bool, float}
    assert len({str(config["lists"]) for config in adapter.configs.values()}) > 1


def test_normal_values_are_normal() -> None:
    adapter = SearcherHarness(OptunaSearch(sampler=RandomSampler()), {"x": tune.randn(10, 2)})
    live(adapter, lambda config: {"loss": config["x"]}, trials=400)
    values = sorted(config["x"] for config in adapter.configs.values())
    assert 9.6 < values[200] < 10.4
    assert 7.3 < values[63] < 8.7  # one standard deviation below the mean lie 16 percent


def test_choices_with_domains_inside_become_conditional() -> None:
    adapter = SearcherHarness(OptunaSearch(), MODEL)
    live(adapter, score, trials=30)
    seen = set()
    for config in adapter.configs.values():
        model = config["model"]
        assert MODEL["model"].is_valid(model)
        seen.add(model["kind"] if isinstance(model, dict) else type(model).__name__)
    assert seen == {"svm", "tree", "str", "float"}
    names = {name for trial in learned(adapter.searcher) for name in trial.params}
    assert names == {
        "model",
        "model[0]/c",
        "model[0]/kernel",
        "model[1]/depth",
        "model[1]/parts/0",
        "model[3]",
        "x",
    }
    for trial in learned(adapter.searcher):
        assert ("model[0]/c" in trial.params) == (trial.params["model"] == 0)


def test_objects_are_chosen_by_their_number() -> None:
    space, objects = extract_objects({"data": tune.choice([b"train", b"test", print]), "x": tune.uniform(0, 1)})
    adapter = SearcherHarness(OptunaSearch(), space)
    live(adapter, score, trials=12)
    chosen = {config["data"]["__object__"] for config in adapter.configs.values()}
    assert chosen == objects.keys() == {"data/0", "data/1", "data/2"}
    assert {type(trial.params["data"]) for trial in learned(adapter.searcher)} == {int}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"x": tune.grid_search([1, 2])}, "grid_search at 'x'"),
        ({"x": tune.sample_from(lambda: 1)}, "sample_from at 'x'"),
        ({"x": tune.choice([{"y": tune.sample_from(lambda: 1)}])}, r"sample_from at 'x\[0\]/y'"),
    ],
)
def test_what_cannot_be_searched_is_refused(space: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        SearcherHarness(OptunaSearch(), space)


def test_a_space_of_its_own_may_have_distributions_and_constants() -> None:
    space = {
        "x": optuna.distributions.FloatDistribution(0, 1, step=0.25),
        "n": {"y": optuna.distributions.IntDistribution(1, 9, log=True), "z": 4},
        "c": optuna.distributions.CategoricalDistribution(["a", "b"]),
        "u": tune.uniform(3, 4),
    }
    search = OptunaSearch(space, metric="loss", mode="min", seed=1)
    config = search.suggest("t")
    assert config["x"] in (0, 0.25, 0.5, 0.75, 1)
    assert 1 <= config["n"]["y"] <= 9
    assert config["n"]["z"] == 4
    assert config["c"] in ("a", "b")
    assert 3 <= config["u"] <= 4


def test_a_space_of_its_own_is_not_replaced() -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss", mode="min")
    assert not search.set_search_properties(None, None, {"y": tune.uniform(0, 1)}, seed=1)
    assert search.set_search_properties(None, None, {"y": 3}, seed=1)
    assert search.suggest("t").keys() == {"x"}


# --- functions as spaces


def by_run(trial: Any) -> dict[str, Any] | None:
    kind = trial.suggest_categorical("kind", ["deep", "wide"])
    trial.suggest_float("opt/lr", 1e-4, 1e-1, log=True)
    if kind == "deep":
        trial.suggest_int("layers", 1, 9)
    return {"steps": 5, "opt": {"name": "adam"}} if kind == "wide" else None


def test_a_function_may_be_the_space() -> None:
    search = OptunaSearch(by_run, metric="loss", mode="min")

    def make() -> SearcherHarness:
        return SearcherHarness(search, {"constant": 1})

    adapter = make()
    history = live(adapter, lambda config: {"loss": config["opt"]["lr"]}, trials=20)
    for config in adapter.configs.values():
        assert config["constant"] == 1
        if config["kind"] == "wide":
            assert config.keys() == {"constant", "kind", "opt", "steps"}
            assert config["opt"]["name"] == "adam"
        else:
            assert 1 <= config["layers"] <= 9
    assert_exact_resume(make, history, every=7, ahead=20)


def test_a_function_that_returns_something_else_is_refused() -> None:
    search = OptunaSearch(lambda trial: [trial.suggest_float("x", 0, 1)], metric="loss", mode="min")
    with pytest.raises(InvalidTypeError, match="should be either None or a `dict`"):
        search.suggest("t")


def test_points_and_evaluated_points_work_with_a_function() -> None:
    search = OptunaSearch(by_run, "loss", "min", points_to_evaluate=[{"kind": "deep", "layers": 4}], seed=1)
    search.add_evaluated_point({"kind": "wide", "opt": {"lr": 0.01}}, 0.5)
    config = search.suggest("t")
    assert (config["kind"], config["layers"]) == ("deep", 4)
    assert learned(search)[0].params == {"kind": "wide", "opt/lr": 0.01}
    with pytest.warns(UserWarning, match="does not learn from"):
        search.add_evaluated_point({"kind": "wide"}, 0.5)


# --- points


def test_points_are_tried_first_and_learned_from() -> None:
    points = [
        {"x": 1.5, "lr": 1e-3, "units": 8, "depth": 2, "kind": "b"},
        {"x": -1.0},
    ]
    adapter = SearcherHarness(OptunaSearch(points_to_evaluate=points), SPACE)
    live(adapter, score, trials=4, slots=1, seed=3)
    assert adapter.configs[0] == {**points[0], "epochs": 3}
    assert adapter.configs[1]["x"] == -1.0
    assert learned(adapter.searcher)[0].params == {"x": 1.5, "lr": 1e-3, "units": 8, "depth": 2, "kind": "b"}
    assert learned(adapter.searcher)[0].state == TrialState.COMPLETE


def test_points_reach_into_conditions_and_nested_spaces() -> None:
    space = {**MODEL, "a": {"b": tune.randn(0, 1), "c": tune.qlograndint(10, 1000, 10)}, "l": [tune.uniform(0, 1), 2]}
    points = [
        {"model": {"kind": "tree", "depth": 3, "parts": [0.25, 7]}, "a": {"b": 6.5}, "l": [0.5, 2]},
        {"model": "nothing", "a/b": -1.0, "a/c": 200},
        {"model": 12.5},
    ]
    adapter = SearcherHarness(OptunaSearch(points_to_evaluate=points), space)
    live(adapter, score, trials=3, slots=1, seed=4)
    assert adapter.configs[0]["model"] == points[0]["model"]
    assert adapter.configs[0]["a"]["b"] == 6.5
    assert adapter.configs[0]["l"] == [0.5, 2]
    assert adapter.configs[1]["model"] == "nothing"
    assert adapter.configs[1]["a"] == {"b": -1.0, "c": 200}
    assert adapter.configs[2]["model"] == 12.5
    first = learned(adapter.searcher)[0].params
    assert (first["model"], first["model[1]/depth"], first["model[1]/parts/0"]) == (1, 3, 0.25)
    # What is searched by its quantile comes back as the user wrote it, far out in the tails too.
    assert first["a/b"] > 0.999999


def test_values_outside_of_their_domain_are_tried_but_not_learned_from() -> None:
    points = [{"x": 99.0, "kind": "z", "epochs": 8}]
    with pytest.warns(UserWarning, match="points_to_evaluate sets") as warned:
        adapter = SearcherHarness(OptunaSearch(points_to_evaluate=points), SPACE)
    texts = [str(each.message) for each in warned]
    assert any("'x' to 99.0" in text for text in texts)
    assert any("'kind' to 'z'" in text for text in texts)
    live(adapter, score, trials=1, slots=1)
    assert (adapter.configs[0]["x"], adapter.configs[0]["kind"], adapter.configs[0]["epochs"]) == (99.0, "z", 8)
    assert adapter.configs[0]["lr"]
    assert learned(adapter.searcher)[0].state == TrialState.FAIL


@pytest.mark.parametrize(
    ("points", "words"),
    [([{"unknown": 1}], "does not correspond to a valid key"), ([{"kind": print}], "plain values only")],
)
def test_points_that_make_no_sense_are_refused(points: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        SearcherHarness(OptunaSearch(points_to_evaluate=points), SPACE)


def test_rewards_are_learned_from_instead_of_trying_the_points() -> None:
    points = [{"x": 1.0}, {"x": 2.0}]
    search = OptunaSearch({"x": tune.uniform(0, 5)}, "loss", "min", points, evaluated_rewards=[1.0, 4.0], seed=1)
    assert search.suggest("t")["x"] not in (1.0, 2.0)
    assert [(trial.params, trial.value) for trial in learned(search)[:2]] == [({"x": 1.0}, 1.0), ({"x": 2.0}, 4.0)]
    with pytest.raises(InvalidInputError, match="evaluated_rewards"):
        OptunaSearch({"x": tune.uniform(0, 5)}, "loss", "min", points, evaluated_rewards=[1.0])


def test_points_can_be_added_before_the_space_is_known() -> None:
    search = OptunaSearch()
    search.add_evaluated_point({"x": 0.5}, 2.0, intermediate_values=[4.0, 2.0])
    search.add_evaluated_point({"x": 0.6}, 3.0, error=True)
    search.add_evaluated_point({"x": 0.7}, 4.0, pruned=True)
    search.add_evaluated_point({"x": 0.8}, math.nan)
    adapter = SearcherHarness(search, {"x": tune.uniform(0, 1)})
    states = [trial.state for trial in learned(adapter.searcher)]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL]
    assert learned(adapter.searcher)[0].intermediate_values == {0: 4.0, 1: 2.0}


@pytest.mark.parametrize(
    ("config", "value", "reason"),
    [
        ({"x": 7.0, "kind": "a"}, 1.0, "not within"),
        ({"x": 0.5}, 1.0, "'kind' is missing"),
        ({"x": 0.5, "kind": "z"}, 1.0, "not within"),
        ({"x": 0.5, "kind": "a"}, [1.0, 2.0], "2 values for 1 objectives"),
    ],
)
def test_evaluated_points_that_do_not_fit_are_left_out(config: dict[str, Any], value: Any, reason: str) -> None:
    adapter = SearcherHarness(OptunaSearch(), {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])})
    with pytest.warns(UserWarning, match=reason):
        adapter.searcher.add_evaluated_point(config, value)
    assert not learned(adapter.searcher)


def test_a_study_of_optuna_can_be_learned_from() -> None:
    study = optuna.create_study(study_name="other")
    for x in (0.1, 0.2, 3.0):
        trial = study.ask()
        trial.suggest_float("x", 0, 4)
        study.tell(trial, x)
    study.ask()
    search = OptunaSearch({"x": tune.uniform(0, 5)}, "loss", "min", seed=1)
    search.add_evaluated_trials(study, "loss")
    search.suggest("t")
    assert [trial.value for trial in learned(search)[:-1]] == [0.1, 0.2, 3.0]
