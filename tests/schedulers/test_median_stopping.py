"""The median stopping rule: whom it ends, when it makes room, and that it computes what NumPy would."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from table import (
    ABSENT,
    Population,
    Script,
    Table,
    _Crash,
    assert_exact_resume,
    assert_never_hangs,
    new_adapter,
    play,
    random_population,
    retold,
)

from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.errors import InvalidInputError
from holdfast.schedulers import create_scheduler
from holdfast.schedulers.median_stopping import MedianStoppingRule, median_without
from holdfast.space.rng import Rng


def by_steps(**arguments: Any) -> MedianStoppingRule:
    return MedianStoppingRule(**{"time_attr": "training_iteration", "grace_period": 1, **arguments})


def verdicts(table: Table, n: int) -> list[str]:
    return [report.verdict for report in table.reports(n)]


def first_three(last: list[Any], **settings: Any) -> Population:
    """Three trials with averages 1, 3 and 5 that run to their end, then one more; all have slots."""
    scripts = [Script([level] * 4, step_s=0.1) for level in (1, 3, 5)]
    return Population([*scripts, Script(last, step_s=1.0)], slots=4, **settings)


@pytest.mark.parametrize(
    ("score", "seen"),
    [(2, ["stop"]), (2.99, ["stop"]), (3, [""] * 4), (3.01, [""] * 4), (math.nan, ["stop"]), (-math.inf, ["stop"])],
)
def test_a_trial_ends_if_its_best_is_strictly_worse_than_the_median(score, seen):
    assert verdicts(play(by_steps, first_three([score] * 4)), 3) == seen


def test_the_smaller_is_better_with_mode_min():
    assert verdicts(play(by_steps, first_three([4] * 4, mode="min")), 3) == ["stop"]
    assert verdicts(play(by_steps, first_three([2] * 4, mode="min")), 3) == [""] * 4


def test_the_story_of_a_trial_says_why():
    why = play(by_steps, first_three([2] * 4)).state.trials[3].reason
    assert why == "MedianStoppingRule: its best is worse than the median of 3 others at training_iteration=1"


def test_the_best_of_all_steps_counts_also_from_before_the_grace_period():
    table = play(lambda: by_steps(grace_period=2), first_three([4, 0, 0, 0]))
    assert verdicts(table, 3) == [""] * 4


def test_nothing_is_ended_within_the_grace_period():
    assert verdicts(play(lambda: by_steps(grace_period=3), first_three([0] * 4)), 3) == ["", "", "stop"]


def test_results_from_before_the_grace_period_do_not_count_for_averages():
    scripts = [Script([100, 1, 1], step_s=0.1)] * 3 + [Script([2, 2, 2])]
    assert verdicts(play(lambda: by_steps(grace_period=2), Population(scripts, slots=4)), 3) == ["", "", ""]


def test_averages_are_those_until_the_same_time():
    scripts = [Script([1, 1, 9, 9], step_s=0.1)] * 3 + [Script([1, 1, 3, 5])]
    assert verdicts(play(by_steps, Population(scripts, slots=4)), 3) == ["", "", "stop"]


def test_equal_trials_are_all_kept_whatever_rounding_does():
    table = play(by_steps, Population([Script([0.1] * 12, step_s=1 + n / 10) for n in range(6)], slots=6))
    assert {verdict for n in range(6) for verdict in verdicts(table, n)} == {""}


def test_time_is_seconds_by_default():
    assert MedianStoppingRule()._time_attr == "time_total_s"
    late = Script([1] * 4, step_s=0.7, lost_at=(1,))
    scripts = [*[Script([5] * 8, step_s=0.3)] * 3, late]
    table = play(lambda: MedianStoppingRule(grace_period=1.0), Population(scripts, slots=4))
    assert verdicts(table, 3) == ["", "stop"]


@pytest.mark.parametrize("nothing", [None, "low", ABSENT])
def test_results_without_a_number_are_not_judged(nothing):
    assert verdicts(play(by_steps, first_three([nothing] * 3)), 3) == [""] * 3


def test_results_without_the_time_are_not_judged():
    with pytest.warns(UserWarning, match="MedianStoppingRule does not judge results .* time_attr='epoch'"):
        table = play(lambda: by_steps(time_attr="epoch"), first_three([0] * 3))
    assert verdicts(table, 3) == [""] * 3


def test_a_trial_without_comparable_scores_is_no_sample():
    scripts = [Script([5, 5], step_s=0.1)] * 2 + [Script([math.nan] * 2, step_s=0.1), Script([1, 1])]
    assert verdicts(play(by_steps, Population(scripts, slots=4)), 3) == ["", ""]
    assert verdicts(play(lambda: by_steps(min_samples_required=2), Population(scripts, slots=4)), 3) == ["stop"]


def test_the_last_result_counts_even_if_nobody_was_asked_about_it():
    """A report that ends the trial by itself is not judged."""
    done = Script([5], extra={"done": True}, step_s=0.1)
    table = play(by_steps, Population([done, done, done, Script([1, 1])], slots=4))
    assert verdicts(table, 3) == ["stop"]


def test_a_last_result_that_was_judged_counts_once():
    scripts = [Script([1, 9], step_s=0.1)] * 3 + [Script([5.5, 5.5])]
    assert verdicts(play(by_steps, Population(scripts, slots=4)), 3) == ["", ""]


# --- making room


def test_while_there_is_little_to_compare_with_trials_take_turns():
    table = play(by_steps, Population([Script([1, 1, 1])] * 3, slots=1))
    assert sorted(report.n for report in table.reports()[:6]) == [0, 0, 1, 1, 2, 2]
    assert verdicts(table, 0) == ["pause"] * 3


def test_a_trial_that_nobody_waits_for_goes_on():
    table = play(by_steps, Population([Script([1, 1, 1])] * 3, slots=3))
    assert {report.verdict for report in table.reports()} == {""}


def test_a_turn_lasts_longer_than_the_time_slice():
    table = play(lambda: by_steps(min_time_slice=2), Population([Script([1] * 8)] * 2, slots=1))
    assert verdicts(table, 0)[:7] == ["pause", "", "", "pause", "", "", "pause"]


def test_nothing_is_compared_with_itself_alone():
    table = play(lambda: by_steps(min_samples_required=0), Population([Script([3, 2, 1])]))
    assert verdicts(table, 0) == ["", "", ""]


# --- soft stops


def test_soft_stops_pause_a_trial_once_and_let_it_end_later():
    table = play(lambda: by_steps(hard_stop=False), first_three([0] * 4))
    assert verdicts(table, 3) == ["pause", "", "", ""]
    assert table.statuses() == ["TERMINATED"] * 4


def test_a_trial_that_the_user_lets_run_again_is_judged_again():
    table = play(by_steps, first_three([0] * 4))
    scheduler = table.scheduler
    assert scheduler.debug_string().endswith("num_stopped=1.")
    scheduler.on_trial_add(None, table.adapter._view.trials[3])
    assert scheduler.debug_string().endswith("num_stopped=0.")


# --- other lives


class RestartedTable(Table):
    """When the experiment is opened again, the user has unfinished trials start over."""

    def _open_again(self) -> list[ob.Observation]:
        return [super()._open_again()[0], ob.Resumed(lost="crashed", unfinished="restart")]


def crash_after_report_of(n: int) -> Callable[[Table], None]:
    """The driver dies once, right after the first report of this trial."""

    def crash(table: Table) -> None:
        if len(table.reports(n)) == 1 and not table.events(ev.TrialRequeued) and table.history[-1] in table.reports(n):
            raise _Crash

    return crash


def test_a_trial_that_starts_over_is_judged_by_its_new_life():
    """Crashed after its first good step, and started over by the user, it is as bad as it looks now."""
    lives = iter([9, 0])
    scripts = [Script([level] * 4, step_s=0.1) for level in (1, 3, 5)]
    scripts.append(Script(lambda config, step: next(lives, 0), steps=4))
    table = RestartedTable(by_steps, Population(scripts, slots=4), crash_after_report_of(3))
    assert verdicts(table.play(), 3) == ["", "stop"]


def test_a_trial_that_repeats_steps_faster_keeps_what_it_had():
    """Time in seconds goes back when steps are repeated from a checkpoint: its best and its averages stay."""
    scheduler = MedianStoppingRule(metric="score", mode="max", grace_period=1)
    for time, score in ((2.0, 7.0), (5.0, 1.0), (4.0, 1.0)):
        career = scheduler._record(0, time, score)
    assert (career.last, career.best, career.mean_at(9.0)) == (5.0, 7.0, 3.0)


# --- numbers


def test_medians_are_those_of_numpy():
    rng = Rng([11])
    for _ in range(300):
        values: list[float] = []
        for _ in range(rng.integers(2, 12)):
            insort(values, float(rng.integers(0, 6)))
        assert median_without(values, None) == np.median(values)
        own = rng.integers(0, len(values))
        assert median_without(values, values[own]) == np.median([*values[:own], *values[own + 1 :]])


class Checked(MedianStoppingRule):
    """Compares each decision with one that NumPy made from all results."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: dict[int, list[tuple[float, float]]] = {}
        self.decisions = 0

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        n, time, value = trial.n, result[self._time_attr], result["score"]
        known = self.told.setdefault(n, [])
        known.append((time, value if self._mode == "max" else -value))
        verdict = super().on_trial_result(view, trial, result)
        others = [self._mean(told, time) for m, told in self.told.items() if m != n and told[-1][0] >= time]
        samples = [mean for mean in others if not math.isnan(mean)]
        if time < self._grace_period or len(samples) < self._min_samples_required:
            assert verdict != self.STOP
            return verdict
        best = np.nanmax([score for _, score in known]) if not all(math.isnan(s) for _, s in known) else -math.inf
        median = np.median(samples)
        if abs(best - median) > 1e-9:
            assert verdict == (self.STOP if best < median else self.CONTINUE)
        self.decisions += 1
        return verdict

    def _mean(self, told: list[tuple[float, float]], time: float) -> float:
        scores = [score for t, score in told if self._grace_period <= t <= time and not math.isnan(score)]
        return float(np.mean(scores)) if scores else math.nan


