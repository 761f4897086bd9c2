"""Epochs: the right of one driver to write one experiment (invariant I4).

A driver claims epoch n+1 by making the file ``.holdfast/epochs/<n+1>``, which only one process can. From that
moment every older driver is fenced: it sees the file at its next append and stops. No lock is held: ``flock``
is inherited by forks and missing on some network file systems, and a lock of a dead process has to be broken
by a clock. Epoch files are never deleted, because a driver that slept through many epochs looks for the one
that follows its own.

Owns the epoch files and the judgement whether a holder is alive. Must never touch the journal (it looks at the names
of segments alone, which tell of claims that have vanished), and must never use a clock for safety: time only decides
how politely an accidental second start is refused.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import re
import time
from functools import cache
from typing import NamedTuple

from holdfast.errors import ExperimentLockedError, FencedError, StorageError, StorageFullError
from holdfast.journal.claims import Claim, decode_claim, encode_claim, unknown_claim, with_checksum
from holdfast.journal.liveness import boot_of, drop_lock, hold_lock, is_same_place, is_unlocked, namespace_age_s
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import REAL_DISK, TEMP_PREFIX, Disk, RealDisk, is_full, make_dirs

HEARTBEAT_S = 5.0
"""How often the journal of a live driver touches its epoch file."""

SILENCE_S = 60.0
"""After this long without a heartbeat a holder on another machine counts as dead."""

MISSED_BEATS = 3
"""After this many missed heartbeats the predecessor of a restarted container counts as dead."""

_MAX_TRIES = 16
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NAME = re.compile(r"\d{8}")
_SEGMENT = re.compile(r"\d{8}-\d{12}(?:\.\d+)?\.hfj")
_log = logging.getLogger("holdfast.journal")


class Holder(NamedTuple):
    """The newest claim and what is known of its process.

    Attributes:
        claim: The claim.
        alive: Whether the process may still write. A stopped process (SIGSTOP) is alive.
        released: Whether it has finished and let go.
        age_s: Seconds since its last heartbeat.
        certain: Whether ``alive`` is known. If not, it follows from the age of the last heartbeat.
        dead_in_s: Seconds until it counts as dead without a heartbeat; None if a missing heartbeat proves nothing.
        damage: What is wrong with the file of the claim; "" if nothing. If something is, only the number is known.
    """

    claim: Claim
    alive: bool
    released: bool
    age_s: float
    certain: bool = True
    dead_in_s: float | None = None
    damage: str = ""

    @property
    def file(self) -> str:
        """The file of the claim, relative to the root."""
        return f".holdfast/epochs/{self.claim.epoch:08d}"

    @property
    def who(self) -> str:
        """The driver, for people."""
        if self.damage:
            return f"an unknown driver (its epoch file, {self.file}, is damaged: {self.damage})"
        return f"pid {self.claim.pid} on {self.claim.host}"


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
        if current is not None and current.damage:
            _log.warning("%s of %s is damaged: %s; the next driver takes over", current.file, root, current.damage)
        claim = _new_claim(root, 1 if current is None else current.claim.epoch + 1, disk)
        try:
            made = _create(root, claim, disk)
        except OSError:
            drop_lock(claim.writer)
            raise
        if made:
            crashpoint("epoch.claimed")
            _sweep(root, disk)
            return claim
        drop_lock(claim.writer)
        # Somebody was faster. Whoever that is gets the experiment, also against takeover=True: two takeovers
        # at the same instant must not fence one another.
        beaten = True
    last = holder(root, disk=disk)
    assert last is not None
    raise locked_error(root, last)


def _create(root: str, claim: Claim, disk: Disk) -> bool:
    made = disk.create_exclusive(_path(root, claim.epoch), encode_claim(claim))
    try:
        disk.sync_dir(_directory(root))
    except OSError:
        if made:  # or this process, which continues, would be taken for the holder
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
        f"{remedy}; then restore it. It can still be read: `holdfast status {root}`."
    )
    trouble.errno = error.errno
    return trouble


def holder(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> Holder | None:
    """Return the newest claim on the experiment at ``root``, or None if nobody ever claimed it."""
    root = os.path.abspath(root)
    epoch = max((int(name) for name in disk.list(_directory(root)) if _NAME.fullmatch(name)), default=0)
    path = _path(root, epoch)
    begun, segment = _newest_segment(root, disk)
    if begun > epoch:
        # A driver makes its claim before its first segment, so the claim was there. The next one must not take a number
        # that was taken: its records would stand before those of the journal.
        age_s = time.time() - disk.mtime(segment)
        return _by_silence(unknown_claim(begun), age_s, SILENCE_S)._replace(damage="it is missing")
    if epoch == 0:
        return None
    claim, damage = decode_claim(disk.read(path), epoch)
    age_s = time.time() - disk.mtime(path)
    if disk.exists(path + ".released"):
        return Holder(claim, False, True, max(0.0, age_s), damage=damage)
    if damage:  # the heartbeat is all that is left of it
        return _by_silence(claim, age_s, SILENCE_S)._replace(damage=damage)
    return assess(claim, age_s, directory=_directory(root))


def assess(claim: Claim, age_s: float, *, directory: str = "", beat_s: float = HEARTBEAT_S) -> Holder:
    """Say what is known of a driver that has not let go.

    Args:
        claim: Its claim.
        age_s: Seconds since its last heartbeat.
        directory: Where its claim is, if that is on this machine.
        beat_s: Seconds between its heartbeats.
    """
    if claim.machine == this_machine():
        return Holder(claim, is_alive(claim, age_s), False, max(0.0, age_s))
    if directory and claim.lock and _is_gone(claim, directory):
        return Holder(claim, False, False, max(0.0, age_s))
    return _by_silence(claim, age_s, MISSED_BEATS * beat_s if _is_predecessor(claim, age_s) else SILENCE_S)


def _is_gone(claim: Claim, directory: str) -> bool:
    """Whether the end of a driver of another namespace, or of this machine before it was booted, is proven."""
    boot, ours = boot_of(claim.machine), boot_of(this_machine())
    if not boot or not ours:
        return False
    if boot == ours:
        return is_unlocked(directory, claim.lock)
    # A disk of one machine, and the kernel that had it is another one now.
    return claim.host == _host() and is_same_place(directory, claim.lock)


def _is_predecessor(claim: Claim, age_s: float) -> bool:
    """Whether it was probably this container before it was restarted: the driver may count as dead sooner.

    The host name is the same, so is the kernel, and this namespace began after the driver's last heartbeat. Another
    container can look like that only if it shares the host's name and is frozen at the time. That is why a few missed
    heartbeats are waited for.
    """
    boot = boot_of(claim.machine)
    if not boot or boot != boot_of(this_machine()) or claim.host != _host():
        return False
    namespace_s = namespace_age_s()
    return namespace_s is not None and namespace_s < age_s


def _by_silence(claim: Claim, age_s: float, silence_s: float) -> Holder:
    alive = is_alive(claim, age_s) and abs(age_s) < silence_s
    left = max(0.0, silence_s - age_s) if alive else None
    return Holder(claim, alive, False, max(0.0, age_s), certain=False, dead_in_s=left)


def _newest_segment(root: str, disk: Disk) -> tuple[int, str]:
    """The epoch of the newest segment of the journal, and its path; 0 if there is none."""
    directory = os.path.join(root, ".holdfast", "journal")
    newest = max((name for name in disk.list(directory) if _SEGMENT.fullmatch(name)), default="")
    return int(newest[:8] or 0), os.path.join(directory, newest)


def damaged_claims(root: str | os.PathLike[str], *, disk: Disk = REAL_DISK) -> dict[int, str]:
    """Look at all claims on the experiment at ``root``: what is wrong with those that are damaged, by number."""
    root = os.path.abspath(root)
    found = {}
    for name in sorted(disk.list(_directory(root))):
        if _NAME.fullmatch(name):
            damage = decode_claim(disk.read(_path(root, int(name))), int(name))[1]
            if damage:
                found[int(name)] = damage
    return found


def released_mark(claim: Claim) -> str:
    """The file, relative to ``.holdfast``, that says that a driver has let go."""
    return f"epochs/{claim.epoch:08d}.released"


def release(root: str | os.PathLike[str], claim: Claim, *, end: bytes = b"", disk: Disk = REAL_DISK) -> None:
    """Let go of the experiment, so that the next driver need not find out whether this process is alive.

    Args:
        root: The experiment's root.
        claim: What to let go of.
        end: The place up to which the journal is durable (`encode_position`); empty if nothing was written.
        disk: Where the root is.

    Durability:
        None needed: if the mark is lost with the power, so is the process.
    """
    # Without the mark the next driver looks at the process instead: a full disk must not make a finished run an error.
    with contextlib.suppress(OSError):
        disk.create_exclusive(_path(os.path.abspath(root), claim.epoch) + ".released", end)
    drop_lock(claim.writer)


def withdraw(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> None:
    """Let go of a claim that came to nothing, unless its file is somebody else's by now."""
    try:
        ours = disk.read(_path(os.path.abspath(root), claim.epoch)) == encode_claim(claim)
    except OSError:
        ours = False
    if ours:
        release(root, claim, disk=disk)
    drop_lock(claim.writer)


