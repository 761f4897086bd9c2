"""error.txt and error.pkl."""

from __future__ import annotations

import pickle
from pathlib import Path

from callback_world import World

from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles
from holdfast.core import events as ev
from holdfast.errors import TrialError
from holdfast.views.results import date_text

RAISED = ev.ErrorFacts("ValueError", "bad lr", "train.py:3", "Traceback ...\nValueError: bad lr\n")
KILLED = ev.ErrorFacts(message="killed by SIGSEGV", output="last words\n")


def fail(world: World, error: ev.ErrorFacts, cause: str = "exception") -> None:
    world.add(ev.AttemptFailed, 0, world.trial().attempt, cause, error)


def failures(world: World) -> list[tuple[float, ev.ErrorFacts]]:
    return [(event.at, event.error) for event in world.events if isinstance(event, ev.AttemptFailed)]


def test_each_failure_is_appended_with_its_number_and_date(tmp_path: Path) -> None:
    world = World(tmp_path)
    trial = world.create()
    writer = FileWriter()
    files = ErrorFiles(writer)
    world.start()
    fail(world, RAISED)
    files.failed(trial, world.at, RAISED, pickle.dumps(ValueError("bad lr")))
    first = date_text(world.at)
    assert writer.flush()
    assert repr(pickle.loads(Path(trial.path, "error.pkl").read_bytes())) == "ValueError('bad lr')"
    world.start()
    fail(world, KILLED, "signal")
    files.failed(trial, world.at, KILLED)
    assert writer.close()
    text = Path(trial.path, "error.txt").read_text()
    assert text == (
        f"Failure # 1 (occurred at {first})\nTraceback ...\nValueError: bad lr\n"
        f"Failure # 2 (occurred at {date_text(world.at)})\nkilled by SIGSEGV\nIts last output:\nlast words\n"
    )


def test_what_cannot_be_pickled_is_loaded_as_a_trial_error_with_the_facts(tmp_path: Path) -> None:
    world = World(tmp_path)
    trial = world.create()
    writer = FileWriter()
    world.start()
    fail(world, RAISED)
    ErrorFiles(writer).failed(trial, world.at, RAISED)
    assert writer.close()
    error = pickle.loads(Path(trial.path, "error.pkl").read_bytes())
    assert isinstance(error, TrialError)
    assert str(error) == "ValueError: bad lr"
    assert (error.trial_id, error.cause, error.error_type) == (trial.trial_id, "exception", "ValueError")
    assert (error.location, error.traceback) == (RAISED.location, RAISED.traceback)


def test_failures_that_a_crash_kept_out_of_the_file_are_written_from_the_journal(tmp_path: Path) -> None:
    world = World(tmp_path)
    trial = world.create()
    for error in (RAISED, KILLED):
        world.start()
        fail(world, error)
    writer = FileWriter()
    files = ErrorFiles(writer)
    files.sync(trial, lambda: failures(world))
    assert writer.flush()
    text = Path(trial.path, "error.txt").read_text()
    assert text.count("Failure # ") == 2
    assert isinstance(pickle.loads(Path(trial.path, "error.pkl").read_bytes()), TrialError)
    files.sync(trial, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert writer.close()
    assert Path(trial.path, "error.txt").read_text() == text


def test_a_trial_that_never_failed_has_no_error_files(tmp_path: Path) -> None:
    world = World(tmp_path)
    trial = world.create()
    writer = FileWriter()
    ErrorFiles(writer).sync(trial, list)
    assert writer.close()
    assert list(tmp_path.iterdir()) == []
