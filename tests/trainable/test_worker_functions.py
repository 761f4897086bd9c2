"""Function trainables, run by a real worker loop over a real socket."""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_wire import TIMEOUT_S, Driver, kinds, metrics

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.core.observations import Raised, Report, Returned, Stopped, Waiting
from holdfast.resources import PlacementGroupFactory, with_parameters
from holdfast.trainable import session
from holdfast.trainable.inside import (
    checkpoint_dir,
    get_checkpoint,
    get_context,
    report,
    should_checkpoint,
)
from holdfast.trainable.messages import Quit, SaveSoon

Start = Callable[..., Driver]


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.01)


def three_reports(config: dict[str, Any]) -> None:
    for i in range(3):
        report({"loss": config["x"] - i})


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_function_reports_and_returns(driver: Start) -> None:
    messages = driver(three_reports).attempt({"x": 10}, n=4, attempt=2)
    assert kinds(messages) == ["Report", "Report", "Report", "Returned"]
    assert metrics(messages) == [{"loss": 10}, {"loss": 9}, {"loss": 8}]
    assert [message.ordinal for message in messages[:3]] == [1, 2, 3]
    assert {(message.n, message.attempt, message.worker) for message in messages} == {(4, 2, 7)}
    assert all(message.dt >= 0 for message in messages[:3])


def test_report_returns_only_after_its_own_decision(driver: Start) -> None:
    worker = driver(three_reports)
    worker.launch({"x": 1})
    first = worker.next()
    worker.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        worker.next()
    worker.sock.settimeout(TIMEOUT_S)
    worker.decide(99)  # an answer to nothing
    worker.decide(first.ordinal)
    assert worker.next().ordinal == 2
    worker.decide(2)
    worker.play()


