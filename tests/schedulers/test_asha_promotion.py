"""ASHA that pauses: who continues, and how it ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
from table import ABSENT, Population, Script, Table, assert_exact_resume, assert_never_hangs, play, random_population

from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.schedulers.asha_promotion import ASHAPromotionScheduler


def promotion(**arguments: Any):
    return lambda: ASHAPromotionScheduler(**{"max_t": 8, "reduction_factor": 2, **arguments})


def flat(score: float, steps: int = 8, **settings: Any) -> Script:
    return Script([score] * steps, **settings)


def rows(table: Table) -> list[int]:
    return [trial.rows for trial in table.state.trials]


def starts(table: Table) -> list[int]:
    return [event.n for event in table.events(ev.TrialStarted)]


def test_the_best_part_of_a_rung_goes_on_and_the_best_trial_reaches_the_end():
    table = play(promotion(), Population([flat(score) for score in (10, 20, 5, 15)], slots=1))
    # 20 is the best of two, 15 the second of four; 20 then passes the second rung, and is the only one left in the end.
    assert starts(table) == [0, 1, 2, 3, 1, 1]
    assert rows(table) == [1, 8, 1, 2]
    assert table.statuses() == ["TERMINATED"] * 4
    assert table.state.trials[0].reason == "it can never be promoted any more"
    assert table.reports(1)[-1].why == "ASHAPromotionScheduler: reached max_t"


def test_a_trial_that_is_next_in_line_goes_on_without_a_break():
    table = play(promotion(), Population([flat(10), flat(20)], slots=1))
    assert [report.verdict for report in table.reports(1)[:2]] == ["", "pause"]
    assert table.reports(1)[1].why == "ASHAPromotionScheduler: at rung 2"


def test_a_trial_that_once_looked_bad_goes_on_when_worse_ones_came():
    table = play(promotion(), Population([flat(score) for score in (10, 20, 1, 2, 3, 4)], slots=1))
    assert rows(table)[0] == 2
    assert starts(table).index(3) < starts(table).index(0, 1) < starts(table).index(5)  # second of four


def test_the_highest_rung_comes_first():
    # When trial 3 comes to the second rung, trial 1 may leave it, and a new trial may start.
    table = play(promotion(max_t=4), Population([flat(score) for score in (1, 9, 2, 8, 3, 7)], slots=1))
    moves = [(type(e).__name__, e.n) for e in table.events(ev.TrialResumed, ev.TrialStarted)]
    assert moves.index(("TrialResumed", 1)) < moves.index(("TrialStarted", 4))
    assert rows(table)[1] == 4


def test_of_each_rung_the_best_part_goes_on():
    table = play(promotion(), Population([flat(float(-n)) for n in range(40)], slots=3))
    assert [len(rung.ordered) for rung in table.scheduler.rungs[0]] == [40, 20, 10]
    assert sorted(rows(table)) == [1] * 20 + [2] * 10 + [4] * 5 + [8] * 5


def test_slots_are_free_for_others_while_a_trial_waits():
    table = play(promotion(reduction_factor=4), Population([flat(n) for n in range(6)], slots=2))
    assert starts(table)[:4] == [0, 1, 2, 3]
    assert all(report.verdict == "pause" for n in range(3) for report in table.reports(n)[:1])


# --- odd trials


def test_without_checkpoints_a_trial_begins_again_and_is_judged_once_per_step():
    scripts = [flat(score, saves_every=0) for score in (10, 20, 5, 15)]
    table = play(promotion(), Population(scripts, slots=1))
    assert rows(table)[1] == 8
    assert len(table.reports(1)) > 8
    assert len(table.scheduler.rungs[0][0].ordered) == 4


def test_a_trial_whose_metric_is_no_number_at_a_rung_is_stopped():
    table = play(promotion(), Population([flat(1), flat(math.nan), flat("high"), flat(2)], slots=1))
    assert rows(table) == [2, 1, 1, 8]  # they count as the worst: 1 is second of four
    assert [report.verdict for report in table.reports(1)] == ["stop"]


def test_a_result_without_the_metric_waits_for_the_next_one():
    scripts = [Script([ABSENT, None, 5, 6, 7, 8, 9]), flat(1)]
    table = play(promotion(), Population(scripts, slots=1))
    assert [report.verdict for report in table.reports(0)[:3]] == ["", "", "pause"]
    assert set(table.scheduler.rungs[0][1].keys) == {0}


def test_a_trial_that_jumps_over_rungs_counts_at_all_of_them():
    table = play(promotion(max_t=32), Population([flat(1, stride=5), flat(2, stride=5)], slots=1))
    assert [len(rung.keys) for rung in table.scheduler.rungs[0][:3]] == [2, 2, 2]


def test_if_the_promoted_trial_fails_for_good_the_next_one_goes_on():
    scripts = [flat(1), flat(9, fails_at=(2,)), flat(2), flat(3, fails_at=(3,)), flat(4)]
    table = play(promotion(), Population(scripts, slots=1))
    assert max(rows(table)) == 8
    assert table.statuses()[1] == "ERROR"


def test_trials_that_end_by_themselves_count():
    table = play(promotion(), Population([flat(5, steps=1), flat(4), flat(3), flat(2)], slots=1))
    assert table.statuses() == ["TERMINATED"] * 4
    done = Population([Script([5], extra={"done": True}), flat(4)], slots=1)
    assert len(play(promotion(), done).scheduler.rungs[0][0].ordered) == 2


def test_trials_may_go_on_after_max_t():
    table = play(promotion(stop_last_trials=False), Population([flat(1, steps=12)]))
    assert rows(table) == [12]


def test_without_rungs_below_max_t_every_trial_runs_through():
    table = play(promotion(max_t=3, grace_period=3), Population([flat(n) for n in range(3)]))
    assert rows(table) == [3, 3, 3]


def test_a_trial_that_begins_again_is_compared_again():
    table = play(promotion(), Population([flat(score) for score in (10, 20, 5, 15)], slots=1))
    table.play_again(finished="restart")
    assert table.statuses() == ["TERMINATED"] * 4
    assert len(table.scheduler.rungs[0][0].ordered) == 4
    assert max(rows(table)) == 8


def test_a_trial_that_was_stopped_may_be_resumed():
    table = play(promotion(), Population([flat(score) for score in (10, 20, 5, 15)], slots=1))
    table.play_again(finished="resume")
    assert table.statuses() == ["TERMINATED"] * 4
    assert rows(table)[0] >= 2


def test_a_searcher_that_waits_for_results_gets_them():
    table = play(promotion(), Population([flat(n) for n in range(12)], slots=2, max_live=3))
    assert len(table.state.trials) == 12
    assert max(rows(table)) == 8
    assert any(trial.reason == "it made room for a new trial" for trial in table.state.trials)


def test_a_time_that_results_lack_is_warned_of_once():
    with pytest.warns(UserWarning, match="time_attr='epoch'") as warned:
        play(promotion(time_attr="epoch"), Population([flat(n) for n in range(3)]))
    assert len(warned) == 1


# --- brackets and arguments


def test_brackets_begin_at_higher_rungs():
    table = play(promotion(max_t=16, brackets=3), Population([flat(n, steps=16) for n in range(30)], slots=3))
    scheduler = table.scheduler
    assert [[rung.milestone for rung in rungs] for rungs in scheduler.rungs] == [[1, 2, 4, 8], [2, 4, 8], [4, 8]]
    assert sum(len(rungs[0].ordered) for rungs in scheduler.rungs) == 30
    assert all(len(rungs[0].ordered) > 0 for rungs in scheduler.rungs)


@pytest.mark.parametrize("arguments", [{"max_t": 0}, {"reduction_factor": 1}, {"brackets": 0}, {"mode": "best"}])
def test_arguments_that_make_no_rungs_are_refused(arguments):
    with pytest.raises(InvalidInputError):
        ASHAPromotionScheduler(**arguments)


def test_it_says_who_waits():
    scheduler = play(promotion(), Population([flat(n) for n in range(4)])).scheduler
    assert "Iter 1.000: 0 of 4 wait" in scheduler.debug_string()


# --- memory


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_exact_resume_after_every_event(seed):
    population = random_population(seed, max_trials=7, max_steps=5, odd=1.0)
    assert_exact_resume(promotion(max_t=4, brackets=2), population)


def test_exact_resume_in_a_larger_population():
    population = Population([flat(n * 7 % 13, commit_s=0.4) for n in range(16)], slots=3, max_live=6, is_class=True)
    assert_exact_resume(promotion(), population, prefixes=range(5, 260, 17))


def test_nothing_hangs():
    assert_never_hangs(promotion(), range(250))
    assert_never_hangs(promotion(max_t=20, reduction_factor=3, brackets=2, stop_last_trials=False), range(60))
