"""BayesOptSearch, with the real library: 1.4, which Nevergrad wants, and newer ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from library_contract import NUMBERS, Case, ask, every_check, keep, run
from search_world import EVERY_DOMAIN

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.search import create_searcher
from holdfast.search.bayesopt import BayesOptSearch
from holdfast.search.replayable import Asked, Completed, NoMoreSuggestions, NotNow
from holdfast.testing.searcher_contract import score, trial_name

CASE = Case(
    BayesOptSearch,
    "bayes_opt",
    "bayesopt",
    {"random_search_steps": 3},
    lacks=frozenset(EVERY_DOMAIN.keys() - {"uniform", "one", "fixed"}),
    has_choices=False,
    trials=6,
    every=3,
    ahead=3,
)


def import_libraries() -> None:
    pytest.importorskip("bayes_opt")


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


def test_nothing_more_is_suggested_until_the_random_beginning_has_ended():
    adapter = CASE.adapter()
    for _ in range(3):
        ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]
    assert adapter.hear(Completed(trial_name(1), None, True)) == [NotNow()]
    assert adapter.hear(Completed(trial_name(0), score(adapter.configs[0]), False)) == [NotNow()]
    (answer,) = adapter.hear(Completed(trial_name(2), score(adapter.configs[2]), False))
    assert answer.n == 3


def test_a_beginning_of_failures_does_not_last_for_ever():
    adapter = CASE.adapter()
    for n in range(6):
        ask(adapter)
        adapter.hear(Completed(trial_name(n), None, True))
    assert len({config["x"] for config in adapter.configs.values()}) == 6


def test_the_process_finds_the_valley():
    adapter = CASE.adapter({"x": tune.uniform(-5, 5)})
    found = []
    for n in range(9):
        config = ask(adapter)
        found.append((config["x"] - 1.3) ** 2)
        adapter.hear(Completed(trial_name(n), {"loss": found[-1]}, False))
    assert min(found) < min(found[:3])
    assert min(found) < 0.05


class Stubborn(BayesOptSearch):
    """One that always thinks of the same point."""

    def _proposal(self) -> dict[str, float]:
        return {"x": 0.1, "deep/y": 2.0, "list/1": 2.5}


@pytest.mark.parametrize(("skip", "trials"), [(True, 1), (False, 3)])
def test_the_same_point_again_and_again_ends_the_search(skip: bool, trials: int):
    case = Case(Stubborn, "bayes_opt", "bayesopt", {"random_search_steps": 0, "patience": 3, "skip_duplicate": skip})
    adapter = case.adapter()
    run(adapter, trials)
    with pytest.warns(UserWarning, match=f"ended the search after {trials} suggestions"):
        assert isinstance(adapter.hear(Asked(1))[0], NoMoreSuggestions)


def test_points_of_a_narrow_range_are_not_the_same_one():
    adapter = Case(BayesOptSearch, "bayes_opt", "bayesopt").adapter({"lr": tune.uniform(1e-7, 4e-6)})
    found = []
    for n in range(12):
        found.append(ask(adapter)["lr"])
        adapter.hear(Completed(trial_name(n), {"loss": (found[-1] * 1e6 - 2) ** 2}, False))
    assert len(set(found)) == 12


def test_a_duplicate_waits_while_other_trials_may_change_its_mind():
    adapter = Case(Stubborn, "bayes_opt", "bayesopt", {"random_search_steps": 0, "patience": 2}).adapter()
    ask(adapter)
    for _ in range(5):
        assert adapter.hear(Asked(1)) == [NotNow()]


@pytest.mark.parametrize("kind", ["ucb", "ei", "poi"])
def test_every_kind_of_utility_suggests(kind: str):
    adapter = CASE.adapter(
        {"x": tune.uniform(0, 1)}, utility_kwargs={"kind": kind, "kappa": 1.5, "xi": 0.1}, random_search_steps=1
    )
    assert len({config["x"] for config in run(adapter, 3)}) == 3


def test_another_experiment_is_learned_from_before_the_first_trial():
    past = [
        SimpleNamespace(config={"x": 0.1 * n, "deep": {"y": 1.0}, "list": [7, 2.5]}, metrics={"loss": n}, error=None)
        for n in range(4)
    ]
    search = BayesOptSearch(metric="loss", mode="min", analysis=past, random_search_steps=0)
    assert search.set_search_properties(None, None, NUMBERS)
    search.suggest("a")
    assert len(search._optimizer.space) == 4
    with pytest.raises(InvalidInputError, match="needs `metric`"):
        BayesOptSearch(analysis=past)


def test_bounds_are_a_space():
    search = BayesOptSearch(
        {"x": (0, 1), "y": [5.0, 6]}, metric="loss", mode="max", points_to_evaluate=[{"x": 0.5, "y": 5.5}]
    )
    assert search.suggest("a") == {"x": 0.5, "y": 5.5}
    assert 5 <= search.suggest("b")["y"] <= 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"patience": 0},
        {"random_search_steps": -1},
        {"utility_kwargs": {"kind": "luck"}},
        {"utility_kwargs": {"kind": "ucb", "magic": 1}},
        {"space": {"x": 5}},
        {"space": {"x": (1, 2, 3)}},
        {"space": 5},
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        BayesOptSearch(**wrong)


def test_it_is_found_by_name_and_its_default_seed_is_42():
    assert isinstance(create_searcher("bayesopt", patience=2, gamma=0.2), BayesOptSearch)
    first, second = (CASE.adapter(seed=seed) for seed in (1, 2))
    assert run(first, 3) == run(second, 3)
