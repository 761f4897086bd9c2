"""``Trainable`` without any experiment."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.config.resources import PlacementGroupFactory, with_parameters
from holdfast.errors import TuneError
from holdfast.trainable.class_checkpoint import COUNTERS_FILE
from holdfast.trainable.trainable import Trainable


class Count(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.x = 0

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x, "timesteps_this_iter": 10, "time_this_iter_s": 0.5}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x = checkpoint["x"]


class Files(Count):
    returned: Any = None

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        Path(checkpoint_dir, "x").write_text(str(self.x))
        return checkpoint_dir if self.returned == "same" else self.returned

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x = int(Path(checkpoint, "x").read_text())


def test_train_fills_the_automatic_keys() -> None:
    trainable = Count({"lr": 1})
    trainable.train()
    result = trainable.train()
    assert {key: result[key] for key in ("x", "training_iteration", "iterations_since_restore", "done")} == {
        "x": 2,
        "training_iteration": 2,
        "iterations_since_restore": 2,
        "done": False,
    }
    assert (result["time_this_iter_s"], result["time_total_s"], result["time_since_restore"]) == (0.5, 1.0, 1.0)
    assert (result["timesteps_total"], result["timesteps_since_restore"]) == (20, 20)
    assert "episodes_total" not in result
    assert (result["trial_id"], result["pid"], result["config"]) == ("default", os.getpid(), {"lr": 1})
    assert result["hostname"] == socket.gethostname()
    assert isinstance(result["timestamp"], int)
    assert len(result["date"]) == len("2024-01-02_03-04-05")
    assert result["node_ip"].count(".") == 3


def test_values_of_the_user_win_over_counters_and_lose_to_facts() -> None:
    class Own(Trainable):
        def step(self) -> dict[str, Any]:
            return {
                "training_iteration": 10,
                "timesteps_total": 5,
                "timesteps_this_iter": 1,
                "episodes_total": 6,
                "done": True,
                "pid": 1,
                "time_total_s": -1,
            }

    trainable = Own()
    result = trainable.train()
    kept = ("training_iteration", "timesteps_total", "episodes_total", "done")
    assert [result[key] for key in kept] == [10, 5, 6, True]
    assert result["pid"] == os.getpid()
    assert result["time_total_s"] >= 0
    assert trainable.iteration == 1


def test_the_config_is_copied_for_setup() -> None:
    class Spoiling(Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            config["list"].append(1)

    config: dict[str, Any] = {"list": []}
    assert Spoiling(config).get_config() == {"list": []}


def test_properties_outside_of_an_experiment() -> None:
    trainable = Count()
    assert (trainable.trial_id, trainable.trial_name, trainable.config) == ("default", "default", {})
    assert trainable.trial_resources == PlacementGroupFactory([{"CPU": 1}])
    assert os.path.isdir(trainable.logdir)
    assert trainable.logdir == trainable.logdir
    assert trainable.iteration == trainable.training_iteration == 0
    assert Trainable.default_resource_request({}) is None
    assert Trainable.resource_help({}) == ""
    assert trainable.get_state()["iteration"] == 0
    assert trainable.get_auto_filled_metrics()["trial_id"] == "default"
    os.rmdir(trainable.logdir)


def test_step_must_return_a_dict_and_exist() -> None:
    class Wrong(Trainable):
        def step(self) -> Any:
            return 1

    with pytest.raises(AssertionError, match=r"step\(\) needs to return a dict\."):
        Wrong().train()
    with pytest.raises(NotImplementedError, match=r"does not implement step\(\)"):
        Trainable().train()


def test_train_buffered_ends_at_its_limits_and_at_marked_results() -> None:
    class Marked(Count):
        def step(self) -> dict[str, Any]:
            return {**super().step(), self.config["mark"]: self.x == 3}

    assert len(Count().train_buffered(60, max_buffer_length=5)) == 5
    assert len(Count().train_buffered(0)) == 1
    for mark in ("done", "should_checkpoint", "__duplicate__"):
        assert [r["x"] for r in Marked({"mark": mark}).train_buffered(60)] == [1, 2, 3]


@pytest.mark.parametrize("how", ["path", "checkpoint", "result", "object"])
def test_a_dict_state_survives_save_and_restore(tmp_path: Path, how: str) -> None:
    trainable = Count()
    for _ in range(3):
        trainable.train()
    other = Count()
    if how == "object":
        other.restore_from_object(trainable.save_to_object())
    else:
        saved = trainable.save(str(tmp_path / "new" / "dir"))
        assert sorted(os.listdir(saved)) == [COUNTERS_FILE, "_dict_checkpoint.pkl"]
        assert saved.metrics["x"] == 3
        assert Checkpoint.from_directory(saved).to_dict() == {"x": 3}
        other.restore({"path": str(saved), "checkpoint": saved.checkpoint, "result": HasCheckpoint(saved)}[how])
    assert (other.x, other.iteration) == (3, 3)
    result = other.train()
    assert (result["training_iteration"], result["iterations_since_restore"]) == (4, 1)
    assert (result["time_total_s"], result["time_since_restore"]) == (2.0, 0.5)
    assert (result["timesteps_total"], result["timesteps_since_restore"]) == (40, 10)


class HasCheckpoint:
    def __init__(self, saved: Any) -> None:
        self.checkpoint = saved.checkpoint


@pytest.mark.parametrize("returned", [None, "same"])
def test_a_state_in_files_survives_save_and_restore(tmp_path: Path, returned: Any) -> None:
    trainable, other = Files(), Files()
    trainable.returned = returned
    trainable.train()
    saved = trainable.save(str(tmp_path))
    assert saved == str(tmp_path)
    other.restore(tmp_path)
    assert other.x == 1


def test_save_without_a_place_makes_a_new_directory_each_time() -> None:
    trainable = Count()
    first, second = trainable.save(), trainable.save()
    assert first != second
    assert os.path.dirname(first) == trainable.logdir
    trainable.delete_checkpoint(first)
    trainable.delete_checkpoint(second)
    os.rmdir(trainable.logdir)


def test_a_failed_save_leaves_no_directory() -> None:
    class Failing(Count):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            raise ValueError("no")

    trainable = Failing()
    with pytest.raises(ValueError, match="no"):
        trainable.save()
    os.rmdir(trainable.logdir)


@pytest.mark.parametrize("returned", ["/elsewhere", 5])
def test_save_checkpoint_must_return_what_it_was_given(tmp_path: Path, returned: Any) -> None:
    trainable = Files()
    trainable.returned = returned
    with pytest.raises(ValueError, match=r"save_checkpoint\(\) must return"):
        trainable.save(str(tmp_path))


def test_restoring_what_is_gone_names_the_path(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for source in (gone, str(gone), Checkpoint.from_directory(gone)):
        with pytest.raises(ValueError, match=f"does not exist on storage anymore: {gone}"):
            Count().restore(source)
    with pytest.raises(ValueError, match="needs a path, a Checkpoint or a result"):
        Count().restore(None)


def test_delete_checkpoint_deletes_only_what_save_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainable = Count()
    path = trainable.save(str(tmp_path / "c"))
    trainable.delete_checkpoint(path)
    assert not os.path.exists(path)
    trainable.delete_checkpoint(path)
    assert "does not exist" in caplog.text
    with pytest.raises(ValueError, match="is not deleted"):
        trainable.delete_checkpoint(str(tmp_path))


def old_class() -> Any:
    with pytest.warns(DeprecationWarning, match="older names keep working"):

        class Old(Trainable):
            calls: list[str] = []

            def _setup(self, config: dict[str, Any]) -> None:
                self.x, self.loaded = 0, None
                self.as_dict = config.get("as_dict", False)

            def _train(self) -> dict[str, Any]:
                self.x += 1
                return {"x": self.x}

            def _save(self, checkpoint_dir: str) -> Any:
                if self.as_dict:
                    return {"x": self.x}
                path = os.path.join(checkpoint_dir, self.config.get("sub", "sub"), "model")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                Path(path + ".data").write_text(str(self.x))
                return path

            def _restore(self, checkpoint: Any) -> None:
                self.loaded = checkpoint

            def _stop(self) -> None:
                self.calls.append("stop")

            def _log_result(self, result: dict[str, Any]) -> None:
                self.calls.append(f"log {result['x']}")

    return Old


def test_the_older_names_work(tmp_path: Path) -> None:
    trainable = old_class()()
    trainable.train()
    trainable.stop()
    assert trainable.calls == ["log 1", "stop"]
    saved = trainable.save(str(tmp_path / "a"))
    assert saved == str(tmp_path / "a" / "sub" / "model")
    trainable.restore(saved)
    assert trainable.loaded == saved
    (tmp_path / "a").rename(tmp_path / "b")
    trainable.restore(str(tmp_path / "b"))
    assert trainable.loaded == str(tmp_path / "b" / "sub" / "model")
    assert trainable.iteration == 1


def test_older_dict_states_come_back_with_their_path(tmp_path: Path) -> None:
    trainable = old_class()({"as_dict": True})
    saved = trainable.save(str(tmp_path))
    trainable.restore(saved)
    assert trainable.loaded == {"x": 0, "tune_checkpoint_path": str(tmp_path)}


def test_an_older_path_outside_of_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must return a path inside the directory"):
        old_class()({"sub": str(tmp_path / "out")}).save(str(tmp_path / "in"))


@pytest.mark.parametrize("as_dict", [True, False])
def test_checkpoints_of_old_ray_versions_can_be_read(tmp_path: Path, as_dict: bool) -> None:
    facts = {"iteration": 4, "timesteps_total": None, "time_total": 2.0, "episodes_total": None}
    (tmp_path / "model.tune_metadata").write_bytes(pickle.dumps({**facts, "saved_as_dict": as_dict}))
    (tmp_path / "model").write_bytes(pickle.dumps({"x": 4}))
    for path in (tmp_path, tmp_path / "model"):
        trainable = old_class()()
        trainable.restore(path)
        assert trainable.iteration == 4
        expected = {"x": 4, "tune_checkpoint_path": str(path)} if as_dict else str(tmp_path / "model")
        assert trainable.loaded == expected


def test_reset_starts_counting_anew() -> None:
    class Resettable(Count):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.x = new_config["x"]
            return new_config["x"] >= 0

    trainable = Resettable({"x": 0})
    trainable.train()
    assert trainable.reset({"x": 5}) is True
    assert (trainable.config, trainable.iteration, trainable.train()["x"]) == ({"x": 5}, 1 - 1, 6)
    assert trainable.reset({"x": -1}) is False
    assert Count().reset({}) is False


def test_a_logger_of_the_older_kind_gets_results_and_is_closed(tmp_path: Path) -> None:
    class Logger:
        logdir = str(tmp_path)
        calls: list[Any] = []

        def on_result(self, result: dict[str, Any]) -> None:
            self.calls.append(result["x"])

        def close(self) -> None:
            self.calls.append("closed")

    trainable = Count({}, lambda config: Logger())
    trainable.train()
    trainable.stop()
    assert Logger.calls == [1, "closed"]


def test_export_model_checks_formats(tmp_path: Path) -> None:
    class Exporting(Count):
        def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
            return {name: f"{export_dir}/{name}" for name in export_formats}

    assert Exporting().export_model("ONNX", "/d") == {"onnx": "/d/onnx"}
    assert Count().export_model(["model", "h5"], "/d") == {}
    with pytest.raises(TuneError, match="Unsupported import/export format 'zip'"):
        Count().export_model(["zip"])


def test_parameters_reach_setup() -> None:
    class WithData(Trainable):
        def setup(self, config: dict[str, Any], data: Any) -> None:
            self.data = data

    assert with_parameters(WithData, data=5)().data == 5  # type: ignore[call-arg]
