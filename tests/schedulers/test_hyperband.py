"""HyperBand: who continues at which milestone, and that nobody waits for what cannot come."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

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
from holdfast.schedulers import ResourceChangingScheduler, create_scheduler
from holdfast.schedulers.hyperband import MAX_AHEAD, HyperBandScheduler
from holdfast.space import uniform
from holdfast.space.rng import Rng
from holdfast.testing.virtual import VirtualExperiment


def ten_by_three() -> HyperBandScheduler:
    return HyperBandScheduler(max_t=10, reduction_factor=3)


def better_and_better(config: Any, step: int) -> float:
    """Later trials are better."""
    return config["n"] + step / 100


def population(trials: int, **settings: Any) -> Population:
    return Population([Script(better_and_better, steps=20)] * trials, **settings)


def reached(table: Table) -> dict[int, int]:
    return dict(sorted(Counter(trial.iteration for trial in table.state.trials).items()))


# --- the plan


@pytest.mark.parametrize(
    ("max_t", "shapes"),
    [
        (81, [(5, 81), (8, 27), (15, 9), (34, 3), (81, 1)]),
        (10, [(3, 10), (5, 3), (9, 1)]),
        (20, [(4, 20), (6, 6), (12, 2), (27, 0)]),
        (1, [(1, 1)]),
    ],
)
def test_brackets_have_these_sizes_and_first_milestones(max_t, shapes):
    scheduler = HyperBandScheduler(max_t=max_t, reduction_factor=3)
    assert [scheduler.bracket_shape(s) for s in range(len(shapes))] == shapes


@pytest.mark.parametrize(
    "settings",
    [
        {"slots": 1},
        {"slots": 4},
        {"slots": 17},
        {"slots": 1, "rules": {"lookahead": 1}},
        {"slots": 1, "rules": {"max_concurrent": 1}},
        {"slots": 3, "is_class": True, "rules": {"max_concurrent": 2}},
    ],
)
def test_a_full_band_is_cut_down_as_planned_however_many_slots_there_are(settings):
    table = play(ten_by_three, population(17, **settings))
    assert reached(table) == {1: 6, 3: 5, 9: 3, 10: 3}
    assert [table.rows(n) for n in (3, 4, 5, 6, 7)] == [3, 3, 3, 9, 9]
    assert [table.rows(n) for n in range(8, 17)] == [1, 1, 1, 1, 1, 1, 3, 3, 9]
    assert not table.events(ev.StoodStill)


def test_the_smaller_is_better_with_mode_min():
    table = play(ten_by_three, population(8, mode="min"))
    assert [table.rows(n) for n in (3, 4, 5, 6, 7)] == [9, 9, 3, 3, 3]


def test_a_bracket_whose_first_milestone_would_be_zero_is_left_out():
    table = play(lambda: HyperBandScheduler(max_t=20, reduction_factor=3), population(23, slots=8))
    assert table.rows(22) == 20
    assert not any(report.verdict == "pause" for report in table.reports(22))


def test_milestones_grow_by_factors_that_are_not_whole():
    table = play(lambda: HyperBandScheduler(max_t=4, reduction_factor=1.5), population(30, slots=5))
    assert set(table.statuses()) == {"TERMINATED"}
    assert set(reached(table)) <= {1, 2, 3, 4}


# --- the order of running


def test_the_bracket_of_many_short_trials_runs_first_although_it_is_filled_last():
    """Nine trials to 1, the best three of them to 3, the best of those to 9; only then the next bracket."""
    table = play(ten_by_three, population(17, slots=1, rules={"lookahead": 17}))
    starts = [event.n for event in table.events(ev.TrialStarted)]
    assert starts[:9] == list(range(8, 17)), "the first milestone; the last to arrive is the best, and goes on at once"
    assert starts[9:11] == [15, 14]
    assert starts[11] == 16, "it waited at the second milestone, and is the best there"
    assert starts[12:15] == [3, 4, 5], "the next bracket"
    assert starts[-3:] == [0, 1, 2]


def test_only_trials_that_exist_can_run_first():
    table = play(ten_by_three, population(17, slots=1, rules={"lookahead": 1}))
    assert [event.n for event in table.events(ev.TrialStarted)][:4] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("scheduler", "ahead"),
    [
        (HyperBandScheduler(max_t=81, reduction_factor=3), 5 + 8 + 15 + 34 + 81),
        (HyperBandScheduler(max_t=20, reduction_factor=3), 4 + 6 + 12),
        (HyperBandScheduler(max_t=10_000, reduction_factor=3), MAX_AHEAD),
        (HyperBandScheduler(max_t=81, reduction_factor=3, largest_first=True), 0),
        (ResourceChangingScheduler(HyperBandScheduler(max_t=10, reduction_factor=3)), 17),
    ],
)
def test_it_wants_a_whole_band_to_choose_from(scheduler, ahead):
    assert scheduler.trials_ahead == ahead


def test_in_virtual_time_a_whole_band_exists_from_the_start():
    points = VirtualExperiment(
        curve=lambda config, step, state: (1.0, {"loss": config["x"]}, step) if step <= 27 else None,
        space={"x": uniform(0, 1)},
        scheduler=lambda: HyperBandScheduler(max_t=27, reduction_factor=3),
        num_samples=-1,
        slots=1,
        metric="loss",
        mode="min",
        until=40.0,
    ).run()
    widest = range(4 + 6 + 12, 4 + 6 + 12 + 27)
    assert [point.trial for point in points[:27]] == list(widest)


# --- the largest bracket first


def largest_first() -> HyperBandScheduler:
    return HyperBandScheduler(max_t=9, reduction_factor=3, largest_first=True)


def test_with_the_largest_first_brackets_run_in_turn_and_the_best_go_on_first():
    """Nine trials to 1, the best three of them to 3, the best of those to 9; only then the next bracket."""
    table = play(largest_first, population(17, slots=1))
    starts = [event.n for event in table.events(ev.TrialStarted)]
    assert starts[:9] == list(range(9)), "the first milestone; the last to arrive is the best, and goes on at once"
    assert starts[9:11] == [7, 6]
    assert starts[11] == 8, "it waited at the second milestone, and is the best there"
    assert starts[12:15] == [9, 10, 11], "the next bracket"


def test_in_any_order_a_band_trains_the_same_trials_equally_far():
    rows = [
        sorted(table.rows(n) for n in range(17))
        for table in (
            play(lambda: HyperBandScheduler(max_t=9, reduction_factor=3), population(17, slots=1)),
            play(largest_first, population(17, slots=1)),
        )
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("seed", [1, 3, 5, 8])
def test_with_the_largest_first_it_goes_on_exactly_wherever_it_is_rebuilt(seed):
    assert_exact_resume(largest_first, random_population(seed, max_trials=9, max_steps=8))


def test_with_the_largest_first_nothing_hangs():
    assert_never_hangs(largest_first, range(60))


def test_the_last_trial_to_arrive_goes_on_without_a_pause_if_it_is_good():
    table = play(ten_by_three, population(8, slots=1))
    assert "pause" not in {report.verdict for report in table.reports(7)}
    assert [report.verdict for report in table.reports(6)] == ["", "", "pause", *[""] * 5, "stop"]


def test_the_story_of_a_trial_says_why():
    table = play(ten_by_three, population(8, slots=1))
    assert table.reports(3)[-1].why == "HyperBandScheduler: waits for others at training_iteration=3"
    worse = "HyperBandScheduler: not among the best of its bracket at training_iteration=3"
    assert table.state.trials[3].reason == worse
    assert table.state.trials[7].reason == "HyperBandScheduler: has come to training_iteration=9"


def test_trials_that_were_never_worse_may_go_on_as_long_as_they_want():
    table = play(lambda: HyperBandScheduler(max_t=10, stop_last_trials=False), population(8))
    assert reached(table) == {3: 3, 20: 5}


# --- what goes wrong


def test_a_bracket_that_is_not_full_goes_on_when_no_more_trials_can_come():
    table = play(ten_by_three, population(5, slots=1))
    assert reached(table) == {3: 1, 9: 1, 10: 3}
    assert not table.events(ev.StoodStill), "it waited until nothing else was left to do"


def test_a_trial_alone_in_its_bracket_goes_on():
    assert reached(play(ten_by_three, population(4))) == {9: 1, 10: 3}


class Interfering(HyperBandScheduler):
    """Pauses trials for reasons of its own, as one that changes their resources does."""

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        verdict = super().on_trial_result(view, trial, result)
        return self.PAUSE if verdict == self.CONTINUE and result["training_iteration"] in (2, 5) else verdict


def test_a_trial_that_somebody_else_paused_goes_on():
    table = play(lambda: Interfering(max_t=10, reduction_factor=3), population(17, slots=3))
    assert reached(table) == {1: 6, 3: 5, 9: 3, 10: 3}
    assert not table.events(ev.StoodStill)


def test_others_start_while_a_trial_that_may_go_on_is_still_being_saved():
    scripts = [Script(better_and_better, steps=20)] * 20
    scripts[15] = Script(better_and_better, steps=20, commit_s=500)
    table = play(ten_by_three, Population(scripts, slots=1))
    starts = [event.n for event in table.events(ev.TrialStarted)]
    again = len(starts) - 1 - starts[::-1].index(15)
    assert starts.count(15) == 2
    assert all(starts.index(n) < again for n in (17, 18, 19)), "the next band waited for it"


def test_trials_that_fail_count_as_worse_ones():
    scripts = [Script(better_and_better, steps=20)] * 3 + [Script(better_and_better, steps=20, fails_at=(2,))]
    table = play(ten_by_three, Population(scripts + [Script(better_and_better, steps=20)] * 4, slots=3))
    assert table.statuses()[3] == "ERROR"
    assert [table.rows(n) for n in (4, 5, 6, 7)] == [3, 3, 9, 9]


def test_a_trial_that_fails_and_is_tried_again_is_waited_for():
    scripts = [Script(better_and_better, steps=20, fails_at=(2, 5), saves_every=2)] * 8
    assert reached(play(ten_by_three, Population(scripts, max_failures=2))) == {3: 3, 9: 2, 10: 3}


def test_a_trial_that_was_interrupted_goes_on_before_others_start():
    scripts = [Script(better_and_better, steps=20, fails_at=(2,) if n == 3 else ()) for n in range(8)]
    table = play(ten_by_three, Population(scripts, max_failures=1, slots=1))
    assert [event.n for event in table.events(ev.TrialStarted)][:3] == [3, 3, 4]


def test_the_rest_go_on_when_the_last_one_they_wait_for_fails():
    scripts = [Script(better_and_better, steps=20)] * 7 + [Script(better_and_better, steps=20, fails_at=(3,), step_s=9)]
    table = play(ten_by_three, Population(scripts, slots=8))
    assert table.statuses()[7] == "ERROR"
    assert [table.rows(n) for n in (3, 4, 5, 6)] == [3, 3, 9, 9]


def test_trials_that_end_early_or_never_report_are_not_waited_for():
    short, silent = Script(better_and_better, steps=2), Script([], steps=0)
    scripts = [
        silent,
        *[Script(better_and_better, steps=20)] * 2,
        short,
        silent,
        *[Script(better_and_better, steps=20)] * 3,
    ]
    table = play(ten_by_three, Population(scripts, slots=1))
    assert [table.rows(n) for n in range(8)] == [0, 10, 10, 2, 0, 3, 9, 9]


@pytest.mark.parametrize("nothing", [math.nan, None, "high", ABSENT])
def test_what_cannot_be_compared_is_worst(nothing):
    scripts = [Script(better_and_better, steps=20)] * 7 + [Script([nothing] * 20)]
    assert [play(ten_by_three, Population(scripts)).rows(n) for n in (3, 4, 5, 6, 7)] == [3, 3, 9, 9, 3]


def test_a_bracket_in_which_nothing_can_be_compared_keeps_the_first():
    assert reached(play(ten_by_three, Population([Script([math.nan] * 20)] * 8))) == {3: 3, 9: 2, 10: 3}


def test_a_trial_that_passes_several_milestones_at_once_is_halved_as_often():
    """All of the third bracket come to 4, past the milestones 1 and 3; the best one continues to 9 at least."""
    table = play(ten_by_three, Population([Script(better_and_better, steps=20, stride=4)] * 17))
    assert reached(table) == {4: 11, 12: 6}


def test_a_trial_that_jumps_past_the_end_ends_there():
    table = play(ten_by_three, Population([Script(better_and_better, steps=20, stride=50)] * 17))
    assert reached(table) == {50: 17}
    assert "pause" not in {report.verdict for report in table.reports()}


def test_results_without_the_time_are_not_judged():
    with pytest.warns(UserWarning, match="HyperBandScheduler does not judge results .* time_attr='epoch'"):
        table = play(lambda: HyperBandScheduler(time_attr="epoch", max_t=10), population(8))
    assert reached(table) == {20: 8}


def test_a_time_that_is_not_a_number_is_not_judged():
    scripts = [Script(better_and_better, steps=20, extra={"epoch": math.nan})] * 8
    assert reached(play(lambda: HyperBandScheduler(time_attr="epoch", max_t=10), Population(scripts))) == {20: 8}


class Deaf(HyperBandScheduler):
    """Does not use its last chance."""

    def on_standstill(self, view: Any) -> None:
        pass


def test_a_bracket_goes_on_with_those_it_has_while_the_searcher_waits_for_results():
    """Two trials at a time: each bracket but the first gets two of them, one of which ends at the first milestone."""
    table = play(ten_by_three, population(7, slots=1, max_live=2))
    assert [table.rows(n) for n in range(7)] == [10, 10, 10, 3, 9, 1, 9]
    assert len(table.events(ev.StoodStill)) == 1, "by the last bracket the searcher had ended"


def test_trials_that_must_go_on_although_they_wait_come_to_an_end():
    table = play(lambda: Deaf(max_t=10), population(12, slots=1, max_live=2))
    assert set(table.statuses()) == {"TERMINATED"}
    assert max(reached(table)) == 10


def test_what_a_standstill_led_to_is_remembered_exactly():
    table = assert_exact_resume(ten_by_three, population(7, slots=1, max_live=2), prefixes=range(1, 130, 5))
    assert table.events(ev.StoodStill)


class ReopenedTable(Table):
    """The user says what becomes of trials when the experiment is opened again."""

    orders: dict[str, str] = {}

    def _open_again(self) -> list[ob.Observation]:
        return [super()._open_again()[0], ob.Resumed(lost="crashed", **self.orders)]


def reopen(crowd: Population, after: list[int], orders: dict[str, str]) -> Table:
    """Play, with crashes after these events and the user's orders when the experiment is opened again."""
    left = sorted(after)

    def crash(table: Table) -> None:
        if left and len(table.history) >= left[0]:
            del left[0]
            raise _Crash

    table = ReopenedTable(ten_by_three, crowd, crash)
    table.orders = orders
    return table.play()


