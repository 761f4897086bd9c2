"""Read, copy and remove below directories that may come from somebody else.

Owns how a file is opened when its name, or whatever has that name, is untrusted: only regular files are read, links are
not followed below the root, and sizes have limits. A pipe would block forever, a link could lead anywhere, a device or
a sparse file never ends. Removal goes through opened directories, one path component at a time. Must never decide what
may be removed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator

from holdfast.errors import DamageError
from holdfast.storage.options import MB

SMALL_BYTES = 64 * MB
"""Most of any file that is read whole and is neither a journal's nor a snapshot's."""

_LIMITS = {
    ".hfj": 512 * MB,  # a segment ends at 16 MB, may begin with 64 MB that were not synced, and a record has 64 MB
    ".hfs": 4096 * MB,
    ".hfa": 4096 * MB,
    ".pkl": 1 << 40,  # what ``with_parameters`` attaches may be as large as it likes
    ".json": 1024 * MB,  # a manifest of many files, or a trial's rows
    ".csv": 1024 * MB,
}
_HOLES_FROM_BYTES = 64 * MB
_HOLES_FACTOR = 256  # no file system packs what we write as tightly as this

_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe for reading would wait for its writer
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | _NO_LINK


def open_regular(path: str | os.PathLike[str], *, within: int | None = None) -> int:
    """Open a regular file for reading and return its descriptor.

    Args:
        path: The file.
        within: The descriptor of an opened directory that ``path``, then one name, lies in.

    Raises:
        DamageError: There is a link, a pipe, a device or anything else that is neither file nor directory.
        OSError: It cannot be opened; `FileNotFoundError` if there is none.
    """
    try:
        fd = os.open(path, _READ | _NO_LINK | _NO_WAIT, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link; a socket
            raise not_regular(path) from None
        raise
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise not_regular(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_regular(path: str | os.PathLike[str], offset: int = 0, size: int = -1, *, within: int | None = None) -> bytes:
    """Return up to ``size`` bytes (-1: all) of a regular file from ``offset``.

    Raises:
        DamageError: It is no regular file, or far larger than such a file can be.
        OSError: It cannot be read; `FileNotFoundError` if there is none.
    """
    with open(open_regular(path, within=within), "rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        if not 0 <= offset <= facts.st_size:
            return b""
        available = facts.st_size - offset
        wanted = available if size < 0 else min(size, available)  # a forged size must not reserve memory
        if wanted > SMALL_BYTES:
            _check_size(path, facts)
        file.seek(offset)
        # Not beyond what was there: a live writer may append all the time.
        return file.read(wanted) if size >= 0 else file.read()


def _check_size(path: str | os.PathLike[str], facts: os.stat_result) -> None:
    limit = _LIMITS.get(os.path.splitext(os.fspath(path))[1], SMALL_BYTES)
    if facts.st_size > limit:
        why = f"it has {facts.st_size:,} bytes, and {limit:,} is the most that such a file can have"
    elif is_mostly_holes(facts):
        why = f"its {facts.st_size:,} bytes are almost nothing but holes"
    else:
        return
    raise DamageError(
        f"{os.fspath(path)!r} is not read: {why}. Nothing was changed. Put the file back from a copy of the experiment."
    )


def is_mostly_holes(facts: os.stat_result) -> bool:
    """Whether a large file holds almost nothing: reading it would fill the memory with zeros."""
    blocks = getattr(facts, "st_blocks", facts.st_size // 512)
    return facts.st_size > _HOLES_FROM_BYTES and blocks * 512 * _HOLES_FACTOR < facts.st_size


def not_regular(path: str | os.PathLike[str]) -> DamageError:
    """Return the error for something that lies where a regular file or directory of the experiment belongs."""
    return DamageError(
        f"{os.fspath(path)!r} is {kind_of(path)}. holdfast never creates one there, and does not read or follow it: it "
        f"could lead out of the experiment. Nothing was changed. Put the real file or directory back in its place."
    )


def kind_of(path: str | os.PathLike[str]) -> str:
    """Say what a path is, in words; a link is a link, wherever it leads."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "not a regular file"
    words = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: "a regular file",
    }
    return words.get(stat.S_IFMT(mode), "a device")


def copy_regular(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a regular file with its times and permissions; what is at ``target`` is replaced, never followed.

    Raises:
        DamageError: The source is no regular file.
        OSError: It cannot be read or written.
    """
    with open(open_regular(source), "rb") as reader:
        facts = os.fstat(reader.fileno())
        try:
            if not stat.S_ISREG(os.lstat(target).st_mode):
                os.unlink(target)
        except FileNotFoundError:
            pass
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK, stat.S_IMODE(facts.st_mode) | 0o200)
        with open(fd, "wb") as writer:
            shutil.copyfileobj(reader, writer, MB)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def check_plain(directory: str | os.PathLike[str]) -> None:
    """Refuse a tree that holds anything but directories and regular files; one that does not exist is fine.

    Raises:
        DamageError: Something else is there, or the tree itself is a link.
    """
    if os.path.islink(directory):
        raise not_regular(directory)
    for path in odd_entries(directory):
        raise not_regular(path)


def odd_entries(directory: str | os.PathLike[str]) -> Iterator[str]:
    """Paths below a directory that are neither directories nor regular files. Links are not followed."""
    pending = [os.fspath(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError):
            continue  # a live driver has removed it meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield entry.path


def first_link(top: str | os.PathLike[str], relative: str) -> str:
    """The first part of a path below ``top`` that is a symbolic link, relative to ``top``; "" if none is."""
    parts = relative.split("/")
    for count in range(1, len(parts) + 1):
        if os.path.islink(os.path.join(top, *parts[:count])):
            return "/".join(parts[:count])
    return ""


def open_directory(path: str | os.PathLike[str], *, within: int | None = None) -> int:
    """Open a directory that must not be a link itself, and return its descriptor.

    Args:
        path: The directory; how the way to its parent leads through links is the user's choice.
        within: The descriptor of an opened directory that ``path``, then one name, lies in.

    Raises:
        NotADirectoryError: It is a link or a file.
        OSError: It cannot be opened.
    """
    try:
        return os.open(path, _DIRECTORY, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path)) from None
        raise


def remove_below(parent: int, name: str) -> None:
    """Remove the directory ``name`` in an opened one and all that is in it; nothing to do if it is gone.

    Links are removed, never followed. Directories that forbid it are made writable.

    Raises:
        NotADirectoryError: It is a link or a file; it was not touched.
        OSError: Something could not be removed.
    """
    try:
        fd = _open_writable(parent, name)
    except FileNotFoundError:
        return
    try:
        with os.scandir(fd) as found:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
        for entry, is_directory in entries:
            if is_directory:
                remove_below(fd, entry)
            else:
                _unlink(fd, entry)
    except RecursionError:
        raise OSError(errno.ELOOP, "directories are nested too deeply", name) from None
    finally:
        os.close(fd)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _open_writable(parent: int, name: str) -> int:
    try:
        fd = open_directory(name, within=parent)
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=parent)
        fd = open_directory(name, within=parent)
    mode = os.fstat(fd).st_mode
    if mode & 0o700 != 0o700:
        try:
            os.fchmod(fd, 0o700)
        except OSError:
            pass  # somebody else's directory: what cannot be removed says so
    return fd


def _unlink(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
