"""Directory trees: list them, hash their files, remove them.

Owns how a checkpoint's files are found and read, and how an ``OSError`` on the way becomes one of our errors. Never
writes into a tree, and never removes one whose name the caller has not checked.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import new_hasher
from holdfast.errors import StorageError, StorageFullError
from holdfast.storage.local import is_full

# Above the L1 cache, well inside the L2 cache: the bytes are still there when they are hashed and written.
BUFFER_BYTES = 256 * 1024


Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Listing(NamedTuple):
    """What is below a directory, by path relative to it."""

    files: dict[str, os.stat_result]
    dirs: list[str]  # parents before children
    odd: dict[str, str]  # what is neither: its path, and what it is in words


def scan(root: str, *, follow: bool) -> Listing:
    """List everything below ``root``.

    With ``follow``, a link counts as what it points to; otherwise each link is listed as odd.
    """
    listing = Listing({}, [], {})
    top = os.stat(root)
    _scan(root, "", follow, ((top.st_dev, top.st_ino),), listing)
    return listing


def _scan(path: str, prefix: str, follow: bool, above: tuple[tuple[int, int], ...], out: Listing) -> None:
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        rel = prefix + entry.name
        if not _is_text(entry.name):
            out.odd[rel] = "has a name that is not valid UTF-8"
            continue
        if entry.is_symlink() and not follow:
            out.odd[rel] = "is a symbolic link"
            continue
        try:
            facts = entry.stat()
        except OSError as error:
            if not entry.is_symlink() or error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise
            out.odd[rel] = f"is a symbolic link to {os.readlink(entry.path)!r}, which does not exist"
            continue
        if stat.S_ISREG(facts.st_mode):
            out.files[rel] = facts
        elif not stat.S_ISDIR(facts.st_mode):
            out.odd[rel] = f"is {_kind(facts.st_mode)}, not a regular file"
        elif (here := (facts.st_dev, facts.st_ino)) in above:
            out.odd[rel] = f"is a symbolic link to {os.readlink(entry.path)!r}, a directory that contains it"
        else:
            out.dirs.append(rel)
            _scan(entry.path, rel + "/", follow, (*above, here), out)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def hash_open_file(fd: int, algo: str) -> str:
    """The hash of all bytes of an open file, from its start."""
    hasher = new_hasher(algo)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while count := os.readv(fd, [buffer]):
        hasher.update(buffer[:count])
    return hasher.hexdigest()


def open_own_file(path: str) -> int:
    """Open a file of a checkpoint for reading; a link in its place is an error, for we never make one."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def run_all(work: Callable[[Item], Answer], items: Sequence[Item], threads: int) -> list[Answer]:
    """``work`` for every item, in this thread and some others; answers in order. After an error nothing new begins.

    Not ``concurrent.futures``: its threads are joined when the interpreter ends, and a disk that never answers must
    not keep a driver from ending.
    """
    answers: dict[int, Answer] = {}
    errors: dict[int, BaseException] = {}
    left = deque(range(len(items)))

    def drain() -> None:
        while left and not errors:
            try:
                k = left.popleft()
            except IndexError:
                return
            try:
                answers[k] = work(items[k])
            except BaseException as error:
                errors[k] = error

    helpers = [threading.Thread(target=drain, daemon=True) for _ in range(min(threads, len(items)) - 1)]
    for helper in helpers:
        helper.start()
    drain()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[min(errors)]
    return [answers[k] for k in range(len(items))]


def remove_tree(path: str) -> None:
    """Remove a directory and all that is in it, also read-only directories; nothing to do if it is gone.

    Links are removed, never followed.
    """
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=_unlock)
    else:
        shutil.rmtree(path, onerror=lambda function, name, info: _unlock(function, name, info[1]))


def _unlock(function: Callable[..., Any], name: str, error: BaseException) -> None:
    """Make the directory that refused writable and go on."""
    if isinstance(error, FileNotFoundError):
        return
    refused = os.path.dirname(name) if function in (os.unlink, os.rmdir) else name
    if not isinstance(error, PermissionError) or os.stat(refused).st_mode & 0o700 == 0o700:
        raise error
    os.chmod(refused, 0o700)
    if refused == name:
        remove_tree(name)
    else:
        function(name)


def remove_quietly(paths: Iterable[str]) -> None:
    """Remove temporary directories of ours; whatever cannot be removed now is left for the next sweep."""
    for path in paths:
        try:
            remove_tree(path)
        except OSError:
            continue


TRIAL_GONE = "the trial's directory is gone"


def is_root_there(trial_dir: str) -> bool:
    """Whether the experiment's root is there.

    Then a trial's directory that is missing was removed. Otherwise the storage is not mounted, and may be back later.
    """
    return os.path.isdir(f"{os.path.dirname(os.path.abspath(trial_dir))}/{names.EXPERIMENT_MARK}")


def storage_error(error: OSError, doing: str) -> StorageError:
    """What to raise for an ``OSError`` that is the storage's fault.

    Args:
        doing: What was being done and to which path: "copying /a/b".
    """
    where = f" ({error.filename})" if error.filename and str(error.filename) not in doing else ""
    code = errno.errorcode.get(error.errno or 0, f"errno {error.errno}")
    kind: type[StorageError] = StorageError
    text = f"{doing} failed{where}: {os.strerror(error.errno or 0)} [{code}]. Nothing was overwritten. "
    if is_full(error):
        kind = StorageFullError
        text += "Free some space or raise the quota; the checkpoint can then be saved again."
    else:
        text += "Check that the storage is mounted, reachable and healthy, then try again."
    trouble = kind(text)
    trouble.errno = error.errno
    return trouble
