"""Class trainables, run by a real worker loop over a real socket."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_wire import TIMEOUT_S, Driver, kinds, metrics

from holdfast.config.resources import with_parameters
from holdfast.core.observations import Raised, Returned, Saved, Stopped
from holdfast.trainable import session
from holdfast.trainable import trainable as trainable_module
from holdfast.trainable.api import report
from holdfast.trainable.class_checkpoint import COUNTERS_FILE
from holdfast.trainable.trainable import Trainable
from holdfast.trainable.worker_messages import SaveRequest

Start = Callable[..., Driver]


class Count(Trainable):
    """Counts up; ``config["log"]`` names a file in which it tells what was called."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x = config.get("x", 0)
        self.until = config.get("until", 3)
        self.log(f"setup {self.trial_id}")

    def log(self, line: str) -> None:
        if "log" in self.config:
            with open(self.config["log"], "a") as file:
                file.write(line + "\n")

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x, "done": self.x >= self.until}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        self.log(f"save {self.x}")
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.x = checkpoint["x"]

    def cleanup(self) -> None:
        self.log("cleanup")


class Resettable(Count):
    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.log("reset")
        self.x = new_config.get("x", 0)
        return True


def saved_state(worker: Driver, name: str) -> Any:
    with open(worker.root / "trial_0" / name / "_dict_checkpoint.pkl", "rb") as file:
        return pickle.load(file)


