"""Callbacks in real experiments: the order of their hooks, what they see, their memory, and what their errors do."""

from __future__ import annotations

import csv
import json
import pickle
import threading
from pathlib import Path

import pytest
from api_trainables import Counter, Crash, Crashed, count, five, noop, note, save
from experiment_tools import csv_rows, history, json_rows, lines, statuses

import holdfast as tune
from holdfast.callbacks.loggers import LoggerCallback

HOOKS = [
    "setup",
    "on_step_begin",
    "on_step_end",
    "on_trial_start",
    "on_trial_restore",
    "on_trial_save",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_recover",
    "on_trial_error",
    "on_checkpoint",
    "on_experiment_end",
]


def recorder(*wanted: str) -> tuple[tune.Callback, list]:
    """A callback that lists its calls, and the list. It is not pickled with its list: it lives in this process only."""
    calls: list = []

    class Record(tune.Callback):
        def __reduce__(self):
            return tune.Callback, ()

    def make(hook):
        def method(self, **info):
            calls.append((hook, info))

        return method

    for hook in wanted or HOOKS:
        setattr(Record, hook, make(hook))
    return Record(), calls


# --- order


def test_hooks_are_called_in_the_order_of_a_trials_life(make_tuner, tmp_path):
    callback, calls = recorder(*(hook for hook in HOOKS if "step" not in hook))
    make_tuner(count, {"dir": str(tmp_path), "steps": 1}, callbacks=[callback]).fit()
    assert [hook for hook, _ in calls] == [
        "setup",
        "on_trial_start",
        "on_trial_result",
        "on_checkpoint",
        "on_trial_save",
        "on_trial_complete",
        "on_experiment_end",
    ]


def test_a_trial_is_told_complete_after_its_last_checkpoint_was_told(make_tuner, tmp_path):
    callback, calls = recorder("on_trial_save", "on_trial_complete", "on_trial_error")
    space = {"dir": str(tmp_path), "steps": 4, "x": tune.grid_search(list(range(6)))}
    space["fail_at"] = tune.sample_from(lambda config: 4 if config["x"] % 2 else None)
    grid = make_tuner(count, space, callbacks=[callback]).fit()
    for result in grid:
        told = [hook for hook, info in calls if info["trial"].trial_id == result.trial_id]
        last = "on_trial_complete" if result.status == "TERMINATED" else "on_trial_error"
        assert told == ["on_trial_save"] * 4 + [last]


def test_a_retry_is_told_as_recover_start_and_restore(make_tuner, tmp_path):
    class Mend(tune.Callback):
        def on_trial_recover(self, **info):
            (tmp_path / "mended").touch()

    callback, calls = recorder("on_trial_start", "on_trial_restore", "on_trial_recover", "on_trial_error")
    config = tune.FailureConfig(max_failures=1)
    space = {"dir": str(tmp_path), "fail_at": 2}
    make_tuner(count, space, callbacks=[callback, Mend()], failure_config=config).fit()
    assert [hook for hook, _ in calls] == ["on_trial_start", "on_trial_recover", "on_trial_start", "on_trial_restore"]


def test_a_final_failure_is_told_as_error_and_not_as_recover(make_tuner):
    def train(config):
        raise RuntimeError("no")

    callback, calls = recorder("on_trial_recover", "on_trial_error", "on_trial_complete")
    config = tune.FailureConfig(max_failures=1)
    make_tuner(train, callbacks=[callback], failure_config=config).fit()
    assert [hook for hook, _ in calls] == ["on_trial_recover", "on_trial_error"]


def test_steps_enclose_everything_that_happens_in_them(make_tuner):
    callback, calls = recorder("on_step_begin", "on_trial_result", "on_step_end")
    make_tuner(five, callbacks=[callback]).fit()
    depth = 0
    for hook, info in calls:
        depth += {"on_step_begin": 1, "on_step_end": -1}.get(hook, 0)
        assert depth == (0 if hook == "on_step_end" else 1)
        assert isinstance(info["iteration"], int)


def test_callbacks_are_called_in_the_order_of_the_list(make_tuner):
    order = []

    def named(name):
        class Named(tune.Callback):
            def on_trial_result(self, **info):
                order.append(name)

            def __reduce__(self):
                return tune.Callback, ()

        return Named()

    make_tuner(noop, callbacks=[named("a"), named("b"), named("c")]).fit()
    assert order == ["a", "b", "c"]


# --- what hooks are given