@pytest.mark.parametrize(
    "orders",
    [
        {"unfinished": "restart"},
        {"errored": "restart"},
        {"errored": "resume"},
        {"finished": "restart"},
        {"finished": "resume", "errored": "restart", "unfinished": "restart"},
    ],
)
def test_trials_that_the_user_lets_run_again_come_to_an_end(orders):
    for seed in range(30):
        rng = Rng([seed, 9])
        table = reopen(random_population(seed), [rng.integers(20, 60), rng.integers(60, 120)], orders)
        assert all(trial.final for trial in table.state.trials), f"seed {seed}:\n{table.story()}"


def test_trials_that_start_over_before_they_were_ended_are_not_forgotten():
    crowd = population(8, slots=8)
    for k in range(10, len(play(ten_by_three, crowd).history), 2):
        table = reopen(crowd, [k], {"unfinished": "restart"})
        assert max(reached(table)) <= 10, f"crash after event {k}:\n{table.story()}"


def test_random_populations_come_to_an_end():
    assert_never_hangs(ten_by_three, range(150))
    assert_never_hangs(lambda: HyperBandScheduler(max_t=9, reduction_factor=2, stop_last_trials=False), range(150, 250))


def test_nothing_hangs_for_any_settings():
    for seed in range(80):
        rng = Rng([seed, 5])
        max_t, eta = rng.integers(1, 30), rng.choice((2, 3, 4, 5, 1.3))
        crowd = random_population(seed, max_trials=30, max_steps=20)
        table = play(lambda max_t=max_t, eta=eta: HyperBandScheduler(max_t=max_t, reduction_factor=eta), crowd)
        assert all(trial.final for trial in table.state.trials)
        assert not table.scheduler._place_of


