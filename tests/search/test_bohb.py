"""TuneBOHB: which results the model learns from, and what it proposes."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from library_contract import Case, ask, every_check, keep

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.schedulers.hb_bohb import HyperBandForBOHB
from holdfast.search import create_searcher
from holdfast.search.bohb import TuneBOHB
from holdfast.search.replayable import Asked, Completed, NotNow, Paused, ResultTold, Suggested, Unpaused
from holdfast.testing.searcher_contract import assert_exact_resume, live, score, trial_name

pytest.importorskip("numpy")

CASE = Case(TuneBOHB, "numpy", "bohb", {"bohb_config": {"random_fraction": 0.1}})


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


def result(n: int, loss: Any, time: int, **more: Any) -> ResultTold:
    return ResultTold(trial_name(n), {"loss": loss, "training_iteration": time, **more})


def budgets(adapter: Any) -> dict[float, dict[str, float]]:
    """Budget -> trial -> loss."""
    return {
        budget: {trial: loss for trial, (_, loss) in told.items()} for budget, told in adapter.searcher._results.items()
    }


def test_results_that_name_their_budget_are_learned_from_and_no_others():
    adapter = CASE.adapter()
    for _ in range(2):
        ask(adapter)
    adapter.hear(result(0, 5.0, 1))
    adapter.hear(result(0, 4.0, 2, **{"hyperband_info/budget": 2}))
    adapter.hear(Paused(trial_name(0)))
    adapter.hear(result(1, 3.0, 4, hyperband_info={"budget": 3}))
    adapter.hear(Completed(trial_name(1), {"loss": 2.0, "training_iteration": 5}, False))
    assert budgets(adapter) == {2: {trial_name(0): 4.0}, 3: {trial_name(1): 3.0}}


def test_without_named_budgets_a_milestone_is_where_trials_pause_or_end():
    adapter = CASE.adapter()
    for _ in range(3):
        ask(adapter)
    first, second, third = map(trial_name, range(3))
    adapter.hear(result(0, 5.0, 1))
    adapter.hear(result(0, 4.0, 3))
    adapter.hear(Paused(first))
    adapter.hear(result(1, 9.0, 3))  # the last one of a bracket continues without a pause
    adapter.hear(result(1, 8.0, 4))
    adapter.hear(Completed(first, {"loss": 4.0, "training_iteration": 3}, False))
    adapter.hear(Completed(second, {"loss": 7.0, "training_iteration": 9}, False))
    adapter.hear(Completed(third, None, True))
    assert budgets(adapter) == {3: {first: 4.0, second: 9.0, third: math.inf}, 9: {second: 7.0}}


def test_a_trial_that_fails_later_keeps_what_it_reached():
    adapter = CASE.adapter()
    ask(adapter), ask(adapter)
    first, second = map(trial_name, range(2))
    adapter.hear(result(0, 4.0, 1))
    adapter.hear(Paused(first))
    adapter.hear(Completed(second, {"loss": 1.0, "training_iteration": 3}, False))
    adapter.hear(Completed(first, {"loss": 4.0, "training_iteration": 1}, True))
    assert budgets(adapter) == {1: {first: 4.0}, 3: {second: 1.0, first: math.inf}}


def test_paused_trials_do_not_count_as_running():
    adapter = CASE.adapter(max_concurrent=2)
    ask(adapter), ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]
    (answer,) = adapter.hear(Paused(trial_name(0)))
    assert isinstance(answer, Suggested)
    adapter.hear(answer.n)
    assert adapter.hear(Asked(1)) == [NotNow()]
    assert adapter.hear(Unpaused(trial_name(0))) == [NotNow()]
    assert adapter.hear(Completed(trial_name(1), None, True)) == [NotNow()]
    assert isinstance(adapter.hear(Completed(trial_name(2), None, True))[0], Suggested)


def test_the_model_finds_the_valley():
    space = {"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-5, 1), "kind": tune.choice(["a", "b", "c"])}
    adapter = CASE.adapter(space, bohb_config=None)
    found = []
    for n in range(80):
        config = ask(adapter)
        found.append((config["x"] - 1.3) ** 2 + abs(math.log10(config["lr"]) + 3) + (config["kind"] != "b"))
        adapter.hear(Completed(trial_name(n), {"loss": found[-1], "training_iteration": 1}, False))
    assert median(found[50:]) < median(found[:20]) / 2
    assert min(found) < 0.5


def test_the_model_prefers_the_largest_budget_with_enough_results():
    """With little training small x look good, with more of it large ones are."""
    points = [{"x": n / 24} for n in range(24)]
    adapter = CASE.adapter({"x": tune.uniform(0, 1)}, bohb_config={"random_fraction": 0.0}, points_to_evaluate=points)
    for n in range(24):
        x = ask(adapter)["x"]
        adapter.hear(result(n, x, 1))
        adapter.hear(Paused(trial_name(n)))
        if n % 2:
            adapter.hear(Completed(trial_name(n), {"loss": -x, "training_iteration": 9}, False))
    assert sum(ask(adapter)["x"] > 0.5 for _ in range(20)) > 15


def test_pauses_are_part_of_its_memory():
    def make() -> Any:
        return CASE.adapter(max_concurrent=3)

    history = live(make(), score, 10, with_results=True)
    paused = [Paused(each.trial_id) for each in history if isinstance(each, ResultTold)]
    mixed: list[Any] = []
    for each in history:
        mixed.append(each)
        if isinstance(each, ResultTold) and paused:
            mixed += [paused.pop(0), Unpaused(each.trial_id)]
    assert_exact_resume(make, mixed, every=2)


def test_a_space_of_configspace_is_taken():
    configspace = pytest.importorskip("ConfigSpace")
    space = configspace.ConfigurationSpace({"a": (0.1, 1.5), "b": (2, 10), "c": ["x", "y"]})
    space.add(
        configspace.UniformFloatHyperparameter("l", 1e-4, 1.0, log=True),
        configspace.Constant("k", 3),
        configspace.OrdinalHyperparameter("o", [1, 2]),
    )
    config = TuneBOHB(space, metric="m", mode="max").suggest("t")
    assert config["k"] == 3
    assert config["c"] in "xy"
    assert type(config["b"]) is int
    assert 1e-4 <= config["l"] <= 1
    space.add(configspace.NormalFloatHyperparameter("n", 0, 1, lower=-5, upper=5))
    with pytest.raises(InvalidInputError, match="'n'"):
        TuneBOHB(space)
    conditional = configspace.ConfigurationSpace({"a": (0.0, 1.0), "b": (0.0, 1.0)})
    conditional.add(configspace.GreaterThanCondition(conditional["b"], conditional["a"], 0.5))
    with pytest.raises(InvalidInputError, match="conditions"):
        TuneBOHB(conditional)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bohb_config": {"magic": 1}},
        {"bohb_config": {"random_fraction": 2}},
        {"bohb_config": {"top_n_percent": 0}},
        {"max_concurrent": -1},
        {"space": 5},
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        TuneBOHB(**wrong)


def test_a_wrong_seed_is_named():
    with pytest.raises(InvalidInputError, match=r"^seed must not be negative, got -1"):
        TuneBOHB(seed=-1)


def test_it_is_found_by_name_and_cannot_be_told_of_points_without_budget():
    search = create_searcher("bohb", seed=1)
    assert isinstance(search, TuneBOHB)
    with pytest.raises(NotImplementedError):
        search.add_evaluated_point({"x": 1}, 1.0)


class Steps(tune.Trainable):
    """Its loss falls with every step, to what its config deserves."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, float]:
        self.steps += 1
        return {"loss": (self.config["x"] - 0.3) ** 2 + 1 / self.steps}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, int]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = checkpoint["steps"]


def test_it_works_together_with_its_scheduler(tmp_path: Path):
    tuner = tune.Tuner(
        Steps,
        param_space={"x": tune.uniform(-1, 1), "kept": [1]},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=TuneBOHB(),
            scheduler=HyperBandForBOHB(max_t=9, reduction_factor=3),
            num_samples=9,
            seed=3,
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="bohb", verbose=0, stop={"training_iteration": 9}),
    )
    results = tuner.fit()
    assert len(results) == 9
    assert not results.errors
    assert max(each.metrics["training_iteration"] for each in results) == 9
