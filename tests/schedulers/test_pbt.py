"""Population based training, at the table."""

from __future__ import annotations

import logging
from dataclasses import replace
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
    play,
    random_population,
)

import holdfast as tune
from holdfast.controller.algorithms import check_algorithms
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import State, Stored
from holdfast.core.transitions import apply
from holdfast.errors import InvalidInputError, NoResultError, TuneError
from holdfast.schedulers import PB2, PopulationBasedTraining, ResourceChangingScheduler, create_scheduler
from holdfast.schedulers.population import quantile_size
from holdfast.search import Searcher


def pbt(**settings: Any) -> PopulationBasedTraining:
    known = {"time_attr": "training_iteration", "perturbation_interval": 2, "hyperparam_mutations": {"x": [1, 2, 3]}}
    return PopulationBasedTraining(**{**known, **settings})


def scripts(*levels: float, steps: int = 6, **more: Any) -> list[Script]:
    """Trials whose scores tell them apart, whatever their config."""
    return [Script([level + step / 100 for step in range(steps)], config={"x": 2}, **more) for level in levels]


def copies(table: Table) -> list[tuple[int, int]]:
    """Who copied whom."""
    return [(e.n, e.parent) for e in table.events(ev.TrialReconfigured) if e.donor is not None]


# --- its arguments


@pytest.mark.parametrize(
    ("count", "fraction", "size"), [(4, 0.25, 1), (5, 0.25, 2), (2, 0.5, 1), (3, 0.5, 1), (1, 0.5, 0)]
)
def test_quantiles_have_the_promised_size(count, fraction, size):
    assert quantile_size(count, fraction) == size


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"hyperparam_mutations": {"x": 3}}, TypeError, "'x'"),
        ({"hyperparam_mutations": {"x": tune.sample_from(lambda spec: 1)}}, ValueError, "sample_from"),
        ({"hyperparam_mutations": None}, TuneError, "custom_explore_fn"),
        ({"quantile_fraction": 0.6}, ValueError, "quantile_fraction"),
        ({"quantile_fraction": -0.1}, ValueError, "quantile_fraction"),
        ({"perturbation_interval": 0}, ValueError, "perturbation_interval"),
        ({"resample_probability": 2}, ValueError, "resample_probability"),
        ({"perturbation_factors": ()}, ValueError, "perturbation_factors"),
        ({"perturbation_factors": 1.2}, ValueError, "perturbation_factors"),
        ({"perturbation_factors": (1.2, 0)}, ValueError, "perturbation_factors"),
        ({"perturbation_factors": ("a", "b")}, ValueError, "perturbation_factors"),
        ({"perturbation_interval": "4"}, InvalidInputError, "perturbation_interval='4'"),
        ({"burn_in_period": -1}, InvalidInputError, "burn_in_period"),
        ({"custom_explore_fn": {"x": 1}}, InvalidInputError, "custom_explore_fn"),
        ({"mode": "best"}, ValueError, r"\['min', 'max'\]"),
    ],
)
def test_arguments_that_cannot_work_are_refused(settings, kind, words):
    with pytest.raises(kind, match=words):
        pbt(**settings)


def test_it_needs_a_metric_and_a_mode():
    with pytest.raises(InvalidInputError, match="without a valid `metric`"):
        pbt().check_ready()


def test_it_can_be_made_by_name():
    made = create_scheduler("pbt", metric="loss", mode="min", hyperparam_mutations={"x": [1]}, brackets=3)
    assert (type(made), made.metric, made.mode) == (PopulationBasedTraining, "loss", "min")


def test_it_does_not_work_with_a_searcher():
    class Mine(Searcher):
        def set_search_properties(self, metric, mode, config, **spec):
            return True

    config = tune.TuneConfig(metric="score", mode="max", scheduler=pbt(), search_alg=Mine())
    with pytest.raises(InvalidInputError, match="Search algorithms cannot be used with PopulationBasedTraining"):
        check_algorithms(config, {}, 1)


