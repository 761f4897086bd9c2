"""What ``verify`` and ``show`` say a resume will do, where the journal alone would let one guess wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter

from holdfast.checkpoints.names import SEAL
from holdfast.core import events as ev

Command = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    """One trial that runs."""
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    return root


def foreseen(holdfast: Command, root: RootWriter) -> tuple[int, dict[int, tuple[str, str | None]]]:
    """Exit code, and what is said of each unfinished trial."""
    answer = holdfast("verify", root.path, "--json")
    numbers = {trial.id: trial.n for trial in root.state.trials}
    facts = json.loads(answer.out)["resume"]
    return answer.code, {
        numbers[fact["trial_id"]]: (fact["then"], fact["checkpoint"] and Path(fact["checkpoint"]).name)
        for fact in facts
    }


def damage(root: RootWriter, n: int, index: int) -> None:
    (root.checkpoint_dir(n, index) / "a").write_text("?")


def report_and_save(root: RootWriter, n: int, text: str = "x") -> int:
    root.report(n, {"loss": 1.0})
    return root.save(n, {"a": text})


def test_a_trial_of_which_nothing_was_ever_committed_has_lost_nothing(root: RootWriter, holdfast: Command) -> None:
    """After a power cut its stages were rejected; a restore starts it again, and verify does not say ERROR."""
    for _ in range(2):
        root.report(0, {"loss": 1.0})
        index = root.stage(0, {"a": "x"})
        root.reject(0, index, "a is missing")
    root.die()
    assert foreseen(holdfast, root) == (0, {0: ("restarts", None)})
    text = holdfast("verify", root.path).out
    assert "no checkpoint of it was ever committed" in text
    assert "ERROR" not in text
    assert "on resume   starts from the beginning" in holdfast("show", root.path, "0").out


def test_a_stage_that_cannot_be_committed_is_not_counted_on(root: RootWriter, holdfast: Command) -> None:
    report_and_save(root, 0)
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "y"})
    root.die()
    assert foreseen(holdfast, root) == (0, {0: ("continues", "checkpoint_000001")})
    (seal,) = root.path.glob(f"*/.sealed-*/{SEAL}")
    seal.write_bytes(b"")
    assert foreseen(holdfast, root) == (0, {0: ("continues", "checkpoint_000000")})
    assert "the next driver rejects it: its seal is damaged" in holdfast("verify", root.path).out
    damage(root, 0, 0)
    assert foreseen(holdfast, root) == (1, {0: ("error", None)})
    assert "the next resume ends the trial in ERROR" in holdfast("verify", root.path).out


def test_quick_looks_at_names_and_sizes_of_stages_too(root: RootWriter, holdfast: Command) -> None:
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "y"})
    root.die()
    (file,) = root.path.glob("*/.sealed-*/a")
    file.write_text("longer")
    answer = holdfast("verify", root.path, "--quick", "--json")
    assert json.loads(answer.out)["resume"][0]["then"] == "restarts"


def test_a_trial_that_was_told_to_stop_ends_and_is_not_called_lost(root: RootWriter, holdfast: Command) -> None:
    report_and_save(root, 0)
    damage(root, 0, 0)
    root.add(ev.Reported(root.tick(), 0, root.attempt(0), 1, 0.1, {"loss": 1.0}, "stop", "done"))
    root.die()
    code, fates = foreseen(holdfast, root)
    assert (code, fates) == (1, {0: ("ends", None)})
    assert "ends the trial in ERROR" not in holdfast("verify", root.path).out


def test_a_copy_of_another_trial_goes_on_from_that_one(root: RootWriter, holdfast: Command) -> None:
    """Its own checkpoints are damaged, but it has been told to continue from a donor's."""
    report_and_save(root, 0, "donor")
    root.create({})
    root.start(1)
    report_and_save(root, 1)
    damage(root, 1, 0)
    root.report(1, {"loss": 1.0})
    root.cut(1, ev.Cause.DRIVER_STOPPED)
    root.add(ev.TrialReconfigured(root.tick(), 1, {"lr": 2}, "", (0, 0), 0, ()))
    root.die()
    code, fates = foreseen(holdfast, root)
    assert code == 1  # something is damaged
    assert fates[1] == ("continues", "checkpoint_000000")
    assert "no good checkpoint left" not in holdfast("verify", root.path).out
    shown = holdfast("show", root.path, "1").out
    assert f"on resume   continues from checkpoint_000000 of trial {root.state.trials[0].id} (iteration 1)" in shown


def test_storage_that_cannot_be_read_is_waited_for_not_foretold_as_an_error(
    root: RootWriter, holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.checkpoints import checkpoint_reader

    report_and_save(root, 0)
    root.die()

    def broken(fd: int, algo: str) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint_reader, "hash_open_file", broken)
    code, fates = foreseen(holdfast, root)
    assert (code, fates) == (1, {0: ("waits", "checkpoint_000000")})
    text = holdfast("verify", root.path).out
    assert "cannot be read now" in text
    assert "no good checkpoint left" not in text


def test_looking_changes_nothing(root: RootWriter, holdfast: Command) -> None:
    report_and_save(root, 0)
    root.report(0, {"loss": 1.0})
    root.stage(0, {"a": "y"})
    root.die()
    before = {str(path): path.read_bytes() for path in sorted(root.path.rglob("*")) if path.is_file()}
    holdfast("verify", root.path)
    assert {str(path): path.read_bytes() for path in sorted(root.path.rglob("*")) if path.is_file()} == before
