"""HyperBand for BOHB: the widest bracket first, and budgets with the results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from table import Population, Script, assert_exact_resume, assert_never_hangs, play, random_population

from holdfast.schedulers import create_scheduler
from holdfast.schedulers.hb_bohb import HyperBandForBOHB


def ten_by_three() -> HyperBandForBOHB:
    return HyperBandForBOHB(max_t=10, reduction_factor=3)


class Watched(HyperBandForBOHB):
    """Remembers what it added to results."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(max_t=10, reduction_factor=3, **arguments)
        self.seen: list[tuple[int, int, dict[str, Any]]] = []

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        verdict = super().on_trial_result(view, trial, result)
        assert self.hyperband_info(trial.n, result) == result["hyperband_info"]
        self.seen.append((trial.n, result["training_iteration"], result["hyperband_info"]))
        return verdict


def population(trials: int, stride: int = 1, **settings: Any) -> Population:
    return Population([Script(lambda config, step: config["n"], steps=20, stride=stride)] * trials, **settings)


@pytest.mark.parametrize("settings", [{"slots": 1}, {"slots": 5}, {"slots": 1, "rules": {"max_concurrent": 1}}])
def test_a_band_begins_with_the_widest_bracket(settings):
    table = play(ten_by_three, population(17, **settings))
    assert [table.rows(n) for n in range(17)] == [1] * 6 + [3, 3, 9] + [3, 3, 3, 9, 9] + [10] * 3


def test_a_trial_pauses_while_its_bracket_is_not_full():
    table = play(ten_by_three, population(9, slots=1, rules={"max_concurrent": 1}))
    assert [table.reports(n)[0].verdict for n in range(9)] == ["pause"] * 8 + [""]


def test_results_that_reach_a_milestone_say_so():
    table = play(Watched, population(17))
    budgets = Counter(info["budget"] for _, _, info in table.scheduler.seen if info)
    assert budgets == {1: 9, 3: 8, 9: 3, 10: 3}
    assert all(t == info["budget"] for _, t, info in table.scheduler.seen if info)


def test_the_budget_is_the_milestone_even_if_the_trial_went_further():
    table = play(Watched, population(17, stride=2))
    assert {(t, info["budget"]) for _, t, info in table.scheduler.seen if info} == {(2, 1), (4, 3), (10, 9), (10, 10)}


def test_a_milestone_is_reached_once_by_trials_that_go_on_after_the_last_one():
    table = play(lambda: Watched(stop_last_trials=False), population(17))
    assert Counter(info["budget"] for _, _, info in table.scheduler.seen if info) == {1: 9, 3: 8, 9: 3, 10: 3}


def test_only_the_result_at_hand_has_a_budget():
    scheduler = play(Watched, population(17)).scheduler
    n, time, info = next(entry for entry in reversed(scheduler.seen) if entry[2])
    assert scheduler.hyperband_info(n, {"training_iteration": time}) == info
    assert scheduler.hyperband_info(n, {"training_iteration": time + 1}) == {}
    assert scheduler.hyperband_info(n + 1, {"training_iteration": time}) == {}


def test_random_populations_come_to_an_end():
    assert_never_hangs(ten_by_three, range(150))
    assert_never_hangs(lambda: HyperBandForBOHB(max_t=9, reduction_factor=2, stop_last_trials=False), range(150, 200))


@pytest.mark.parametrize("seed", [2, 4, 7])
def test_it_goes_on_exactly_wherever_it_is_rebuilt(seed):
    assert_exact_resume(ten_by_three, random_population(seed, max_trials=9, max_steps=8))


def test_it_is_made_by_name():
    assert isinstance(create_scheduler("hb_bohb", max_t=10), HyperBandForBOHB)