@pytest.mark.parametrize(
    "scheduler", [pbt(), PB2(hyperparam_bounds={"x": [0, 1]}), ResourceChangingScheduler(pbt())], ids=type
)
def test_a_population_needs_a_size(scheduler):
    config = tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, num_samples=-1)
    with pytest.raises(InvalidInputError, match=r"num_samples=-1 .*TuneConfig\(num_samples=8\)"):
        check_algorithms(config, {}, 1)
    check_algorithms(replace(config, num_samples=2), {}, 1)


@pytest.mark.parametrize(("limit", "num_samples", "count"), [(3, 4, 1), (1, 1, 1), (4, 4, 0), (None, 4, 0)])
def test_fewer_trials_at_once_than_the_population_has_is_warned_of(limit, num_samples, count, recwarn):
    config = tune.TuneConfig("max", "q", scheduler=pbt(), num_samples=num_samples, max_concurrent_trials=limit)
    check_algorithms(config, {"x": 2}, 1)
    told = [str(each.message).partition(":")[0] for each in recwarn]
    assert told == [f"max_concurrent_trials={limit} is smaller than the population"] * count


# --- copies


def test_the_worst_goes_on_as_a_copy_of_the_best_with_a_mutated_config():
    table = play(pbt, Population(scripts(0.1, 0.9), slots=2))
    first = table.events(ev.TrialReconfigured)[0]
    assert (first.n, first.parent, first.donor) == (0, 1, (1, 2))
    assert first.config["n"] == 1
    assert first.config["x"] in (1, 3)
    assert first.why == "PopulationBasedTraining: its score was among the worst 25 %"
    assert first.tag == f"0@perturbed[x={first.config['x']}]"
    verdict = next(e for e in table.reports(0) if e.verdict)
    assert (verdict.verdict, verdict.why) == ("pause", "PopulationBasedTraining: continues as a copy of t1")
    started = [e for e in table.events(ev.TrialStarted) if e.n == 0][1]
    assert started.source == (1, 2)
    assert table.statuses() == ["TERMINATED", "TERMINATED"]


def test_a_copy_has_the_age_of_what_it_copied():
    table = play(pbt, Population(scripts(0.1, 0.9, steps=9, step_s=1.0), slots=2, seed=3))
    state, retention = State(), Retention()
    copied = 0
    for event in table.history:
        apply(state, event, retention)
        if isinstance(event, ev.TrialStarted) and event.source is not None and event.source[0] != event.n:
            record = state.trials[event.source[0]].find(event.source[1])
            assert record is not None
            assert state.trials[event.n].iteration == record.iteration
            copied += 1
    assert copied


def test_smaller_is_better_with_mode_min():
    table = play(pbt, Population(scripts(0.1, 0.9), slots=2, mode="min"))
    assert set(copies(table)) == {(1, 0)}


def test_only_the_quantiles_copy_and_are_copied():
    population = Population(scripts(0.1, 0.5, 0.6, 0.9, steps=4), slots=4, rules={"max_uncommitted": 9})
    assert set(copies(play(pbt, population))) == {(0, 3)}
    assert copies(play(lambda: pbt(quantile_fraction=0), population)) == []


def test_nobody_copies_what_has_no_checkpoint(caplog):
    with caplog.at_level(logging.INFO, "holdfast"):
        table = play(pbt, Population(scripts(0.1, 0.9, saves_every=0), slots=2))
    assert copies(table) == []
    assert "none of [scripted_t1] has a committed checkpoint" in caplog.text
    assert sum("compares trials that save no checkpoints" in record.message for record in caplog.records) == 1


def test_a_score_that_cannot_be_compared_takes_no_part():
    odd = [float("nan"), "high", None, [1], float("nan"), 1]
    table = play(pbt, Population([Script(odd, config={"x": 2}), *scripts(0.1, 0.9)], slots=3))
    assert 0 not in {n for pair in copies(table) for n in pair}


