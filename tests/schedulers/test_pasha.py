"""PASHA: how far trials may go."""

from __future__ import annotations

from typing import Any

import pytest
from table import Population, Script, Table, assert_exact_resume, assert_never_hangs, play, random_population

from holdfast.errors import InvalidInputError
from holdfast.schedulers.pasha import POINTS_PER_RUNG, PASHAScheduler, crossing_distance
from holdfast.space.rng import Rng


def pasha(**arguments: Any):
    return lambda: PASHAScheduler(**{"max_t": 27, "reduction_factor": 3, **arguments})


def furthest(table: Table) -> int:
    return max(trial.rows for trial in table.state.trials)


def steady(count: int = 27) -> list[Script]:
    """The better trial is better at every step."""
    return [Script([n + step / 100 for step in range(27)]) for n in range(count)]


def turning(count: int = 27) -> list[Script]:
    """Between any two rungs all trials change places."""

    def score(n: int, step: int) -> float:
        phase = sum(step > rung for rung in (1, 3, 9))
        return float(n if phase % 2 == 0 else count - n) + 100 * phase

    return [Script([score(n, step) for step in range(1, 28)]) for n in range(count)]


def wobbling(count: int, better: float) -> list[Script]:
    """Each trial is better than the one before, and all of them wobble."""
    return [Script([n * better + step + Rng([n, step]).random() for step in range(27)]) for n in range(count)]


def test_trials_go_no_further_than_the_second_rung_while_their_order_is_steady():
    table = play(pasha(), Population(steady(), slots=3))
    assert furthest(table) == 3
    assert table.scheduler.current_max_t == 3
    assert table.statuses() == ["TERMINATED"] * 27


def test_trials_that_change_places_go_on_to_the_end():
    table = play(pasha(), Population(turning(), slots=3))
    assert table.scheduler.current_max_t == 27
    assert furthest(table) == 27


def test_it_goes_higher_by_one_rung_at_a_time():
    heights = []

    def watch(table: Table) -> None:
        heights.append(table.scheduler.current_max_t)

    Table(pasha(), Population(turning(), slots=3), watch).play()
    assert list(dict.fromkeys(heights)) == [3, 9, 27]


def test_what_differs_by_epsilon_does_not_count_as_a_change():
    moved = turning()
    assert play(pasha(epsilon=1000.0), Population(moved, slots=3)).scheduler.current_max_t == 3
    assert play(pasha(epsilon=0.0), Population(moved, slots=3)).scheduler.current_max_t == 27


def test_epsilon_is_learned_from_trials_whose_curves_cross():
    assert play(pasha(), Population(steady(), slots=3)).scheduler.epsilon == 0.0
    population = Population(wobbling(18, 0.02), slots=2)
    careful = play(pasha(grace_period=3, max_t=81), population).scheduler
    assert 0.5 < careful.epsilon < 1.2  # two of them are up to 1 apart by chance
    assert careful.current_max_t == 9
    assert play(pasha(grace_period=3, max_t=81, epsilon=0.0), population).scheduler.current_max_t == 81


def test_curves_have_crossed_if_each_was_ahead_in_turn():
    low = dict.fromkeys(range(4), 1.0)
    assert crossing_distance(low, {0: 2.0, 1: 0.5, 2: 1.5, 3: 1.25}) == 0.25
    assert crossing_distance(low, {0: 2.0, 1: 0.5, 2: 0.5, 3: 0.75}) is None  # once
    assert crossing_distance(low, {0: 2.0, 1: 1.0, 2: 0.5, 3: 1.5}) == 0.5  # to touch is not to cross
    assert crossing_distance(low, {0: 2.0, 9: 0.5}) is None
    assert crossing_distance({}, low) is None


def test_only_so_much_of_a_curve_is_remembered():
    scheduler = PASHAScheduler(max_t=10_000, grace_period=100, reduction_factor=10)
    moments = [scheduler._moment(time) for time in range(10_000)]
    assert len(set(moments)) <= 3 * POINTS_PER_RUNG + 1
    assert moments == sorted(moments)
    assert scheduler._moment(100) != scheduler._moment(101)


def test_curves_of_trials_that_ended_below_the_top_are_forgotten():
    scheduler = play(pasha(), Population(steady(), slots=3)).scheduler
    assert set(scheduler._curves) == set(scheduler._ladder[1].keys)


def test_with_one_rung_it_goes_to_the_end_at_once():
    table = play(pasha(max_t=3), Population([Script([n] * 5) for n in range(6)], slots=2))
    assert furthest(table) == 3
    assert play(pasha(max_t=1), Population([Script([1, 2])])).state.trials[0].rows == 1


def test_a_searcher_that_waits_for_results_gets_them():
    table = play(pasha(), Population(steady(9), slots=2, max_live=2))
    assert len(table.state.trials) == 9


def test_it_says_how_far_trials_may_go():
    assert "up to 3" in play(pasha(), Population(steady(3))).scheduler.debug_string()


@pytest.mark.parametrize("arguments", [{"epsilon": -1.0}, {"epsilon_percentile": 101}, {"max_t": 0}])
def test_arguments_without_sense_are_refused(arguments):
    with pytest.raises(InvalidInputError):
        PASHAScheduler(**arguments)


def test_exact_resume_after_every_event():
    assert_exact_resume(pasha(max_t=4, reduction_factor=2), random_population(6, max_trials=7, max_steps=5, odd=1.0))


@pytest.mark.parametrize("scripts", [turning(12), wobbling(14, 0.1)])
def test_exact_resume_while_it_goes_higher(scripts):
    population = Population(scripts, slots=3, seed=4)
    assert_exact_resume(pasha(reduction_factor=2), population, prefixes=range(7, 420, 37))


def test_nothing_hangs():
    assert_never_hangs(pasha(max_t=9, reduction_factor=2), range(250))
