"""Syncer, BackgroundSyncer, FunctionSyncer, and what the values of SyncConfig.syncer mean."""

from __future__ import annotations

import pickle
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from sync_tools import WAIT_S, content_of, until

from holdfast.errors import InvalidInputError, StorageError
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.directories import as_directory
from holdfast.sync.syncer import (
    BackgroundSyncer,
    DetachedSyncer,
    FunctionSyncer,
    Syncer,
    SyncError,
    SyncTimeoutError,
)
from holdfast.sync.syncer_setting import resolve_syncer


class AtOnce(Syncer):
    """Works at once, does not call the constructor of Syncer, and has none of the optional methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.answer = True

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        self.calls.append(("up", local_dir, remote_dir, *(exclude or ())))
        return self.answer

    def sync_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
        self.calls.append(("down", remote_dir, local_dir, *(exclude or ())))
        return self.answer

    def delete(self, remote_dir: str) -> bool:
        self.calls.append(("delete", remote_dir))
        return self.answer


class Gated(BackgroundSyncer):
    """Each copy waits until the gate is open; then it raises what `error` holds."""

    def __init__(self, sync_timeout: float = 1800.0) -> None:
        super().__init__(sync_timeout=sync_timeout)
        self.gate: Any = threading.Event()
        self.error: BaseException | None = None
        self.done: list[str] = []
        self.interrupts = 0

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        assert self.gate.wait(WAIT_S)
        if self.given_up:
            return
        if self.error is not None:
            raise self.error
        self.done.append(remote_dir)

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        self.copy_up(local_dir, remote_dir, exclude)

    def remove(self, remote_dir: str) -> None:
        self.copy_up("", remote_dir, None)

    def interrupt(self) -> None:
        self.interrupts += 1


def copy_everything(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("A")
    (folder / "sub" / "b").write_text("B")
    return folder


# --- Syncer


def test_a_syncer_of_ones_own_needs_three_methods_and_nothing_else() -> None:
    syncer = AtOnce()
    assert (syncer.sync_period, syncer.sync_timeout) == (300, 1800)
    syncer.wait()
    syncer.wait_or_retry()
    syncer.close()
    with pytest.raises(TypeError, match="abstract"):
        Syncer()  # type: ignore[abstract]


def test_settings_of_a_syncer_are_checked() -> None:
    with pytest.raises(ValueError, match="sync_timeout must be a number > 0"):
        FunctionSyncer(copy_everything, sync_timeout=0)
    with pytest.raises(ValueError, match="sync_period must be a number >= 0"):
        FunctionSyncer(copy_everything, sync_period=-1)


def test_if_needed_means_once_a_period() -> None:
    syncer = AtOnce()
    assert [syncer.sync_up_if_needed("l", "r", ["x"]) for _ in range(3)] == [True, False, False]
    assert [syncer.sync_down_if_needed("r", "l") for _ in range(3)] == [True, False, False]
    syncer.sync_period = 0
    assert syncer.sync_up_if_needed("l", "r")
    assert syncer.calls == [("up", "l", "r", "x"), ("down", "r", "l"), ("up", "l", "r")]


def test_a_sync_that_was_left_out_does_not_count_for_the_period() -> None:
    syncer = AtOnce()
    syncer.answer = False
    assert not syncer.sync_up_if_needed("l", "r")
    syncer.answer = True
    assert syncer.sync_up_if_needed("l", "r")
    syncer.reset()
    assert syncer.sync_up_if_needed("l", "r")


def test_a_pickled_syncer_keeps_its_settings_and_forgets_what_it_did() -> None:
    syncer = AtOnce()
    syncer.sync_period = 7
    syncer.sync_up_if_needed("l", "r")
    copy = pickle.loads(pickle.dumps(syncer))
    assert copy.sync_period == 7
    assert copy.sync_up_if_needed("l", "r")


# --- waiting and retrying


def test_a_failed_sync_is_retried_until_it_works(source: Path, tmp_path: Path) -> None:
    failures = [OSError("first"), OSError("second")]

    def copy(source: str, target: str) -> None:
        if failures:
            raise failures.pop()
        copy_everything(source, target)

    syncer = FunctionSyncer(copy)
    assert syncer.sync_up(str(source), str(tmp_path / "target"))
    syncer.wait_or_retry(max_retries=2, backoff_s=0)
    assert content_of(tmp_path / "target") == {"a": b"A", "sub/b": b"B"}


def test_a_sync_that_keeps_failing_ends_in_an_error_with_the_last_traceback() -> None:
    def copy(source: str, target: str) -> None:
        raise OSError("the other end is gone")

    syncer = FunctionSyncer(copy)
    syncer.sync_up("/nowhere", "box:/x")
    with pytest.raises(RuntimeError, match="Failed sync even after 3 retries") as failure:
        syncer.wait_or_retry(backoff_s=0)
    assert isinstance(failure.value, StorageError)
    assert "in copy" in str(failure.value)
    assert "the other end is gone" in str(failure.value)


def test_a_syncer_that_cannot_retry_fails_with_its_first_error() -> None:
    class Failing(AtOnce):
        def wait(self, timeout: float | None = None) -> None:
            raise OSError("broken pipe")

    with pytest.raises(RuntimeError, match="broken pipe"):
        Failing().wait_or_retry(backoff_s=0)


def test_there_is_nothing_to_retry_before_the_first_sync() -> None:
    with pytest.raises(RuntimeError, match="nothing to retry"):
        Gated().retry()


# --- background rules


def test_one_operation_runs_at_a_time() -> None:
    syncer = Gated()
    assert syncer.sync_up("l", "first")
    assert not syncer.sync_up("l", "second")
    assert not syncer.sync_down("second", "l")
    assert not syncer.delete("second")
    syncer.gate.set()
    syncer.wait()
    assert syncer.sync_up("l", "third")
    syncer.wait()
    assert syncer.done == ["first", "third"]


def test_waiting_raises_a_failure_once() -> None:
    syncer = Gated()
    syncer.error = OSError("no route")
    syncer.gate.set()
    syncer.delete("r")
    with pytest.raises(OSError, match="no route"):
        syncer.wait()
    assert str(syncer.last_error) == "no route"
    syncer.wait()


def test_a_failure_that_nobody_waited_for_is_logged_when_the_next_begins(caplog: pytest.LogCaptureFixture) -> None:
    syncer = Gated()
    syncer.error = OSError("no route")
    syncer.gate.set()
    syncer.sync_up("l", "first")
    until(lambda: syncer.sync_up("l", "second"), "the end of the first sync")
    assert "first failed: no route" in caplog.text
    assert str(syncer.last_error) == "no route"
    syncer.error = None
    syncer.reset()


def test_an_operation_older_than_the_timeout_gives_way_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    syncer = Gated(sync_timeout=0.01)
    syncer.sync_up("l", "stuck")
    until(lambda: syncer.sync_up("l", "next"), "the timeout")
    assert isinstance(syncer.last_error, TimeoutError)
    assert "stuck was given up after sync_timeout=0.01 s" in caplog.text
    assert syncer.interrupts == 1
    syncer.sync_timeout = WAIT_S
    syncer.gate.set()
    syncer.wait()
    assert syncer.done == ["next"]  # what was given up has noticed it


def test_waiting_ends_with_the_timeout() -> None:
    syncer = Gated(sync_timeout=0.01)
    syncer.sync_up("l", "stuck")
    with pytest.raises(TimeoutError, match=r"given up after sync_timeout=0\.01 s.*raise SyncConfig\(sync_timeout"):
        syncer.wait()
    assert syncer.interrupts == 1
    syncer.gate.set()


def test_a_shorter_wait_leaves_the_operation_running() -> None:
    syncer = Gated()
    syncer.sync_up("l", "slow")
    with pytest.raises(SyncTimeoutError, match="still runs"):
        syncer.wait(timeout=0.01)
    assert not syncer.sync_up("l", "second")
    syncer.gate.set()
    syncer.wait()
    assert syncer.done == ["slow"]


def test_whoever_waits_for_a_sync_that_is_reset_is_told_that_it_failed() -> None:
    syncer = Gated()
    syncer.sync_up("l", "r")
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            syncer.wait()
        except SyncError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    syncer.reset()
    waiting.join(WAIT_S)
    # It has either seen the operation and then its end, or come too late to see any.
    assert not waiting.is_alive()
    assert all("given up" in str(error) for error in caught)
    syncer.gate.set()


def test_leaving_the_interpreter_inside_a_function_is_a_failed_sync() -> None:
    def leave(source: str, target: str) -> None:
        sys.exit(3)

    syncer = FunctionSyncer(leave)
    syncer.sync_up("l", "r")
    with pytest.raises(SyncError, match=r"SystemExit\(3\)"):
        syncer.wait()


OPEN = threading.Event()


def copy_when_open(source: str, target: str) -> None:
    assert OPEN.wait(WAIT_S)


def test_what_runs_is_not_pickled() -> None:
    syncer = FunctionSyncer(copy_when_open)
    syncer.sync_up("l", "r")
    copy = pickle.loads(pickle.dumps(syncer))
    copy.wait()  # for nothing: the copy has started nothing
    with pytest.raises(SyncError, match="nothing to retry"):
        copy.retry()
    OPEN.set()
    syncer.wait()


# --- functions


def test_a_function_copies_both_ways_between_directories_with_a_slash(source: Path, tmp_path: Path) -> None:
    seen = []

    def copy(origin: str, target: str) -> None:
        seen.append((origin, target))
        copy_everything(origin, target)

    syncer = FunctionSyncer(copy)
    away, back = tmp_path / "deep" / "away", tmp_path / "back"
    syncer.sync_up(str(source), str(away))
    syncer.wait()
    syncer.sync_down(str(away), str(back))
    syncer.wait()
    assert content_of(back) == content_of(source)
    assert seen == [(f"{source}/", f"{away}/"), (f"{away}/", f"{back}/")]
    syncer.delete(str(away))
    syncer.wait()
    assert not away.exists()


def test_functions_can_be_pickled(source: Path, tmp_path: Path) -> None:
    tasks = [
        pickle.loads(pickle.dumps(FunctionSyncer(copy_everything, 7, 8))),
        cloudpickle.loads(cloudpickle.dumps(FunctionSyncer(lambda s, t: copy_everything(s, t), 7, 8))),
    ]
    for number, syncer in enumerate(tasks):
        assert (syncer.sync_period, syncer.sync_timeout) == (7, 8)
        syncer.sync_up(str(source), str(tmp_path / str(number)))
        syncer.wait()
        assert content_of(tmp_path / str(number)) == content_of(source)


def test_an_address_gets_one_slash() -> None:
    assert as_directory("/a") == as_directory("/a//") == "/a/"
    assert as_directory("s3://b/p?region=x") == "s3://b/p/?region=x"
    assert as_directory("ubuntu@192.0.0.1:/home/x") == "ubuntu@192.0.0.1:/home/x/"


# --- resolve_syncer


def test_what_each_value_means() -> None:
    assert resolve_syncer(None) is None
    assert resolve_syncer("auto") is None
    own = AtOnce()
    assert resolve_syncer(own) is own
    command = resolve_syncer("rsync -a {source} {target}", sync_period=7, sync_timeout=8)
    assert isinstance(command, CommandSyncer)
    assert (command.template, command.sync_period, command.sync_timeout) == ("rsync -a {source} {target}", 7, 8)
    function = resolve_syncer(copy_everything, sync_period=7, sync_timeout=8)
    assert isinstance(function, FunctionSyncer)
    assert (function.function, function.sync_period, function.sync_timeout) == (copy_everything, 7, 8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"must be a command with \{source\} and \{target\}, a function \(source, target\), \"auto\", None or a"),
        ("cp {target}", r"Sync template missing '\{source\}'\."),
        ("cp {source}", r"Sync template missing '\{target\}'\."),
        (lambda: None, "cannot be called with two arguments: too many positional arguments"),
        (lambda a, b, c: None, "cannot be called with two arguments: missing a required argument: 'c'"),
        (AtOnce, r"Write AtOnce\(\.\.\.\) instead of AtOnce"),
        (b"cp {source} {target}", "must be a command"),
    ],
)
def test_other_values_are_refused_with_the_way_out(value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        resolve_syncer(value)


def test_an_object_with_the_three_methods_is_a_syncer() -> None:
    class OldClient:
        """The interface of the oldest generation: two directories, and nothing is returned."""

        def __init__(self) -> None:
            self.calls: list[tuple[str, ...]] = []

        def sync_up(self, source: str, target: str) -> None:
            self.calls.append(("up", source, target))

        def sync_down(self, source: str, target: str) -> None:
            self.calls.append(("down", source, target))

        def delete(self, target: str) -> None:
            self.calls.append(("delete", target))

        def wait(self) -> None:
            self.calls.append(("wait",))

    client = OldClient()
    syncer = resolve_syncer(client)
    assert isinstance(syncer, DetachedSyncer)
    assert syncer.sync_up("l", "r", ["x"])
    syncer.wait()
    assert syncer.sync_down("r", "l")
    syncer.wait()
    assert syncer.delete("r")
    syncer.wait()
    wait = ("wait",)
    assert client.calls == [("up", "l", "r"), wait, ("down", "r", "l"), wait, ("delete", "r"), wait]
    syncer.close()


def test_a_syncer_that_leaves_everything_out_is_an_error_not_a_success() -> None:
    busy = AtOnce()
    busy.answer = False
    syncer = DetachedSyncer(busy)
    syncer.sync_up("l", "r")
    with pytest.raises(SyncError, match="left a sync out twice"):
        syncer.wait()
