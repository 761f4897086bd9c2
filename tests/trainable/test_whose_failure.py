"""Storage trouble or the trial's own failure? What tells is who made the call that failed (I8)."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_wire import Driver

from holdfast.core.observations import Raised
from holdfast.trainable import class_checkpoint, failures
from holdfast.trainable.api import report
from holdfast.trainable.trainable import Trainable

Start = Callable[..., Driver]


def caught(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class Counts(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.config = config

    def step(self) -> dict[str, Any]:
        return {"done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"value": Stubborn() if self.config.get("stubborn") else 1}

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass


class Stubborn:
    """Refuses to be pickled as a disk would refuse to be written."""

    def __reduce__(self) -> Any:
        raise OSError(errno.EIO, "of the user's own making")


def fail_to(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Whatever is opened so is a file that the kernel refuses with EIO, as it does where a process has no memory."""

    def opened(path: Any, how: str = "r") -> Any:
        if how == mode:
            return builtins.open("/proc/self/mem", how, buffering=0)
        return builtins.open(path, how)

    monkeypatch.setattr(class_checkpoint, "open", opened, raising=False)


def ended(worker: Driver, **facts: Any) -> Raised:
    message = worker.attempt(**facts)[-1]
    assert isinstance(message, Raised), message
    return message


def test_a_class_checkpoint_that_the_disk_does_not_take_is_storage_trouble(
    driver: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to(monkeypatch, "wb")
    assert ended(driver(Counts, checkpoint_at_end=True)).storage


def test_a_state_that_refuses_to_be_pickled_is_the_trials_failure(driver: Start) -> None:
    assert not ended(driver(Counts, checkpoint_at_end=True), config={"stubborn": True}).storage


def test_a_class_checkpoint_that_the_disk_does_not_give_back_is_storage_trouble(
    driver: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = driver(Counts)
    saved = worker.root / "trial_0" / "saved"
    saved.mkdir(parents=True)
    class_checkpoint.write(str(saved), {"value": 1}, class_checkpoint.Counters(), may_return_path=False)
    fail_to(monkeypatch, "rb")
    assert ended(worker, checkpoint="trial_0/saved").storage


def test_a_trial_that_cannot_open_its_own_file_has_failed(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        Path("/nowhere/data.csv").read_text()

    assert not ended(driver(train)).storage


def test_a_trial_that_uses_pythons_library_on_its_own_files_has_failed(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        import shutil

        shutil.copytree("/nowhere", "/nowhere/else")

    assert not ended(driver(train)).storage


def test_a_generators_and_a_threads_errors_are_the_trials_too(driver: Start) -> None:
    def train(config: dict[str, Any]) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        report({"a": 1})
        with ThreadPoolExecutor(1) as pool:
            pool.submit(os.mkdir, "/nowhere/a/b").result()

    assert not ended(driver(train)).storage


def test_our_call_through_the_library_is_ours(tmp_path: Path) -> None:
    """``os.makedirs`` is Python's; that we have called it is what counts, and where."""
    from holdfast.checkpoints import stage

    (tmp_path / "file").touch()

    def ours() -> None:
        code = compile(f"import os; os.makedirs({str(tmp_path / 'file' / 'a')!r})", stage.__file__, "exec")
        exec(code, {})

    error = caught(ours)
    assert failures.is_storage_trouble(error, str(tmp_path))
    assert not failures.is_storage_trouble(error, str(tmp_path / "elsewhere"))  # a path that the user has given us
    assert not failures.is_storage_trouble(caught(lambda: os.makedirs(tmp_path / "file" / "a")), str(tmp_path))
