"""Imported experiments continue: from their checkpoints, with what a restore is given again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_import_reads import change_trials, files_below

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.results.history import open_history
from holdfast.search import Searcher

Run = Callable[..., Any]
Recorded = Callable[[str], Path]
QUIET = tune.RunConfig(verbose=0)


def slow(config: dict[str, Any]) -> None:
    """The trainable of the recorded experiment ``interrupted``, two steps longer and without its wait."""
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = int((Path(directory) / "step.txt").read_text())
    for step in range(start + 1, 6):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step))
            saved = tune.Checkpoint.from_directory(directory)
            tune.report({"step": step, "loss": config["lr"] / step, "start": start}, checkpoint=saved)


class Counting(tune.Trainable):
    """The trainable of the recorded experiment ``class``."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"score": self.count * self.config["lr"], "count": self.count}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: dict[str, Any] | str) -> None:
        assert isinstance(checkpoint, dict)
        self.count = checkpoint["count"]


class Widget:
    def __init__(self, size: int) -> None:
        self.size = size


def with_widget(config: dict[str, Any]) -> None:
    tune.report({"loss": float(config["widget"].size)})


def population(config: dict[str, Any]) -> None:
    """The trainable of the recorded experiment ``pbt``, one step longer."""
    checkpoint = tune.get_checkpoint()
    assert checkpoint is not None
    with checkpoint.as_directory() as directory:
        step, score = json.loads((Path(directory) / "state.json").read_text())
    assert step == 8
    tune.report({"score": score + config["lr"]})


def failing(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.0, "how": config["how"]})


def unfinish(path: Path, *numbers: int) -> None:
    """Let trials be such that had not ended."""

    def change(fixed: dict[str, Any], _: dict[str, Any]) -> None:
        if int(fixed["trial_id"][-5:]) in numbers:
            fixed["status"] = "RUNNING"

    change_trials(path, change)


def test_unfinished_trials_go_on_from_their_imported_checkpoints(imported: Recorded) -> None:
    target = imported("interrupted")
    grid = tune.Tuner.restore(str(target), trainable=slow, run_config=QUIET).fit()
    facts = [(result.metrics["training_iteration"], result.metrics.get("start")) for result in grid]
    assert facts == [(3, None), (5, 3), (5, 0), (5, 0), (5, 0), (5, 0)]
    assert list(grid[1].metrics_dataframe["step"]) == [1, 2, 3, 4, 5]
    # The files for people are made anew from the journal, for imported trials as well.
    rows = (Path(grid[0].path) / "result.json").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3]


def test_a_restore_needs_the_trainable_of_that_name_and_kind(imported: Recorded, holdfast: Run) -> None:
    target = imported("interrupted")
    before = files_below(target)
    with pytest.raises(InvalidInputError, match=r"imported from Ray Tune.*trainable=\.\.\..*function 'slow'"):
        tune.Tuner.restore(str(target))
    with pytest.raises(InvalidInputError, match="expected 'slow'"):
        tune.Tuner.restore(str(target), trainable=failing)
    answer = holdfast("resume", target)
    assert (answer.code, "trainable=" in answer.err) == (2, True)
    with pytest.raises(InvalidInputError, match="param_space"):
        tune.Tuner.restore(str(target), trainable=slow, tune_config=tune.TuneConfig(num_samples=3))
    assert files_below(target) == before


def test_with_the_space_there_are_the_trials_that_num_samples_asks_for(imported: Recorded) -> None:
    target = imported("interrupted")
    space = {"lr": tune.grid_search([0.1, 0.2, 0.3])}
    with pytest.raises(InvalidInputError, match="keys must be those"):
        tune.Tuner.restore(str(target), trainable=slow, param_space={"other": 1})
    more = tune.TuneConfig(num_samples=3)
    grid = tune.Tuner.restore(str(target), slow, param_space=space, tune_config=more, run_config=QUIET).fit()
    assert [result.config["lr"] for result in grid] == [0.1, 0.2, 0.3] * 3
    assert [result.metrics["trial_id"][-5:] for result in grid] == [f"{n:05d}" for n in range(9)]
    again = tune.Tuner.restore(str(target), run_config=QUIET).fit()
    assert len(again) == 9


