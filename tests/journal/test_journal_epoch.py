"""One writer: who may claim an experiment, when, and what the others are told."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from faulty_disk import FaultyDisk

from holdfast.errors import ExperimentLockedError, StorageError, StorageFullError
from holdfast.journal import Claim, beat, claim_epoch, holder, is_fenced, release
from holdfast.journal.claims import encode_claim
from holdfast.journal.epoch import SILENCE_S, fenced_error


def put_claim(root: Path, claim: Claim, age_s: float = 0.0) -> None:
    path = root / ".holdfast" / "epochs" / f"{claim.epoch:08d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_claim(claim))
    os.utime(path, (time.time() - age_s,) * 2)


def elsewhere(epoch: int = 1) -> Claim:
    return Claim(epoch, "w", "otherhost", 4242, "another machine", 77, time.time() - 600)


def test_nobody_holds_a_new_root(tmp_path: Path) -> None:
    assert holder(tmp_path) is None


def test_a_claim_is_a_file_that_people_can_read(tmp_path: Path) -> None:
    claim = claim_epoch(tmp_path)
    text = json.loads((tmp_path / ".holdfast" / "epochs" / "00000001").read_text())
    assert text["pid"] == os.getpid() == claim.pid
    assert sorted(text) == [
        "checksum",
        "claimed_at",
        "epoch",
        "host",
        "lock",
        "machine",
        "pid",
        "process_start",
        "writer",
    ]


def test_a_second_claim_of_the_same_process_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = claim_epoch(tmp_path)
    with pytest.raises(ExperimentLockedError, match="this same process") as caught:
        claim_epoch(tmp_path)
    assert (caught.value.host, caught.value.pid) == (first.host, os.getpid())
    assert 0 <= caught.value.age_s < 60
    release(tmp_path, first)
    assert claim_epoch(tmp_path).epoch == 2


def test_the_refusal_names_the_holder_and_the_ways_out(tmp_path: Path) -> None:
    put_claim(tmp_path, elsewhere(), age_s=12)
    with pytest.raises(ExperimentLockedError) as caught:
        claim_epoch(tmp_path)
    message = str(caught.value)
    for part in ("pid 4242 on otherhost", "10 min ago", "12 s ago", "Wait", "takeover=True", "--takeover"):
        assert part in message
    assert caught.value.age_s == pytest.approx(12, abs=5)


def test_a_takeover_fences_the_holder(tmp_path: Path) -> None:
    first = claim_epoch(tmp_path)
    assert not is_fenced(tmp_path, first)
    second = claim_epoch(tmp_path, takeover=True)
    assert is_fenced(tmp_path, first)
    assert not is_fenced(tmp_path, second)
    assert "epoch 2" in str(fenced_error(str(tmp_path), first))


def test_a_driver_that_slept_through_many_epochs_is_still_fenced(tmp_path: Path) -> None:
    first = claim_epoch(tmp_path)
    for _ in range(5):
        claim_epoch(tmp_path, takeover=True)
    assert is_fenced(tmp_path, first)


def test_a_dead_holder_on_this_machine_is_succeeded_at_once(tmp_path: Path) -> None:
    code = "import sys; from holdfast.journal import claim_epoch; claim_epoch(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    found = holder(tmp_path)
    assert found is not None
    assert not found.alive
    assert not found.released
    assert claim_epoch(tmp_path).epoch == 2


def test_a_zombie_process_counts_as_dead(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            claim_epoch(tmp_path)
        finally:
            os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended but is not reaped
    assert claim_epoch(tmp_path).epoch == 2
    os.waitpid(child, 0)


def test_another_process_with_the_holders_pid_is_not_the_holder(tmp_path: Path) -> None:
    mine = claim_epoch(tmp_path)
    put_claim(tmp_path, msgspec.structs.replace(mine, epoch=2, process_start=mine.process_start - 1))
    found = holder(tmp_path)
    assert found is not None
    assert not found.alive


@pytest.mark.parametrize(
    ("age_s", "alive"),
    [(0, True), (SILENCE_S - 5, True), (SILENCE_S + 5, False), (-3600, False), (3600, False)],
)
def test_a_holder_on_another_machine_lives_by_its_heartbeat(tmp_path: Path, age_s: float, alive: bool) -> None:
    put_claim(tmp_path, elsewhere(), age_s)
    found = holder(tmp_path)
    assert found is not None
    assert found.alive == alive


def test_a_heartbeat_keeps_a_silent_holder_alive(tmp_path: Path) -> None:
    claim = elsewhere()
    put_claim(tmp_path, claim, age_s=1000)
    beat(tmp_path, claim)
    found = holder(tmp_path)
    assert found is not None
    assert found.alive
    assert found.age_s < 30


def test_a_released_holder_elsewhere_is_succeeded_at_once(tmp_path: Path) -> None:
    claim = elsewhere()
    put_claim(tmp_path, claim)
    release(tmp_path, claim)
    assert claim_epoch(tmp_path).epoch == 2


def test_a_claim_cut_short_by_a_power_failure_lives_by_its_heartbeat(tmp_path: Path) -> None:
    put_claim(tmp_path, elsewhere())
    path = tmp_path / ".holdfast" / "epochs" / "00000001"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ExperimentLockedError, match="unknown"):
        claim_epoch(tmp_path)
    os.utime(path, (0, 0))
    assert claim_epoch(tmp_path).epoch == 2


def test_what_killed_claimants_left_behind_is_swept(tmp_path: Path) -> None:
    release(tmp_path, claim_epoch(tmp_path))
    old = tmp_path / ".holdfast" / "epochs" / ".tmp-1-old"
    new = tmp_path / ".holdfast" / "epochs" / ".tmp-2-new"
    old.write_text("")
    new.write_text("")
    os.utime(old, (0, 0))
    claim_epoch(tmp_path)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.ENOSPC, StorageFullError, "Free some space"),
        (errno.EDQUOT, StorageFullError, "raise the quota"),
        (errno.EROFS, StorageError, "Make it writable"),
        (errno.EACCES, StorageError, "Make it writable"),
        (errno.EIO, StorageError, "mounted, reachable and healthy"),
    ],
)
@pytest.mark.parametrize("step", ["create", "sync_dir"])
def test_a_root_that_cannot_be_written_is_named_with_the_reason_and_the_remedy(
    step: str, code: int, kind: type[StorageError], remedy: str
) -> None:
    disk = FaultyDisk()
    disk.fail(step, OSError(code, os.strerror(code)))
    with pytest.raises(kind, match=remedy) as caught:
        claim_epoch("/exp", disk=disk)
    assert type(caught.value) is kind
    assert caught.value.errno == code
    assert "The experiment /exp cannot be opened for writing" in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert "holdfast status /exp" in str(caught.value)
    claim_epoch("/exp", disk=disk)  # this same process may try again


def test_a_root_whose_claims_cannot_be_listed_is_a_storage_error_too(tmp_path: Path) -> None:
    private = tmp_path / ".holdfast"
    private.mkdir()
    (private / "epochs").write_text("not a directory")
    with pytest.raises(StorageError, match=r"cannot be opened for writing: .*Not a directory"):
        claim_epoch(tmp_path)
