"""Directory trees: list them, hash their files, remove them.

Owns how a checkpoint's files are found and read, and how an ``OSError`` becomes one of holdfast's errors. Never writes
into a tree, and never removes one whose name the caller has not checked.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.checkpoints import names
from holdfast.checkpoints.manifest import new_hasher
from holdfast.errors import CheckpointDamagedError, DamageError, StorageError, StorageFullError
from holdfast.storage.local import is_full
from holdfast.storage.untrusted import first_link, kind_of, open_regular, read_regular, remove_below

# Above the L1 cache, well inside the L2 cache: the bytes are still there when they are hashed and written.
BUFFER_BYTES = 256 * 1024


Item = TypeVar("Item")
Answer = TypeVar("Answer")


class TreeListing(NamedTuple):
    """What is below a directory, by path relative to it."""

    files: dict[str, os.stat_result]
    dirs: list[str]  # parents before children
    odd: dict[str, str]  # what is neither: its path, and what it is in words


def scan(root: str, *, follow: bool) -> TreeListing:
    """List everything below ``root``.

    With ``follow``, a link counts as what it points to; otherwise each link is listed as odd.
    """
    listing = TreeListing({}, [], {})
    top = os.stat(root)
    _scan(root, "", follow, ((top.st_dev, top.st_ino),), listing)
    return listing


def _scan(path: str, prefix: str, follow: bool, above: tuple[tuple[int, int], ...], out: TreeListing) -> None:
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
    """Open a file of a checkpoint for reading; a link, a pipe or a device in its place is as good as no file."""
    try:
        return open_regular(path)
    except (DamageError, IsADirectoryError):
        raise FileNotFoundError(errno.ENOENT, f"it is {kind_of(path)}", path) from None


def read_own_file(path: str) -> bytes:
    """The content of a small file of a checkpoint: its manifest, its seal, its metadata.

    Raises:
        FileNotFoundError: It is not there, is no regular file, or is far too large for what it is.
        OSError: It cannot be read.
    """
    try:
        return read_regular(path)
    except (DamageError, IsADirectoryError) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from None


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
    parent, name = os.path.split(os.path.abspath(path))
    try:
        place = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_below(place, name)
    finally:
        os.close(place)


def remove_quietly(paths: Iterable[str]) -> None:
    """Remove temporary directories of ours; whatever cannot be removed now is left for the next sweep."""
    for path in paths:
        try:
            remove_tree(path)
        except OSError:
            continue


def refuse_links(top: str | os.PathLike[str], where: str) -> None:
    """Refuse a checkpoint that is reached through a link below the experiment's root: it may lie anywhere.

    Args:
        top: The experiment's root; how the way to it leads is the user's choice.
        where: The checkpoint's directory, relative to the root.

    Raises:
        CheckpointDamagedError: The trial's directory or the checkpoint itself is a link.
    """
    if link := first_link(top, where):
        reason = f"{link} is a symbolic link, and nothing is read or removed behind one"
        raise CheckpointDamagedError(
            f"the checkpoint {where} of {top} cannot be used: {reason}. Nothing was changed. Put the directory itself "
            "there; a larger disk can be mounted in its place.",
            path=os.path.join(top, where),
            reason=reason,
        )


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