@pytest.mark.parametrize("time_attr", ["training_iteration", "time_total_s", "clock"])
def test_decisions_are_those_of_numpy(time_attr):
    decisions = 0
    for seed in range(40):
        rng = Rng([seed, 3])
        scripts = []
        for _ in range(rng.integers(5, 14)):
            scores = [math.nan if rng.random() < 0.1 else rng.random() + step / 9 for step in range(12)]
            # A clock of the user's own that stands still now and then, and is not the same for all.
            scripts.append(
                Script(
                    scores,
                    step_s=rng.choice((0.5, 0.7, 1.0, 1.9)),
                    stride=rng.choice((1, 1, 2, 3)),
                    extra={"clock": rng.integers(2, 5)},
                )
            )
        crowd = Population(scripts, slots=rng.integers(1, 6), mode=rng.choice(("min", "max")))
        table = play(lambda: Checked(time_attr=time_attr, grace_period=2, min_samples_required=2), crowd)
        decisions += table.scheduler.decisions
    assert decisions > 300


def test_averages_that_are_kept_are_those_that_are_worked_out_anew():
    """Trials come to the same times in any order, jump, stand still and start over."""
    scheduler = by_steps(metric="score", mode="max", grace_period=2)
    rng, times = Rng([21]), [0.0] * 9
    for _ in range(1500):
        n = rng.integers(0, len(times))
        times[n] += rng.choice((0, 0.5, 1, 1, 1, 1, 3))
        if rng.random() < 0.02:
            times[n] = 1.0
            scheduler._start_over(n)
        scheduler._record(n, times[n], None if rng.random() < 0.1 else rng.random())
        if times[n] >= 2:
            kept = list(scheduler._averages(n, times[n])[0])
            anew = by_steps(metric="score", mode="max", grace_period=2)
            anew.set_state(scheduler.get_state())
            assert kept == list(anew._averages(n, times[n])[0])


