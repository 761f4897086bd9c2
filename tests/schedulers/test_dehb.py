"""DEHBScheduler: every trial ends at its own budget."""

from __future__ import annotations

import math
from typing import Any

import pytest
from table import Population, Script, assert_exact_resume, assert_never_hangs, play, random_population

from holdfast.config import TuneConfig
from holdfast.controller.algorithms import check_algorithms
from holdfast.errors import InvalidInputError
from holdfast.schedulers import create_scheduler
from holdfast.schedulers.hb_dehb import BUDGET_KEY, DEHBScheduler
from holdfast.search import BasicVariantGenerator
from holdfast.search.dehb import DEHBSearch
from holdfast.space.primitives import uniform


def with_budget(budget: Any, steps: int = 9, **script: Any) -> Script:
    return Script([1.0] * steps, config={BUDGET_KEY: budget}, **script)


def test_trials_end_at_their_budgets():
    table = play(DEHBScheduler, Population([with_budget(1), with_budget(3), with_budget(9), with_budget(20)]))
    assert [table.rows(n) for n in range(4)] == [1, 3, 9, 9]
    assert table.statuses() == ["TERMINATED"] * 4
    assert table.reports(1)[-1].why == "DEHBScheduler: used up its budget of 3"


def test_a_trial_that_passes_its_budget_ends_too():
    table = play(DEHBScheduler, Population([with_budget(3, stride=2), with_budget(0.5)]))
    assert [table.rows(n) for n in range(2)] == [2, 1]


@pytest.mark.parametrize("budget", [None, "much", math.nan])
def test_a_trial_without_a_budget_runs_to_its_end(budget):
    table = play(DEHBScheduler, Population([with_budget(budget), Script([1.0] * 5)]))
    assert [table.rows(n) for n in range(2)] == [9, 5]


def test_budgets_may_be_counted_in_something_else():
    seconds = play(lambda: DEHBScheduler(time_attr="time_total_s"), Population([with_budget(5, step_s=2.0)]))
    assert seconds.rows(0) == 3
    epochs = play(lambda: DEHBScheduler("epochs"), Population([with_budget(5, extra={"epochs": math.nan})]))
    assert epochs.rows(0) == 9
    with pytest.warns(UserWarning, match=r"DEHBScheduler does not judge results without .* time_attr='epochs'"):
        absent = play(lambda: DEHBScheduler("epochs"), Population([with_budget(5)]))
    assert absent.rows(0) == 9


def test_steps_that_are_repeated_after_a_failure_are_not_counted_twice():
    table = play(DEHBScheduler, Population([with_budget(5, fails_at=(4,), saves_every=2)], max_failures=1))
    assert table.rows(0) == 5
    assert len(table.reports(0)) == 6


def test_rebuilt_at_any_moment_it_goes_on_as_before():
    scripts = [with_budget(2, steps=5), with_budget(4, steps=5, fails_at=(3,)), Script([2.0] * 3)]
    assert_exact_resume(DEHBScheduler, Population(scripts, max_failures=1))


def test_no_population_hangs():
    assert_never_hangs(DEHBScheduler, range(100))


def test_it_is_made_by_name_and_needs_nothing():
    scheduler = create_scheduler("dehb", time_attr="epochs", max_t=3)
    assert isinstance(scheduler, DEHBScheduler)
    scheduler.check_ready()
    assert scheduler.get_state() == {}
    assert play(lambda: DEHBScheduler(mode="max", metric="score"), random_population(2)).statuses()
    with pytest.raises(InvalidInputError, match=r"\['min', 'max'\]"):
        DEHBScheduler(mode="least")


@pytest.mark.parametrize("search_alg", [None, "random", BasicVariantGenerator()])
def test_somebody_must_suggest_budgets(search_alg):
    config = TuneConfig(scheduler="dehb", search_alg=search_alg, metric="loss", mode="min")
    with pytest.raises(InvalidInputError, match="search_alg=DEHBSearch"):
        check_algorithms(config, {"x": uniform(0, 1)}, seed=1)


@pytest.mark.parametrize("search_alg", ["dehb", DEHBSearch(max_t=9)])
@pytest.mark.parametrize("scheduler", ["dehb", DEHBScheduler()])
def test_the_searcher_and_the_scheduler_go_together(search_alg, scheduler):
    config = TuneConfig(scheduler=scheduler, search_alg=search_alg, metric="loss", mode="min")
    check_algorithms(config, {"x": uniform(0, 1)}, seed=1)
