"""Repeater: each suggestion several times, and one mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
from search_world import Notebook

import holdfast as tune
from holdfast.errors import CannotWrapError, InvalidInputError
from holdfast.search.concurrency_limiter import ConcurrencyLimiter
from holdfast.search.optuna import OptunaSearch
from holdfast.search.repeater import TRIAL_INDEX, Repeater
from holdfast.search.searcher import Searcher, can_snapshot
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live

SPACE = {"x": tune.uniform(-5, 5), "a": {"b": tune.choice(["a", "b"]), "c": 3}}


def test_each_suggestion_is_tried_several_times_and_told_once() -> None:
    repeater = Repeater(Notebook(), repeat=3)
    inner = repeater.searcher
    configs = [repeater.suggest(name) for name in "abcd"]
    assert configs == [
        {"x": 1, TRIAL_INDEX: 0},
        {"x": 1, TRIAL_INDEX: 1},
        {"x": 1, TRIAL_INDEX: 2},
        {"x": 2, TRIAL_INDEX: 0},
    ]
    repeater.on_trial_complete("c", {"loss": 1.0, "other": "c"})
    repeater.on_trial_complete("d", {"loss": 50.0})
    repeater.on_trial_complete("a", {"loss": 3.0, "other": "a"})
    assert inner.heard == []
    repeater.on_trial_complete("b", {"loss": 5.0})
    assert inner.heard == [("a", {"loss": 3.0, "other": "a"}, False)]


def test_the_index_can_be_left_out() -> None:
    repeater = Repeater(Notebook(), repeat=2, set_index=False)
    assert [repeater.suggest("a"), repeater.suggest("b")] == [{"x": 1}, {"x": 1}]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, 2.0, 6.0], 3.0),
        ([1.0, math.nan, 2.0], 1.5),
        ([None, "text", 4], 4.0),
        ([math.nan, None, [1]], math.nan),
        ([1.0, math.inf, 2.0], math.inf),
        ([1.0, math.inf, -math.inf], math.nan),
    ],
)
def test_means_leave_out_what_is_no_number(values: list[Any], mean: float) -> None:
    repeater = Repeater(Notebook(), repeat=3)
    for name, value in zip("abc", values, strict=True):
        repeater.suggest(name)
        repeater.on_trial_complete(name, {"loss": value})
    ((name, result, error),) = repeater.searcher.heard
    assert (name, error) == ("a", False)
    assert result["loss"] == mean or (math.isnan(mean) and math.isnan(result["loss"]))


def test_failed_trials_do_not_count_unless_all_failed() -> None:
    repeater = Repeater(Notebook(), repeat=2)
    for name in "abcd":
        repeater.suggest(name)
    repeater.on_trial_complete("a", {"loss": 100.0}, error=True)
    repeater.on_trial_complete("b", {"loss": 1.0})
    repeater.on_trial_complete("c", None, error=True)
    repeater.on_trial_complete("d", None)
    assert repeater.searcher.heard == [("a", {"loss": 1.0}, False), ("c", None, True)]


def test_a_trial_that_failed_and_was_resumed_counts_as_it_ended_last() -> None:
    repeater = Repeater(Notebook(), repeat=2)
    repeater.suggest("a")
    repeater.suggest("b")
    repeater.on_trial_complete("a", None, error=True)
    repeater.on_trial_complete("a", {"loss": 3.0})
    repeater.on_trial_complete("b", {"loss": 5.0})
    repeater.on_trial_complete("b", {"loss": 500.0})
    repeater.on_trial_complete("unknown", {"loss": 500.0})
    assert repeater.searcher.heard == [("a", {"loss": 4.0}, False)]


def test_several_metrics_have_several_means() -> None:
    repeater = Repeater(OptunaSearch(metric=["loss", "deep/size"], mode=["min", "max"]), repeat=2)
    assert repeater.set_search_properties(None, None, SPACE, seed=1)
    for name, value in (("a", 1.0), ("b", 3.0)):
        repeater.suggest(name)
        repeater.on_trial_complete(name, {"loss": value, "deep/size": 10 * value})
    assert repeater.searcher._study.trials[0].values == [2.0, 20.0]


def test_not_now_and_never_again_pass_through() -> None:
    waiting = Repeater(Notebook(patience=1), repeat=2)
    assert waiting.suggest("a")
    assert waiting.suggest("b")
    assert waiting.suggest("c") is None
    ended = Repeater(Notebook(total=1), repeat=2)
    assert ended.suggest("a")
    assert ended.suggest("b")
    assert ended.suggest("c") == Searcher.FINISHED


def test_a_number_of_samples_that_cuts_the_last_group_is_pointed_out() -> None:
    repeater = Repeater(Notebook(), repeat=4)
    with pytest.warns(UserWarning, match=r"last 2 trials. Write for example num_samples=12"):
        repeater.set_search_properties("loss", "min", {}, num_samples=10)
    for fine in (8, -1, None):
        assert repeater.set_search_properties("loss", "min", {}, num_samples=fine)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Repeater(OptunaSearch(), repeat=3),
        lambda: ConcurrencyLimiter(Repeater(OptunaSearch(), repeat=2), 4, batch=True),
        lambda: Repeater(ConcurrencyLimiter(OptunaSearch(), 2), repeat=2, set_index=False),
    ],
)
def test_it_continues_exactly(make: Any) -> None:
    search = make()
    assert can_snapshot(search)

    def adapter() -> SearcherHarness:
        return SearcherHarness(search, SPACE)

    first = adapter()
    history = live(first, lambda config: {"loss": config["x"] ** 2}, trials=30, slots=4)
    assert len(first.configs) == 30
    assert {config["a"]["c"] for config in first.configs.values()} == {3}
    assert len({config["x"] for config in first.configs.values()}) < 30
    assert_exact_resume(adapter, history, every=7, ahead=20)


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_repeating_less_than_once_is_refused(number: Any) -> None:
    with pytest.raises(InvalidInputError, match="repeat"):
        Repeater(Notebook(), number)


def test_what_is_no_searcher_is_refused() -> None:
    with pytest.raises(CannotWrapError, match="only works with `Searcher` objects"):
        Repeater("optuna")  # type: ignore[arg-type]
