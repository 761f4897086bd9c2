"""Columns and curves say what the state and the rows say, and stay so while they are followed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError, JournalDamagedError
from holdfast.results.charts.experiment_charts import chart
from holdfast.results.chronicle import Attempt
from holdfast.results.columns import Columns
from holdfast.results.curves import Curves
from holdfast.results.follow import Follower
from holdfast.results.full_pass import Loading
from holdfast.results.packing import MISSING, PackedColumn, pack, unpack
from holdfast.views.results import flatten_result


def check_curves(follower: Follower) -> None:
    """Compare all curves with all rows."""
    curves = follower.curves
    total = 0
    for trial in follower.history.state.trials:
        rows = [flatten_result(row) for row in follower.rows(trial.n)]
        total += len(rows)
        assert len(curves.times(trial.n)) == len(rows)
        for metric in curves.metrics:
            points = [(row["training_iteration"], row[metric]) for row in rows if _is_number(row.get(metric))]
            steps, values = curves.of(trial.n, metric)
            assert list(zip(steps, values, strict=True)) == points
    assert len(curves) == total


def check_columns(follower: Follower) -> None:
    """Compare columns that were kept up to date with new ones."""
    fresh = Columns(follower.history, lambda: follower.curves)
    assert set(fresh.names) == set(follower.columns.names)
    for name in fresh.names:
        expected, found = _values(fresh.column(name)), _values(follower.columns.column(name))
        assert found == expected, name


def _values(column: PackedColumn) -> list[Any]:
    if column.values is not None:
        return [None if code == MISSING else column.values[code] for code in column.data]
    return [None if value != value else value for value in column.data]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def test_columns_hold_what_the_trials_say(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    columns = Follower.open(root.path).columns
    assert _values(columns.column("trial_id")) == [f"abcde_{n:05d}" for n in range(4)]
    assert _values(columns.column("status")) == ["TERMINATED", "ERROR", "TERMINATED", "PENDING"]
    assert _values(columns.column("interrupted")) == [0, 0, 0, 1]
    assert _values(columns.column("metric/loss")) == [1.0, 9.0, 4.0, 2.0]
    assert _values(columns.column("best/loss")) == [1.0, 9.0, 4.0, 2.0]
    assert _values(columns.column("max/loss")) == [3.0, 9.0, 5.0, 2.5]
    assert _values(columns.column("metric/nested/deep")) == [2.0, None, None, None]
    assert _values(columns.column("config/lr")) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert _values(columns.column("iteration")) == [3, 1, 2, 2]
    assert columns.params == ["lr"]
    assert columns.metrics == ["loss", "nested/deep"]
    with pytest.raises(InvalidInputError, match="no column"):
        columns.column("metric/unknown")


def test_columns_and_curves_follow_a_rewind_a_copy_and_new_trials(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    for name in follower.columns.names:
        follower.columns.column(name)
    check_curves(follower)
    root.retry(3, ev.Cause.SIGNAL, message="killed")
    root.start(3)
    root.report(3, {"loss": 1.5, "flag": True, "text": "a", "nested": {"deep": 4}})
    follower.advance()
    assert list(follower.curves.of(3, "loss")[1]) == [2.5, 1.5]
    check_curves(follower)
    check_columns(follower)
    n = root.create({"lr": "auto", "layers": [1, 2]})
    root.start(n)
    root.report(n, {"loss": float("nan"), "training_iteration": 7})
    root.add(ev.TrialPaused(root.tick(), n, root.attempt(n)))
    root.add(ev.TrialReconfigured(root.tick(), n, {"lr": 0.5}, "", (0, 2), 0))
    root.add(ev.TrialResumed(root.tick(), n))
    root.add(ev.TrialStarted(root.tick(), n, 2, 1, (0, 2)))
    root.report(n, {"loss": 0.5})
    follower.advance()
    check_curves(follower)
    check_columns(follower)
    assert list(follower.curves.of(n, "loss")[0]) == [4]  # the copied checkpoint was at iteration 3
    assert _values(follower.columns.column("config/lr"))[-1] == 0.5
    root.end(n)
    root.add(ev.TrialRequeued(root.tick(), n, "restart"))
    follower.advance()
    check_curves(follower)
    check_columns(follower)
    assert len(follower.curves.times(n)) == 0


def test_a_column_of_numbers_becomes_one_of_values(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"x": 1})
    follower = Follower.open(root.path)
    assert follower.columns.column("config/x").values is None
    for value in ("a", None, True, 1, [1, 2], "b" * 5000, 2**60, {"__exact__": "int", "value": hex(10**400)}):
        root.create({"x": value})
        follower.advance()
    found = _values(follower.columns.column("config/x"))
    assert found[:6] == [1, "a", None, True, 1, "[1, 2]"]
    assert len(found[6]) < 1100
    assert found[7:] == [str(2**60), str(10**400)]
    check_columns(follower)


def test_loading_goes_in_slices_beside_a_live_driver(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    assert follower.loading == Loading(0, follower.record)
    assert follower.load(10) == Loading(10, follower.record)
    root.report(3, {"loss": 1.9})
    follower.advance()
    assert follower.loading == Loading(10, follower.record)
    steps = 0
    while follower.load(7) is not None:
        steps += 1
    assert steps >= 3
    assert follower.loading is None
    root.report(3, {"loss": 1.8})
    assert follower.advance().rows == 1
    assert follower.loading is None
    assert list(follower.curves.of(3, "loss")[1]) == [2.5, 2.0, 1.9, 1.8]
    check_curves(follower)


def test_many_points_are_thinned_and_ends_stay() -> None:
    curves = Curves()
    for n in range(20):
        curves.feed(ev.TrialCreated(1.0, n, f"t{n}", {}, ""))
        curves.feed(ev.TrialStarted(1.0, n, 1))
        for step in range(50):
            curves.feed(ev.Reported(2.0, n, 1, 1, 0.1, {"loss": float(step)}))
    whole = curves.table("loss")
    assert (len(whole.step), whole.thinned) == (1000, False)
    thin = curves.table("loss", max_points=200)
    assert thin.thinned
    assert len(thin.step) <= 260
    assert {n for n, step in zip(thin.trial, thin.step, strict=True) if step == 50} == set(range(20))
    few = curves.table("loss", max_points=10)
    assert len(set(few.trial)) == 5
    one = curves.table("loss", max_points=200, trials=[3])
    assert (len(one.step), one.thinned) == (50, False)
    head, columns = unpack(curves.pack("loss", 77, max_points=200))
    assert (head["record"], head["thinned"], head["rows"]) == (77, True, len(thin.step))
    assert list(columns["value"].data) == list(thin.value)


def _odd_events() -> list[ev.AnyEvent]:
    """Reports of all shapes, and trials that lose rows."""
    rows: list[dict[str, Any]] = [
        {"loss": 1.0, "acc": 1},
        {"loss": 2.0, "acc": True},
        {"loss": float("nan"), "acc": 0.5},
        {"loss": "text", "acc": None},
        {"loss": 3.0, "acc": 0.5, "later": 7},
        {"acc": 0.25, "training_iteration": 40},
        {"eval": {"loss": 1.5, "deep": {"x": 2}}, "done": False},
        {"eval/loss": 9.0, "eval": {"loss": 8.0}},
        {},
    ]
    events: list[ev.AnyEvent] = []
    at = 0.0
    for n in range(3):
        events += [ev.TrialCreated(at, n, f"t{n}", {}, ""), ev.TrialStarted(at, n, 1)]
    for turn in range(40):
        at += 1.0
        n = turn % 3
        events.append(ev.Reported(at, n, 1, 1, 0.1, rows[turn * 7 % len(rows)]))
        if turn % 5 == 4:
            events.append(ev.CheckpointStaged(at, n, 1, turn, "stage", 1, 1))
        if turn % 11 == 10:
            events.append(ev.TrialStarted(at, n, 2, 1, (n, turn - turn % 5 - 1)))
        if turn == 30:
            events.append(ev.TrialRequeued(at, 1, "restart"))
    return events


@pytest.mark.parametrize("size", [2, 3, 16, 1000])
def test_events_that_are_folded_together_are_the_same_as_one_by_one(size: int) -> None:
    events = _odd_events()
    single, several = Curves(), Curves()
    for event in events:
        single.feed(event)
    for first in range(0, len(events), size):
        several.fold(events[first : first + size])
    assert (len(single), single.last_at) == (len(several), several.last_at)
    assert set(single.metrics) == set(several.metrics) == {"loss", "acc", "later", "eval/loss", "eval/deep/x"}
    for metric in single.metrics:
        assert single.table(metric)[:3] == several.table(metric)[:3]
        for n in range(3):
            assert single.of(n, metric) == several.of(n, metric)
    for n in range(3):
        assert single.times(n) == several.times(n)
        assert single.iteration(n) == several.iteration(n)


def test_records_that_no_driver_writes_are_damage(tmp_path: Path) -> None:
    """A snapshot spares its reader the records before it, so that the pass over all of them meets such ones first."""
    forged: list[ev.AnyEvent] = [
        ev.Reported(1.0, 1 << 40, 1, 1, 0.1, {"loss": 1.0}),
        ev.TrialStarted(1.0, 4, 1),
        ev.TrialStarted(1.0, 0, 1 << 50),
        ev.TrialReconfigured(1.0, 0, {}, "", (77, 0), 77),
    ]
    for k, event in enumerate(forged):
        root = small_experiment(tmp_path / f"exp{k}")
        root.journal.append([ev.encode(event)])
        root.snapshot()
        follower = Follower.open(root.path)
        with pytest.raises(JournalDamagedError, match="the record is whole") as caught:
            follower.curves  # noqa: B018
        assert caught.value.seq == follower.record


def test_packed_columns_are_aligned_and_come_back(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    follower = Follower.open(root.path)
    names = ["trial_id", "status", "iteration", "metric/loss", "config/lr"]
    data = follower.columns.pack(names)
    assert len(data) % 8 == 0
    head, columns = unpack(data)
    assert (head["rows"], head["record"]) == (4, follower.record)
    assert [about["name"] for about in head["columns"]] == names
    for name in names:
        assert _values(columns[name]) == _values(follower.columns.column(name))
    assert unpack(pack([], 0))[0] == {"rows": 0, "columns": []}


def test_attempts_tell_worker_and_outcome(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    chronicle = Follower.open(root.path).chronicle
    found = list(chronicle.attempts())
    assert [(each.n, each.attempt, each.outcome, each.cause) for each in found] == [
        (0, 1, "finished", ""),
        (1, 1, "errored", "exception"),
        (2, 1, "failed", "signal"),
        (3, 1, "running", ""),
        (2, 2, "finished", ""),
    ]
    assert {each.worker for each in found} == {101}
    assert isinstance(found[0], Attempt)
    retry = next(each for each in chronicle.incidents if each.kind == "retry")
    # Staged, committed, reported, killed: four seconds after the row that its checkpoint came with.
    assert (retry.n, retry.repeated_s, retry.trials) == (2, 4.0, 1)


def _train_population(config: dict[str, Any]) -> None:
    start, before = 0, tune.get_checkpoint()
    if before is not None:
        with before.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
    for step in range(start, 12):
        with tune.checkpoint_dir() as folder:
            Path(folder, "step").write_text(str(step + 1))
        tune.report({"score": config["rate"] * (step + 1)}, checkpoint=tune.Checkpoint(folder))


def test_curves_and_lineage_of_a_real_population(tmp_path: Path) -> None:
    """Trials that continue as copies of others have the rows and the parents that the results say."""
    scheduler = tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"rate": tune.uniform(0, 1)},
        quantile_fraction=0.5,
        synch=True,
    )
    grid = tune.Tuner(
        _train_population,
        param_space={"rate": tune.grid_search([0.1, 0.4, 0.7, 1.0])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, seed=1),
        run_config=tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, engine=tune.LocalEngine(cpus=2)),
    ).fit()
    assert grid.num_errors == 0
    follower = Follower.open(grid.experiment_path)
    check_curves(follower)
    check_columns(follower)
    copies = follower.chronicle.copies
    assert copies
    for n in range(4):
        told = [parent for _, parent in follower.history.copies(n)]
        mine = [follower.history.state.trials[copy.parent].id for copy in copies if copy.n == n]
        assert mine[len(mine) - len(told) :] == told  # results leave out copies of which no step survived
    found = chart(follower, "lineage")
    assert found["params"] == ["rate"]
    assert len(found["copies"]) == len(copies)
