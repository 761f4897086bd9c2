"""The output of trials, in files: their names, the marker lines in them, and the limit on their size.

    .holdfast/logs/worker-3.log     of the attempt that this worker process runs, or ran when everything was killed
    .holdfast/logs/ab12c_00007.log  of a trial: all its ended attempts, one below the other
    <either>.1                      older output, once there was more than half of the limit

The first line of each attempt's output says whose it is. A worker moves its file to the trial's when an attempt has
printed something; for a killed worker the process that cleans up after it does so, or else the next driver. An attempt
without output costs one small write and no file: thousands of short trials a second must not create a file each.

Owns these names and lines, and every move and truncation. Must never: read a log whole into memory, follow a symbolic
link, or be the reason why a trial fails (callers suppress ``OSError``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from holdfast.storage.local import write_atomic
from holdfast.storage.locks import lock

FOLDER = os.path.join(".holdfast", "logs")
STREAMS = "streams.json"
"""Names the files in trials' own directories that ``RunConfig.log_to_file`` has chosen."""

OLDER = ".1"
"""Ending of the file that has what came before."""

HEAD_BYTES = 128
"""Heads are padded to a multiple of this, so that the head of a silent attempt can be replaced in place."""

MAX_HEAD_BYTES = 4 * HEAD_BYTES
LOCK_S = 10.0
COPY_BYTES = 1024 * 1024
MAX_CATCH_UPS = 8
"""How often a cut copies what was printed while it copied; what is printed after that, until the cut, is lost."""

_HEAD = re.compile(rb"--- ([^ \n]+) attempt (\d+) at (\d+\.\d{6}) --- *\n")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=,+-]{0,150}")
_WORKER = re.compile(r"worker-\d+\.log")
CUT_TEXT = "--- older output was dropped"
CONTINUED_TEXT = "--- what was printed before this is in the file"


class LogOwner(NamedTuple):
    """Whose output it is."""

    trial_id: str
    attempt: int
    at: float


