"""Epochs: the right of one driver to write one experiment (invariant I4).

A driver claims epoch n+1 by making the file ``.holdfast/epochs/<n+1>``, which only one process can. From that
moment every older driver is fenced: it sees the file at its next append and stops. No lock is held: ``flock``
is inherited by forks and missing on some network file systems, and a lock of a dead process has to be broken
by a clock. Epoch files are never deleted, because a driver that slept through many epochs looks for the one
that follows its own.

Owns the epoch files and the judgement whether a holder is alive. Must never touch the journal, and must never
use a clock for safety: time only decides how politely an accidental second start is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from functools import cache
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ExperimentLockedError, FencedError, StorageError, StorageFullError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import REAL_DISK, TEMP_PREFIX, Disk, is_full

HEARTBEAT_S = 5.0
"""How often the journal of a live driver touches its epoch file."""

SILENCE_S = 60.0
"""After this long without a heartbeat a holder on another machine counts as dead."""

_MAX_TRIES = 16
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NAME = re.compile(r"\d{8}")


class Claim(msgspec.Struct, frozen=True):
    """Who wrote, or writes, an epoch.

    Attributes:
        epoch: Its number, from 1.
        writer: Unique name of the claim.
        host: Host name, for people.
        pid: Process id on that host.
        machine: Boot and process namespace in which ``pid`` means something.
        process_start: When the process began, in ticks since boot; tells it from a later one of the same pid.
        claimed_at: Seconds since 1970.
    """

    epoch: int
    writer: str
    host: str
    pid: int
    machine: str
    process_start: int
    claimed_at: float


class Holder(NamedTuple):
    """The newest claim and what is known of its process.

    Attributes:
        claim: The claim.
        alive: Whether the process may still write. A stopped process (SIGSTOP) is alive.
        released: Whether it has finished and let go.
        age_s: Seconds since it was last heard of.
    """

    claim: Claim
    alive: bool
    released: bool
    age_s: float


def claim_epoch(root: str | os.PathLike[str], *, takeover: bool = False, disk: Disk = REAL_DISK) -> Claim:
    """Become the one writer of the experiment at ``root``.

    A holder that is dead or has released the experiment is succeeded at once.

    Args:
        root: The experiment's root.
        takeover: Succeed a live holder too; it is fenced at its next write.
        disk: Where the root is.

    Raises:
        ExperimentLockedError: A live driver holds the experiment, or won a race for it.
        StorageError: The claim cannot be written; ``StorageFullError`` if there is no space.

    Durability:
        The claim survives a power cut when this returns.
    """
    root = os.path.abspath(root)
    try:
        return _claim(root, takeover, disk)
    except OSError as error:
        raise _unclaimable(root, error) from error


def _claim(root: str, takeover: bool, disk: Disk) -> Claim:
    beaten = False
    for _ in range(_MAX_TRIES):
        current = holder(root, disk=disk)
        if current is not None and current.alive and (beaten or not takeover):
            raise locked_error(root, current)
        claim = _new_claim(1 if current is None else current.claim.epoch + 1)
        if _create(root, claim, disk):
            crashpoint("epoch.claimed")
            _sweep(root, disk)
            return claim
        # Somebody was faster. Whoever that is gets the experiment, also against takeover=True: two takeovers
        # at the same instant must not fence one another.
        beaten = True
    last = holder(root, disk=disk)
    assert last is not None
    raise locked_error(root, last)


def _create(root: str, claim: Claim, disk: Disk) -> bool:
    made = disk.create_exclusive(_path(root, claim.epoch), msgspec.json.encode(claim) + b"\n")
    try:
        disk.sync_dir(_directory(root))
    except OSError:
        if made:  # or this process, which goes on, would be taken for the holder
            release(root, claim, disk=disk)
        raise
    return made


def _unclaimable(root: str, error: OSError) -> StorageError:
    if is_full(error):
        remedy = "Free some space there, or raise the quota"
    elif error.errno in _DENIED:
        remedy = "Make it writable for this user: mount it for writing, or change its owner or permissions"
    else:
        remedy = "Check that the storage is mounted, reachable and healthy"
    kind = StorageFullError if is_full(error) else StorageError
    trouble = kind(
        f"The experiment {root} cannot be opened for writing: {error}. Everything recorded is safe. "
        f"{remedy}; then restore it. To look at it, `holdfast status {root}` is enough."
    )
    trouble.errno = error.errno
    return trouble


def holder(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> Holder | None:
    """Return the newest claim on the experiment at ``root``, or None if nobody ever claimed it."""
    root = os.path.abspath(root)
    epoch = max((int(name) for name in disk.list(_directory(root)) if _NAME.fullmatch(name)), default=0)
    if epoch == 0:
        return None
    path = _path(root, epoch)
    try:
        claim = msgspec.json.decode(disk.read(path), type=Claim)
    except msgspec.DecodeError:
        # Only a file system without links can show a half-written claim: trust its heartbeat alone.
        claim = Claim(epoch, writer="", host="unknown", pid=0, machine="", process_start=0, claimed_at=0.0)
    age_s = time.time() - disk.mtime(path)
    released = disk.exists(_path(root, epoch) + ".released")
    return Holder(claim, not released and is_alive(claim, age_s), released, max(0.0, age_s))


def released_mark(claim: Claim) -> str:
    """The file, relative to ``.holdfast``, that says that a driver has let go."""
    return f"epochs/{claim.epoch:08d}.released"


def release(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> None:
    """Let go of the experiment, so that the next driver need not find out whether this process is alive.

    Durability:
        None needed: if the mark is lost with the power, so is the process.
    """
    # Without the mark the next driver looks at the process instead: a full disk must not make a finished run an error.
    with contextlib.suppress(OSError):
        disk.create_exclusive(_path(os.path.abspath(root), claim.epoch) + ".released", b"")


def withdraw(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> None:
    """Let go of a claim that came to nothing, unless its file is somebody else's by now."""
    try:
        ours = disk.read(_path(os.path.abspath(root), claim.epoch)) == msgspec.json.encode(claim) + b"\n"
    except OSError:
        return
    if ours:
        release(root, claim, disk=disk)


