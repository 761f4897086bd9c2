"""Real processes: killed at named places, stopped and woken, racing for one experiment."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from journal_tools import DRIVER

from holdfast.errors import ExperimentLockedError
from holdfast.journal import Journal, SnapshotStore, claim_epoch, holder, read_journal, verify_journal

FENCED = 3


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@contextmanager
def driver(mode: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*DRIVER, mode, str(root)], stdin=-1, stdout=-1, text=True)
    try:
        with process:
            yield process
    finally:
        process.kill()


@pytest.mark.parametrize(
    "place",
    [
        "epoch.claimed",
        "journal.before_write",
        "journal.before_write:7",
        "journal.after_write",
        "journal.after_write:7",
        "journal.before_sync",
        "journal.before_sync:3",
        "journal.after_sync:3",
        "journal.rotate.created",
        "journal.rotate.created:3",
        "journal.rotate.synced:3",
        "snapshot.before_rename:2",
        "snapshot.after_rename:2",
    ],
)
def test_a_driver_killed_at_a_named_place_has_lost_nothing_it_acknowledged(tmp_path: Path, place: str) -> None:
    accepted = 0
    for _ in range(2):
        env = {**os.environ, "HOLDFAST_CRASH": place}
        died = subprocess.run([*DRIVER, "write", str(tmp_path)], env=env, stdout=-1, text=True, check=False)
        assert died.returncode == -signal.SIGKILL
        accepted = max([accepted, *map(int, died.stdout.split())])
        found = list(read_journal(tmp_path))
        assert found == [(n, b"record %d" % n) for n in range(1, len(found) + 1)]
        assert len(found) >= accepted
        snapshot = SnapshotStore(tmp_path).load()
        if snapshot is not None:
            rest = list(read_journal(tmp_path, after=snapshot.position))
            assert rest == found[snapshot.seq :]
    subprocess.run([*DRIVER, "write", str(tmp_path)], stdout=-1, check=True)
    assert len(list(read_journal(tmp_path))) >= accepted + 60
    assert not [finding for finding in verify_journal(tmp_path) if finding.level == "damage"]
    assert not list(tmp_path.glob(".holdfast/journal/.tmp-*"))
    assert not list(tmp_path.glob(".holdfast/snapshots/.tmp-*"))


def test_of_sixteen_claims_at_the_same_instant_one_wins(tmp_path: Path) -> None:
    done = subprocess.run([*DRIVER, "race", str(tmp_path)], stdout=-1, text=True, check=True, timeout=60)
    rounds = [line.split() for line in done.stdout.splitlines()]
    assert rounds[0::2] == [["1", "1", "True", "True"]] * 5
    for winners, epochs, *sound in rounds[1::2]:
        assert winners == epochs
        assert sound == ["True", "True"]


def test_a_running_driver_keeps_others_out_and_a_killed_one_does_not(tmp_path: Path) -> None:
    with driver("hold", tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        with pytest.raises(ExperimentLockedError) as caught:
            claim_epoch(tmp_path)
        assert caught.value.pid == first.pid
        first.kill()
        first.wait()
        journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path))
        journal.append([b"second"])
        journal.close()
    assert list(read_journal(tmp_path)) == [(1, b"first"), (2, b"second")]


def test_a_stopped_driver_is_alive_can_be_taken_over_and_fails_at_its_next_write(tmp_path: Path) -> None:
    with driver("hold", tmp_path) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "ready\n"
        first.send_signal(signal.SIGSTOP)
        wait_until_stopped(first.pid)
        with pytest.raises(ExperimentLockedError):
            claim_epoch(tmp_path)
        journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path, takeover=True))
        journal.append([b"second"])
        first.send_signal(signal.SIGCONT)
        first.stdin.write("\n")
        first.stdin.flush()
        assert f"taken over by pid {os.getpid()}" in first.stdout.readline()
        assert first.wait() == FENCED
        journal.append([b"third"])
        journal.close()
    assert [payload for _, payload in read_journal(tmp_path)] == [b"first", b"second", b"third"]
    newest = holder(tmp_path)
    assert newest is not None
    assert (newest.claim.epoch, newest.released) == (2, True)


def test_a_driver_stopped_right_before_its_write_never_acknowledges_it(tmp_path: Path) -> None:
    with driver("stop", tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "stopping\n"
        wait_until_stopped(first.pid)
        journal = Journal.create_or_append(tmp_path, claim_epoch(tmp_path, takeover=True))
        journal.append([b"second"])
        first.send_signal(signal.SIGCONT)
        assert first.wait() == FENCED
        assert "must stop" in first.stdout.read()
        journal.append([b"third"])
        journal.close()
    assert [payload for _, payload in read_journal(tmp_path)] == [b"first", b"second", b"third"]
    notes = [finding.message for finding in verify_journal(tmp_path)]
    assert notes == ["16 bytes behind the seal are void"]
