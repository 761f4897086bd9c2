"""Drivers as real processes, for the tests that kill, stop and race them. Run: journal_driver.py MODE ROOT."""

from __future__ import annotations

import os
import signal
import sys

from holdfast.errors import ExperimentLockedError, FencedError
from holdfast.journal import Journal, SnapshotStore, claim_epoch, holder, segment_writer
from holdfast.storage.local import AppendFile, RealDisk

FENCED = 3


def say(*words: object) -> None:
    print(*words, flush=True)


def write_until_killed(root: str) -> None:
    """Append, sync, rotate and snapshot; say every number only after it was accepted."""
    segment_writer.SEGMENT_BYTES = 700
    journal = Journal.create_or_append(root, claim_epoch(root))
    snapshots = SnapshotStore(root, epoch=journal.claim.epoch)
    snapshots.load()
    for n in range(60):
        first = journal.written_seq + 1
        journal.append([b"record %d" % (first + i) for i in range(n % 4 + 1)])
        say(journal.accepted_seq)
        if n % 5 == 4:
            journal.wait_synced(journal.written_seq)
            snapshots.write(journal.synced_seq, journal.position, b"state %d" % journal.synced_seq)
    journal.close()


def hold(root: str) -> None:
    """Append, wait for a line on standard input, append again."""
    journal = Journal.create_or_append(root, claim_epoch(root))
    journal.append([b"first"])
    say("ready")
    sys.stdin.readline()
    try:
        journal.append([b"late"])
    except FencedError as error:
        say(error)
        sys.exit(FENCED)


class _StopsBeforeItsSecondWrite:
    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._writes = 0
        self.sync = file.sync
        self.close = file.close

    def write(self, data: bytes | memoryview) -> int:
        self._writes += 1
        if self._writes == 2:
            say("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._file.write(data)


class _StoppingDisk(RealDisk):
    def open_append(self, path: str) -> AppendFile:
        return _StopsBeforeItsSecondWrite(super().open_append(path))


def stop_before_write(root: str) -> None:
    """Stop between the look for a newer epoch and the write; say "accepted" only if that is true."""
    journal = Journal.create_or_append(root, claim_epoch(root), disk=_StoppingDisk(), threaded=False)
    journal.append([b"first"])
    try:
        journal.append([b"void"])
    except FencedError as error:
        say(error)
        sys.exit(FENCED)
    say("accepted")


def race(root: str) -> None:
    """Let 16 forks claim each of ten roots at the same moment.

    Say the number of winners and of epochs, whether the newest holder is a winner, and whether the losers were told
    of winners only. In every second round all of them may take over from a live holder, so several can win, one
    after the other.
    """
    for n in range(10):
        one = f"{root}/{n}"
        go_read, go_write = os.pipe()
        end_read, end_write = os.pipe()
        results_read, results_write = os.pipe()
        children = []
        for _ in range(16):
            child = os.fork()
            if child == 0:
                os.close(go_write)
                os.close(end_write)
                os.read(go_read, 1)
                try:
                    result = f"won {claim_epoch(one, takeover=n % 2 == 1).pid}\n"
                except ExperimentLockedError as error:
                    result = f"lost to {error.pid}\n"
                os.write(results_write, result.encode())
                os.read(end_read, 1)  # a winner must live until all have tried
                os._exit(0)
            children.append(child)
        os.close(results_write)
        os.close(go_write)
        lines = []
        with os.fdopen(results_read) as results:
            for _ in range(16):
                lines.append(results.readline().split())
            os.close(end_write)
        for child in children:
            os.waitpid(child, 0)
        winners = {line[1] for line in lines if line[0] == "won"}
        losers = {line[2] for line in lines if line[0] == "lost"}
        newest = holder(one)
        assert newest is not None
        say(len(winners), newest.claim.epoch, str(newest.claim.pid) in winners, losers <= winners)
        for pipe in (go_read, end_read):
            os.close(pipe)


if __name__ == "__main__":
    {"write": write_until_killed, "hold": hold, "stop": stop_before_write, "race": race}[sys.argv[1]](sys.argv[2])
