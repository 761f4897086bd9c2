"""``holdfast verify`` and ``repair``: every kind of damage is named, and nothing is changed without being asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, many_trials, small_experiment

from holdfast.core import events as ev
from holdfast.core.retention import Retention


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    return small_experiment(tmp_path / "exp").die()


def flip(file: Path, place: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    file.write_bytes(data)


def content(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def segment(root: RootWriter) -> Path:
    return sorted((root.path / ".holdfast" / "journal").iterdir())[0]


def test_a_whole_experiment_is_whole(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    before = content(root.path)
    answer = holdfast("verify", root.path)
    assert answer.code == 0
    assert "intact: 34 records and 5 checkpoints (37 B) are as they were written" in answer.out
    assert content(root.path) == before


def test_a_live_experiment_can_be_verified(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = small_experiment(tmp_path / "exp")
    root.snapshot()
    root.report(3, {"loss": 1.0})
    answer = holdfast("verify", root.path)
    assert answer.code == 0, answer.out
    root.finish()


def test_a_damaged_checkpoint_is_named_with_its_file(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    flip(root.checkpoint_dir(0, 1) / "model.txt")
    (root.checkpoint_dir(2, 0) / "model.txt").unlink()
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert "checkpoint_000001: the content of model.txt is not what was saved" in answer.out
    assert "checkpoint_000000: model.txt is missing" in answer.out
    assert "2 damaged places, 1 trial without a good checkpoint;" in answer.out


def test_a_checkpoint_that_vanished_is_damage(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    import shutil

    shutil.rmtree(root.checkpoint_dir(0, 2))
    answer = holdfast("verify", root.path, "--json")
    assert answer.code == 1
    facts = json.loads(answer.out)
    assert facts["whole"] is False
    assert [finding["message"] for finding in facts["findings"]] == ["the directory is missing"]
    assert facts["findings"][0]["file"].endswith("checkpoint_000002")


def test_a_damaged_journal_is_named_with_file_and_byte(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    flip(segment(root))
    before = content(root.path)
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert f"damage: .holdfast/journal/{segment(root).name} at byte" in answer.out
    assert content(root.path) == before


def test_a_torn_tail_is_no_damage(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    with segment(root).open("ab") as file:
        file.write(b"half a rec")
    answer = holdfast("verify", root.path)
    assert answer.code == 0
    assert "note: .holdfast/journal/" in answer.out
    assert "torn tail" in answer.out


def test_a_record_that_does_not_fit_the_history_is_damage(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.journal.append([ev.encode(ev.TrialPaused(root.tick(), 0, 1)), b"\xc1"])
    answer = holdfast("verify", root.die().path)
    assert answer.code == 1
    assert "record 4 does not fit the history before it" in answer.out


def test_damaged_facts_are_damage(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    (root.path / ".holdfast" / "spec.json").write_text('{"format": 1, "uid')
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert "damage: .holdfast/spec.json" in answer.out


@pytest.mark.parametrize("kind", ["hfs", "hfa"])
def test_a_damaged_snapshot_is_named_and_nothing_is_lost(
    tmp_path: Path, holdfast: Callable[..., Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = many_trials(tmp_path / "exp", 20, snapshot=True)
    assert holdfast("verify", root.path).code == 0
    file = next((root.path / ".holdfast" / "snapshots").glob(f"*.{kind}"))
    flip(file, 0.9)
    caplog.clear()
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert "damage: .holdfast/snapshots/" in answer.out
    assert "Nothing is lost" in answer.out
    assert f"holdfast repair {root.path}" in answer.out
    assert caplog.text == ""
    assert len(json.loads(holdfast("status", root.path, "--json").out)["trials"]) == 20


@pytest.mark.parametrize("kind", ["hfs", "hfa", "archive gone"])
def test_a_repair_removes_a_damaged_snapshot_and_keeps_a_copy(
    tmp_path: Path, holdfast: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = many_trials(tmp_path / "exp", 20, snapshot=True)
    folder = root.path / ".holdfast" / "snapshots"
    if kind == "archive gone":
        next(folder.glob("*.hfa")).unlink()
    else:
        flip(next(folder.glob(f"*.{kind}")), 0.9)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("holdfast.cli.repair.confirmed", lambda *args: False)
    assert "Nothing was changed" in holdfast("repair", root.path).out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    answer = holdfast("repair", root.path, "--yes")
    assert answer.code == 0
    assert "Nothing is lost" in answer.out
    copy = root.path / ".holdfast" / "damaged-1" / "snapshots"
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert holdfast("verify", root.path).code == 0
    assert "nothing to repair" in holdfast("repair", root.path, "--yes").out
    assert len(json.loads(holdfast("status", root.path, "--json").out)["trials"]) == 20


def test_a_repair_of_the_journal_removes_a_damaged_snapshot_too(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = many_trials(tmp_path / "exp", 20, snapshot=True)
    os.truncate(next((root.path / ".holdfast" / "snapshots").glob("*.hfs")), 100)
    file = segment(root)
    os.truncate(file, file.stat().st_size - 10)
    assert holdfast("repair", root.path, "--yes").code == 0
    assert holdfast("verify", root.path).code == 0, holdfast("verify", root.path).out


def test_a_snapshot_that_contradicts_the_journal_is_damage_that_a_repair_removes(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 1})
    root.start(0)
    root.report(0, {"loss": 1.0})
    root.end(0)
    root.state.trials[0].iteration = 77
    root.snapshot()
    answer = holdfast("verify", root.die().path)
    assert answer.code == 1
    assert "it contradicts the journal" in answer.out
    assert holdfast("repair", root.path, "--yes").code == 0
    assert holdfast("verify", root.path).code == 0


def test_rejected_and_unfinished_checkpoints_are_notes(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp", retention=Retention(num_to_keep=5)).open()
    root.create({})
    root.start(0)
    for step in range(2):
        root.report(0, {"loss": 1.0})
        root.save(0, {"a": str(step)})
    root.reject(0, 1, "a is missing")
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "2"})
    answer = holdfast("verify", root.finish("SIGINT").path)
    assert answer.code == 0
    assert "checkpoint_000001: rejected earlier and not used: a is missing" in answer.out
    assert "checkpoint_000002: written but not committed" in answer.out


def all_rejected(path: Path) -> RootWriter:
    """One trial whose checkpoints were all found damaged when it should continue."""
    root = RootWriter(path).open()
    root.create({})
    root.start(0)
    for step in range(2):
        root.report(0, {"loss": 1.0})
        root.save(0, {"a": str(step)})
    root.cut(0, ev.Cause.DRIVER_STOPPED)
    root.reject(0, 1, "a is missing")
    root.reject(0, 0, "a is shorter than it was")
    return root


def test_a_trial_whose_checkpoints_were_all_rejected_is_lost(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = all_rejected(tmp_path / "exp")
    root.error(0, ev.Cause.DAMAGED, message="every checkpoint of this trial is damaged")
    answer = holdfast("verify", root.finish().path)
    assert answer.code == 1
    assert "train_abcde_00000 has no good checkpoint left, 2 bad ones" in answer.out
    assert f"`holdfast resume {root.path} --restart-errored`" in answer.out
    assert "DAMAGED: 1 trial without a good checkpoint; " in answer.out
    facts = json.loads(holdfast("verify", root.path, "--json").out)
    assert facts["whole"] is False
    assert [finding["level"] for finding in facts["findings"]] == ["note", "note", "lost"]


def test_an_unfinished_trial_that_lost_all_is_told_what_a_resume_does(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = all_rejected(tmp_path / "exp").finish("SIGINT")
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert "otherwise the next resume ends the trial in ERROR" in answer.out
    assert "on resume   ends in ERROR: all its checkpoints are damaged" in holdfast("show", root.path, "0").out


def test_a_finished_trial_that_lost_all_keeps_its_results(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    flip(root.checkpoint_dir(2, 0) / "model.txt")
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert "train_abcde_00002 has no good checkpoint left, 1 bad one: the trial has ended" in answer.out


def test_a_trial_that_was_restarted_has_not_lost_what_its_user_gave_up(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = all_rejected(tmp_path / "exp")
    root.error(0, ev.Cause.DAMAGED, message="every checkpoint of this trial is damaged")
    root.add(ev.TrialRequeued(root.tick(), 0, "restart"))
    root.start(0, scratch=True)
    root.report(0, {"loss": 1.0})
    root.end(0)
    assert holdfast("verify", root.finish().path).code == 0


def test_a_checkpoint_that_is_still_to_be_committed_may_be_good(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = all_rejected(tmp_path / "exp")
    root.start(0, scratch=True)
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "2"})
    root.finish("SIGINT")
    assert holdfast("verify", root.path).code == 0
    shown = holdfast("show", root.path, "0").out
    assert "on resume   continues from checkpoint_000002 (iteration 1), once it is committed" in shown


# --- repair


def test_repair_without_an_answer_changes_nothing(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    flip(segment(root))
    before = content(root.path)
    answer = holdfast("repair", root.path)
    assert answer.code == 2
    assert "add --yes" in answer.err
    assert content(root.path) == before


def test_repair_keeps_a_copy_and_makes_the_experiment_readable(root: RootWriter, holdfast: Callable[..., Any]) -> None:
    flip(segment(root), 0.8)
    assert holdfast("status", root.path).code == 1
    damaged = segment(root).read_bytes()
    answer = holdfast("repair", root.path, "--yes")
    assert answer.code == 0
    assert "records kept" in answer.out
    assert (root.path / ".holdfast" / "damaged-1" / segment(root).name).read_bytes() == damaged
    assert holdfast("status", root.path).code == 0
    assert holdfast("repair", root.path).out.startswith(f"The journal of {root.path} is intact")


def test_repair_refuses_an_experiment_that_is_being_written(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = small_experiment(tmp_path / "exp")
    flip(segment(root))
    answer = holdfast("repair", root.path, "--yes")
    assert answer.code == 1
    assert "is being written by" in answer.err
    root.die()


def test_a_damaged_mark_of_what_was_durable_is_named(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = small_experiment(tmp_path / "exp").finish()
    mark = next((root.path / ".holdfast" / "epochs").glob("*.synced"))
    good = mark.read_bytes()
    flip(mark)
    answer = holdfast("verify", root.path)
    assert answer.code == 1
    assert f"damage: .holdfast/epochs/{mark.name}: " in answer.out
    for nothing in (b"", bytes(len(good))):  # what a power cut may leave of a file that nobody syncs
        mark.write_bytes(nothing)
        assert holdfast("verify", root.path).code == 0
    mark.unlink()
    assert holdfast("verify", root.path).code == 0


@pytest.mark.parametrize("lost", [False, True])
def test_without_the_spec_no_checkpoint_is_called_damaged(
    root: RootWriter, holdfast: Callable[..., Any], lost: bool
) -> None:
    """Names of directories follow from it."""
    spec = root.path / ".holdfast" / "spec.json"
    if lost:
        spec.unlink()
    else:
        flip(spec)
    answer = holdfast("verify", root.path, "--json")
    facts = json.loads(answer.out)
    assert answer.code == 1
    assert facts["records"] == 34
    damage = [finding for finding in facts["findings"] if finding["level"] != "note"]
    assert [finding["file"] for finding in damage] == [".holdfast/spec.json"]
    assert any("checkpoints were not looked at" in finding["message"] for finding in facts["findings"])


def test_repair_names_only_the_first_of_many_unknown_checkpoints(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"x": 1})
    root.start(0)
    for step in range(25):
        root.report(0, {"loss": 1.0 * step})
        root.save(0, {"model.txt": f"{step}"})
    root.finish()
    for folder in ("journal", "snapshots", "epochs"):
        shutil.rmtree(root.path / ".holdfast" / folder, ignore_errors=True)
    said = holdfast("repair", root.path, "--yes").out
    assert said.count("the journal has lost the record of this checkpoint") == 10
    assert "  and 15 more such checkpoints\n" in said


def test_what_the_journal_warns_of_begins_with_the_name_of_the_command(tmp_path: Path) -> None:
    """In a process of its own: here, pytest has set up logging."""
    root = many_trials(tmp_path / "exp", 20, snapshot=True)
    snapshot = next((root.path / ".holdfast" / "snapshots").glob("*.hfs"))
    flip(snapshot)
    command = [sys.executable, "-m", "holdfast", "status", str(root.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "snapshot" in done.stderr
    assert all(line.startswith("holdfast: ") for line in done.stderr.splitlines()), done.stderr


def test_a_journal_that_became_shorter_is_not_called_a_driver_that_went_away(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = small_experiment(tmp_path / "exp").finish()
    file = segment(root)
    os.truncate(file, file.stat().st_size * 55 // 100)
    answer = holdfast("status", root.path)
    assert answer.code == 1
    assert "exited without shutting down" not in answer.out
    assert "everything that was reported is recorded" not in answer.out
    assert "its journal is damaged, so how it ended is not known" in answer.out.splitlines()[0]