def is_fenced(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> bool:
    """Tell whether a newer driver has taken over: one look for the next epoch's file."""
    return disk.exists(_path(os.fspath(root), claim.epoch + 1))


def beat(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> None:
    """Show other machines that this driver is alive."""
    disk.touch(_path(os.path.abspath(root), claim.epoch))


def fence_path(root: str | os.PathLike[str], claim: Claim) -> str:
    """Return the file whose existence fences ``claim``."""
    return _path(os.path.abspath(root), claim.epoch + 1)


def fenced_error(root: str, claim: Claim, *, disk: Disk = REAL_DISK) -> FencedError:
    """Return the error that tells a driver who has taken over from it."""
    successor = holder(root, disk=disk)
    who = "a newer driver"
    if successor is not None:
        who = f"pid {successor.claim.pid} on {successor.claim.host} (epoch {successor.claim.epoch})"
    return FencedError(
        f"The experiment {root} was taken over by {who}; this driver (epoch {claim.epoch}, pid {claim.pid}) must "
        f"stop. Everything recorded before the take-over is safe; what this driver writes from now on is void. "
        f"Look at the experiment with `holdfast status {root}`."
    )


def _directory(root: str) -> str:
    return os.path.join(root, ".holdfast", "epochs")


def _path(root: str, epoch: int) -> str:
    return f"{root}/.holdfast/epochs/{epoch:08d}"


def _new_claim(epoch: int) -> Claim:
    pid = os.getpid()
    return Claim(
        epoch=epoch,
        writer=os.urandom(16).hex(),
        host=_host(),
        pid=pid,
        machine=this_machine(),
        process_start=_process_start(pid) or 0,
        claimed_at=time.time(),
    )


@cache
def _host() -> str:
    import socket

    return socket.gethostname()


@cache
def this_machine() -> str:
    """Name the world in which a pid of this process means something."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        import uuid

        return f"{_host()} {uuid.getnode():x}"


def _process_start(pid: int) -> int | None:
    """Return when a process began, in ticks since boot; 0 where that cannot be known, None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        # No such file system here, or it hides the processes of other users (hidepid).
        return 0 if _signal_reaches(pid) else None
    # A zombie has ended and only waits for its parent to notice.
    return None if fields[0] in "ZXx" else int(fields[19])


def _signal_reaches(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(claim: Claim, age_s: float) -> bool:
    """Tell whether the process that made a claim may still write, having been heard of ``age_s`` seconds ago."""
    if claim.machine == this_machine():
        return _process_start(claim.pid) in (claim.process_start, 0)
    # A time stamp far in the future comes from a clock that was set; it proves no recent heartbeat.
    return abs(age_s) < SILENCE_S


def locked_error(root: str, current: Holder) -> ExperimentLockedError:
    """Return the error that tells who holds the experiment at ``root``, a path or an address."""
    claim = current.claim
    where = f"pid {claim.pid} on {claim.host}"
    if claim.pid == os.getpid() and claim.machine == this_machine():
        where = f"this same process (pid {claim.pid} on {claim.host})"
    facts: dict[str, Any] = {"host": claim.host, "pid": claim.pid, "age_s": current.age_s}
    return ExperimentLockedError(
        f"The experiment {root} is being written by {where}, epoch {claim.epoch}, started "
        f"{_span(time.time() - claim.claimed_at)} ago and last heard of {_span(current.age_s)} ago. Nothing was "
        f"changed. Wait until it has finished, or stop it, or take the experiment over with "
        f"Tuner.restore({root!r}, takeover=True) or `holdfast resume {root} --takeover`: the other driver then "
        f"stops at its next write.",
        **facts,
    )


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _sweep(root: str, disk: Disk) -> None:
    """Remove what killed claimants left behind; a file younger than that may belong to a running one."""
    for name in disk.list(_directory(root)):
        if name.startswith(TEMP_PREFIX):
            path = os.path.join(_directory(root), name)
            try:
                if time.time() - disk.mtime(path) > SILENCE_S:
                    disk.remove(path)
            except OSError:
                continue  # its owner was faster
