"""DEHB in real experiments: budgets are kept, and a restored search continues as if nothing had happened."""

from __future__ import annotations

from typing import Any

from experiment_tools import history, statuses

import holdfast as tune
from holdfast.schedulers.hb_dehb import DEHBScheduler
from holdfast.search.dehb import DEHBSearch

SPACE = {"x": tune.uniform(0, 1), "deep": {"y": tune.loguniform(0.01, 1)}, "kind": tune.choice(["a", "b"])}


def train(config: dict[str, Any]) -> None:
    """Better with every step, and worse the farther it is from the optimum; never ends by itself."""
    step = 0
    while True:
        step += 1
        tune.report({"loss": (config["x"] - 0.3) ** 2 + config["deep"]["y"] + 1 / step})


def planned(config: dict[str, Any]) -> None:
    """Ends by itself when its budget is used up."""
    for step in range(1, config["dehb_budget"] + 1):
        tune.report({"loss": config["x"] + 1 / step})


SEARCH = {"metric": "loss", "mode": "min", "num_samples": 22, "seed": 5, "max_concurrent_trials": 1}


def test_every_trial_ends_at_the_budget_it_was_suggested_with(make_tuner):
    tuner = make_tuner(train, SPACE, search_alg=DEHBSearch(max_t=9), scheduler=DEHBScheduler(), **SEARCH)
    grid = tuner.fit()
    assert statuses(grid) == ["TERMINATED"] * 22
    lengths = [len(history(result)) for result in grid]
    assert lengths == [result.config["dehb_budget"] for result in grid]
    assert lengths == [1] * 9 + [3] * 3 + [9] + [3] * 5 + [9] + [9] * 3
    best = min(grid[:9], key=lambda result: result.metrics["loss"])
    assert grid[12].config == {**best.config, "dehb_budget": 9}
    assert grid.get_best_result().metrics["training_iteration"] == 9


def test_both_can_be_given_by_name_and_a_trial_may_look_at_its_budget(make_tuner):
    grid = make_tuner(
        planned, SPACE, search_alg="dehb", scheduler="dehb", metric="loss", mode="min", num_samples=4
    ).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    assert [len(history(result)) for result in grid] == [result.config["dehb_budget"] for result in grid]


def test_a_restored_search_suggests_what_it_would_have_suggested(make_tuner, crashed, root):
    settings = {"scheduler": "dehb", **SEARCH}
    undisturbed = make_tuner(train, SPACE, name="undisturbed", search_alg=DEHBSearch(max_t=9), **settings).fit()
    crashed(train, SPACE, after=20, search_alg=DEHBSearch(max_t=9), **settings)
    grid = tune.Tuner.restore(root).fit()
    assert statuses(grid) == ["TERMINATED"] * 22
    configs = [{key: value for key, value in result.config.items() if key != "dir"} for result in grid]
    assert configs == [result.config for result in undisturbed]
    assert [history(result, "loss") for result in grid] == [history(result, "loss") for result in undisturbed]