# --- endings and memory


def test_random_populations_come_to_an_end():
    assert_never_hangs(lambda: MedianStoppingRule(grace_period=2, min_samples_required=2), range(100))
    assert_never_hangs(lambda: by_steps(hard_stop=False, min_samples_required=1), range(100, 200))


@pytest.mark.parametrize("seed", [1, 3, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda: MedianStoppingRule(grace_period=2, min_samples_required=1, min_time_slice=1),
        lambda: by_steps(hard_stop=False, min_samples_required=2),
    ],
)
def test_it_goes_on_exactly_wherever_it_is_rebuilt(make, seed):
    assert_exact_resume(make, random_population(seed, max_trials=6, max_steps=7))


def test_its_memory_is_kept_in_a_file(tmp_path):
    table = play(by_steps, first_three([2, 4, 1, 0]))
    half = retold(by_steps, table.population, table.history[: len(table.history) // 2]).scheduler
    half.save(str(tmp_path / "memory"))
    other = new_adapter(by_steps, table.population).scheduler
    other.restore(str(tmp_path / "memory"))
    assert other.get_state() == half.get_state() != {"careers": [], "worse": []}


# --- arguments


@pytest.mark.parametrize("name", ["grace_period", "min_samples_required", "min_time_slice"])
def test_arguments_that_are_no_numbers_are_refused(name):
    with pytest.raises(InvalidInputError, match=f"{name}='3' must be a number"):
        MedianStoppingRule(**{name: "3"})


def test_a_mode_that_makes_no_sense_is_refused():
    with pytest.raises(InvalidInputError, match=r"\['min', 'max'\]"):
        MedianStoppingRule(mode="best")


def test_it_needs_a_metric():
    with pytest.raises(ValueError, match="without a valid `metric`"):
        MedianStoppingRule(mode="min").check_ready()
    for name in ("median_stopping_rule", "medianstopping"):
        create_scheduler(name, metric="loss", mode="min", brackets=1).check_ready()
