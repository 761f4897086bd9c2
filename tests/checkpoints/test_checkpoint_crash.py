"""Every place where a process can die between the first byte and the last fsync, and what the next one finds."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_trial import FILES, Trial, read_tree

from holdfast.checkpoints.checkpoint_reader import verify
from holdfast.checkpoints.commit import recover, sweep
from holdfast.checkpoints.delete import delete
from holdfast.errors import CheckpointDamagedError

Run = Callable[..., "subprocess.CompletedProcess[str]"]

STAGE = """
import sys, shutil
from pathlib import Path
from holdfast.checkpoints.stage import Stage
trial_dir, source, in_place = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "in place"
stage = Stage(trial_dir, "t1", 1)
if in_place:
    path = stage.new_directory()
    shutil.copytree(source, path, dirs_exist_ok=True)
    source = path
print(stage.seal(source).name)
"""

COMMIT = """
import sys
from pathlib import Path
from holdfast.checkpoints.commit import commit
print(commit(Path(sys.argv[1]), sys.argv[2], 1, trial_id="t1", attempt=1).digest)
"""

DELETE = """
import sys
from holdfast.checkpoints.delete import delete
delete(sys.argv[1])
"""

COMMIT_POINTS = ["L2.mid", "L2.mid:3", "L2.after", "L3.mid", "L3.after", "L4.after", "L5.after", "L6.after"]


def die(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == -signal.SIGKILL, result.stderr


@pytest.mark.parametrize("in_place", ["foreign", "in place"])
@pytest.mark.parametrize("point", ["L0.after", "L1.mid", "L1.mid:2", "L1.after"])
def test_a_death_before_the_seal_leaves_nothing_to_commit(
    trial: Trial, source: Path, run_python: Run, point: str, in_place: str
) -> None:
    if in_place == "in place" and point.startswith("L1.mid"):
        point = "L1.after"  # nothing is copied
    saved = trial.saved(0)
    die(run_python(STAGE, trial.dir, source, in_place, crash=point))
    (partial,) = [name for name in trial.names() if name != saved.name]
    assert partial.startswith(".stage-1-")
    assert sweep(trial.dir, set(), up_to=1).removed == [partial]
    verify(saved)
    assert read_tree(source) == FILES


@pytest.mark.parametrize("in_place", ["foreign", "in place"])
def test_a_death_after_the_seal_loses_nothing(trial: Trial, source: Path, run_python: Run, in_place: str) -> None:
    die(run_python(STAGE, trial.dir, source, in_place, crash="L1.sealed"))
    (name,) = trial.names()
    trial.commit(name, 1)
    verify(trial.dir / "checkpoint_000001")
    assert read_tree(trial.dir / "checkpoint_000001") == FILES


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_commit_killed_anywhere_is_finished_by_the_next_one(trial: Trial, run_python: Run, point: str) -> None:
    saved = trial.saved(0)
    name = trial.sealed().name
    die(run_python(COMMIT, trial.dir, name, crash=point))
    target = trial.dir / "checkpoint_000001"
    if point in ("L5.after", "L6.after"):
        verify(target)
    else:
        assert not target.exists()
    sweep(trial.dir, {name}, up_to=1)
    done = recover(trial.dir, name, 1, trial_id="t1", attempt=1)
    assert done is not None
    verify(target, expect_digest=done.digest)
    assert read_tree(target) == FILES
    assert trial.names() == [saved.name, target.name]
    assert not (target / ".holdfast-seal").exists()
    verify(saved)


def test_a_commit_killed_at_every_place_in_turn_is_finished_in_the_end(trial: Trial, run_python: Run) -> None:
    name = trial.sealed().name
    for point in COMMIT_POINTS:
        die(run_python(COMMIT, trial.dir, name, crash=point))
    digest = run_python(COMMIT, trial.dir, name).stdout.strip()
    verify(trial.dir / "checkpoint_000001", expect_digest=digest)


def test_a_death_while_something_is_in_the_way_keeps_both(trial: Trial, run_python: Run) -> None:
    trial.saved(1, {"other": b"other"})
    name = trial.sealed().name
    die(run_python(COMMIT, trial.dir, name, crash="L4.after"))
    die(run_python(COMMIT, trial.dir, name, crash="L5.after"))
    trial.commit(name, 1)
    target, orphan = trial.names()
    assert read_tree(trial.dir / target) == FILES
    assert read_tree(trial.dir / orphan) == {"other": b"other"}


@pytest.mark.parametrize("point", ["L1.mid", "L2.mid", "L4.after", "L5.after", "L6.after"])
def test_a_death_while_a_stage_that_failed_to_sync_is_copied_loses_nothing(
    trial: Trial, run_python: Run, point: str
) -> None:
    name = trial.sealed().name
    (trial.dir / name).rename(trial.dir / f"{name}.resync")
    die(run_python(COMMIT, trial.dir, name, crash=point))
    sweep(trial.dir, {name}, up_to=1)
    trial.commit(name, 1)
    verify(trial.dir / "checkpoint_000001")
    assert trial.names() == ["checkpoint_000001"]


@pytest.mark.parametrize("point", ["D2.after", "D4.after"])
def test_a_deletion_killed_anywhere_is_finished_by_the_next_one(trial: Trial, run_python: Run, point: str) -> None:
    kept, saved = trial.saved(0), trial.saved(1)
    die(run_python(DELETE, saved, crash=point))
    with pytest.raises(CheckpointDamagedError, match=r"no manifest|directory is missing"):
        verify(saved)
    delete(saved)
    assert trial.names() == [kept.name]
    verify(kept)


def test_a_killed_deletion_is_also_finished_by_a_sweep(trial: Trial, run_python: Run) -> None:
    saved = trial.saved(1)
    die(run_python(DELETE, saved, crash="D4.after"))
    assert len(sweep(trial.dir, set(), up_to=1).removed) == 1
    assert trial.names() == []
