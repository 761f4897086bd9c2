"""Function trainables in a worker: what they save, and what they start from."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_wire import TIMEOUT_S, Driver, kinds, metrics, three_reports, until

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.core.observations import Returned, Stopped, Waiting
from holdfast.trainable import session
from holdfast.trainable.api import (
    checkpoint_dir,
    get_checkpoint,
    report,
    should_checkpoint,
)
from holdfast.trainable.worker_messages import Quit, SaveRequest

Start = Callable[..., Driver]


def test_a_reported_directory_is_copied_and_stays_the_users(driver: Start, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "w").write_text("1")

    def train(config: dict[str, Any]) -> None:
        report({"a": 1}, checkpoint=Checkpoint.from_directory(mine))
        (mine / "w").write_text("2")

    worker = driver(train)
    sealed = worker.attempt()[0].sealed
    assert (sealed.files, sealed.bytes) == (1, 1)
    assert (worker.root / "trial_0" / sealed.name / "w").read_text() == "1"
    assert (mine / "w").read_text() == "2"


def test_a_directory_of_ours_is_moved_not_copied(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        with checkpoint_dir() as path:
            Path(path, "w").write_text("x")
            inode = os.stat(f"{path}/w").st_ino
        report({"inode": inode}, checkpoint=Checkpoint.from_directory(path))
        with checkpoint_dir(step=2) as path:
            Path(path, "w").write_text("y")
            report({"inside": 1}, checkpoint=Checkpoint.from_directory(path))
        report({"none": 1})

    worker = driver(train)
    first, second, third, _ = worker.attempt()
    assert (worker.root / "trial_0" / first.sealed.name / "w").stat().st_ino == first.metrics["inode"]
    assert (worker.root / "trial_0" / second.sealed.name / "w").read_text() == "y"
    assert third.sealed is None


def test_a_filled_directory_belongs_to_the_next_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        with checkpoint_dir(step=1) as path:
            Path(path, "w").write_text("x")
        report(loss=1)
        with checkpoint_dir(step=2):
            pass
        report(loss=2)

    messages = driver(train).attempt()
    assert [message.sealed is not None for message in messages[:2]] == [True, False]


def test_what_was_not_reported_leaves_nothing_behind(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        with checkpoint_dir() as path:
            Path(path, "a").write_text("x")
        with checkpoint_dir() as path:
            Path(path, "b").write_text("x")
        try:
            with checkpoint_dir() as path:
                Path(path, "c").write_text("x")
                raise KeyError
        except KeyError:
            pass

    worker = driver(train)
    worker.attempt()
    assert os.listdir(worker.root / "trial_0") == []


def test_a_directory_cannot_be_reported_twice(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        with checkpoint_dir() as path:
            Path(path, "a").write_text("x")
        for _ in range(2):
            report({}, checkpoint=Checkpoint.from_directory(path))

    end = driver(train).attempt()[-1]
    assert "was already reported" in end.error.message


def test_a_checkpoint_that_vanished_is_a_clear_error(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as path:
            checkpoint = Checkpoint.from_directory(path)
        report({"a": 1}, checkpoint=checkpoint)

    (end,) = driver(train).attempt()
    assert end.error.type == "InvalidInputError"
    assert "does not exist" in end.error.message


def test_something_else_than_a_checkpoint_is_refused(driver: Start) -> None:
    (end,) = driver(lambda config: report({}, checkpoint="/tmp")).attempt()
    assert "needs a Checkpoint, got str" in end.error.message


def test_dict_checkpoints_are_captured_when_reported(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        state = {"w": [1]}
        checkpoint = Checkpoint.from_dict(state)
        state["w"].append(2)
        report({}, checkpoint=checkpoint)

    worker = driver(train)
    sealed = worker.attempt()[0].sealed
    assert Checkpoint.from_directory(worker.root / "trial_0" / sealed.name).to_dict() == {"w": [1]}


def test_get_checkpoint_is_where_the_attempt_starts_from(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        checkpoint = get_checkpoint()
        return {"path": checkpoint.path if checkpoint else None}

    worker = driver(train)
    (worker.root / "trial_0" / "checkpoint_000003").mkdir(parents=True)
    assert metrics(worker.attempt()) == [{"path": None}]
    (found,) = metrics(worker.attempt(checkpoint="trial_0/checkpoint_000003"))
    assert found["path"] == str(worker.root / "trial_0" / "checkpoint_000003")


def fail_to_save(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    from holdfast.checkpoints.stage import Stage
    from holdfast.errors import StorageFullError

    real, left = Stage.seal, [times]

    def seal(self: Stage, path: Any, *more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StorageFullError("no space left on /disk")
        return real(self, path, *more)

    monkeypatch.setattr(Stage, "seal", seal)
    monkeypatch.setattr(session, "RETRY_S", 0.01)


def saves(config: dict[str, Any]) -> None:
    with checkpoint_dir() as path:
        Path(path, "w").write_text("x")
    report({"a": 1}, checkpoint=Checkpoint.from_directory(path))


def test_a_full_disk_is_waited_for_and_training_never_sees_it(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_save(monkeypatch, times=3)
    messages = driver(saves).attempt()
    assert kinds(messages) == ["Waiting", "Waiting", "Report", "Returned"]
    assert "no space left on /disk" in messages[0].text
    assert messages[1].text == ""
    assert messages[2].sealed.files == 1


def test_a_full_disk_of_a_node_is_named(driver: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fail_to_save(monkeypatch, times=1)
    first = driver(saves, scratch=str(tmp_path)).attempt()[0].text  # the root is inside
    host = os.uname().nodename
    assert first.startswith(f"waiting for space to save a checkpoint in {tmp_path} on {host}: no space left")


@pytest.mark.parametrize("how", ["quit", "gone"])
def test_waiting_for_space_ends_with_the_driver(driver: Start, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    fail_to_save(monkeypatch, times=10**9)
    worker = driver(saves)
    worker.launch()
    assert isinstance(worker.next(), Waiting)
    if how == "quit":
        worker.send(Quit())
        assert isinstance(worker.next(), Stopped)
    else:
        worker.sock.shutdown(socket.SHUT_RDWR)
    worker.thread.join(TIMEOUT_S)
    assert not worker.thread.is_alive()


def test_a_driver_that_is_gone_unwinds_the_training(driver: Start, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def train(config: dict[str, Any]) -> None:
        try:
            report({"a": 1})
        except BaseException as error:
            seen.write_text(type(error).__name__)
            raise

    worker = driver(train)
    worker.launch()
    worker.next()
    worker.sock.shutdown(socket.SHUT_RDWR)
    worker.thread.join(TIMEOUT_S)
    assert not worker.thread.is_alive()
    assert seen.read_text() == "DriverGone"


def test_should_checkpoint_turns_true_until_a_checkpoint_was_reported(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report({"soon": should_checkpoint()})
        until(should_checkpoint, "SaveRequest")
        report({"soon": should_checkpoint()})
        report({"soon": should_checkpoint()}, checkpoint=Checkpoint.from_dict({}))
        report({"soon": should_checkpoint()})

    worker = driver(train)
    worker.launch()
    worker.next()
    worker.decide(1)
    worker.send(SaveRequest())
    messages = worker.play()
    assert [m["soon"] for m in metrics(worker.seen)] == [False, True, True, False]
    assert isinstance(messages[-1], Returned)


def test_quit_during_an_attempt_ends_the_worker(driver: Start) -> None:
    worker = driver(three_reports)
    worker.launch({"x": 1})
    worker.next()
    worker.send(Quit())
    assert isinstance(worker.next(), Stopped)
    worker.thread.join(TIMEOUT_S)
    assert not worker.thread.is_alive()


def test_late_messages_between_attempts_are_ignored(driver: Start) -> None:
    worker = driver(three_reports)
    worker.attempt({"x": 1})
    worker.decide(3)
    worker.send(SaveRequest())
    assert kinds(worker.attempt({"x": 1}, n=1)) == ["Report"] * 3 + ["Returned"]
