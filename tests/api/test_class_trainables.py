"""Class trainables in real experiments: when they save, how they are restored, reset and cleaned up."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from api_trainables import Counter, note
from experiment_tools import checkpoints, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.errors import TrialError


def saved_steps(result: tune.Result) -> list[int]:
    """The step that each checkpoint on disk was taken at."""
    found = []
    for name in checkpoints(result):
        other = Counter({})
        other.restore(str(Path(result.path, name)))
        found.append(other.step_number)
    return found


@pytest.mark.parametrize(
    ("frequency", "at_end", "steps", "saved"),
    [
        (0, None, 5, [5]),
        (0, True, 5, [5]),
        (0, False, 5, []),
        (2, None, 5, [2, 4, 5]),
        (2, True, 4, [2, 4]),
        (2, False, 5, [2, 4]),
        (1, False, 3, [1, 2, 3]),
    ],
)
def test_a_class_saves_as_often_as_it_is_told(make_tuner, frequency, at_end, steps, saved):
    config = tune.CheckpointConfig(checkpoint_frequency=frequency, checkpoint_at_end=at_end)
    (result,) = make_tuner(Counter, {"steps": steps}, checkpoint_config=config).fit()
    assert saved_steps(result) == saved
    assert history(result, "step") == list(range(1, steps + 1))


@pytest.mark.parametrize(("at_end", "saved"), [(True, [3]), (False, [])])
def test_a_class_that_is_stopped_saves_at_its_end(make_tuner, at_end, saved):
    config = tune.CheckpointConfig(checkpoint_at_end=at_end)
    (result,) = make_tuner(Counter, {"steps": 99}, stop={"step": 3}, checkpoint_config=config).fit()
    assert history(result, "step") == [1, 2, 3]
    assert saved_steps(result) == saved
    assert result.metrics["done"] is True


def test_a_result_can_ask_for_a_checkpoint(make_tuner):
    class Asks(Counter):
        def step(self):
            result = super().step()
            return {**result, "should_checkpoint": self.step_number == 2}

    config = tune.CheckpointConfig(checkpoint_at_end=False)
    (result,) = make_tuner(Asks, {"steps": 4}, checkpoint_config=config).fit()
    assert saved_steps(result) == [2]


def test_a_callback_can_ask_for_a_checkpoint(make_tuner):
    class Ask(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["step"] == 3:
                result["should_checkpoint"] = True

    config = tune.CheckpointConfig(checkpoint_at_end=False)
    (result,) = make_tuner(Counter, {"steps": 5}, checkpoint_config=config, callbacks=[Ask()]).fit()
    assert saved_steps(result) == [3]


def test_num_to_keep_holds_for_classes(make_tuner):
    config = tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2)
    (result,) = make_tuner(Counter, {"steps": 6}, checkpoint_config=config).fit()
    assert checkpoints(result) == ["checkpoint_000004", "checkpoint_000005"]
    assert saved_steps(result) == [5, 6]


def test_a_failed_class_continues_from_its_checkpoint(make_tuner, tmp_path):
    class Fails(Counter):
        def step(self):
            note(self.config, "diary", self.step_number + 1)
            if self.step_number == 3 and len(lines(Path(self.config["dir"], "diary"))) == 4:
                raise RuntimeError("once")
            return super().step()

    config = tune.CheckpointConfig(checkpoint_frequency=2)
    failures = tune.FailureConfig(max_failures=1)
    space = {"dir": str(tmp_path), "steps": 5}
    (result,) = make_tuner(Fails, space, checkpoint_config=config, failure_config=failures).fit()
    assert lines(tmp_path / "diary") == ["1", "2", "3", "4", "3", "4", "5"]
    assert history(result, "step") == [1, 2, 3, 4, 5]
    assert history(result) == [1, 2, 3, 4, 5]
    assert [row["iterations_since_restore"] for row in result.metrics_history] == [1, 2, 1, 2, 3]
    assert [row["step"] for row in json_rows(result)] == [1, 2, 3, 4, 5]


def test_totals_go_on_after_a_restore(make_tuner, tmp_path):
    class Steps(Counter):
        def step(self):
            result = super().step()
            return {**result, "timesteps_this_iter": 10, "episodes_this_iter": 1}

    config = tune.CheckpointConfig(checkpoint_frequency=1)
    space = {"dir": str(tmp_path), "steps": 4, "fail_at": 3}

    class Mend(tune.Callback):
        def on_trial_recover(self, **info):
            (tmp_path / "mended").touch()

    failures = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(Steps, space, checkpoint_config=config, failure_config=failures, callbacks=[Mend()]).fit()
    assert [row["timesteps_total"] for row in result.metrics_history] == [10, 20, 30, 40]
    assert [row["episodes_total"] for row in result.metrics_history] == [1, 2, 3, 4]
    assert result.metrics["timesteps_since_restore"] == 20
    assert result.metrics["time_total_s"] >= result.metrics["time_since_restore"]


def test_a_class_may_save_files_in_the_directory(make_tuner, tmp_path):
    class Files(Counter):
        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "weights").write_text(str(self.step_number))
            return checkpoint_dir

        def load_checkpoint(self, checkpoint):
            self.step_number = int(Path(checkpoint, "weights").read_text())

    failures = tune.FailureConfig(max_failures=1)
    config = tune.CheckpointConfig(checkpoint_frequency=1)

    class Mend(tune.Callback):
        def on_trial_recover(self, **info):
            (tmp_path / "mended").touch()

    space = {"dir": str(tmp_path), "fail_at": 2}
    (result,) = make_tuner(Files, space, checkpoint_config=config, failure_config=failures, callbacks=[Mend()]).fit()
    assert history(result, "step") == [1, 2, 3]
    assert Path(result.checkpoint.path, "weights").read_text() == "3"


def test_the_older_names_of_the_methods_work_and_prefixes_are_relocated(make_tuner, storage, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)

        class Old(tune.Trainable):
            def _setup(self, config):
                self.n = 0

            def _train(self):
                import warnings

                warnings.simplefilter("ignore", DeprecationWarning)
                self.n += 1
                if self.n == 3 and not Path(self.config["dir"], "mended").exists():
                    raise RuntimeError("once")
                return {"n": self.n, "done": self.n == 4}

            def _save(self, checkpoint_dir):
                prefix = Path(checkpoint_dir, "model.ckpt")
                Path(f"{prefix}.index").write_text(str(self.n))
                return str(prefix)

            def _restore(self, prefix):
                self.n = int(Path(f"{prefix}.index").read_text())

    config = tune.CheckpointConfig(checkpoint_frequency=1)
    make_tuner(Old, {"dir": str(tmp_path)}, checkpoint_config=config).fit()
    (tmp_path / "mended").touch()
    (storage / "exp").rename(storage / "moved")
    (result,) = tune.Tuner.restore(storage / "moved", resume_errored=True).fit()
    assert history(result, "n") == [1, 2, 3, 4]
    assert Path(result.checkpoint.path, "model.ckpt.index").read_text() == "4"


def test_setup_step_and_cleanup_are_called_in_order(make_tuner, tmp_path):
    class Life(tune.Trainable):
        def setup(self, config):
            note(config, "diary", "setup")

        def step(self):
            note(self.config, "diary", "step")
            return {"x": 1}

        def cleanup(self):
            note(self.config, "diary", "cleanup")

    make_tuner(Life, {"dir": str(tmp_path)}, stop={"training_iteration": 2}).fit()
    assert lines(tmp_path / "diary") == ["setup", "step", "step", "cleanup"]


def test_cleanup_is_called_after_a_failure_too(make_tuner, tmp_path):
    class Fails(tune.Trainable):
        def setup(self, config):
            self.places = config

        def step(self):
            raise RuntimeError("no")

        def cleanup(self):
            note(self.places, "diary", "cleanup")

    assert statuses(make_tuner(Fails, {"dir": str(tmp_path)}).fit()) == ["ERROR"]
    assert lines(tmp_path / "diary") == ["cleanup"]


def test_with_parameters_reach_setup(make_tuner):
    class Uses(tune.Trainable):
        def setup(self, config, data=None):
            self.data = data

        def step(self):
            return {"sum": sum(self.data), "done": True}

    (result,) = make_tuner(tune.with_parameters(Uses, data=[1, 2, 3])).fit()
    assert result.metrics["sum"] == 6
    assert Path(result.path).name.startswith("Uses_")


def test_default_resource_request_is_obeyed(make_tuner):
    class Wide(Counter):
        @classmethod
        def default_resource_request(cls, config):
            return tune.PlacementGroupFactory([{"CPU": config["width"]}])

        def step(self):
            return {**super().step(), "cpu": self.trial_resources.required_resources["CPU"]}

    grid = make_tuner(Wide, {"width": tune.grid_search([1, 2])}).fit()
    assert [result.metrics["cpu"] for result in grid] == [1, 2]


# --- reuse


class Reusable(Counter):
    def setup(self, config):
        super().setup(config)
        note(config, "diary", f"setup {config['x']}")

    def reset_config(self, new_config):
        note(new_config, "diary", f"reset {new_config['x']}")
        self.step_number = 0
        return True

    def step(self):
        return {**super().step(), "x": self.config["x"]}


def test_instances_are_reset_for_the_next_trial(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2, 3])}
    grid = make_tuner(Reusable, space, reuse_actors=True, engine=tune.LocalEngine(cpus=1)).fit()
    assert lines(tmp_path / "diary") == ["setup 1", "reset 2", "reset 3"]
    assert [history(result, "x") for result in grid] == [[1] * 3, [2] * 3, [3] * 3]
    assert [history(result, "step") for result in grid] == [[1, 2, 3]] * 3
    assert [history(result) for result in grid] == [[1, 2, 3]] * 3


def test_instances_are_not_reused_unless_asked_for(make_tuner, tmp_path):
    space = {"dir": str(tmp_path), "x": tune.grid_search([1, 2])}
    make_tuner(Reusable, space, engine=tune.LocalEngine(cpus=1)).fit()
    assert lines(tmp_path / "diary") == ["setup 1", "setup 2"]


def test_a_class_that_cannot_be_reset_fails_without_a_retry(make_tuner):
    config = tune.FailureConfig(max_failures=3)
    space = {"x": tune.grid_search([1, 2])}
    grid = make_tuner(Counter, space, reuse_actors=True, engine=tune.LocalEngine(cpus=1), failure_config=config).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR"]
    assert "reset_config() to be implemented and return True" in str(grid[1].error)
    assert Path(grid[1].path, "error.txt").read_text().count("Failure #") == 1


# --- what can go wrong


def test_a_failure_in_setup_is_the_trials_failure(make_tuner):
    class Fails(tune.Trainable):
        def setup(self, config):
            raise ValueError("no data")

        def step(self): ...

    (result,) = make_tuner(Fails).fit()
    assert isinstance(result.error, TrialError)
    assert "no data" in str(result.error)


def test_a_step_must_return_a_dict(make_tuner):
    class Wrong(tune.Trainable):
        def step(self):
            return 5

    (result,) = make_tuner(Wrong).fit()
    assert "step() needs to return a dict" in str(result.error)


def test_a_class_without_step_says_what_is_missing(make_tuner):
    class Empty(tune.Trainable):
        pass

    with pytest.raises(ValueError, match=r"Empty does not implement step\(\)"):
        make_tuner(Empty)


@pytest.mark.parametrize("returned", ["/somewhere/else", 5])
def test_save_checkpoint_must_return_a_dict_the_directory_or_nothing(make_tuner, returned):
    class Wrong(Counter):
        def save_checkpoint(self, checkpoint_dir):
            return returned

    (result,) = make_tuner(Wrong).fit()
    assert "save_checkpoint() must return" in str(result.error)


def test_a_class_that_cannot_save_can_still_be_trained(make_tuner):
    class Forgets(tune.Trainable):
        def step(self):
            return {"x": 1, "done": self.iteration >= 1}

    (result,) = make_tuner(Forgets).fit()
    assert result.status == "TERMINATED"
    assert result.checkpoint is None


def test_a_checkpoint_that_the_class_cannot_load_is_left_for_the_one_before_it(make_tuner, storage, tmp_path):
    """The newest checkpoint is whole, yet the class refuses it: after two tries the one before it is used."""

    class Picky(Counter):
        def load_checkpoint(self, checkpoint):
            note(self.config, "loads", checkpoint["step_number"])
            if checkpoint["step_number"] == 2:
                raise ValueError("cannot read this")
            super().load_checkpoint(checkpoint)

    class Mend(tune.Callback):
        def on_trial_recover(self, **info):
            (tmp_path / "mended").touch()

    config = tune.CheckpointConfig(checkpoint_frequency=1)
    failures = tune.FailureConfig(max_failures=3)
    space = {"dir": str(tmp_path), "fail_at": 3}
    (result,) = make_tuner(Picky, space, checkpoint_config=config, failure_config=failures, callbacks=[Mend()]).fit()
    assert lines(tmp_path / "loads") == ["2", "2", "1"]
    assert history(result, "step") == [1, 2, 3]
    assert result.status == "TERMINATED"


def test_failed_loads_can_be_free(make_tuner, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", "2")

    class Flaky(Counter):
        def load_checkpoint(self, checkpoint):
            note(self.config, "loads", "x")
            if len(lines(Path(self.config["dir"], "loads"))) < 3:
                raise OSError("not yet")
            super().load_checkpoint(checkpoint)

    class Mend(tune.Callback):
        def on_trial_recover(self, **info):
            (tmp_path / "mended").touch()

    config = tune.CheckpointConfig(checkpoint_frequency=1)
    failures = tune.FailureConfig(max_failures=1)
    space = {"dir": str(tmp_path), "fail_at": 2}
    (result,) = make_tuner(Flaky, space, checkpoint_config=config, failure_config=failures, callbacks=[Mend()]).fit()
    assert result.status == "TERMINATED"
    assert history(result, "step") == [1, 2, 3]


def test_report_is_refused_inside_a_class(make_tuner):
    class Reports(tune.Trainable):
        def step(self):
            tune.report({"x": 1})
            return {"x": 1}

    (result,) = make_tuner(Reports).fit()
    assert "report() is for function trainables" in str(result.error)
