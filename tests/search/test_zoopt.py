"""ZOOptSearch, with the real ZOOpt."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from library_contract import NUMBERS, Case, ask, every_check, keep, run

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.search import create_searcher
from holdfast.search.replayable import Asked, Completed, NoMoreSuggestions, NotNow
from holdfast.search.zoopt import ZOOptSearch
from holdfast.testing.searcher_contract import trial_name

CASE = Case(ZOOptSearch, "zoopt", "zoopt", {"budget": 20, "parallel_num": 3}, space_argument="dim_dict")


def import_libraries() -> None:
    global zoopt
    zoopt = pytest.importorskip("zoopt")


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


def test_trials_one_at_a_time_do_not_wait_for_ever_after_the_random_beginning():
    assert len(run(CASE.adapter(parallel_num=1), 12)) == 12


def test_failures_in_the_random_beginning_do_not_hold_it_up():
    adapter = CASE.adapter()
    for n in range(8):
        ask(adapter)
        adapter.hear(Completed(trial_name(n), None, True))


def test_no_more_trials_than_allowed_are_open_after_the_random_beginning():
    adapter = CASE.adapter(parallel_num=2)
    for _ in range(4):
        ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]
    for n in range(4):
        adapter.hear(Completed(trial_name(n), {"loss": float(n)}, False))
    ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]


def test_a_space_of_which_every_point_was_tried_ends_the_search(capsys: pytest.CaptureFixture[str]):
    adapter = CASE.adapter({"a": tune.choice([1, 2]), "b": tune.randint(0, 2)})
    configs = run(adapter, 4)
    assert len({(config["a"], config["b"]) for config in configs}) == 4
    assert isinstance(adapter.hear(Asked(1))[0], NoMoreSuggestions)


def test_the_valley_is_found():
    adapter = CASE.adapter({"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-5, 1)}, parallel_num=1, budget=100)
    found = []
    for n in range(60):
        config = ask(adapter)
        found.append((config["x"] - 1.3) ** 2)
        adapter.hear(Completed(trial_name(n), {"loss": found[-1]}, False))
    assert median(found[40:]) < median(found[:20])
    assert min(found) < 0.2


def test_two_searches_in_one_process_do_not_share_zoopts_global_variables():
    alone = run(CASE.adapter(), 8)
    first, second = CASE.adapter(), CASE.adapter({"k": tune.randint(0, 9)}, seed=8)
    told = []
    for _ in range(8):
        told += run(first, 1)
        run(second, 1)
    assert told == alone


def test_a_seed_of_its_own_decides():
    def first(seed: int) -> Any:
        search = ZOOptSearch(budget=20, metric="loss", mode="min", seed=seed)
        search.set_search_properties(None, None, NUMBERS, seed=0)
        return search.suggest("a")

    assert first(1) == first(1) != first(2)


def test_dimensions_of_zoopts_own_are_a_space():
    kinds = zoopt.ValueType
    space = {
        "c": (kinds.CONTINUOUS, [0, 1], 1e-2),
        "d": (kinds.DISCRETE, [3, 5], True),
        "g": (kinds.GRID, ["a", "b"]),
    }
    search = ZOOptSearch("sracos", 20, space, "m", "max", [{"c": 0.5, "d": 4, "g": "b"}])
    assert search.suggest("a") == {"c": 0.5, "d": 4, "g": "b"}
    for n in range(3):
        config = search.suggest(str(n))
        assert 0 <= config["c"] <= 1
        assert config["d"] in (3, 4, 5)
        assert config["g"] in "ab"


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": None},
        {"budget": 2},
        {"algo": "magic"},
        {"parallel_num": 0},
        {"dim_dict": {"x": 5}},
        {"dim_dict": 5},
        {"magic": 5, "dim_dict": NUMBERS, "metric": "m", "mode": "min"},
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        ZOOptSearch(**{"budget": 20, **wrong}).suggest("a")


def test_it_is_found_by_name():
    assert isinstance(create_searcher("zoopt", budget=10), ZOOptSearch)