def test_stop_runs_finally_blocks_and_later_reports_raise_again(driver: Start, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def train(config: dict[str, Any]) -> None:
        try:
            for i in range(10):
                try:
                    report({"i": i})
                except Exception:
                    raise AssertionError("a stop must not look like an error") from None
        finally:
            try:
                report({"late": 1})
            except BaseException as error:
                seen.write_text(type(error).__name__)

    worker = driver(train)
    worker.launch()
    messages = worker.play(stop_at=2)
    assert kinds(messages) == ["Report", "Report", "Stopped"]
    assert seen.read_text() == "TrialStopped"


def test_pause_unwinds_too(driver: Start) -> None:
    worker = driver(three_reports)
    worker.launch({"x": 1})
    assert kinds(worker.play(stop_at=1, go="pause")) == ["Report", "Stopped"]


def test_a_function_that_swallows_the_stop_is_still_stopped(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        for i in range(3):
            try:
                report({"i": i})
            except BaseException:
                pass
        return {}

    worker = driver(train)
    worker.launch()
    assert kinds(worker.play(stop_at=1)) == ["Report", "Stopped"]


def test_older_spellings_of_report_are_accepted(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report(loss=0.5, acc=1)
        report({"a": 1}, b=2)
        report(0.25)
        report()

    reported = metrics(driver(train).attempt())
    assert reported == [{"loss": 0.5, "acc": 1}, {"a": 1, "b": 2}, {"_metric": 0.25}, {}]


def test_user_keys_pass_and_done_becomes_a_boolean(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report({"training_iteration": 5, "timesteps_total": 9, "done": np.bool_(False)})
        report({"time_this_iter_s": 2.5})

    messages = driver(train).attempt()
    assert metrics(messages)[0] == {"training_iteration": 5, "timesteps_total": 9, "done": False}
    assert messages[1].dt == 2.5


def test_bad_metrics_raise_in_the_training_and_use_up_no_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        for bad in ([1], {1: 2}, {"big": "x" * (70 * 1024 * 1024)}):
            try:
                report(bad)
            except (TypeError, ValueError) as error:
                report({"refused": str(error)[:60]})

    messages = driver(train).attempt()
    texts = [m["refused"] for m in metrics(messages)]
    assert ["needs a dict" in texts[0], "must be strings" in texts[1], "larger than the limit" in texts[2]] == [
        True
    ] * 3
    assert [message.ordinal for message in messages[:-1]] == [1, 2, 3]


def test_threads_of_the_trial_may_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        threads = [threading.Thread(target=lambda i=i: report({"i": i})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    messages = driver(train).attempt()
    assert sorted(m["i"] for m in metrics(messages)) == list(range(8))
    assert [message.ordinal for message in messages[:-1]] == list(range(1, 9))


def test_a_thread_left_by_an_earlier_trial_cannot_report_into_the_next(driver: Start, tmp_path: Path) -> None:
    done = tmp_path / "done"

    def train(config: dict[str, Any]) -> dict[str, Any] | None:
        if config["first"]:

            def linger() -> None:
                until(lambda: session.current() is not None and session.current().run.n == 1, "second trial")
                try:
                    report({"stray": 1})
                except Exception as error:
                    done.write_text(str(error))

            threading.Thread(target=linger, daemon=True, name="stray").start()
            return None
        until(done.exists, "the stray thread")
        return {"own": 1}

    worker = driver(train)
    worker.attempt({"first": True}, n=0)
    assert metrics(worker.attempt({"first": False}, n=1)) == [{"own": 1}]
    assert "thread 'stray', which an earlier trial" in done.read_text()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_cannot_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                report({"child": 1})
            except BaseException as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.wait()
        report({"said": os.read(read, 1000).decode()})

    (reported,) = metrics(driver(train).attempt())
    assert "which trial id_0 forked" in reported["said"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_that_returns_from_the_trainable_says_nothing(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        if os.fork() == 0:
            return
        os.wait()
        report({"parent": 1})

    assert kinds(driver(train).attempt()) == ["Report", "Returned"]


def test_a_report_inside_a_report_is_refused(driver: Start) -> None:
    """A signal handler can run while the main thread waits in ``report``."""

    def train(config: dict[str, Any]) -> None:
        channel = session.current()._channel
        real = channel.receive

        def handler() -> Any:
            channel.receive = real
            try:
                report({"inner": 1})
            except Exception as error:
                channel.said = str(error)
            return real()

        channel.receive = handler
        report({"outer": 1})
        report({"said": channel.said})

    outer, said = metrics(driver(train).attempt())
    assert outer == {"outer": 1}
    assert "Set a flag in the handler" in said["said"]


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"a": 1}, [{"a": 1}]),
        (0.5, [{"_metric": 0.5}]),
        (np.float32(0.5), [{"_metric": 0.5}]),
        (0.0, [{"_metric": 0.0}]),
        (None, []),
        (False, []),
        ({}, []),
        ([], []),
        ("", []),
    ],
)
def test_return_values(driver: Start, returned: Any, expected: list[Any]) -> None:
    messages = driver(lambda config: returned).attempt()
    assert metrics(messages) == expected
    assert isinstance(messages[-1], Returned)


@pytest.mark.parametrize("returned", ["text", [1], object(), np.ones(2)])
def test_other_return_values_are_errors(driver: Start, returned: Any) -> None:
    (end,) = driver(lambda config: returned).attempt()
    assert isinstance(end, Raised)
    assert "must return or yield a dict of metrics or a single number" in end.error.message


def test_generators_report_what_they_yield_and_are_closed(driver: Start, tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    def train(config: dict[str, Any]) -> Iterator[Any]:
        try:
            yield {"a": 1}
            yield 0.5
            return {"last": 1}
        finally:
            closed.write_text("yes")

    worker = driver(train)
    assert metrics(worker.attempt()) == [{"a": 1}, {"_metric": 0.5}, {"last": 1}]
    closed.unlink()
    worker.launch(n=1)
    assert kinds(worker.play(stop_at=1)) == ["Report", "Stopped"]
    assert closed.exists()


def test_an_exception_is_told_with_the_users_own_line(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report({"a": 1})
        fail()

    def fail() -> None:
        raise KeyError("no such thing")

    end = driver(train).attempt()[-1]
    assert isinstance(end, Raised)
    line = fail.__code__.co_firstlineno + 1
    assert end.error.type == "KeyError"
    assert end.error.message == "'no such thing'"
    assert end.error.location == f"{__file__}:{line}"
    assert "in fail" in end.error.traceback
    assert "holdfast/trainable" not in end.error.traceback
    assert (end.storage, end.restoring, end.final) == (False, False, False)


def test_a_wrong_call_of_report_points_at_the_users_line(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report("nonsense")

    (end,) = driver(train).attempt()
    assert end.error.location == f"{__file__}:{train.__code__.co_firstlineno + 1}"
    assert "holdfast/trainable" not in end.error.traceback


def exits(config: dict[str, Any]) -> None:
    sys.exit(3)


def interrupts(config: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def exhausts(config: dict[str, Any]) -> None:
    raise MemoryError("32 GiB")


def recurses(config: dict[str, Any]) -> None:
    recurses(config)


@pytest.mark.parametrize(
    ("trainable", "kind"),
    [(exits, "SystemExit"), (interrupts, "KeyboardInterrupt"), (exhausts, "MemoryError"), (recurses, "RecursionError")],
)
def test_whatever_user_code_raises_the_worker_lives_on(driver: Start, trainable: Any, kind: str) -> None:
    worker = driver(trainable)
    for n in range(2):
        (end,) = worker.attempt(n=n)
        assert isinstance(end, Raised)
        assert end.error.type == kind


def test_the_exception_itself_comes_along_if_it_pickles(driver: Start) -> None:
    import pickle

    class Plain(Exception):
        pass

    class Unloadable(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("text")

    def train(config: dict[str, Any]) -> None:
        raise {
            "plain": Plain("x", 1),
            "unloadable": Unloadable(1, 2),
            "lock": Plain(threading.Lock()),
            "huge": Plain("x" * 2_000_000),
        }[config["which"]]

    worker = driver(train)
    ends = {which: worker.attempt({"which": which})[-1] for which in ("plain", "unloadable", "lock", "huge")}
    assert pickle.loads(ends["plain"].pickled).args == ("x", 1)
    assert [ends[which].pickled for which in ("unloadable", "lock", "huge")] == [b""] * 3
    assert len(ends["huge"].error.message) < 20_000


def test_a_full_disk_in_the_chain_of_causes_is_storage_trouble(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        try:
            raise OSError(config["errno"], "trouble")
        except OSError as error:
            raise RuntimeError("could not write the log") from error

    worker = driver(train)
    assert worker.attempt({"errno": errno.ENOSPC})[-1].storage
    assert worker.attempt({"errno": errno.EDQUOT})[-1].storage
    assert not worker.attempt({"errno": errno.EACCES})[-1].storage


def test_a_trainable_that_cannot_be_loaded_is_not_retried(driver: Start) -> None:
    worker = driver(three_reports)
    (worker.root / "trainable.pkl").write_bytes(b"\x92\xc4\x02hi\xc4\x00")
    (end,) = worker.attempt()
    assert isinstance(end, Raised)
    assert end.final
    (worker.root / "trainable.pkl").unlink()
    (end,) = worker.attempt(n=1)
    assert end.error.type == "FileNotFoundError"
    assert not end.final


# --- checkpoints ------------------------------------------------------------------------------------------------------


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

    def seal(self: Stage, path: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StorageFullError("no space left on /disk")
        return real(self, path)

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
        until(should_checkpoint, "SaveSoon")
        report({"soon": should_checkpoint()})
        report({"soon": should_checkpoint()}, checkpoint=Checkpoint.from_dict({}))
        report({"soon": should_checkpoint()})

    worker = driver(train)
    worker.launch()
    worker.next()
    worker.decide(1)
    worker.send(SaveSoon())
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
    worker.send(SaveSoon())
    assert kinds(worker.attempt({"x": 1}, n=1)) == ["Report"] * 3 + ["Returned"]


# --- what surrounds a trial -------------------------------------------------------------------------------------------


def test_the_context_knows_the_trial(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        context = get_context()
        assert context.get_trial_resources() == PlacementGroupFactory([{"CPU": 2}, {"GPU": 1}], "SPREAD")
        storage = context.get_storage()
        assert storage.trial_fs_path == context.get_trial_dir()
        with pytest.raises(DeprecationWarning):
            context.get_metadata()
        with pytest.warns(DeprecationWarning, match="distributed trainers only"):
            assert context.get_world_size() == 1
        return {
            "id": context.get_trial_id(),
            "name": context.get_trial_name(),
            "experiment": context.get_experiment_name(),
            "dir": context.get_trial_dir(),
        }

    worker = driver(train)
    (seen,) = metrics(worker.attempt(n=3, bundles=[{"CPU": 2}, {"GPU": 1}], strategy="SPREAD"))
    assert seen == {"id": "id_3", "name": "name_3", "experiment": "exp", "dir": str(worker.root / "trial_3")}


def test_objects_of_the_config_are_put_back_anew_for_each_trial(driver: Start) -> None:
    from holdfast.space.objects import extract_objects

    plain, objects = extract_objects({"lr": 0.1, "data": np.array([1, 2]), "nested": [{"fn": len}]})

    def train(config: dict[str, Any]) -> dict[str, Any]:
        config["data"] += 1
        return {"sum": config["data"].sum(), "len": config["nested"][0]["fn"]("abc"), "lr": config["lr"]}

    worker = driver(train, objects=objects)
    for n in range(2):
        assert metrics(worker.attempt(plain, n=n)) == [{"sum": 5, "len": 3, "lr": 0.1}]


def test_parameters_reach_the_function(driver: Start) -> None:
    def train(config: dict[str, Any], data: list[int]) -> dict[str, Any]:
        return {"sum": sum(data) + config["x"]}

    assert metrics(driver(with_parameters(train, data=[1, 2])).attempt({"x": 1})) == [{"sum": 4}]


def test_older_signatures_are_adapted(driver: Start) -> None:
    def with_reporter(config: dict[str, Any], reporter: Any) -> None:
        reporter(loss=1, timesteps_total=2)
        reporter(0.5)
        reporter(dir=reporter.logdir)

    def with_checkpoint_dir(config: dict[str, Any], checkpoint_dir: str | None = None) -> dict[str, Any]:
        return {"start": checkpoint_dir}

    worker = driver(with_reporter)
    assert metrics(worker.attempt()) == [
        {"loss": 1, "timesteps_total": 2},
        {"_metric": 0.5},
        {"dir": str(worker.root / "trial_0")},
    ]
    worker = driver(with_checkpoint_dir)
    assert metrics(worker.attempt()) == [{"start": None}]
    assert metrics(worker.attempt(checkpoint="trial_0/c")) == [{"start": str(worker.root / "trial_0/c")}]


def test_nothing_of_a_trial_reaches_the_next_one(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        found = {
            "cwd": os.getcwd(),
            "kept": os.environ.get("KEPT"),
            "mine": os.environ.get("MINE"),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "original": os.environ["TUNE_ORIG_WORKING_DIR"],
            "redirected": sys.stdout is None,
        }
        os.environ["MINE"] = "left behind"
        del os.environ["KEPT"]
        os.chdir("/")
        sys.stdout = None
        return found

    before = dict(os.environ)
    worker = driver(train, chdir=True)
    for n, gpus in ((0, ("0", "2")), (1, ())):
        (found,) = metrics(worker.attempt(n=n, gpus=gpus))
        assert found == {
            "cwd": str(worker.root / f"trial_{n}"),
            "kept": "1",
            "mine": None,
            "gpus": ",".join(gpus),
            "original": str(worker.root),
            "redirected": False,
        }
        assert os.getcwd() == str(worker.root)
        assert dict(os.environ) == before
        assert session.current() is None


def test_relative_import_places_are_the_drivers(driver: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_the_driver_knows.py").write_text("value = 5")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import only_the_driver_knows

        return {"value": only_the_driver_knows.value, "first": sys.path[0]}

    worker = driver(train, chdir=True, sys_path=("lib", ""), working_dir=str(tmp_path))
    assert metrics(worker.attempt()) == [{"value": 5, "first": str(tmp_path / "lib")}]
    assert sys.path[1] == str(tmp_path)
    sys.modules.pop("only_the_driver_knows")


def test_without_chdir_a_trial_runs_where_the_driver_runs(driver: Start) -> None:
    worker = driver(lambda config: {"cwd": os.getcwd()}, chdir=False)
    (found,) = metrics(worker.attempt())
    assert found == {"cwd": str(worker.root)}


def test_each_trial_has_random_numbers_of_its_own_that_can_be_repeated(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"python": random.random(), "numpy": np.random.rand()}

    state = random.getstate()
    one, other = driver(train), driver(train)
    first, second = (metrics(one.attempt(n=n)) for n in (0, 1))
    assert first != second
    assert metrics(other.attempt(n=1)) == second
    random.setstate(state)


def test_a_report_counts_when_an_interrupt_hits_the_wait(driver: Start) -> None:
    """The answer to a report that nobody waits for any more must not be taken for the answer to the next one."""

    def train(config: dict[str, Any]) -> None:
        channel = session.current()._channel
        real = channel.receive

        def interrupted() -> Any:
            channel.receive = real
            raise KeyboardInterrupt

        channel.receive = interrupted
        try:
            report({"i": 1})
        except KeyboardInterrupt:
            report({"i": 2})
        report({"i": 3})

    messages = driver(train).attempt()
    assert metrics(messages) == [{"i": 1}, {"i": 2}, {"i": 3}]
    assert isinstance(messages[-2], Report)
    assert messages[-2].ordinal == 3