def test_the_best_save_and_the_worst_do_not():
    table = play(pbt, Population(scripts(0.1, 0.9, steps=4, saves_every=0), slots=2, is_class=True))
    first = next(e for e in table.history if isinstance(e, ev.CheckpointStaged))
    assert first.n == 1
    saved_by_worst = [e for e in table.events(ev.CheckpointStaged) if e.n == 0]
    pauses = [e for e in table.reports(0) if e.verdict == "pause"]
    assert pauses
    assert saved_by_worst == []


def test_nothing_happens_before_the_burn_in_period_is_over():
    table = play(lambda: pbt(burn_in_period=5), Population(scripts(0.1, 0.9, steps=9), slots=2))
    assert all(not e.verdict for e in table.reports()[:8])
    assert copies(table)


def test_a_custom_function_has_the_last_word():
    def tenfold(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "x": 10 * config["x"]}

    for mutations in ({"x": [1, 2, 3]}, None):
        table = play(
            lambda m=mutations: pbt(hyperparam_mutations=m, custom_explore_fn=tenfold), Population(scripts(0.1, 0.9))
        )
        assert {e.config["x"] % 10 for e in table.events(ev.TrialReconfigured)} == {0}


def test_missing_keys_are_filled_in_when_a_trial_is_created():
    population = Population([Script([1, 2]), Script([1, 2], config={"x": 5})])
    table = play(lambda: pbt(hyperparam_mutations={"x": [7], "net": {"w": tune.uniform(2, 3)}}), population)
    one, two = table.state.trials[:2]
    assert one.config["x"] == 7
    assert two.config["x"] == 5
    assert 2 <= one.config["net"]["w"] < 3
    assert one.params == ("n", "x", "net/w")
    assert two.params == ("n", "x", "net/w")
    filled = [e for e in table.history if isinstance(e, ev.TrialReconfigured)]
    assert [(e.n, e.donor) for e in filled[:2]] == [(0, None), (1, None)]
    assert filled[0].why == "PopulationBasedTraining: param_space leaves out x, net/w"


# --- results that lack something


@pytest.mark.parametrize("missing", ["time_attr", "metric"])
def test_results_that_lack_something_end_the_run_or_are_ignored(missing, caplog):
    settings = {"time_attr": "steps"} if missing == "time_attr" else {}
    scores: list[Any] = [1, 2, 3] if missing == "time_attr" else [ABSENT, ABSENT, ABSENT]
    population = Population([Script(scores, config={"x": 1})])
    with pytest.raises(NoResultError, match=missing) as refused:
        play(lambda: pbt(**settings), population)
    assert isinstance(refused.value, RuntimeError)
    with caplog.at_level(logging.WARNING, "holdfast"):
        table = play(lambda: pbt(require_attrs=False, **settings), population)
    assert table.statuses() == ["TERMINATED"]
    assert sum("without a number for" in record.message for record in caplog.records) == 1


# --- taking turns


def test_trials_take_turns_if_they_do_not_all_fit():
    table = play(lambda: pbt(quantile_fraction=0), Population(scripts(0.1, 0.2, 0.3, steps=6), slots=1))
    assert [e.n for e in table.events(ev.TrialStarted)] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert {e.why for e in table.reports() if e.verdict} == {"PopulationBasedTraining: lets others train"}


def test_a_function_that_has_saved_nothing_is_not_made_to_begin_again(caplog):
    trials = scripts(0.1, 0.2, 0.3, steps=6, saves_every=0)
    table = play(lambda: pbt(quantile_fraction=0), Population(trials, slots=1))
    assert len(table.reports()) == 18
    assert "compares trials that save no checkpoints" in caplog.text
    caplog.clear()
    saved = play(lambda: pbt(quantile_fraction=0), Population(trials, slots=1, is_class=True))
    assert len(saved.reports()) == 18
    assert len(saved.events(ev.TrialPaused)) == 9
    assert not caplog.records


