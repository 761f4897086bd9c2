"""SyncedCopy.fetch: an experiment comes back whole, or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sync_tools import CP, Cut, Experiment, TreeSyncer, content_of, files_in, records_in

from holdfast.errors import DamageError, ExperimentNotFoundError, StorageError, SyncError
from holdfast.storage.layout import SYNC_SEAL
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.synced_copy import SyncedCopy
from holdfast.sync.syncer import FunctionSyncer, Syncer


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "here" / "exp")


@pytest.fixture
def remote(experiment: Experiment, tmp_path: Path) -> Path:
    """Where three records of the experiment have arrived."""
    sync = SyncedCopy(experiment.root, str(tmp_path / "remote"), TreeSyncer(), position=lambda: experiment.records)
    for now in range(2):
        experiment.checkpoint()
        sync.step(now * 1e6)
    assert (sync.trouble, sync.arrived) == (None, 3)
    sync.close()
    return tmp_path / "remote"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where it is fetched to."""
    return tmp_path / "elsewhere" / "exp"


def fetch(root: Path, remote: Path, syncer: Syncer | None = None) -> str | None:
    sync = SyncedCopy(root, str(remote), syncer or TreeSyncer())
    try:
        return sync.fetch()
    finally:
        sync.close()


def copy_all(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


@pytest.mark.parametrize(
    "syncer",
    [TreeSyncer(), CommandSyncer(CP), FunctionSyncer(copy_all)],
    ids=["syncer", "command", "function"],
)
def test_what_was_sent_comes_back_byte_for_byte(
    experiment: Experiment, remote: Path, root: Path, syncer: Syncer
) -> None:
    assert fetch(root, remote, syncer) is None
    assert content_of(root) == content_of(experiment.root)
    left = {entry.name for entry in (root.parent / ".sync-exp").iterdir()}
    assert left == {"tree"}


def test_a_fetched_experiment_goes_on_and_is_sent_again(
    experiment: Experiment, remote: Path, root: Path, tmp_path: Path
) -> None:
    fetch(root, remote)
    experiment.root = root
    experiment.checkpoint()
    sync = SyncedCopy(root, str(remote), TreeSyncer())
    sync.flush(timeout=20)
    sync.close()
    fetch(tmp_path / "third" / "exp", remote)
    assert records_in(tmp_path / "third" / "exp") == [1, 2, 3, 4]


def test_an_empty_place_is_no_experiment(tmp_path: Path, root: Path) -> None:
    (tmp_path / "remote" / ".holdfast").mkdir(parents=True)
    (tmp_path / "remote" / ".holdfast-safe").mkdir()
    with pytest.raises(ExperimentNotFoundError, match="no experiment at"):
        fetch(root, tmp_path / "remote")
    assert not root.exists()


def test_a_place_that_cannot_be_reached_is_not_called_empty(tmp_path: Path, root: Path) -> None:
    with pytest.raises(SyncError, match=r"could not be fetched(.|\n)*exit code was 255"):
        fetch(root, tmp_path / "remote", CommandSyncer("exit 255 # {source} {target}"))


def test_a_first_copy_that_was_never_finished_is_no_experiment(remote: Path, root: Path) -> None:
    shutil.rmtree(remote / ".holdfast")
    (remote / ".holdfast").mkdir()
    (remote / ".holdfast-safe" / SYNC_SEAL).unlink()
    with pytest.raises(ExperimentNotFoundError, match="first copy was never finished"):
        fetch(root, remote)


@pytest.mark.parametrize("torn", [".holdfast", ".holdfast-safe"])
@pytest.mark.parametrize("file", [SYNC_SEAL, "journal/00000001.hfj", "spec.json"])
def test_of_two_copies_of_the_journal_one_is_enough(
    experiment: Experiment, remote: Path, root: Path, torn: str, file: str
) -> None:
    os.truncate(remote / torn / file, 1)
    fetch(root, remote)
    assert content_of(root) == content_of(experiment.root)


def test_two_torn_copies_are_damage_and_nothing_is_made_of_them(remote: Path, root: Path) -> None:
    for name in (".holdfast", ".holdfast-safe"):
        os.truncate(remote / name / "journal" / "00000001.hfj", 1)
    with pytest.raises(DamageError, match=r"journal/00000001\.hfj has 1 bytes instead of 6"):
        fetch(root, remote)
    assert not root.exists()


def test_the_newer_of_two_whole_copies_is_taken(experiment: Experiment, remote: Path, root: Path) -> None:
    """A round is cut between the two copies: what it brought is there, and counts."""

    def on_file(rel: str) -> None:
        if syncer.calls[-1] == ("up", str(remote / ".holdfast")):
            raise Cut

    syncer = TreeSyncer(on_file)
    experiment.checkpoint()
    sync = SyncedCopy(experiment.root, str(remote), syncer)
    sync.step(0)
    assert sync.trouble is not None
    sync.close()
    fetch(root, remote)
    assert records_in(root) == [1, 2, 3, 4]


def test_a_root_that_somebody_copied_by_hand_can_be_fetched(experiment: Experiment, tmp_path: Path, root: Path) -> None:
    shutil.copytree(experiment.root, tmp_path / "remote")
    fetch(root, tmp_path / "remote")
    assert content_of(root) == content_of(experiment.root)


def test_what_is_obsolete_at_the_other_end_does_not_come_back_into_the_journal(
    experiment: Experiment, remote: Path, root: Path
) -> None:
    for name in (".holdfast", ".holdfast-safe"):
        (remote / name / "snapshots").mkdir(exist_ok=True)
        (remote / name / "snapshots" / "000000000001.hfs").write_text("an old one")
    fetch(root, remote)
    assert content_of(root) == content_of(experiment.root)


def test_a_root_that_is_there_is_kept_under_another_name(experiment: Experiment, remote: Path, root: Path) -> None:
    root.mkdir(parents=True)
    assert fetch(root, remote) is None  # an empty directory is nothing
    (root / "precious").write_text("x")
    aside = fetch(root, remote)
    assert aside is not None
    assert (Path(aside) / "precious").read_text() == "x"
    assert content_of(root) == content_of(experiment.root)


def test_a_fetch_that_fails_leaves_no_root_and_the_next_one_continues(
    experiment: Experiment, remote: Path, root: Path
) -> None:
    def on_file(rel: str) -> None:
        if rel == "trial/checkpoint_000003/model.bin":
            raise Cut

    with pytest.raises(Cut):
        fetch(root, remote, TreeSyncer(on_file))
    assert not root.exists()
    fetched: list[str] = []
    fetch(root, remote, TreeSyncer(fetched.append))
    assert "trial/checkpoint_000001/model.bin" not in fetched
    assert "trial/checkpoint_000003/model.bin" in fetched
    assert content_of(root) == content_of(experiment.root)


KILLED = """
import os, signal, sys
from holdfast.sync.synced_copy import SyncedCopy
from sync_tools import TreeSyncer

def on_file(rel):
    if rel == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

SyncedCopy(sys.argv[1], sys.argv[2], TreeSyncer(on_file)).fetch()
"""


@pytest.mark.parametrize(
    ("file", "crash"),
    [
        (".holdfast/journal/00000001.hfj", ""),
        ("trial/checkpoint_000002/model.bin", ""),
        ("trial/result.json", ""),
        ("", "fetch.before_rename"),
    ],
)
def test_kill_dash_nine_in_the_middle_of_a_fetch_leaves_no_half_root(
    experiment: Experiment, remote: Path, root: Path, file: str, crash: str
) -> None:
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOLDFAST_CRASH": crash}
    # Journals are fetched as directories of their own, so that a file of one has a shorter name there.
    name = file.removeprefix(".holdfast/")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(root), str(remote), name], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert not root.exists()
    fetch(root, remote)
    assert content_of(root) == content_of(experiment.root)