# --- its memory


@pytest.mark.parametrize("seed", [1, 3, 5, 8])
def test_it_goes_on_exactly_wherever_it_is_rebuilt(seed):
    assert_exact_resume(ten_by_three, random_population(seed, max_trials=9, max_steps=8))


def test_a_full_band_goes_on_exactly_wherever_it_is_rebuilt():
    table = play(ten_by_three, population(17))
    assert_exact_resume(ten_by_three, population(17), prefixes=range(1, len(table.history), 7))


def test_its_memory_is_kept_in_a_file(tmp_path):
    table = Table(ten_by_three, population(8))
    table.play()
    half = retold(ten_by_three, table.population, table.history[:60]).scheduler
    half.save(str(tmp_path / "memory"))
    other = new_adapter(ten_by_three, table.population).scheduler
    other.restore(str(tmp_path / "memory"))
    assert other.get_state() == half.get_state()
    assert "2 brackets are under way (" in other.debug_string()


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "best"}, r"\['min', 'max'\]"),
        ({"max_t": 0}, "max_t"),
        ({"max_t": math.inf}, "max_t"),
        ({"reduction_factor": 1}, "reduction_factor"),
        ({"max_t": "81"}, "max_t='81' must be a number"),
        ({"reduction_factor": None}, "reduction_factor=None must be a number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(InvalidInputError, match=words):
        HyperBandScheduler(**arguments)


def test_it_needs_a_metric():
    with pytest.raises(ValueError, match="without a valid `metric`"):
        HyperBandScheduler().check_ready()
    scheduler = create_scheduler("hyperband", metric="loss", mode="min", brackets=1)
    scheduler.check_ready()
    assert isinstance(scheduler, HyperBandScheduler)