def is_fenced(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> bool:
    """Tell whether a newer driver has taken over: one look for the next epoch's file."""
    return disk.exists(_path(os.fspath(root), claim.epoch + 1))


def beat(root: str | os.PathLike[str], claim: Claim, *, disk: Disk = REAL_DISK) -> None:
    """Show other machines that this driver is alive."""
    disk.touch(_path(os.path.abspath(root), claim.epoch))


def claim_path(root: str | os.PathLike[str], claim: Claim) -> str:
    """Return the file of ``claim``."""
    return _path(os.path.abspath(root), claim.epoch)


def fence_path(root: str | os.PathLike[str], claim: Claim) -> str:
    """Return the file whose existence fences ``claim``."""
    return _path(os.path.abspath(root), claim.epoch + 1)


def fenced_error(root: str, claim: Claim, *, disk: Disk = REAL_DISK) -> FencedError:
    """Return the error that tells a driver who has taken over from it."""
    successor = holder(root, disk=disk)
    who = "a newer driver"
    if successor is not None:
        who = f"{successor.who} (epoch {successor.claim.epoch})"
    return FencedError(place=root, successor=who, driver=f"this driver (epoch {claim.epoch}, pid {claim.pid})")


def _directory(root: str) -> str:
    return os.path.join(root, ".holdfast", "epochs")


def _path(root: str, epoch: int) -> str:
    return f"{root}/.holdfast/epochs/{epoch:08d}"


def _new_claim(root: str, epoch: int, disk: Disk) -> Claim:
    pid, writer = os.getpid(), os.urandom(16).hex()
    lock = ""
    if isinstance(disk, RealDisk):
        # Before the claim is seen: a claim whose lock is free is that of a dead driver.
        make_dirs(_directory(root))
        lock = hold_lock(_directory(root), writer)
    claim = Claim(
        epoch=epoch,
        writer=writer,
        host=_host(),
        pid=pid,
        machine=this_machine(),
        process_start=_process_start(pid) or 0,
        claimed_at=time.time(),
        lock=lock,
    )
    return with_checksum(claim)


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
    """Whether the process that made a claim may still write, if its last heartbeat was ``age_s`` seconds ago."""
    if claim.machine == this_machine():
        return _process_start(claim.pid) in (claim.process_start, 0)
    # A time stamp far in the future comes from a clock that was set; it proves no recent heartbeat.
    return abs(age_s) < SILENCE_S


def locked_error(root: str, current: Holder) -> ExperimentLockedError:
    """Return the error that tells who holds the experiment at ``root``, a path or an address."""
    claim = current.claim
    heard = f"last heartbeat {_span(current.age_s)} ago"
    if current.damage:
        what = f"may still be written by {current.who}, {heard}"
    else:
        who = current.who
        if claim.pid == os.getpid() and claim.machine == this_machine():
            who = f"this same process ({who})"
        since = _span(time.time() - claim.claimed_at)
        what = f"is being written by {who}, epoch {claim.epoch}, started {since} ago, {heard}"
    return ExperimentLockedError(
        f"{what}. Nothing was changed. {silence_text(current)}".rstrip(),
        host=claim.host,
        pid=claim.pid,
        age_s=current.age_s,
        dead_in_s=current.dead_in_s,
        place=root,
    )


def silence_text(current: Holder) -> str:
    """What to expect of a driver whose process cannot be seen from here; "" if it can."""
    if current.dead_in_s is None:
        return ""
    where = "Whether it still runs is unknown" if current.damage else "Its process is not visible to this one"
    return f"{where}: it counts as dead in {math.ceil(current.dead_in_s)} s without a heartbeat. "


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
