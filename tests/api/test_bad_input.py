"""What cannot work is refused before anything starts, with a message that names it and the way out."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from api_trainables import count, noop
from experiment_tools import history

import holdfast as tune
from holdfast.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotSerializableError,
    StorageError,
    TuneError,
)


def nothing_was_made(storage: Path) -> bool:
    return not storage.exists() or not list(storage.iterdir())


# --- trainables


def test_a_trainable_is_needed(run_config, storage):
    with pytest.raises(TuneError, match="need to provide a trainable"):
        tune.Tuner(run_config=run_config())
    assert nothing_was_made(storage)


@pytest.mark.parametrize("trainable", [5, ["train"], object()])
def test_something_that_cannot_be_called_is_no_trainable(make_tuner, storage, trainable):
    with pytest.raises(TypeError, match="A trainable is a function"):
        make_tuner(trainable)
    assert nothing_was_made(storage)


def test_a_class_must_be_a_trainable(make_tuner):
    class Model:
        pass

    with pytest.raises(InvalidTypeError, match=r"Model is a class but not a subclass of tune\.Trainable"):
        make_tuner(Model)


def test_a_name_must_be_registered(make_tuner):
    tune.register_trainable("known_name", noop, warn=False)
    with pytest.raises(ValueError, match="known_name"):
        make_tuner("knwn_name")


@pytest.mark.parametrize(
    "trainable",
    [lambda: None, lambda config, data: None, lambda *, config: None, lambda config, *, data: None],
    ids=["none", "two", "keyword", "keyword-only"],
)
def test_a_function_must_take_exactly_the_config(make_tuner, storage, trainable):
    with pytest.raises(InvalidInputError, match="Unknown argument found in the Trainable function") as caught:
        make_tuner(trainable)
    assert "with_parameters" in str(caught.value)
    assert nothing_was_made(storage)


def test_an_unpicklable_trainable_is_explained(make_tuner, storage):
    lock = threading.Lock()

    def train(config):
        with lock:
            return {"score": 1}

    with pytest.raises(NotSerializableError, match="not serializable") as caught:
        make_tuner(train)
    assert isinstance(caught.value, TypeError)
    assert "closure variable 'lock'" in str(caught.value)
    assert nothing_was_made(storage)


def test_an_unpicklable_parameter_is_explained(make_tuner):
    def train(config, data):
        return {"score": 1}

    with pytest.raises(NotSerializableError, match="item 'data'"):
        make_tuner(tune.with_parameters(train, data=threading.Lock()))


def test_an_unpicklable_value_in_the_space_is_explained(make_tuner, storage):
    with pytest.raises(NotSerializableError, match="the value 'a/b' of the search space"):
        make_tuner(noop, {"a": {"b": threading.Lock()}})
    assert not tune.Tuner.can_restore(storage / "exp")


@pytest.mark.parametrize("where", ["stop", "callbacks", "trial_name_creator", "space"])
def test_unpicklable_settings_are_explained(make_tuner, storage, where):
    lock = threading.Lock()

    class Holds(tune.Callback):
        def __init__(self):
            self.lock = lock

    fields = {
        "stop": {"stop": lambda trial_id, result: lock.locked()},
        "callbacks": {"callbacks": [Holds()]},
        "trial_name_creator": {"trial_name_creator": lambda trial: str(lock)},
        "space": {"space": {"x": tune.sample_from(lambda config: lock.locked())}},
    }[where]
    with pytest.raises(NotSerializableError, match="not serializable") as caught:
        make_tuner(noop, **fields)
    assert "lock" in str(caught.value)
    assert where in str(caught.value)
    assert not tune.Tuner.can_restore(storage / "exp")


def test_a_huge_trainable_is_refused_with_a_hint(make_tuner, monkeypatch):
    monkeypatch.setattr("holdfast.trainable.pickling.MAX_TRAINABLE_BYTES", 100_000)
    data = b"x" * 200_000

    def train(config):
        return {"score": len(data)}

    with pytest.raises(TuneError, match=r"too large.*closure variable 'data'.*with_parameters"):
        make_tuner(train)


# --- spaces


@pytest.mark.parametrize("space", [[1, 2], "x", 5, {1, 2}])
def test_a_space_must_be_a_dict(make_tuner, storage, space):
    with pytest.raises(ValueError, match=rf"`param_space` must be a dict, got {type(space).__name__}"):
        make_tuner(noop, space)
    assert nothing_was_made(storage)


def test_an_object_with_to_dict_is_a_space(make_tuner):
    class Config:
        def to_dict(self):
            return {"x": tune.grid_search([1, 2])}

    assert [result.config["x"] for result in make_tuner(noop, Config()).fit()] == [1, 2]


def test_a_run_config_does_not_belong_in_the_space(make_tuner, run_config):
    with pytest.raises(ValueError, match=r"`run_config` cannot be part of `param_space`"):
        make_tuner(noop, {"run_config": run_config()})


def test_a_function_in_the_space_takes_at_most_one_argument(make_tuner):
    with pytest.raises(ValueError, match="sample_from"):
        make_tuner(noop, {"x": tune.sample_from(lambda one, two: 1)}).fit()


def test_functions_that_wait_for_each_other_are_refused(make_tuner, storage):
    space = {"a": tune.sample_from(lambda config: config["b"]), "b": tune.sample_from(lambda config: config["a"])}
    with pytest.raises(ValueError, match=r"'a'.*'b'|'b'.*'a'"):
        make_tuner(noop, space).fit()


def test_a_function_of_the_space_that_fails_is_named(make_tuner):
    with pytest.raises(ValueError, match=r"Failed to evaluate expression.*'x'|'x'.*Failed to evaluate expression"):
        make_tuner(noop, {"x": tune.sample_from(lambda config: 1 / 0)}).fit()


def test_an_unpicklable_value_that_a_function_made_is_explained(make_tuner):
    with pytest.raises(NotSerializableError, match=r"'x'.*not serializable"):
        make_tuner(noop, {"x": tune.sample_from(lambda config: threading.Lock())}).fit()


def test_strange_values_reach_the_trial_as_they_are(make_tuner, storage):
    values = {
        "huge": 2**100,
        "tiny": -(2**70),
        "keys": {1: "one", "two": 2},
        "tuple key": {"deep": {(1, 2): 3}},
        "surrogate": "lone surrogate \udc80",
        "bytes": b"bytes",
        "infinite": float("inf"),
        "empty key": {"": 1},
        "slash": {"a/b": 1},
        "marker": {"__object__": "x"},
        "empty": "",
        "long": "x" * 100_000,
        "list": ["a", ["b", [], {}]],
    }

    def train(config):
        return {key: ascii(value) for key, value in config.items()}

    (result,) = make_tuner(train, values).fit()
    assert result.status == "TERMINATED", result.error
    assert {key: result.metrics[key] for key in values} == {key: ascii(value) for key, value in values.items()}
    (again,) = tune.Tuner.restore(storage / "exp").get_results()
    assert result.config == again.config == values


def test_strange_values_may_be_drawn(make_tuner):
    space = {"x": tune.choice([2**80]), "y": tune.randint(2**70, 2**71), "z": tune.sample_from(lambda config: -(2**90))}
    (result,) = make_tuner(lambda config: {key: str(value) for key, value in config.items()}, space).fit()
    assert {key: result.metrics[key] for key in "xyz"} == {key: str(result.config[key]) for key in "xyz"}
    assert result.config["x"] == 2**80
    assert 2**70 <= result.config["y"] < 2**71


def test_keys_with_slashes_and_lists_may_hold_objects_made_by_functions(make_tuner):
    class Thing:
        def __init__(self, n):
            self.n = n

    def train(config):
        return {"n": [config["a/b"].n, config["list"][1].n, config["nest"]["x/y"][0].n]}

    space = {
        "a/b": tune.sample_from(lambda config: Thing(1)),
        "list": [0, tune.sample_from(lambda config: Thing(2))],
        "nest": {"x/y": [tune.sample_from(lambda config: Thing(3))]},
    }
    (result,) = make_tuner(train, space).fit()
    assert result.status == "TERMINATED", result.error
    assert result.metrics["n"] == [1, 2, 3]
    assert result.config["a/b"].n == 1


# --- configs


@pytest.mark.parametrize("name", ["tune_config", "run_config"])
@pytest.mark.parametrize("value", [{}, "x", tune.CheckpointConfig()])
def test_a_config_must_be_of_its_class(name, value, run_config):
    configs = {"run_config": run_config(), name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be a"):
        tune.Tuner(noop, **configs)


def test_an_unknown_searcher_is_refused(make_tuner):
    with pytest.raises(ValueError, match="search_alg"):
        make_tuner(noop, search_alg="magic")


def test_an_unknown_scheduler_is_refused(make_tuner):
    with pytest.raises(ValueError, match="scheduler"):
        make_tuner(noop, scheduler="magic")


@pytest.mark.parametrize(
    "stop",
    [5, "score", [lambda trial_id, result: True], {"deep": {"er": 1}}, {"score": "high"}, tune.Stopper, lambda x: x],
    ids=["number", "text", "list-of-functions", "nested", "text-bound", "class", "one-argument"],
)
def test_a_stop_rule_that_is_none_is_refused_at_once(make_tuner, storage, stop):
    with pytest.raises(ValueError, match=r"(?i)stop"):
        make_tuner(noop, stop=stop)
    assert nothing_was_made(storage)


def test_a_callable_with_stop_all_that_is_no_stopper_is_refused(make_tuner):
    class Almost:
        def __call__(self, trial_id, result):
            return False

        def stop_all(self):
            return False

    with pytest.raises(ValueError, match="stop_all"):
        make_tuner(noop, stop=Almost())


def test_a_wrong_environment_variable_is_named(make_tuner, storage, monkeypatch):
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", "many")
    with pytest.raises(ValueError, match="TUNE_RESTORE_RETRY_NUM"):
        make_tuner(noop)
    assert nothing_was_made(storage)


def test_a_progress_reporter_that_is_none_is_refused(make_tuner):
    with pytest.raises(TypeError, match="progress_reporter"):
        make_tuner(noop, progress_reporter=object()).fit()


# --- what this version does not have yet is refused, never silently left out


def test_an_unknown_kind_of_storage_is_refused(make_tuner):
    with pytest.raises(InvalidInputError, match=r"'swift://' is not known. Known are s3://"):
        make_tuner(noop, storage_path="swift://bucket/prefix")


def test_a_file_system_object_is_refused(make_tuner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="storage_filesystem"):
        make_tuner(noop, storage_path="bucket/prefix", storage_filesystem=object())
    with pytest.raises(InvalidInputError, match="storage_filesystem"):
        tune.Tuner.can_restore(tmp_path, storage_filesystem=object())
    with pytest.raises(InvalidInputError, match="storage_filesystem"):
        tune.Tuner.restore(tmp_path, storage_filesystem=object())


def test_another_engine_than_the_local_one_is_refused(make_tuner):
    with pytest.raises(InvalidInputError, match="engine"):
        make_tuner(noop, engine="ray")


# --- places


def test_a_file_in_the_place_of_the_storage_is_named(make_tuner, storage):
    storage.write_text("a file")
    with pytest.raises(StorageError, match="cannot be written at") as caught:
        make_tuner(noop)
    assert str(storage) in str(caught.value)
    assert "storage_path" in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert storage.read_text() == "a file"


def test_a_file_in_the_place_of_the_root_is_named(make_tuner, storage):
    storage.mkdir()
    (storage / "exp").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written at"):
        make_tuner(noop)
    assert (storage / "exp").read_text() == "a file"


def test_a_place_that_cannot_be_written_is_named(make_tuner):
    with pytest.raises(StorageError, match=r"cannot be written at /proc/here/exp"):
        make_tuner(noop, storage_path="/proc/here")


def test_a_root_that_was_removed_before_the_run_is_missed(make_tuner, storage):
    tuner = make_tuner(noop)
    shutil.rmtree(storage / "exp")
    with pytest.raises(TuneError, match="exp"):
        tuner.fit()
    assert not tune.Tuner.can_restore(storage / "exp")


# --- user code in the driver


def test_an_error_in_a_stop_rule_ends_the_run_and_loses_nothing(make_tuner, storage, tmp_path):
    def stop(trial_id, result):
        if result["step"] == 2 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ArithmeticError("in the stop rule")
        return False

    with pytest.raises(ArithmeticError, match="in the stop rule"):
        make_tuner(count, {"dir": str(tmp_path)}, stop=stop).fit()
    (result,) = tune.Tuner.restore(storage / "exp").fit()
    assert history(result, "step") == [1, 2, 3]


@pytest.mark.parametrize("creator", ["trial_name_creator", "trial_dirname_creator"])
def test_an_error_in_a_name_creator_ends_the_run(make_tuner, creator):
    def create(trial):
        raise ArithmeticError("no name")

    with pytest.raises(ArithmeticError, match="no name"):
        make_tuner(noop, **{creator: create}).fit()


def test_a_trainable_that_workers_cannot_import_is_an_error_without_retries(drivers, storage, tmp_path):
    module = tmp_path / "only_here.py"
    module.write_text("def train(config):\n    return {'score': 1}\n")
    driver = drivers.start(
        f"""
sys.path.insert(0, {str(tmp_path)!r})
import only_here
tuner = tune.Tuner(only_here.train, run_config=config(failure_config=tune.FailureConfig(max_failures=3)))
os.rename({str(module)!r}, {str(tmp_path / "gone.py")!r})
grid = tuner.fit()
print("error:", grid[0].error, [result.status for result in grid])
"""
    )
    code, output = driver.end()
    assert code == 0, output
    assert "only_here" in output
    (result,) = tune.Tuner.restore(storage / "exp", trainable=_train_of_the_same_name()).get_results()
    assert result.status == "ERROR"
    assert Path(result.path, "error.txt").read_text().count("Failure #") == 1


def _train_of_the_same_name():
    def train(config):
        return {"score": 1}

    return train