def test_two_processes_do_not_fetch_to_the_same_place(remote: Path, root: Path) -> None:
    nested: list[Exception] = []

    def on_file(rel: str) -> None:
        if not nested:
            try:
                fetch(root, remote)
            except StorageError as error:
                nested.append(error)

    fetch(root, remote, TreeSyncer(on_file))
    assert "Another process is fetching" in str(nested[0])
    assert records_in(root) == [1, 2, 3]


def test_the_journal_alone_can_be_fetched_for_comparison(experiment: Experiment, remote: Path) -> None:
    sync = SyncedCopy(experiment.root, str(remote), TreeSyncer())
    with sync.fetched_journal() as journal:
        found = content_of(journal)
    sync.close()
    assert found.pop(SYNC_SEAL)
    assert found == content_of(experiment.root / ".holdfast")
    assert not (experiment.root.parent / ".sync-exp" / "fetch").exists()


def test_after_a_fetch_a_tool_that_deletes_does_not_delete_the_journal(
    remote: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template without {exclude}, but with --delete, on a machine that has sent nothing yet."""
    missing: list[str] = []

    class Deleting(TreeSyncer):
        def _copy(self, source: str, target: str, exclude: Sequence[str]) -> None:
            super()._copy(source, target, ())
            for rel in set(files_in(target)) - set(files_in(source)):
                Path(target, rel).unlink()
            missing.extend(name for name in (".holdfast", ".holdfast-safe") if not (remote / name / SYNC_SEAL).exists())

    sync = SyncedCopy(root, str(remote), Deleting())
    sync.fetch()
    sync.step(0)
    sync.close()
    assert (sync.trouble, missing) == (None, [])
