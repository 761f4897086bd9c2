"""``Checkpoint.from_dict`` in a trial: its files are made in the experiment's storage, once, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_tools import Drivers, wait_until

import holdfast as tune
from holdfast.checkpoints import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory of these tests, also in the processes that they start."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def fit(storage: Path, train: Callable[..., Any], **param_space: Any) -> tune.Result:
    run_config = tune.RunConfig(name="exp", storage_path=str(storage), verbose=0, engine=tune.LocalEngine(cpus=1))
    (result,) = tune.Tuner(train, param_space=param_space, run_config=run_config).fit()
    assert result.error is None, result.error
    return result


def states(result: tune.Result) -> list[dict[str, Any]]:
    return [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints]


def left_over(result: tune.Result) -> list[str]:
    """Stages of the trial that nobody needs any more."""
    return [path.name for path in Path(result.path).iterdir() if path.name.startswith((".stage", ".sealed"))]


def seen_in(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


def test_no_file_is_made_outside_of_the_trials_directory(tmp_path: Path, temporary: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        seen: list[list[str]] = []
        for step in range(3):
            checkpoint = tune.Checkpoint.from_dict({"step": step})
            seen.append(seen_in(config["temporary"]))
            tune.report({"step": step}, checkpoint=checkpoint)
            seen.append(seen_in(config["temporary"]))
        tune.report({"seen": sum(map(len, seen))})

    result = fit(tmp_path, train, temporary=str(temporary))
    assert result.metrics["seen"] == 0
    assert states(result) == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert left_over(result) == []


def test_its_directory_is_a_stage_of_the_trial_for_those_who_look(tmp_path: Path, temporary: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.Checkpoint.from_dict({"step": 1})
        with checkpoint.as_directory() as path:
            listed = os.listdir(path)
        home = os.path.dirname(checkpoint.path)
        tune.report({"home": home, "listed": listed, "tmp": len(seen_in(config["temporary"]))}, checkpoint=checkpoint)
        assert checkpoint.to_dict() == {"step": 1}
        tune.report({"again": os.path.isdir(checkpoint.path)}, checkpoint=checkpoint)

    result = fit(tmp_path, train, temporary=str(temporary))
    first, second = result.metrics_history
    assert first["home"] == result.path
    assert (first["listed"], first["tmp"], second["again"]) == (["_dict_checkpoint.pkl"], 0, True)
    assert states(result) == [{"step": 1}, {"step": 1}]
    assert left_over(result) == []


def test_one_that_is_made_once_can_be_read_reported_twice_and_kept(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.Checkpoint.from_dict({"step": 1})
        before = checkpoint.to_dict()
        checkpoint.set_metadata({"from": "memory"})
        for _ in range(2):
            tune.report({"before": before, "metadata": checkpoint.get_metadata()}, checkpoint=checkpoint)
        assert checkpoint.to_dict() == before
        assert checkpoint == checkpoint
        assert checkpoint in {checkpoint}

    result = fit(tmp_path, train)
    assert states(result) == [{"step": 1}, {"step": 1}]
    assert [checkpoint.get_metadata() for checkpoint, _ in result.best_checkpoints] == [{"from": "memory"}] * 2
    assert result.metrics["metadata"] == {"from": "memory"}


def test_one_that_is_never_reported_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        kept = [tune.Checkpoint.from_dict({"n": n}) for n in range(3)]
        assert os.path.isdir(kept[0].path)
        tune.report({"repr": repr(kept[1]), "kept": len(kept)})

    result = fit(tmp_path, train)
    assert result.metrics["repr"].startswith("Checkpoint(filesystem=local, a dict of ")
    assert left_over(result) == []
    assert list(temporary.iterdir()) == []


def test_it_can_be_made_in_a_thread_and_in_a_fork(tmp_path: Path, temporary: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        made: list[tune.Checkpoint] = []
        thread = threading.Thread(target=lambda: made.append(tune.Checkpoint.from_dict({"by": "thread"})))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            here = tune.Checkpoint.from_dict({"by": "fork"})
            good = here.to_dict() == {"by": "fork"} and made[0].to_dict() == {"by": "thread"}
            good = good and not here.path.startswith(config["root"])
            del here
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        tune.report({"step": 1}, checkpoint=made[0])

    result = fit(tmp_path / "storage", train, root=str(tmp_path / "storage"))
    assert states(result) == [{"by": "thread"}]
    assert left_over(result) == []
    assert list(temporary.iterdir()) == []


KILLED_TRIAL = """
def train(config):
    for step in range(1, 1000):
        checkpoint = tune.Checkpoint.from_dict({"step": step, "data": bytes(100_000)})
        if step == 3:
            checkpoint.path
            (DIR / "ready").touch()
            wait_for(DIR / "never")
        tune.report({"step": step}, checkpoint=checkpoint)

tune.Tuner(train, run_config=config()).fit()
"""


def test_a_killed_trial_leaves_nothing_in_the_temporary_directory(
    drivers: Drivers, tmp_path: Path, temporary: Path
) -> None:
    driver = drivers.start(KILLED_TRIAL, TMPDIR=str(temporary))
    driver.wait_for(tmp_path / "ready")
    driver.kill()
    wait_until(lambda: not _workers_of(tmp_path), "the end of the trial's process")
    assert [path for path in temporary.iterdir() if path.is_dir()] == []


def _workers_of(directory: Path) -> list[str]:
    found = subprocess.run(["pgrep", "-f", str(directory / "script_")], capture_output=True, text=True, check=False)
    return found.stdout.split()


# --- outside of a trial


def test_what_killed_processes_have_left_is_removed_by_the_next_one(temporary: Path) -> None:
    code = """
import os, signal
from holdfast.checkpoints.checkpoint import Checkpoint
kept = [Checkpoint.from_dict({"n": n}) for n in range(3)]
os.kill(os.getpid(), signal.SIGKILL)
"""
    alive = tune.Checkpoint.from_dict({"still": "here"})
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert len(list(temporary.iterdir())) == 2  # the second one has removed the first one's
    code = "from holdfast.checkpoints.checkpoint import Checkpoint; Checkpoint.from_dict({})"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
    assert [path.name for path in temporary.iterdir()] == [Path(alive.path).parent.name]
    assert alive.to_dict() == {"still": "here"}


def test_directories_of_others_are_left_alone(temporary: Path) -> None:
    strangers = [temporary / "holdfast_dict_abc", temporary / f"{scratch.PREFIX}{os.getuid() + 1}_0123abcd"]
    for stranger in strangers:
        stranger.mkdir()
    checkpoint = tune.Checkpoint.from_dict({"a": 1})
    del checkpoint
    assert sorted(temporary.iterdir()) == sorted(strangers)