def test_a_function_that_saves_when_it_is_compared_takes_turns():
    trials = scripts(0.1, 0.2, steps=6, saves_every=2)
    table = play(lambda: pbt(quantile_fraction=0), Population(trials, slots=1))
    assert table.events(ev.TrialPaused)
    assert len(table.reports()) == 12


def test_trials_that_all_fit_are_not_paused():
    table = play(lambda: pbt(quantile_fraction=0), Population(scripts(0.1, 0.2, steps=6), slots=2))
    assert table.events(ev.TrialPaused) == []


def test_a_copy_lets_the_trial_that_it_copied_go_first():
    """With one slot, a copy that is as young as its donor must not starve it."""
    table = play(lambda: pbt(perturbation_interval=1), Population(scripts(0.1, 0.9, steps=5), slots=1))
    assert table.statuses() == ["TERMINATED", "TERMINATED"]
    assert (0, 1) in copies(table)


def test_a_copy_that_has_saved_nothing_is_not_copied():
    """It would hand on the checkpoint that it was given, and the one it came from would be set back for ever."""
    never_saves = Script([9, 9, 9, 9, 9, 9, 9, -1], saves_every=0, config={"x": 2})
    declines = Script([1 - step / 100 for step in range(12)], config={"x": 2})
    table = play(pbt, Population([never_saves, declines], slots=2))
    assert table.statuses() == ["TERMINATED", "TERMINATED"]
    assert set(copies(table)) == {(0, 1)}


# --- all at the same time


def test_in_synch_mode_all_trials_wait_for_the_last_checkpoint():
    slow = [*scripts(0.1, 0.9, steps=4), *scripts(0.5, steps=4, step_s=3.0, commit_s=20.0)]
    table = play(lambda: pbt(synch=True), Population(slow, slots=3))
    history = table.history
    copied = next(i for i, e in enumerate(history) if isinstance(e, ev.TrialReconfigured))
    assert (history[copied].n, history[copied].donor) == (0, (1, 1))
    assert sum(isinstance(e, ev.TrialPaused) for e in history[:copied]) == 3
    committed = [(e.n, e.index) for e in history[:copied] if isinstance(e, ev.CheckpointCommitted)]
    assert {(0, 1), (1, 1), (2, 1)} <= set(committed)
    assert not any(isinstance(e, ev.TrialResumed) for e in history[:copied])


def test_in_synch_mode_all_that_are_worst_copy_at_once():
    population = Population(scripts(0.1, 0.2, 0.8, 0.9, steps=4), slots=2)
    table = play(lambda: pbt(synch=True, quantile_fraction=0.5), population)
    events = [e for e in table.events(ev.TrialReconfigured) if e.donor is not None]
    assert [e.n for e in events[:2]] == [0, 1]
    assert events[0].at == events[1].at
    assert {e.parent for e in events[:2]} <= {2, 3}


def test_in_synch_mode_nobody_waits_for_those_that_have_ended():
    short = [
        *scripts(0.1, 0.9, steps=6),
        Script([5], config={"x": 2}),
        Script([1, 1, 1], fails_at=(2,), config={"x": 2}),
    ]
    table = play(lambda: pbt(synch=True), Population(short, slots=4))
    assert table.statuses() == ["TERMINATED", "TERMINATED", "TERMINATED", "ERROR"]
    assert copies(table)


@pytest.mark.parametrize("stride", [3, 20])
def test_in_synch_mode_trials_may_overshoot_the_moment(stride):
    table = play(lambda: pbt(synch=True), Population(scripts(0.1, 0.9, stride=stride), slots=2))
    assert table.statuses() == ["TERMINATED", "TERMINATED"]
    assert copies(table)


class BrokenStore(Table):
    """No checkpoint can ever be committed."""

    def _obey(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Commit):
            self._say(0.5, ob.CommitEnded(command.n, command.index, damaged=True, message="rotten"))
        else:
            super()._obey(command)


def test_in_synch_mode_a_checkpoint_that_is_never_committed_holds_nobody_up_for_ever():
    table = BrokenStore(lambda: pbt(synch=True), Population(scripts(0.1, 0.9, steps=4), slots=2)).play()
    assert table.statuses() == ["TERMINATED", "TERMINATED"]
    assert table.events(ev.StoodStill)
    assert copies(table) == []