def test_a_class_goes_on_from_the_dict_that_ray_has_pickled(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("class")
    unfinish(source, 1)
    assert holdfast("import", source, tmp_path / "new").code == 0
    longer = tune.RunConfig(verbose=0, stop={"training_iteration": 5})
    grid = tune.Tuner.restore(str(tmp_path / "new"), trainable=Counting, run_config=longer).fit()
    last = grid[1].metrics
    assert (last["training_iteration"], last["count"]) == (5, 5)
    assert last["score"] == pytest.approx(5 * grid[1].config["lr"])
    assert list(grid[1].metrics_dataframe["training_iteration"]) == [1, 2, 3, 4, 5]


def test_the_first_line_counts_the_imported_trials_if_no_others_can_be_made(
    imported: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    tune.Tuner.restore(str(imported("interrupted")), trainable=slow).fit()
    assert "holdfast: interrupted, 6 trials, " in capsys.readouterr().out


def test_rows_that_a_population_went_back_behind_are_not_called_retries(
    holdfast: Run, recorded: Recorded, tmp_path: Path
) -> None:
    assert "(2 superseded by later attempts)" in holdfast("import", recorded("pbt"), tmp_path / "new").out


def test_a_missing_object_is_told_with_what_to_give(
    holdfast: Run, recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = recorded("objects"), tmp_path / "new"
    unfinish(source, 0)
    assert holdfast("import", source, target).code == 0
    tune.Tuner.restore(str(target), trainable=with_widget).fit()
    said = capsys.readouterr().out
    assert "failed: MissingObjectError: Give param_space= to Tuner.restore() again: the value of 'widget'" in said
    again = f'Tuner.restore("{target}", trainable=with_widget, param_space=..., resume_errored=True).fit()'
    assert f"Retry the failed trials with: {again}" in said
    status = holdfast("status", target).out
    assert f"retry the failed trials: {again}" in status
    assert "holdfast resume" not in status


def test_objects_of_configs_are_given_again(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("objects")
    unfinish(source, 0)
    for name in ("one", "two"):
        assert holdfast("import", source, tmp_path / name).code == 0
    grid = tune.Tuner.restore(str(tmp_path / "one"), trainable=with_widget, run_config=QUIET).fit()
    assert "param_space=" in str(grid[0].error)
    assert "widget" in str(grid[0].error)
    space = {"widget": Widget(7), "lr": tune.grid_search([0.1, 0.2])}
    restored = tune.Tuner.restore(str(tmp_path / "two"), trainable=with_widget, param_space=space, run_config=QUIET)
    assert restored.fit()[0].metrics["loss"] == 7.0


def test_an_object_that_is_an_option_of_a_grid_is_found_by_its_place(
    holdfast: Run, recorded: Recorded, tmp_path: Path
) -> None:
    """The grid of objects varies fastest, as in Ray Tune: the second trial has its second option."""
    source = recorded("objects")
    unfinish(source, 0, 1)
    (source / "tuner.pkl").unlink()
    assert holdfast("import", source, tmp_path / "new").code == 0
    space = {"lr": 0.1, "widget": tune.grid_search([Widget(7), Widget(8)])}
    restored = tune.Tuner.restore(str(tmp_path / "new"), with_widget, param_space=space, run_config=QUIET)
    assert [result.metrics["loss"] for result in restored.fit()] == [7.0, 8.0]


def test_the_status_says_how_to_go_on_while_no_code_is_stored(holdfast: Run, imported: Recorded) -> None:
    target = imported("interrupted")
    said = holdfast("status", target).out
    assert "--trainable MODULE:slow" in said
    assert f'Tuner.restore("{target}", trainable=slow).fit()' in said


def test_a_scheduler_that_is_given_again_goes_on(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("pbt")
    unfinish(source, 0)
    assert holdfast("import", source, tmp_path / "new").code == 0
    pbt = tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.5, 1.0]}
    )
    config = tune.TuneConfig(scheduler=pbt)
    grid = tune.Tuner.restore(str(tmp_path / "new"), population, tune_config=config, run_config=QUIET).fit()
    # In the recorded state it was to continue from the last checkpoint of the other trial, which has a score of 8.
    assert (grid[0].metrics["training_iteration"], grid[0].metrics["score"]) == (9, 8.5)


def test_errored_trials_are_tried_again_if_asked(imported: Recorded) -> None:
    target = imported("errored")
    grid = tune.Tuner.restore(str(target), trainable=failing, run_config=QUIET, restart_errored=True).fit()
    assert [result.error for result in grid] == [None] * 4
    assert grid[0].metrics["how"] == "always"


class Recording(Searcher):
    """Remembers what it learned, and suggests by how much that is."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.points: list[tuple[float, float]] = []
        self.own: list[str] = []

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        self.own.append(trial_id)
        return {"lr": 10.0 * len(self.points) + len(self.own)}

    def add_evaluated_point(self, parameters: Any, value: Any, error: bool = False, *more: Any) -> None:  # type: ignore[override]
        self.points.append((parameters["lr"], value))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        assert trial_id in self.own

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(json.dumps([self.points, self.own]))

    def restore(self, checkpoint_path: str) -> None:
        self.points, self.own = json.loads(Path(checkpoint_path).read_text())


def test_a_searcher_learns_from_the_imported_trials(imported: Recorded) -> None:
    target = imported("class")
    space = {"lr": tune.uniform(0.1, 0.9)}
    config = tune.TuneConfig(num_samples=4, search_alg=Recording())
    restored = tune.Tuner.restore(str(target), Counting, param_space=space, tune_config=config, run_config=QUIET)
    grid = restored.fit()
    assert [result.config["lr"] for result in grid][2:] == [21.0, 22.0]  # two points were known
    more = tune.TuneConfig(num_samples=5, search_alg=Recording())
    grid = tune.Tuner.restore(str(target), tune_config=more, run_config=QUIET).fit()
    assert [result.config["lr"] for result in grid][2:] == [21.0, 22.0, 23.0]


@pytest.mark.slow
def test_an_import_into_a_store_is_read_and_continued_there(holdfast: Run, recorded: Recorded, bucket: str) -> None:
    source, target = recorded("interrupted"), f"{bucket}/imported"
    answer = holdfast("import", source, target)
    assert answer.code == 0, answer.err
    assert holdfast("verify", target).code == 0
    second = holdfast("import", source, target)
    assert (second.code, "exists already" in second.err) == (2, True)
    grid = tune.Tuner.restore(target, trainable=slow, run_config=QUIET).fit()
    assert grid[1].metrics["start"] == 3
    assert open_history(target).state.counts["TERMINATED"] == 6


def test_an_imported_experiment_is_followed_into_its_first_run(imported: Recorded) -> None:
    from holdfast.results.charts.experiment_charts import chart
    from holdfast.results.follow import Follower

    root = imported("interrupted")
    follower = Follower.open(root)
    before = len(follower.curves)
    assert before == sum(trial.rows for trial in follower.history.state.trials)
    assert chart(follower, "recovery")["down_s"] == 0.0
    tune.Tuner.restore(str(root), trainable=slow, run_config=QUIET).fit()
    change = follower.advance()
    assert not change.reread
    assert change.rows > 0
    fresh = open_history(root)
    for trial in fresh.state.trials:
        assert follower.rows(trial.n) == fresh.rows(trial.n)
    assert len(follower.curves) == sum(trial.rows for trial in fresh.state.trials)
    assert len(list(follower.chronicle.attempts())) >= len(fresh.state.trials)
