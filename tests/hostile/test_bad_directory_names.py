"""Names that no directory can have are refused at once, and a file that cannot be written keeps nobody waiting."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.callbacks.file_writer import FileWriter
from holdfast.controller import result_file_edge
from holdfast.errors import InvalidInputError

BAD = ["x" * 256, "é" * 128, "a\0b", "", ".", "..", ".holdfast", ".holdfast.view", ".tmp-x", "a/b", "a\nb", "\x1b[31m"]


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0})


def fit(tmp_path: Path, trainable: Any = train, **settings: Any) -> tune.ResultGrid:
    run_config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    return tune.Tuner(trainable, tune_config=tune.TuneConfig(num_samples=2, **settings), run_config=run_config).fit()


@pytest.mark.parametrize("name", BAD, ids=lambda name: repr(name)[:20])
def test_a_directory_name_that_cannot_be_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fit(tmp_path, trial_dirname_creator=lambda trial: name)
    assert repr(name) in str(caught.value)
    assert "255" in str(caught.value)
    assert {path.name for path in (tmp_path / "exp").iterdir() if path.is_dir()} == {".holdfast"}


def test_a_second_trial_of_the_longest_name_is_refused_because_its_suffix_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="260 bytes"):
        fit(tmp_path, trial_dirname_creator=lambda trial: "x" * 255)


def test_the_longest_name_works(tmp_path: Path) -> None:
    grid = fit(tmp_path, trial_dirname_creator=lambda trial: f"{trial.trial_id:x<255}")
    assert grid.num_errors == 0
    assert all(len(Path(result.path).name) == 255 for result in grid)


@pytest.mark.parametrize("name", ["x" * 240, "a\0b", "a\nb"], ids=lambda name: repr(name)[:20])
def test_a_trial_name_from_which_no_directory_can_be_made_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="trial_name_creator") as caught:
        fit(tmp_path, trial_name_creator=lambda trial: name)
    assert repr(name) in str(caught.value)


def test_a_trainable_of_a_very_long_name_is_refused_before_anything_starts(tmp_path: Path) -> None:
    tune.register_trainable("x" * 240, train)
    with pytest.raises(InvalidInputError, match="name of the trainable"):
        fit(tmp_path, "x" * 240)


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "a\0b", "../up", "a/../b", "", "a\nb", ".holdfast", "a/.tmp-1"])
def test_an_experiment_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"RunConfig\.name"):
        tune.RunConfig(name=name)


@pytest.mark.parametrize("setting", ["storage_path", "local_dir"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_storage_path_with_nul_is_refused(setting: str) -> None:
    with pytest.raises(InvalidInputError, match="NUL"):
        tune.RunConfig(**{setting: "/tmp/a\0b"})


def test_a_huge_identifier_limit_still_gives_names_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_MAX_LEN_IDENTIFIER", "100000")
    run_config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    space = {"text": tune.choice(["y" * 1000])}
    grid = tune.Tuner(train, param_space=space, run_config=run_config).fit()
    assert len(os.fsencode(Path(grid[0].path).name)) <= 255
    assert grid.num_errors == 0


# ------------------------------------------------------------------------------------------- why it hung


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "nul"])
def test_a_file_that_can_never_be_written_keeps_nobody_waiting(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = FileWriter(linger_s=0.0)
    writer.append(str(tmp_path / name / "result.json"), b"{}")
    writer.append(str(tmp_path / "good"), b"1")
    assert writer.flush(60.0)
    assert writer.close(60.0)
    assert (tmp_path / "good").read_bytes() == b"1"
    assert "can never be written" in caplog.text


def test_a_directory_in_the_place_of_a_file_keeps_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = [tmp_path / name for name in ("replaced", "edited", "appended")]
    for path in taken:
        path.mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "else")
    writer = FileWriter(linger_s=0.0)
    open_files = len(os.listdir("/proc/self/fd"))
    writer.replace(str(taken[0]), b"{}")
    writer.edit(str(taken[1]), lambda old: old + b"{}")
    writer.append(str(taken[2]), b"{}")
    writer.append(str(tmp_path / "file" / "result.json"), b"{}")
    writer.replace(str(tmp_path / "dangling" / "result.json"), b"{}")
    writer.append(str(tmp_path / "good"), b"1")
    assert writer.read(str(taken[2])) in (None, b"{}")
    assert writer.flush(60.0)
    assert writer.trouble == ""
    writer.append(str(taken[2]), b"{}")  # said once
    assert writer.close(60.0)
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert (tmp_path / "good").read_bytes() == b"1"
    assert all(path.is_dir() and not any(path.iterdir()) for path in taken)
    assert (tmp_path / "file").read_text() == "mine"
    for name in ("replaced", "edited", "appended", "file", "dangling"):
        assert f"move {str(tmp_path / name)!r} away" in caplog.text
    assert caplog.text.count("appended' can never be written") == 1
    assert "[Errno" not in caplog.text


def test_a_result_file_that_is_a_link_or_a_pipe_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "link").symlink_to(outside)
    os.mkfifo(tmp_path / "pipe")
    writer = FileWriter(linger_s=0.0)
    writer.append(str(tmp_path / "link"), b"not mine")
    writer.append(str(tmp_path / "pipe"), b"lost")
    assert writer.close(60.0)
    assert outside.read_text() == "mine"


def test_a_wait_for_files_ends_when_somebody_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileWriter, "_try_to_write", _refuse)
    writer = FileWriter(linger_s=0.0)
    writer.append(str(tmp_path / "file"), b"1")
    asked = threading.Event()
    assert not writer.flush(3600.0, lambda: asked.is_set() or bool(asked.set()))
    assert not writer.close(0.0)


def test_sigterm_ends_a_driver_that_waits_for_result_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses the trial's result file for ever; without the signal the driver would wait a minute for it."""
    monkeypatch.setattr(result_file_edge, "FLUSH_S", 3600.0)
    monkeypatch.setattr(result_file_edge, "HURRIED_S", 0.1)
    told = threading.Event()
    flush = FileWriter.flush

    def flush_and_ask(self: FileWriter, timeout_s: float = 30.0, *more: Any) -> bool:
        if timeout_s > 1000.0 and not told.is_set():
            told.set()
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return flush(self, timeout_s, *more)

    monkeypatch.setattr(FileWriter, "flush", flush_and_ask)
    monkeypatch.setattr(FileWriter, "_try_to_write", _refuse)
    with pytest.raises(SystemExit) as leaving:
        fit(tmp_path)
    assert leaving.value.code == 143
    assert told.is_set()


def _refuse(self: FileWriter, path: str, fd: int | None) -> str:
    if fd is not None:
        os.close(fd)
    return f"{path} cannot be written: Input/output error"