class SentBack(Table):
    """When the driver dies, the next one begins all unfinished trials anew."""

    def _open_again(self) -> list[ob.Observation]:
        capacity, _ = super()._open_again()
        return [capacity, ob.Resumed(unfinished="restart", lost="crashed")]


@pytest.mark.parametrize("synch", [False, True])
def test_trials_that_the_user_sends_back_to_the_beginning_begin_anew(synch):
    whole = play(lambda: pbt(synch=synch), Population(scripts(0.1, 0.9, 0.5, steps=4), slots=1))
    for moment in range(2, len(whole.history), 3):
        left = [moment]

        def crash(table: Table, left: list[int] = left) -> None:
            if left and len(table.history) >= left[0]:
                left.clear()
                raise _Crash

        table = SentBack(lambda: pbt(synch=synch), Population(scripts(0.1, 0.9, 0.5, steps=4), slots=1), crash).play()
        assert table.statuses() == ["TERMINATED"] * 3


# --- nothing is lost


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("is_class", [False, True])
def test_every_copy_starts_from_what_it_was_promised_though_one_checkpoint_is_kept(synch, is_class):
    """The donor continues and would drop the checkpoint; it stays until the copy has one of its own."""
    population = Population(
        scripts(0.1, 0.2, 0.8, 0.9, steps=12, saves_every=0 if is_class else 1, commit_s=0.4),
        slots=2,
        is_class=is_class,
        rules={"retention": Retention(num_to_keep=1)},
    )
    table = play(lambda: pbt(synch=synch, quantile_fraction=0.5), population)
    state, retention = State(), Retention(num_to_keep=1)
    promised: dict[int, tuple[int, int]] = {}
    kept = 0
    for event in table.history:
        if isinstance(event, ev.CheckpointsDropped):
            assert not {(event.n, index) for index in event.indexes} & set(promised.values())
        apply(state, event, retention)
        if isinstance(event, ev.TrialReconfigured) and event.donor is not None:
            promised[event.n] = event.donor
        elif isinstance(event, ev.TrialStarted) and event.n in promised:
            assert event.source == promised.pop(event.n)
            record = state.trials[event.source[0]].find(event.source[1])
            assert record is not None
            assert record.stored == Stored.COMMITTED
            kept += 1
    assert kept >= 4


@pytest.mark.parametrize("synch", [False, True])
def test_a_scheduler_that_was_rebuilt_goes_on_as_before(synch):
    def make() -> PopulationBasedTraining:
        return pbt(
            synch=synch,
            perturbation_interval=1,
            quantile_fraction=0.5,
            require_attrs=False,
            hyperparam_mutations={"x": [1, 2, 3], "y": tune.uniform(0, 1), "z": lambda: 0.5},
        )

    copied = 0
    for seed in range(3):
        copied += len(copies(assert_exact_resume(make, random_population(seed, max_trials=4, max_steps=4))))
    for is_class in (False, True):
        trials = scripts(0.1, 0.5, 0.9, steps=4, saves_every=0 if is_class else 1, commit_s=0.7)
        population = Population(trials, slots=2, is_class=is_class)
        copied += len(copies(assert_exact_resume(make, population)))
    assert copied >= 4


@pytest.mark.parametrize("synch", [False, True])
def test_random_populations_come_to_an_end(synch):
    tables = assert_never_hangs(lambda: pbt(synch=synch, quantile_fraction=0.5, require_attrs=False), range(150))
    assert sum(len(copies(table)) for table in tables) > 150


def test_it_says_how_often_it_has_let_trials_copy():
    scheduler = pbt()
    table = play(lambda: scheduler, Population(scripts(0.1, 0.9)))
    expected = f"PopulationBasedTraining: 0 unfinished trials, {len(copies(table))} perturbs"
    assert scheduler.debug_string() == expected
