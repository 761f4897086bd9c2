"""Checkpoints in the mirror and in the store: which of the two is asked for what, and what is never deleted there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoint_trial import FILES, Trial

from holdfast.checkpoints.jobs import CommitJob
from holdfast.checkpoints.remote_checkpoints import fetch
from holdfast.checkpoints.remote_jobs import RemoteJobPerformer
from holdfast.core.observations import CommitEnded
from holdfast.storage.store import Sending
from holdfast.testing.memory_store import MemoryStore

LOST = ".sealed-1-00000000"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    for name in ("mirror", "mirror/elsewhere"):
        (tmp_path / name / ".holdfast").mkdir(parents=True)
    return tmp_path / "mirror"


@pytest.fixture
def trial(mirror: Path) -> Trial:
    return Trial(mirror / "trial")


def commit_job(trial: Trial, index: int = 0, sealed: str = "") -> CommitJob:
    return CommitJob(0, index, str(trial.dir), sealed or trial.sealed().name, trial.id, trial.attempt)


# --- giving up a commit whose stage went with its machine


@pytest.mark.parametrize("damage", [b"", b"x"], ids=["valid", "unreadable"])
def test_giving_up_a_commit_leaves_a_foreign_checkpoint_as_it_is(
    store: MemoryStore, mirror: Path, trial: Trial, damage: bytes
) -> None:
    """The key is another checkpoint's, or one of a later format: its files are all that somebody has."""
    performer = RemoteJobPerformer(store, mirror)
    foreign = performer.perform(commit_job(trial))
    assert isinstance(foreign, CommitEnded)
    assert foreign.digest
    manifest = "trial/checkpoint_000000/_manifest.json"
    store.put(manifest, store.get(manifest) + damage)
    before = store.objects
    outcome = RemoteJobPerformer(store, mirror / "elsewhere").perform(
        CommitJob(0, 0, str(mirror / "elsewhere" / "trial"), LOST, trial.id, trial.attempt)
    )
    assert isinstance(outcome, CommitEnded)
    assert outcome.damaged
    assert "the store has another checkpoint at trial/checkpoint_000000" in outcome.message
    assert store.objects == before


def test_giving_up_a_commit_removes_what_was_half_uploaded_and_says_no_for_good(
    store: MemoryStore, mirror: Path, trial: Trial
) -> None:
    store.put("trial/checkpoint_000000/weights.bin", b"half")
    for _ in range(2):  # the second one finds the first one's word
        outcome = RemoteJobPerformer(store, mirror).perform(commit_job(trial, sealed=LOST))
        assert isinstance(outcome, CommitEnded)
        assert outcome.damaged
        assert list(store.objects) == ["trial/checkpoint_000000/_manifest.json"]


def test_a_driver_that_wakes_up_in_an_upload_that_was_given_up_leaves_nothing_behind(
    store: MemoryStore, mirror: Path, trial: Trial, tmp_path: Path
) -> None:
    """It was stopped after it had asked for the manifest; its successor has given the checkpoint up meanwhile."""
    job = commit_job(trial)
    elsewhere = RemoteJobPerformer(store, tmp_path / "other")

    (tmp_path / "other" / ".holdfast").mkdir(parents=True)
    send = store.send

    def stop_and_send(files: Sequence[Sending]) -> Sequence[str]:
        sent = send(files[:1])
        lost = CommitJob(0, 0, str(tmp_path / "other" / "trial"), job.sealed_name, trial.id, trial.attempt)
        assert elsewhere.perform(lost).damaged
        return [*sent, *send(files[1:])]

    store.send = stop_and_send  # type: ignore[method-assign]
    outcome = RemoteJobPerformer(store, mirror).perform(job)
    assert isinstance(outcome, CommitEnded)
    assert outcome.damaged
    assert "abandoned its upload" in outcome.message
    assert list(store.objects) == ["trial/checkpoint_000000/_manifest.json"]


def test_an_upload_that_was_complete_is_found_instead_of_given_up(
    store: MemoryStore, mirror: Path, trial: Trial, tmp_path: Path
) -> None:
    job = commit_job(trial)
    done = RemoteJobPerformer(store, mirror).perform(job)
    (tmp_path / "other" / ".holdfast").mkdir(parents=True)
    elsewhere = CommitJob(0, 0, str(tmp_path / "other" / "trial"), job.sealed_name, trial.id, trial.attempt)
    assert RemoteJobPerformer(store, tmp_path / "other").perform(elsewhere) == done
    fetch(store, "trial/checkpoint_000000", tmp_path / "fetched")
    assert (tmp_path / "fetched" / "note.txt").read_bytes() == FILES["note.txt"]
