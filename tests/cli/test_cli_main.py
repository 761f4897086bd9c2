"""The command line as a whole: help, exit codes, friendly failures, resuming."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, many_trials, small_experiment

import holdfast as tune

COMMANDS = ["status", "show", "verify", "repair", "resume", "export", "list", "rm", "completion"]
COMMANDS += ["list-trials", "list-experiments", "stop", "note", "tag", "samples"]
ON_A_PATH = ["status", "show", "verify", "repair", "resume", "rm"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command: str, holdfast: Callable[..., Any]) -> None:
    answer = holdfast(command, "--help")
    assert answer.code == 0
    assert "examples:" in answer.out
    assert command in holdfast("--help").out


def test_nonsense_is_a_usage_error(holdfast: Callable[..., Any]) -> None:
    assert holdfast("dance").code == 2
    assert holdfast("resume", "x", "--resume-errored", "--restart-errored").code == 2


def test_alone_it_explains_itself(holdfast: Callable[..., Any]) -> None:
    answer = holdfast()
    assert answer.code == 0
    assert answer.out == holdfast("--help").out


def test_the_version_is_told(holdfast: Callable[..., Any]) -> None:
    assert tune.__version__ in holdfast("--version").out


@pytest.mark.parametrize("command", ON_A_PATH)
def test_what_is_no_experiment_gets_a_sentence_and_a_hint(
    command: str, tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    RootWriter(tmp_path / "exp")
    for path, hint in ((tmp_path / "nothing", "does not exist"), (tmp_path, f"Did you mean {tmp_path / 'exp'}?")):
        answer = holdfast(command, path)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("holdfast: ")
        assert hint in answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", ON_A_PATH)
def test_a_newer_format_asks_for_an_upgrade(command: str, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    file = RootWriter(tmp_path / "exp").path / ".holdfast" / "spec.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "format": 99}))
    answer = holdfast(command, tmp_path / "exp")
    assert answer.code == 2
    assert "pip install -U holdfast" in answer.err


@pytest.mark.parametrize("command", ["status", "show"])
def test_a_damaged_journal_names_the_way_out(command: str, tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = small_experiment(tmp_path / "exp").die()
    segment = next((root.path / ".holdfast" / "journal").iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    answer = holdfast(command, root.path)
    assert answer.code == 1
    assert f"holdfast repair {root.path}" in answer.err
    assert "Traceback" not in answer.err


def test_garbage_collection_is_on_again_afterwards(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    import gc

    holdfast("status", tmp_path)
    assert gc.isenabled()


def test_a_reader_that_has_seen_enough_causes_no_complaint(tmp_path: Path) -> None:
    path = many_trials(tmp_path / "exp", 2000).path
    command = [sys.executable, "-m", "holdfast", "show", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


# --- resume


def count_to_two(config: dict[str, Any]) -> None:
    for step in (1, 2):
        if config["x"] == 2 and not Path(config["flag"]).exists():
            Path(config["flag"]).touch()
            raise ValueError("first time only")
        tune.report({"loss": config["x"] / step})


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """An experiment that was set up and never run."""
    tune.Tuner(
        count_to_two,
        param_space={"x": tune.grid_search([1, 2]), "flag": str(tmp_path / "flag")},
        run_config=tune.RunConfig(
            name="exp", storage_path=tmp_path / "storage", verbose=0, engine=tune.LocalEngine(cpus=1)
        ),
    )
    return tmp_path / "storage" / "exp"


def test_resume_runs_the_stored_trainable_to_its_end(prepared: Path, holdfast: Callable[..., Any]) -> None:
    answer = holdfast("resume", prepared, "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert facts["state"] == "finished"
    assert (facts["counts"]["TERMINATED"], facts["counts"]["ERROR"]) == (1, 1)
    again = json.loads(holdfast("resume", prepared, "--resume-errored", "--json").out)
    assert (again["counts"]["TERMINATED"], again["counts"]["ERROR"]) == (2, 0)


def test_resume_is_refused_while_another_driver_lives(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    tune.Tuner(count_to_two, run_config=tune.RunConfig(name="exp", storage_path=tmp_path, verbose=0))
    from holdfast.journal.epoch import claim_epoch, release

    claim = claim_epoch(tmp_path / "exp")
    answer = holdfast("resume", tmp_path / "exp")
    assert answer.code == 1
    assert "--takeover" in answer.err
    release(tmp_path / "exp", claim)


def saves_then_fails(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(start, 4):
        if step == 3 and not Path(config["flag"]).exists():
            Path(config["flag"]).touch()
            raise ValueError("first time only")
        tune.report({"step": step, "start": start}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


@pytest.mark.parametrize(("option", "start"), [("--resume-errored", 3), ("--restart-errored", 1)])
def test_failed_trials_continue_or_begin_anew_as_asked(
    tmp_path: Path, holdfast: Callable[..., Any], option: str, start: int
) -> None:
    config = tune.RunConfig(name="exp", storage_path=tmp_path, verbose=0, engine=tune.LocalEngine(cpus=1))
    tune.Tuner(saves_then_fails, param_space={"flag": str(tmp_path / "flag")}, run_config=config).fit()
    untouched = json.loads(holdfast("resume", tmp_path / "exp", "--json").out)
    assert untouched["counts"]["ERROR"] == 1
    answer = holdfast("resume", tmp_path / "exp", option)
    assert answer.code == 0, answer.err
    (result,) = tune.ResultGrid.from_path(tmp_path / "exp")
    assert result.status == "TERMINATED"
    assert [row["step"] for row in result.metrics_history] == [1, 2, 3]
    assert result.metrics["start"] == start


def test_a_take_over_takes_it_from_a_living_driver(prepared: Path, holdfast: Callable[..., Any]) -> None:
    from holdfast.journal.epoch import claim_epoch, is_fenced

    claim = claim_epoch(prepared)
    assert holdfast("resume", prepared).code == 1
    assert not is_fenced(prepared, claim)
    answer = holdfast("resume", prepared, "--takeover")
    assert answer.code == 0, answer.err
    assert is_fenced(prepared, claim)
    assert json.loads(holdfast("status", prepared, "--json").out)["state"] == "finished"


def test_a_trainable_that_cannot_be_imported_says_where_to_run_the_command(
    prepared: Path, holdfast: Callable[..., Any]
) -> None:
    from holdfast.controller.spec import read_spec
    from holdfast.storage.layout import Root
    from holdfast.trainable.pickling import dump_trainable
    from holdfast.trainable.sealed import seal

    class Elsewhere:
        def __call__(self, config: dict[str, Any]) -> None: ...

        def __reduce__(self) -> Any:
            return __import__, ("module_of_the_script",)

    uid = read_spec(Root(prepared)).uid
    stored = seal(dump_trainable(Elsewhere()), uid, "trainable.pkl", epoch=1)
    (prepared / ".holdfast" / "objects" / "trainable.pkl").write_bytes(stored)
    answer = holdfast("resume", prepared)
    assert answer.code == 2
    assert "run this in the directory of your script" in answer.err
    assert "'module_of_the_script'" in answer.err
