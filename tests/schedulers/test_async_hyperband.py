"""ASHA: who is stopped at which rung."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from table import ABSENT, Population, Script, Table, assert_exact_resume, assert_never_hangs, play, random_population

from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.schedulers.async_hyperband import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    BracketDraw,
    milestones,
    percentile,
)

numpy = pytest.importorskip("numpy")


def asha(**arguments: Any):
    return lambda: AsyncHyperBandScheduler(**arguments)


def verdicts(table: Table, n: int) -> list[str]:
    return [report.verdict for report in table.reports(n)]


# --- rungs


@pytest.mark.parametrize(
    ("arguments", "rungs"),
    [
        ({}, [[64, 16, 4, 1]]),
        ({"max_t": 10, "reduction_factor": 2}, [[8, 4, 2, 1]]),
        ({"max_t": 8, "grace_period": 2, "reduction_factor": 2}, [[8, 4, 2]]),
        ({"max_t": 81, "reduction_factor": 3, "brackets": 3}, [[81, 27, 9, 3, 1], [81, 27, 9, 3], [81, 27, 9]]),
    ],
)
def test_rungs_are_where_they_should_be(arguments, rungs):
    scheduler = ASHAScheduler(**arguments)
    assert [[rung.milestone for rung in bracket] for bracket in scheduler.rungs] == rungs


def test_brackets_without_a_rung_are_warned_of():
    with pytest.warns(UserWarning, match=r"brackets=4.* only 2 brackets have a rung.*Give brackets=2 or less"):
        scheduler = ASHAScheduler(max_t=3, reduction_factor=2, brackets=4)
    assert [[rung.milestone for rung in bracket] for bracket in scheduler.rungs] == [[2, 1], [2], [], []]


def test_the_last_rung_is_not_lost_to_rounding():
    assert math.log(243) / math.log(3) < 5
    assert milestones(243, 1, 3)[-1] == 243


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_t": 0}, "max_t=0"),
        ({"max_t": math.inf}, "max_t=inf"),
        ({"grace_period": 0}, "grace_period=0"),
        ({"max_t": 5, "grace_period": 6}, "at most max_t=5"),
        ({"reduction_factor": 1}, "reduction_factor=1"),
        ({"brackets": 0}, "brackets=0"),
        ({"brackets": 1.5}, r"brackets=1\.5"),
        ({"max_t": "9"}, "max_t='9' must be a number"),
        ({"grace_period": None}, "grace_period=None must be a number"),
        ({"reduction_factor": [4]}, r"reduction_factor=\[4\] must be a number"),
        ({"mode": "best"}, r"\['min', 'max'\]"),
    ],
)
def test_arguments_that_make_no_rungs_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        ASHAScheduler(**arguments)


def test_it_does_not_begin_without_a_metric():
    with pytest.raises(ValueError, match="without a valid `metric`"):
        ASHAScheduler().check_ready()
    scheduler = ASHAScheduler(mode="min")
    assert scheduler.set_search_properties(None, None)
    assert (scheduler.metric, scheduler.mode) == ("_metric", "min")


def test_a_metric_is_given_in_one_place():
    assert not ASHAScheduler(metric="loss", mode="min").set_search_properties("loss", "min")


# --- brackets


def test_brackets_are_drawn_by_the_softmax_of_their_rungs():
    draw, count = BracketDraw([5, 4, 3]), 4000
    drawn = Counter(draw.at(k / count) for k in range(count))
    weights = numpy.exp(numpy.array([5.0, 4.0, 3.0]))
    assert [drawn[bracket] / count for bracket in range(3)] == pytest.approx(weights / weights.sum(), abs=1 / count)


def test_a_trial_is_in_the_same_bracket_in_every_run_with_the_same_seed():
    def drawn(seed: int) -> list[int]:
        scheduler = ASHAScheduler(max_t=81, reduction_factor=3, brackets=3)
        scheduler.set_search_properties("score", "max", seed=seed)
        return [scheduler._bracket(n) for n in range(60)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {0, 1, 2}


# --- verdicts


def test_trials_behind_the_cutoff_of_those_before_them_are_stopped():
    scripts = [Script([score, score]) for score in (10, 20, 5, 15)]
    table = play(asha(reduction_factor=2), Population(scripts, slots=1))
    assert [verdicts(table, n)[0] for n in range(4)] == ["", "", "stop", ""]
    assert table.reports(2)[0].why == "AsyncHyperBandScheduler: behind at rung 1"


def test_smaller_is_better_with_mode_min():
    scripts = [Script([score, score]) for score in (10, 20, 5, 15)]
    table = play(asha(reduction_factor=2), Population(scripts, slots=1, mode="min"))
    assert [verdicts(table, n)[0] for n in range(4)] == ["", "stop", "", "stop"]


def test_trials_end_at_max_t_unless_they_may_go_on():
    population = Population([Script([1, 2, 3, 4, 5])])
    assert verdicts(play(asha(max_t=3), population), 0) == ["", "", "stop"]
    assert play(asha(max_t=3), population).reports(0)[-1].why == "AsyncHyperBandScheduler: reached max_t"
    assert verdicts(play(asha(max_t=3, stop_last_trials=False), population), 0) == [""] * 5


def test_what_cannot_be_compared_passes_and_stops_nobody():
    scripts = [Script([score, 1]) for score in (math.nan, "high", None, [3], 7, math.nan, 6)]
    table = play(asha(reduction_factor=2), Population(scripts, slots=1))
    assert [verdicts(table, n)[0] for n in range(7)] == ["", "", "", "", "", "", "stop"]


def test_a_result_without_metric_or_time_does_not_count():
    scripts = [Script([ABSENT, 5]), Script([9, 9]), Script([8, 9], extra={"epoch": "one"})]
    with pytest.warns(UserWarning, match=r"time_attr='epoch'.* has: 'score', 'training_iteration'") as warned:
        table = play(asha(time_attr="epoch"), Population(scripts, slots=1))
    assert len(warned) == 1
    assert all(not rung.seen for rung in table.scheduler.rungs[0])
    table = play(asha(max_t=4, reduction_factor=2), Population(scripts, slots=1))
    high, second, first = table.scheduler.rungs[0]
    # Its first result that counts is at 2; having been seen there, it is still new to the rung below when it ends.
    assert second.seen == {0: 5.0, 1: 9.0, 2: 9.0}
    assert first.seen == {0: 5.0, 1: 9.0, 2: 8.0}
    assert not high.seen


def test_a_trial_that_jumps_over_rungs_is_seen_at_one_per_result_from_the_highest_down():
    table = play(asha(max_t=64, reduction_factor=2), Population([Script([1, 2, 3], stride=5)]))
    seen = {rung.milestone: rung.seen for rung in table.scheduler.rungs[0] if rung.seen}
    # Times 5, 10, 15; when it ends its last result counts once more.
    assert seen == {4: {0: 1.0}, 8: {0: 2.0}, 2: {0: 3.0}, 1: {0: 3.0}}


def test_the_last_result_counts_when_a_trial_is_done_by_itself():
    population = Population([Script([5], extra={"done": True}), Script([4])], slots=1)
    table = play(asha(reduction_factor=2), population)
    assert verdicts(table, 1) == ["stop"]


def test_a_trial_that_begins_again_is_compared_again():
    table = play(asha(max_t=4, reduction_factor=2), Population([Script([1, 1, 1, 1]), Script([5, 5, 5, 5])], slots=1))
    assert table.scheduler.rungs[0][-1].seen == {0: 1.0, 1: 5.0}
    table.play_again(finished="restart")
    assert verdicts(table, 0)[-1] == "stop"
    assert len(verdicts(table, 0)) == 5  # four in its first life, and one in which it was behind
    assert table.scheduler.rungs[0][-1].scores == [1.0, 5.0]


def reference(history: list[ev.AnyEvent], mode: str, max_t: float, factor: float) -> list[str]:
    """Verdicts as the rules say, with NumPy and no cleverness, for trials that neither fail nor report nonsense."""
    sign = 1 if mode == "max" else -1
    rungs: list[tuple[float, dict[int, float]]] = [(m, {}) for m in reversed(milestones(max_t, 1, factor))]
    last: dict[int, tuple[float, float]] = {}
    given = []

    def behind(n: int, time: float, score: float) -> bool:
        for milestone, recorded in rungs:
            if time >= milestone and n not in recorded:
                scores = list(recorded.values())
                recorded[n] = score
                return bool(scores) and score < numpy.nanpercentile(scores, (1 - 1 / factor) * 100)
        return False

    for event in history:
        if isinstance(event, ev.Reported):
            time = last.get(event.n, (0, 0.0))[0] + 1
            last[event.n] = time, sign * event.metrics["score"]
            given.append("stop" if time >= max_t or behind(event.n, *last[event.n]) else "")
        elif isinstance(event, ev.TrialTerminated):
            behind(event.n, *last[event.n])
    return given


@pytest.mark.parametrize("seed", range(25))
def test_verdicts_are_those_of_the_rules(seed):
    population = replace(random_population(seed, max_trials=30, odd=0.0), slots=4)
    table = play(asha(max_t=11, reduction_factor=3), population)
    assert [report.verdict for report in table.reports()] == reference(table.history, population.mode, 11, 3)


# --- memory


def test_exact_resume_after_every_event():
    for seed in (3, 5):
        population = random_population(seed, max_trials=7, max_steps=6, odd=1.0)
        assert_exact_resume(asha(max_t=5, reduction_factor=2, brackets=2), population)


def test_nothing_hangs():
    assert_never_hangs(asha(max_t=9, reduction_factor=2), range(250))
    assert_never_hangs(asha(max_t=20, reduction_factor=3, brackets=3, stop_last_trials=False), range(60))


def test_memory_goes_through_a_file(tmp_path):
    table = play(asha(max_t=9, reduction_factor=2), random_population(8))
    table.scheduler.save(str(tmp_path / "asha"))
    other = ASHAScheduler(max_t=9, reduction_factor=2)
    other.restore(str(tmp_path / "asha"))
    assert other.get_state() == table.scheduler.get_state()
    assert other.debug_string() == table.scheduler.debug_string()
    assert "num_stopped=" in other.debug_string()


# --- percentiles


def test_percentiles_are_those_of_numpy():
    rng = numpy.random.default_rng(1)
    for size in range(1, 40):
        numbers = sorted(float(x) for x in rng.normal(size=size))
        for q in (0, 10, 50, (1 - 1 / 3) * 100, 75, 90, 100):
            assert percentile(numbers, q) == numpy.nanpercentile(numbers, q)
    assert percentile([], 50) is None
    assert percentile([-math.inf, 1.0], 75) == -math.inf
