"""A file of the experiment's that cannot be made, opened or read is the storage's fault, never the trial's (I8)."""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experiment_tools import wait_until

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.journal.reader import read_journal

ENGINES = str(Path(__file__).parents[1] / "engines")
CODES = [errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.EACCES]


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """While this file exists, what it names fails in the nanny and in the workers."""
    monkeypatch.setattr(sys, "path", [*sys.path, ENGINES])
    path = tmp_path / "fault.json"
    monkeypatch.setenv("FAULT_FILE", str(path))
    yield path
    path.unlink(missing_ok=True)


def set_fault(fault: Path, call: str, code: int, where: str) -> None:
    new = fault.with_suffix(".new")
    new.write_text(json.dumps({"call": call, "in": where, "errno": code}))
    new.rename(fault)


def saves(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(start + 1, 4):
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


class Saves(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"step": self.count, "done": self.count == 3}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]


class Experiment:
    """One that runs in a thread of the test, with a trial that may not fail once."""

    def __init__(self, storage: Path, trainable: Any, **settings: Any) -> None:
        self.root = storage / "exp"
        engine = tune.LocalEngine(cpus=1, preload=["files_that_fail"])
        config = tune.RunConfig(
            name="exp",
            storage_path=str(storage),
            verbose=0,
            engine=engine,
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1) if isinstance(trainable, type) else None,
            **settings,
        )
        self._tuner = tune.Tuner(trainable, run_config=config)
        self._results: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._results.append(self._tuner.fit()))
        self._thread.start()

    def cuts(self) -> list[ev.AttemptInterrupted]:
        if not (self.root / ".holdfast" / "journal").is_dir():
            return []
        return [event for event in self.events() if isinstance(event, ev.AttemptInterrupted)]

    def events(self) -> list[ev.AnyEvent]:
        return [ev.decode(payload) for _, payload in read_journal(self.root)]

    def end(self) -> tune.Result:
        self._thread.join(60)
        assert self._results, "fit() has not returned"
        return self._results[0][0]


def goes_on_after(experiment: Experiment, fault: Path) -> tune.Result:
    """Two attempts are in vain; then the fault ends, and so does the trial, without having failed."""
    try:
        wait_until(lambda: len(experiment.cuts()) >= 2, "attempts that were cut short")
    finally:
        fault.unlink(missing_ok=True)
    result = experiment.end()
    assert result.error is None
    assert (result.status, result.metrics["step"]) == ("TERMINATED", 3)
    assert {cut.cause for cut in experiment.cuts()} == {ev.Cause.STORAGE}
    assert not [event for event in experiment.events() if isinstance(event, ev.AttemptFailed | ev.TrialErrored)]
    return result


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_a_trials_directory_that_cannot_be_made_is_waited_for(tmp_path: Path, fault: Path, code: int) -> None:
    set_fault(fault, "mkdir", code, "/saves_")
    experiment = Experiment(tmp_path, saves)
    goes_on_after(experiment, fault)
    assert errno.errorcode[code] in experiment.cuts()[0].detail


FAULTS = {
    "entering the trial's directory": ("chdir", "/saves_", {}),
    "opening a log": ("open", "/stdout.txt", {"log_to_file": ("stdout.txt", "stderr.txt")}),
    "reading the trainable": ("open", "/trainable.pkl", {}),
    "making a stage": ("mkdir", "/.stage-", {}),
    "listing a stage": ("scandir", "/.stage-", {}),
    "sealing a stage": ("rename", "/.stage-", {}),
}


@pytest.mark.parametrize("what", FAULTS)
def test_whatever_we_do_with_files_for_a_trial_is_not_its_failure(tmp_path: Path, fault: Path, what: str) -> None:
    call, where, settings = FAULTS[what]
    set_fault(fault, call, errno.EIO, where)
    goes_on_after(Experiment(tmp_path, saves, **settings), fault)


@pytest.mark.parametrize("call", ["mkdir", "scandir"])
def test_nor_is_it_for_a_class(tmp_path: Path, fault: Path, call: str) -> None:
    set_fault(fault, call, errno.EIO, "/.stage-")
    goes_on_after(Experiment(tmp_path, Saves), fault)


def test_a_worker_whose_log_cannot_be_opened_does_its_work(tmp_path: Path, fault: Path) -> None:
    set_fault(fault, "open", errno.EMFILE, "/worker-")
    experiment = Experiment(tmp_path, saves)
    result = experiment.end()
    assert result.error is None
    assert result.metrics["step"] == 3
    assert experiment.cuts() == []


def test_what_the_users_code_cannot_open_is_the_trials_failure(tmp_path: Path, fault: Path) -> None:
    """The same error, from the same function: it matters who called it."""

    def train(config: dict[str, Any]) -> None:
        import os

        with open("own.txt", "w"):
            pass
        raise OSError(errno.EIO, os.strerror(errno.EIO), os.path.abspath("own.txt"))

    experiment = Experiment(tmp_path, train)
    result = experiment.end()
    assert result.status == "ERROR"
    assert [event.cause for event in experiment.events() if isinstance(event, ev.TrialErrored)] == [ev.Cause.EXCEPTION]


def test_a_log_with_an_impossible_name_is_the_users_to_correct(tmp_path: Path, fault: Path) -> None:
    """No other try would help, so none is made."""
    experiment = Experiment(tmp_path, saves, log_to_file=("no/such/folder/out", "err"))
    result = experiment.end()
    assert result.status == "ERROR"
    assert InvalidInputError.__name__ in str(result.error)
    assert "log_to_file='no/such/folder/out'" in str(result.error)