def test_a_class_runs_until_it_is_done(driver: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    messages = driver(Count).attempt({"log": str(log)})
    assert kinds(messages) == ["Report", "Report", "Report", "Returned"]
    assert metrics(messages) == [{"x": 1, "done": False}, {"x": 2, "done": False}, {"x": 3, "done": True}]
    assert log.read_text().split("\n")[:2] == ["setup id_0", "cleanup"]


def test_done_is_returned_even_if_the_driver_says_stop(driver: Start) -> None:
    worker = driver(Count)
    worker.launch()
    assert isinstance(worker.play(stop_at=3)[-1], Returned)


def test_only_the_users_metrics_and_overrides_are_sent(driver: Start) -> None:
    class Full(Trainable):
        def step(self) -> dict[str, Any]:
            return {
                "loss": np.float32(0.5),
                "timesteps_this_iter": 5,
                "episodes_this_iter": 1,
                "pid": "mine",
                "done": True,
            }

    class Overriding(Trainable):
        def step(self) -> dict[str, Any]:
            return {
                "training_iteration": 10,
                "timesteps_total": 7,
                "episodes_total": 8,
                "timestamp": 5,
                "time_this_iter_s": 2.5,
                "done": True,
            }

    (sent,) = metrics(driver(Full).attempt())
    assert sent == {"loss": 0.5, "timesteps_this_iter": 5, "episodes_this_iter": 1, "done": True}
    report_message, _ = driver(Overriding).attempt()
    assert report_message.metrics == {
        "training_iteration": 10,
        "timesteps_total": 7,
        "episodes_total": 8,
        "timestamp": 5,
        "time_this_iter_s": 2.5,
        "done": True,
    }
    assert report_message.dt == 2.5


def test_a_train_method_of_the_users_own_is_honoured(driver: Start) -> None:
    class Extending(Count):
        def train(self) -> dict[str, Any]:
            result = super().train()
            result["extra"] = 1
            return result

    class Replacing(Trainable):
        def train(self) -> dict[str, Any]:
            return {"loss": 1, "training_iteration": 4, "done": True, "hostname": "h"}

    assert metrics(driver(Extending).attempt({"until": 1})) == [{"x": 1, "done": True, "extra": 1}]
    assert metrics(driver(Replacing).attempt()) == [{"loss": 1, "training_iteration": 4, "done": True}]


def test_checkpoints_come_with_the_reports_they_belong_to(driver: Start) -> None:
    worker = driver(Count, checkpoint_frequency=2, checkpoint_at_end=True)
    messages = worker.attempt({"until": 5})
    assert [message.sealed is not None for message in messages[:-1]] == [False, True, False, True, True]
    assert [saved_state(worker, m.sealed.name) for m in messages[:-1] if m.sealed] == [{"x": 2}, {"x": 4}, {"x": 5}]


def test_should_checkpoint_in_a_result_saves(driver: Start) -> None:
    class Wanting(Count):
        def step(self) -> dict[str, Any]:
            return {**super().step(), "should_checkpoint": self.x == 1}

    messages = driver(Wanting).attempt()
    assert [message.sealed is not None for message in messages[:-1]] == [True, False, False]


def test_checkpoints_are_written_straight_into_their_stage(driver: Start) -> None:
    class Writing(Count):
        def save_checkpoint(self, checkpoint_dir: str) -> str:
            Path(checkpoint_dir, "place").write_text(checkpoint_dir)
            return checkpoint_dir

    worker = driver(Writing, checkpoint_frequency=1)
    sealed = worker.attempt({"until": 1})[0].sealed
    place = Path((worker.root / "trial_0" / sealed.name / "place").read_text())
    assert place.parent == worker.root / "trial_0"
    assert not place.exists()


def test_a_stop_saves_at_the_end_then_cleans_up(driver: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = driver(Count, checkpoint_at_end=True)
    worker.launch({"until": 9, "log": str(log)})
    messages = worker.play(stop_at=2)
    assert kinds(messages) == ["Report", "Report", "Saved", "Stopped"]
    assert saved_state(worker, messages[2].sealed.name) == {"x": 2}
    assert log.read_text().split() == ["setup", "id_0", "save", "2", "cleanup"]


def test_a_stop_does_not_save_twice_what_was_just_saved(driver: Start) -> None:
    worker = driver(Count, checkpoint_at_end=True, checkpoint_frequency=2)
    worker.launch({"until": 9})
    assert kinds(worker.play(stop_at=2)) == ["Report", "Report", "Stopped"]


@pytest.mark.parametrize(("go", "end"), [("go", Returned), ("pause", Stopped), ("stop", Stopped)])
def test_a_decision_can_ask_for_a_checkpoint(driver: Start, go: str, end: type) -> None:
    worker = driver(Count)
    worker.launch()
    messages = worker.play(stop_at=1, go=go, save=True)
    assert kinds(messages)[:2] == ["Report", "Saved"]
    assert saved_state(worker, messages[1].sealed.name) == {"x": 1}
    assert isinstance(messages[-1], end)


def test_save_soon_saves_at_the_next_boundary_and_trains_no_step_more(driver: Start) -> None:
    """The driver ends; a step after its last checkpoint would be trained once more by the next attempt."""
    worker = driver(Count)
    worker.launch({"until": 4})
    worker.next()
    worker.send(SaveRequest())
    worker.decide(1)
    messages = worker.play()
    assert kinds(messages) == ["Saved", "Stopped"]
    assert saved_state(worker, messages[0].sealed.name) == {"x": 1}


def test_a_saved_checkpoint_names_the_report_that_it_belongs_to_however_often_it_was_begun(
    driver: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "RETRY_S", 0.0)
    tried = tmp_path / "tried"

    class NoSpaceAtFirst(Count):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            if not tried.exists():
                tried.touch()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().save_checkpoint(checkpoint_dir)

    worker = driver(NoSpaceAtFirst)
    worker.launch({"until": 4})
    messages = worker.play(stop_at=2, go="go", save=True)
    assert kinds(messages)[:5] == ["Report", "Report", "Waiting", "Waiting", "Saved"]
    assert messages[4].ordinal == 2
    assert saved_state(worker, messages[4].sealed.name) == {"x": 2}


def test_a_class_that_cannot_save_says_so_once_instead_of_failing(driver: Start) -> None:
    class Forgetful(Trainable):
        def step(self) -> dict[str, Any]:
            return {"a": 1, "done": self.iteration == 2}

    worker = driver(Forgetful, checkpoint_at_end=True)
    worker.launch()
    messages = worker.play(stop_at=1, go="go", save=True)
    assert kinds(messages) == ["Report", "Saved", "Report", "Report", "Returned"]
    assert messages[1] == Saved(0, 1, 7, None, 1)
    (hint,) = worker.hints
    assert f"{__file__}:" in hint
    assert "Forgetful does not implement save_checkpoint(), so its trials start from scratch" in hint


def test_a_frequency_without_save_checkpoint_is_an_error(driver: Start) -> None:
    class Forgetful(Trainable):
        def step(self) -> dict[str, Any]:
            return {"a": 1}

    (end,) = driver(Forgetful, checkpoint_frequency=1).attempt()
    assert "does not implement save_checkpoint()" in end.error.message


def test_a_restored_class_goes_on_where_the_driver_says(driver: Start) -> None:
    class Telling(Count):
        def step(self) -> dict[str, Any]:
            before = self.iteration, self._time_total, self._timesteps_total, self._episodes_total
            return {**super().step(), "before": before, "timesteps_this_iter": 1}

    worker = driver(Telling, checkpoint_frequency=1)
    sealed = worker.attempt({"until": 1})[0].sealed
    (worker.root / "trial_0" / sealed.name).rename(worker.root / "trial_0" / "checkpoint_000000")
    first, *_ = worker.attempt(
        {"until": 2},
        attempt=2,
        checkpoint="trial_0/checkpoint_000000",
        iteration=5,
        time_total=2.5,
        timesteps_total=7,
    )
    assert first.metrics["x"] == 2
    assert first.metrics["before"] == [5, 2.5, 7, None]


def test_a_failure_to_load_is_marked_as_such(driver: Start) -> None:
    class Broken(Count):
        def load_checkpoint(self, checkpoint: Any) -> None:
            raise RuntimeError("shape mismatch")

    worker = driver(Broken)
    (end,) = worker.attempt(checkpoint="trial_0/checkpoint_000000")
    assert end.restoring
    assert "does not exist on storage anymore" in end.error.message
    (worker.root / "trial_0" / "checkpoint_000000").mkdir()
    (end,) = worker.attempt(checkpoint="trial_0/checkpoint_000000")
    assert end.restoring
    assert end.error.message == "shape mismatch"
    assert end.error.location == f"{__file__}:{Broken.load_checkpoint.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("where", ["setup", "step", "save_checkpoint", "cleanup"])
def test_exceptions_in_every_method_are_told(driver: Start, where: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Count):
        pass

    def fail(self: Any, *args: Any) -> None:
        raise ArithmeticError(where)

    setattr(Failing, where, fail)
    messages = driver(Failing, checkpoint_at_end=True).attempt({"until": 1})
    if where == "cleanup":
        assert isinstance(messages[-1], Returned)
        assert "cleanup() of Failing failed" in caplog.text
    else:
        assert isinstance(messages[-1], Raised)
        assert messages[-1].error.type == "ArithmeticError"
        assert not messages[-1].final


def test_a_step_that_returns_no_dict_is_an_error(driver: Start) -> None:
    class Wrong(Trainable):
        def step(self) -> Any:
            return 5

    (end,) = driver(Wrong).attempt()
    assert "step() needs to return a dict." in end.error.message


def test_a_failed_trial_is_cleaned_up(driver: Start, tmp_path: Path) -> None:
    class Failing(Count):
        def step(self) -> dict[str, Any]:
            raise ValueError

    log = tmp_path / "log"
    driver(Failing).attempt({"log": str(log)})
    assert log.read_text().split() == ["setup", "id_0", "cleanup"]


def test_a_full_disk_in_save_checkpoint_is_waited_for(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RETRY_S", 0.01)

    class Full(Count):
        tries = 0

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            self.tries += 1
            if self.tries < 3:
                Path(checkpoint_dir, "half").write_text("x")
                try:
                    raise OSError(errno.ENOSPC, "No space left on device")
                except OSError:
                    raise RuntimeError("unexpected pos") from None
            return {"tries": self.tries}

    worker = driver(Full, checkpoint_frequency=1)
    messages = worker.attempt({"until": 1})
    assert kinds(messages) == ["Waiting", "Waiting", "Report", "Returned"]
    assert saved_state(worker, messages[2].sealed.name) == {"tries": 3}
    assert sorted(os.listdir(worker.root / "trial_0")) == [messages[2].sealed.name]


def test_instances_are_used_again_if_they_can_be_reset(driver: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = driver(Resettable, reuse_instances=True)
    assert metrics(worker.attempt({"until": 1, "log": str(log)}, n=0)) == [{"x": 1, "done": True}]
    second = worker.attempt({"until": 9, "x": 5, "log": str(log)}, n=1)
    assert metrics(second) == [{"x": 6, "done": True}]
    assert log.read_text().split("\n")[:-1] == ["setup id_0", "reset"]
    worker.close()
    assert log.read_text().split("\n")[:-1] == ["setup id_0", "reset", "cleanup"]


def test_a_refused_reset_is_final(driver: Start) -> None:
    worker = driver(Count, reuse_instances=True)
    worker.attempt()
    (end,) = worker.attempt(n=1)
    assert isinstance(end, Raised)
    assert end.final
    assert "reset_config() to be implemented and return True" in end.error.message
    assert isinstance(worker.attempt(n=2)[-1], Returned)  # a new instance


def test_an_instance_that_failed_is_not_used_again(driver: Start, tmp_path: Path) -> None:
    class Failing(Resettable):
        def step(self) -> dict[str, Any]:
            if self.config.get("fail"):
                raise ValueError
            return super().step()

    log = tmp_path / "log"
    worker = driver(Failing, reuse_instances=True)
    worker.attempt({"fail": True, "log": str(log)}, n=0)
    worker.attempt({"log": str(log)}, n=1)
    assert log.read_text().split("\n")[:-1] == ["setup id_0", "cleanup", "setup id_1"]


def test_a_slow_setup_gets_a_hint_once(
    driver: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainable_module, "SLOW_SETUP_S", -1.0)
    monkeypatch.setattr(trainable_module, "_hinted", False)
    worker = driver(Count)
    with caplog.at_level(logging.WARNING, "holdfast"):
        worker.attempt(n=0)
        worker.attempt(n=1)
    assert sum("reuse_actors=True" in text for text in caplog.messages) == 1


def test_parameters_reach_setup(driver: Start) -> None:
    class WithData(Trainable):
        def setup(self, config: dict[str, Any], data: list[int]) -> None:
            self.data = data

        def step(self) -> dict[str, Any]:
            return {"sum": sum(self.data), "done": True}

    assert metrics(driver(with_parameters(WithData, data=[1, 2])).attempt()) == [{"sum": 3, "done": True}]


def test_instances_know_their_trial(driver: Start) -> None:
    class Knowing(Trainable):
        def step(self) -> dict[str, Any]:
            return {
                "id": self.trial_id,
                "name": self.trial_name,
                "dir": self.logdir,
                "resources": self.trial_resources.required_resources,
                "done": True,
            }

    worker = driver(Knowing)
    (known,) = metrics(worker.attempt(n=2, resources={"CPU": 2.0}))
    assert known == {
        "id": "id_2",
        "name": "name_2",
        "dir": str(worker.root / "trial_2"),
        "resources": {"CPU": 2.0},
        "done": True,
    }


def test_report_inside_a_class_is_refused(driver: Start) -> None:
    class Confused(Trainable):
        def step(self) -> dict[str, Any]:
            report({"a": 1})
            return {}

    (end,) = driver(Confused).attempt()
    assert "return the metrics from step()" in end.error.message


def test_the_older_method_names_work_with_a_prefix_that_moves(driver: Start) -> None:
    with pytest.warns(DeprecationWarning, match="now: step"):

        class Old(Trainable):
            def _setup(self, config: dict[str, Any]) -> None:
                self.x = 0
                self.seen = ""

            def _train(self) -> dict[str, Any]:
                self.x += 1
                return {"x": self.x, "seen": self.seen, "done": True}

            def _save(self, checkpoint_dir: str) -> str:
                prefix = os.path.join(checkpoint_dir, f"model-{self.x}")
                Path(prefix + ".index").write_text(str(self.x))
                return prefix

            def _restore(self, path: str) -> None:
                self.x = int(Path(path + ".index").read_text())
                self.seen = path

    worker = driver(Old, checkpoint_frequency=1)
    sealed = worker.attempt()[0].sealed
    moved = worker.root / "trial_0" / "checkpoint_000000"
    (worker.root / "trial_0" / sealed.name).rename(moved)
    assert json.loads((moved / COUNTERS_FILE).read_text())["path"] == "model-1"
    (result,) = metrics(worker.attempt(checkpoint="trial_0/checkpoint_000000", iteration=1))
    assert result == {"x": 2, "seen": f"{moved}/model-1", "done": True}


def test_a_class_whose_driver_is_gone_cleans_up_and_leaves(driver: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = driver(Count)
    worker.launch({"until": 10**9, "log": str(log)})
    worker.next()
    worker.sock.shutdown(socket.SHUT_RDWR)
    worker.thread.join(TIMEOUT_S)
    assert not worker.thread.is_alive()
    assert log.read_text().split("\n")[:-1] == ["setup id_0", "cleanup"]