def test_setup_is_told_the_size_of_the_search_and_the_stop_rule(make_tuner):
    callback, calls = recorder("setup")
    stop = {"score": 5}
    make_tuner(noop, {"x": tune.grid_search([1, 2, 3])}, num_samples=2, stop=stop, callbacks=[callback]).fit()
    ((_, info),) = calls
    assert (info["stop"], info["num_samples"], info["total_num_samples"]) == (stop, 2, 6)


def test_a_trial_in_a_callback_shows_everything_about_it(make_tuner, tmp_path):
    seen = {}

    class Look(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            seen.update(
                id=trial.trial_id,
                status=trial.status,
                config=trial.config,
                params=trial.evaluated_params,
                tag=trial.experiment_tag,
                last=trial.last_result["step"],
                analysis=trial.metric_analysis["step"],
                checkpoint=Path(trial.checkpoint.path).name,
                path=trial.path,
                local_path=trial.local_path,
                trainable=trial.trainable_name,
                resources=trial.placement_group_factory.required_resources,
                failures=trial.num_failures,
                error_file=trial.error_file,
                text=str(trial),
                trials=[each.trial_id for each in trials],
            )

        def __reduce__(self):
            return tune.Callback, ()

    space = {"dir": str(tmp_path), "steps": 6, "x": tune.grid_search([7])}
    (result,) = make_tuner(count, space, callbacks=[Look()]).fit()
    assert seen == {
        "id": result.trial_id,
        "status": "TERMINATED",
        "config": {"dir": str(tmp_path), "steps": 6, "x": 7},
        "params": {"x": 7},
        "tag": "0_x=7",
        "last": 6,
        "analysis": {"max": 6, "min": 1, "avg": 3.5, "last": 6, "last-5-avg": 4.0, "last-10-avg": 3.5},
        "checkpoint": "checkpoint_000005",
        "path": result.path,
        "local_path": result.path,
        "trainable": "count",
        "resources": {"CPU": 1},
        "failures": 0,
        "error_file": None,
        "text": f"count_{result.trial_id}",
        "trials": [result.trial_id],
    }


def test_a_committed_checkpoint_is_handed_to_callbacks_and_exists(make_tuner, tmp_path):
    steps = []

    class Read(tune.Callback):
        def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
            steps.append(Path(checkpoint.path, "step").read_text())

        def __reduce__(self):
            return tune.Callback, ()

    make_tuner(count, {"dir": str(tmp_path)}, callbacks=[Read()]).fit()
    assert steps == ["1", "2", "3"]


def test_results_in_callbacks_are_complete_and_the_last_one_is_marked(make_tuner):
    callback, calls = recorder("on_trial_result")
    make_tuner(five, {"x": 1}, stop={"score": 3}, callbacks=[callback]).fit()
    results = [info["result"] for _, info in calls]
    assert [result["training_iteration"] for result in results] == [1, 2, 3]
    assert [result["done"] for result in results] == [False, False, True]
    assert results[0]["config"] == {"x": 1}


def test_what_a_callback_does_to_a_result_changes_nothing_else(make_tuner):
    class Spoil(tune.Callback):
        def on_trial_result(self, result, **info):
            result["score"] = -1
            result["deep"]["er"] = -1
            result["config"]["x"] = -1

    (result,) = make_tuner(five, {"x": 1}, callbacks=[Spoil()]).fit()
    assert history(result, "score") == [1, 2, 3, 4, 5]
    assert [row["score"] for row in json_rows(result)] == [1, 2, 3, 4, 5]
    assert [row["deep"] for row in json_rows(result)] == [{"er": 10 * n} for n in range(1, 6)]
    assert json_rows(result)[-1]["config"] == {"x": 1}


# --- errors


@pytest.mark.parametrize("hook", ["setup", "on_step_begin", "on_step_end", "on_trial_start", "on_trial_result"])
def test_an_error_in_a_hook_ends_the_run_and_the_experiment_goes_on_later(make_tuner, root, tmp_path, hook):
    class Fails(tune.Callback):
        def on_experiment_end(self, **info):
            (tmp_path / "ended").touch()

    def fail(self, **info):
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ArithmeticError("in the callback")

    setattr(Fails, hook, fail)
    with pytest.raises(ArithmeticError, match="in the callback"):
        make_tuner(count, {"dir": str(tmp_path)}, callbacks=[Fails()]).fit()
    assert (tmp_path / "ended").exists()
    (result,) = tune.Tuner.restore(root).fit()
    assert history(result, "step") == [1, 2, 3]


def test_an_error_when_a_trial_completes_turns_that_trial_into_an_error(make_tuner):
    class Fails(tune.Callback):
        def on_trial_complete(self, trial, **info):
            if trial.config["x"] != 2:
                raise ArithmeticError("in the callback")

    grid = make_tuner(noop, {"x": tune.grid_search([1, 2, 3])}, callbacks=[Fails()]).fit()
    assert statuses(grid) == ["ERROR", "TERMINATED", "ERROR"]
    assert grid[0].error.error_type == "ArithmeticError"
    assert "in the callback" in Path(grid[2].path, "error.txt").read_text()
    assert grid[0].metrics["score"] == 1


def test_an_error_at_the_end_of_the_experiment_is_raised_but_loses_nothing(make_tuner, root):
    class Fails(tune.Callback):
        def on_experiment_end(self, **info):
            raise ArithmeticError("at the end")

    with pytest.raises(ArithmeticError):
        make_tuner(noop, num_samples=2, callbacks=[Fails()]).fit()
    assert statuses(tune.Tuner.restore(root).get_results()) == ["TERMINATED"] * 2


# --- memory


class Remembers(tune.Callback):
    def __init__(self, directory):
        self.directory = Path(directory)
        self.seen = 0

    def on_trial_result(self, **info):
        self.seen += 1

    def on_experiment_end(self, **info):
        (self.directory / "seen").write_text(str(self.seen))

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


def test_a_callbacks_memory_is_stored_and_given_back(make_tuner, root, tmp_path):
    callbacks = [tune.Callback(), Remembers(tmp_path)]
    config = tune.FailureConfig(fail_fast=True)
    space = {"dir": str(tmp_path), "fail_at": 2}
    make_tuner(count, space, callbacks=callbacks, failure_config=config).fit()
    assert (tmp_path / "seen").read_text() == "2"
    (tmp_path / "mended").touch()
    tune.Tuner.restore(root, resume_errored=True).fit()
    assert (tmp_path / "seen").read_text() == "3"


def test_a_callbacks_memory_survives_the_failure_of_another(make_tuner, root, tmp_path):
    callbacks = [Remembers(tmp_path), Crash(tmp_path, 2)]
    with pytest.raises(Crashed):
        make_tuner(count, {"dir": str(tmp_path)}, callbacks=callbacks).fit()
    assert (tmp_path / "seen").read_text() == "2"
    tune.Tuner.restore(root).fit()
    assert (tmp_path / "seen").read_text() == "3"


def test_a_callbacks_memory_is_stored_with_snapshots(drivers, root, tmp_path):
    driver = drivers.start(
        """
class Remembers(tune.Callback):
    seen = 0
    def on_trial_result(self, **info):
        self.seen += 1
    def on_experiment_end(self, **info):
        DIR.joinpath("seen").write_text(str(self.seen))
    def get_state(self):
        return {"seen": self.seen}
    def set_state(self, state):
        self.seen = state["seen"]
tune.Tuner(count, param_space={"dir": str(DIR), "hold_at": 2}, run_config=config(callbacks=[Remembers()])).fit()
""",
        TUNE_GLOBAL_CHECKPOINT_S="0",
    )
    states = root / ".holdfast" / "objects" / "callback-states.pkl"
    driver.wait_for(states)
    driver.wait_until(lambda: pickle.loads(states.read_bytes()) == {0: {"seen": 2}}, "the second result in the state")
    driver.kill()
    (tmp_path / "go").touch()
    tune.Tuner.restore(root).fit()
    assert (tmp_path / "seen").read_text() == "3"


def test_a_memory_that_cannot_be_stored_is_said_and_ends_nothing(make_tuner, caplog, monkeypatch):
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")

    class Holds(tune.Callback):
        def get_state(self):
            return {"lock": threading.Lock()}

    (result,) = make_tuner(five, callbacks=[Holds()]).fit()
    assert history(result, "score") == [1, 2, 3, 4, 5]
    assert "states of callbacks could not be stored" in caplog.text


# --- callbacks from elsewhere


def test_the_environment_can_add_callbacks(make_tuner, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", "api_trainables.FromEnvironment")
    (result,) = make_tuner(count, {"dir": str(tmp_path), "steps": 1}).fit()
    assert (tmp_path / f"env.{result.trial_id}").exists()


def test_a_callback_of_the_environment_that_does_not_exist_is_refused(make_tuner, monkeypatch):
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", "api_trainables.Nothing")
    with pytest.raises(ValueError, match=r"api_trainables\.Nothing"):
        make_tuner(noop).fit()


def test_a_logger_hears_of_the_whole_life_of_a_trial(make_tuner, tmp_path):
    calls = []

    class Log(LoggerCallback):
        def log_trial_start(self, trial):
            calls.append("start")
            (tmp_path / "started").touch()

        def log_trial_restore(self, trial):
            calls.append("restore")
            (tmp_path / "mended").touch()

        def log_trial_save(self, trial):
            calls.append("save")

        def log_trial_result(self, iteration, trial, result):
            calls.append(f"result {result['step']}")

        def log_trial_end(self, trial, failed=False):
            calls.append(f"end {failed}")

        def __reduce__(self):
            return tune.Callback, ()

    space = {"dir": str(tmp_path), "steps": 2, "fail_at": 1}
    config = tune.FailureConfig(max_failures=1)
    make_tuner(count, space, callbacks=[Log()], failure_config=config).fit()
    assert calls == ["start", "result 1", "save", "start", "restore", "result 2", "save", "end False"]


# --- the files that are written by default


def test_every_trial_has_its_result_files(make_tuner, tmp_path):
    (result,) = make_tuner(five, {"x": tune.grid_search([0.5]), "n": {"y": [1, 2]}}).fit()
    assert [row["score"] for row in json_rows(result)] == [1, 2, 3, 4, 5]
    assert [row["deep/er"] for row in csv_rows(result)] == ["10", "20", "30", "40", "50"]
    assert not any("config" in column for column in csv_rows(result)[0])
    assert json.loads(Path(result.path, "params.json").read_text()) == result.config
    assert pickle.loads(Path(result.path, "params.pkl").read_bytes()) == result.config
    assert list(Path(result.path).glob("events.out.tfevents.*"))


def test_default_files_can_be_left_out(make_tuner, monkeypatch, tmp_path):
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    (result,) = make_tuner(five).fit()
    assert list(Path(result.path).iterdir()) == []
    assert history(result, "score") == [1, 2, 3, 4, 5]


def test_a_logger_that_the_user_gives_is_not_added_twice(make_tuner):
    from holdfast.callbacks.json_logger import JsonLoggerCallback

    (result,) = make_tuner(five, callbacks=[JsonLoggerCallback()]).fit()
    assert len(json_rows(result)) == 5


def test_rows_of_abandoned_attempts_are_taken_out_of_the_files(make_tuner, tmp_path):
    def train(config):
        from api_trainables import start_step

        start = start_step()
        for step in range(start + 1, 7):
            if step == 2:
                save(step, start=start)
            else:
                tune.report({"step": step, "start": start, **({"extra": 1} if step == 4 else {})})
            if step == 4 and start == 0:
                raise RuntimeError("once")

    config = tune.FailureConfig(max_failures=1)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    expected = [(1, 0), (2, 0), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert [(row["step"], row["start"]) for row in json_rows(result)] == expected
    assert [(int(row["step"]), int(row["start"])) for row in csv_rows(result)] == expected
    assert [row["extra"] for row in csv_rows(result)] == ["", "", "", "1", "", ""]


def test_a_column_that_appears_late_is_kept(make_tuner):
    def train(config):
        tune.report({"a": 1})
        tune.report({"a": 2, 'late, "quoted"\n': "x,\ny"})
        tune.report({"b": 3})

    (result,) = make_tuner(train).fit()
    rows = csv_rows(result)
    assert [row["a"] for row in rows] == ["1", "2", ""]
    assert [row['late, "quoted"\n'] for row in rows] == ["", "x,\ny", ""]
    assert rows[2]["b"] == "3"
    with open(Path(result.path, "progress.csv"), newline="") as file:
        assert len({len(row) for row in csv.reader(file)}) == 1


def test_error_files_tell_every_failure_and_hold_the_last_exception(make_tuner, tmp_path):
    def train(config):
        note(config, "diary", "x")
        raise KeyError(f"failure {len(lines(Path(config['dir'], 'diary')))}")

    config = tune.FailureConfig(max_failures=2)
    (result,) = make_tuner(train, {"dir": str(tmp_path)}, failure_config=config).fit()
    text = Path(result.path, "error.txt").read_text()
    assert [f"Failure # {n} (occurred at " in text for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert "failure 3" in text
    assert Path(__file__).name in text
    error = pickle.loads(Path(result.path, "error.pkl").read_bytes())
    assert isinstance(error, KeyError)
    assert error.args == ("failure 3",)


def test_classes_write_the_same_files(make_tuner):
    (result,) = make_tuner(Counter, {"steps": 3}).fit()
    assert [row["step"] for row in json_rows(result)] == [1, 2, 3]
    assert [row["done"] for row in json_rows(result)] == [False, False, True]
    assert [row["training_iteration"] for row in csv_rows(result)] == ["1", "2", "3"]