def make_head(trial_id: str, attempt: int, at: float) -> bytes:
    """The first line of an attempt's output."""
    text = f"--- {_word(trial_id)} attempt {attempt} at {at:.6f} ---".encode()
    size = -(-(len(text) + 1) // HEAD_BYTES) * HEAD_BYTES
    return text.ljust(size - 1) + b"\n"


def parse_head(data: bytes) -> tuple[LogOwner, int] | None:
    """The owner that ``data`` begins with the head of, and the head's length; None if it begins with something else."""
    found = _HEAD.match(data[:MAX_HEAD_BYTES])
    if found is None:
        return None
    return LogOwner(found[1].decode("ascii", "replace"), int(found[2]), float(found[3])), found.end()


def is_note(line: str) -> bool:
    """Whether a line was written by us and not by the trial."""
    begins = line.startswith((CUT_TEXT, CONTINUED_TEXT))
    return begins or _HEAD.match(line.encode("utf-8", "replace") + b"\n") is not None


def is_worker_log(name: str) -> bool:
    """Whether a file of this name belongs to a worker rather than to a trial."""
    return _WORKER.fullmatch(name) is not None


def log_name(trial_id: str) -> str:
    """Name of the file that has what the trial printed."""
    return f"{_word(trial_id)}.log"


def _word(trial_id: str) -> str:
    """The id, or something as unique in its place if it could not be the name of a file."""
    if _SAFE.fullmatch(trial_id) and not trial_id.startswith(("worker-", "nanny")):
        return trial_id
    return "id-" + hashlib.blake2b(trial_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def keep_streams(folder: str, names: Iterable[str]) -> None:
    """Note the files in trials' own directories to which output goes, so that readers need no settings for them."""
    known = [*read_streams(folder), *names]
    write_atomic(os.path.join(folder, STREAMS), json.dumps(list(dict.fromkeys(known))).encode())


def read_streams(folder: str) -> list[str]:
    """Names of files in trials' own directories to which output goes; none that lead out of them."""
    try:
        fd = open_log(os.path.join(folder, STREAMS))
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        try:
            names = json.loads(file.read(COPY_BYTES))
        except ValueError:
            return []
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and _stays_inside(name)]


def _stays_inside(name: str) -> bool:
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def open_log(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a log that is a regular file.

    Raises:
        OSError: It is not there, or it is a link, a pipe or anything else that a trial never prints to.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


# --- moving


def settle(path: str, limit: int | None) -> str:
    """Hand what is in a worker's file over to the trial whose head it begins with; a silent file is removed.

    Killed in the middle, the next call finishes the work.

    Returns:
        The trial's file, or "" if nothing was printed or nobody knows by whom.
    """
    with _held(path) as log:
        found = parse_head(os.pread(log.fileno(), MAX_HEAD_BYTES, 0))
        size = os.fstat(log.fileno()).st_size
        if size == (found[1] if found else 0):
            os.unlink(path)
            return ""
        if found is None:
            return ""
        target = os.path.join(os.path.dirname(path), log_name(found[0].trial_id))
        older = os.path.lexists(path + OLDER)
        if older or not os.path.lexists(target):
            os.rename(path, target)
            if older:
                os.rename(path + OLDER, target + OLDER)
        else:
            _append(log, target, found[1], size)
            os.unlink(path)
    shorten(target, limit)
    return target


def settle_all(folder: str, limit: int | None) -> list[str]:
    """Settle the files of workers that nobody has settled: those of processes that were killed with their driver."""
    with contextlib.suppress(FileNotFoundError):
        names = sorted(os.listdir(folder))
        moved = []
        for name in names:
            with contextlib.suppress(OSError):
                if is_worker_log(name):
                    moved.append(settle(os.path.join(folder, name), limit))
                elif name.endswith(OLDER) and is_worker_log(name.removesuffix(OLDER)):
                    _settle_older(os.path.join(folder, name))
        return list(filter(None, moved))
    return []


def _settle_older(path: str) -> None:
    """The second half of a move that was cut short."""
    if os.path.lexists(path.removesuffix(OLDER)):
        return
    with _held(path) as log:
        found = parse_head(os.pread(log.fileno(), MAX_HEAD_BYTES, 0))
        if found is not None:
            os.rename(path, os.path.join(os.path.dirname(path), log_name(found[0].trial_id) + OLDER))


def _append(log: BinaryIO, target: str, head_size: int, size: int) -> None:
    head = os.pread(log.fileno(), head_size, 0)
    with open(open_log(target, os.O_RDWR), "r+b") as out:
        end = _begun_at(out, head, size)
        out.truncate(end)
        out.seek(end)
        if end and os.pread(out.fileno(), 1, end - 1) != b"\n":
            out.write(b"\n")
        log.seek(0)
        _copy(log, out, size)


def _begun_at(out: BinaryIO, head: bytes, size: int) -> int:
    """Where a copy of this output has to begin: at the end, or where one begins that was cut short."""
    end = out.seek(0, os.SEEK_END)
    if not end:
        return 0
    with mmap.mmap(out.fileno(), end, access=mmap.ACCESS_READ) as data:
        found = data.rfind(head, max(0, end - size - 1))
    return found if found >= 0 else end


def _copy(source: BinaryIO, out: BinaryIO, size: int) -> int:
    left = size
    while left > 0 and (block := source.read(min(left, COPY_BYTES))):
        out.write(block)
        left -= len(block)
    return size - left


# --- the rest of a log that is sent elsewhere as it grows


def move_rest(path: str, begin: int, target: str, limit: int | None) -> None:
    """Move what a log has from ``begin`` on to ``target``, and forget the rest; writers continue at its beginning.

    What a writer adds meanwhile is moved as well, up to this limit.

    Raises:
        OSError: Nothing was changed, but that ``target`` may have been written.
    """
    with _held(path, os.O_RDWR) as log, open(target, "wb") as out:
        log.seek(begin)
        _catch_up(log, out, limit or sys.maxsize)
        os.ftruncate(log.fileno(), 0)


def next_line(path: str, begin: int) -> int:
    """Where the first line begins that does not begin before ``begin``; ``begin`` itself within a very long line."""
    with open(open_log(path), "rb") as log:
        log.seek(max(0, begin - 1))
        skipped = log.readline(COPY_BYTES)
        return log.tell() if skipped.endswith(b"\n") else begin


def last_head(path: str, begin: int, end: int) -> bytes:
    """The last head that stands between two places of a log, whole; b"" if there is none."""
    found = block = b""
    with open(open_log(path), "rb") as log:
        log.seek(begin)
        while begin < end and (data := log.read(min(end - begin, COPY_BYTES))):
            begin += len(data)
            block = block[-MAX_HEAD_BYTES:] + data
            for head in _HEAD.finditer(block):
                if head.start() == 0 or block[head.start() - 1 : head.start()] == b"\n":
                    found = head[0]
    return found


# --- the bound


def shorten(path: str, limit: int | None) -> bool:
    """Cut a log that has grown beyond half of the limit; its writers continue writing to the same file.

    The newest half of the limit is copied to the file with the ending ``.1``, in place of what that had, and the log is
    truncated: whoever has it open for appending, a process that the trial started too, continues at its beginning.
    """
    if limit is None:
        return False
    half = max(1, limit // 2)
    try:
        if os.stat(path).st_size <= half:
            return False
        with _held(path, os.O_RDWR) as log:
            if os.fstat(log.fileno()).st_size <= half:
                return False  # somebody else has just cut it; another cut would replace the older output by nothing
            found = parse_head(os.pread(log.fileno(), MAX_HEAD_BYTES, 0))
            head = os.pread(log.fileno(), found[1], 0) if found else b""
            _keep_newest(log, path + OLDER, head, half, limit)
            _begin_again(log, head, os.path.basename(path) if found is None else "")
    except OSError:
        return False  # it is tried again; a full disk must not stop anybody else
    return True


def _begin_again(log: BinaryIO, head: bytes, name: str) -> None:
    """Leave the head and a note in the log.

    The note is written over old output before the cut. Appended after it, it would stand below what is printed between
    the two, and would say that this is in the other file.
    """
    note = f"{CONTINUED_TEXT} {name}{OLDER} ---\n".encode()
    os.pwrite(log.fileno(), note, len(head))
    os.ftruncate(log.fileno(), len(head) + len(note))


def _keep_newest(log: BinaryIO, older: str, head: bytes, half: int, limit: int) -> None:
    temporary = older + ".tmp"
    size = os.fstat(log.fileno()).st_size
    begin = max(len(head), size - half)
    with open(temporary, "wb") as out:
        out.write(head)
        log.seek(begin)
        if begin > len(head):
            log.readline(COPY_BYTES)  # the rest of a line
        if begin > len(head) or os.path.lexists(older):
            out.write(cut_note(max(0, size - log.tell()), limit))
        _catch_up(log, out, limit)
        os.rename(temporary, older)
        _catch_up(log, out, limit)  # on a busy disk, much is printed while a file is renamed


def _catch_up(log: BinaryIO, out: BinaryIO, limit: int) -> None:
    """Copy what has been printed since the last look, until nothing new is there or ``out`` is full."""
    for _ in range(MAX_CATCH_UPS):
        if not _copy(log, out, min(os.fstat(log.fileno()).st_size - log.tell(), limit - out.tell())):
            break
    out.flush()


def cut_note(kept: int, limit: int) -> bytes:
    """The line above what is left of a log."""
    note = f"{CUT_TEXT}: {kept:,} bytes from before the cut and all from after it are kept"
    return f"{note} (limit: {limit:,} bytes, RunConfig.max_output_bytes) ---\n".encode()


@contextlib.contextmanager
def _held(path: str, flags: int = os.O_RDONLY) -> Iterator[BinaryIO]:
    """The open log, while nobody else moves or cuts it.

    Raises:
        OSError: It is gone, or another file has its name now.
    """
    with os.fdopen(open_log(path, flags), "rb") as log:
        lock(log.fileno(), limit_s=LOCK_S)
        now, mine = os.stat(path, follow_symlinks=False), os.fstat(log.fileno())
        if (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino):
            raise FileNotFoundError(errno.ENOENT, "moved meanwhile", path)
        yield log


def now() -> float:
    """When an attempt's output begins."""
    return time.time()
