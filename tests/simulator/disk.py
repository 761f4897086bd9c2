"""A disk in memory that fails the way disks fail.

Keeps for every file what processes see and what a power cut would leave. A name is durable after ``sync_dir``, content
after a sync that succeeded. After a sync that failed, what it should have covered is seen as before but never becomes
durable, whatever later syncs answer, to this process or to the next: that is what kernels do.

Owns the bytes. Must never decide when something fails: that is what each process's ``DiskHook`` is asked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol


class Killed(BaseException):
    """A process died here, as by ``kill -9``: nothing of it may run on. Not an ``Exception``: no code survives it."""


class DiskHook(Protocol):
    """What may go wrong when a process touches the disk."""

    def step(self, action: str) -> None:
        """Called before and after everything that changes the disk; what it raises happens there."""

    def arriving(self, size: int) -> tuple[int, BaseException | None]:
        """How many of ``size`` appended bytes reach the file, and what the writer is told (None: that number)."""


class NoFaults:
    """A disk that works."""

    def step(self, action: str) -> None:
        pass

    def arriving(self, size: int) -> tuple[int, BaseException | None]:
        return size, None


class _File:
    __slots__ = ("clean", "durable", "lost", "mtime", "name_durable", "older", "seen")

    def __init__(self, data: bytes, mtime: float, older: _File | None = None) -> None:
        self.seen = bytearray(data)
        self.durable = bytes(data)
        self.lost: list[tuple[int, int]] = []  # covered by a sync that failed
        self.clean = len(data)  # up to here a sync has nothing to do
        self.name_durable = False
        self.older = older  # what the name meant before, until the new meaning is durable
        self.mtime = mtime

    def sync(self) -> None:
        self.durable = self._surviving(len(self.seen))
        self.clean = len(self.seen)

    def fail_sync(self) -> None:
        self.lost.append((self.clean, len(self.seen)))
        self.clean = len(self.seen)

    def _surviving(self, length: int) -> bytes:
        content = self.seen[:length]
        for start, end in self.lost:
            content[start:end] = bytes(max(0, min(end, length) - start))
        return bytes(content)

    def cut(self, keep: Callable[[int], int]) -> None:
        kept = len(self.durable) + keep(len(self.seen) - len(self.durable))
        self.seen = bytearray(self._surviving(kept))
        self.durable = bytes(self.seen)
        self.lost.clear()
        self.clean = kept
        self.name_durable, self.older = True, None


class MemoryDisk:
    """What is on the machine's disk; processes reach it through a ``DiskView`` each.

    Attributes:
        now: The file system's clock.
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.now = now
        self.files: dict[str, _File] = {}
        self.notes: dict[str, bytes] = {}  # overwritten in place and never synced: no power cut leaves any
        self._removed: dict[str, _File] = {}  # names whose removal is not durable

    def power_cut(self, keep: Callable[[int], int]) -> None:
        """Lose what is not durable.

        Args:
            keep: Is told a number of bytes (or 1 for a name) that nobody synced, and says how many survive anyway.
        """
        self.notes.clear()
        for path, removed in self._removed.items():
            if path not in self.files and keep(1):
                self.files[path] = removed
        self._removed.clear()
        ended: set[str] = set()  # directories of which no further change survives: file systems keep their order
        for path, file in list(self.files.items()):
            folder = os.path.dirname(path)
            if not file.name_durable and (folder in ended or not keep(1)):
                ended.add(folder)
                if file.older is None:
                    del self.files[path]
                    continue
                file = self.files[path] = file.older
            file.cut(keep)

    def durable(self) -> dict[str, bytes]:
        """What a power cut would leave at least, by path."""
        found = {}
        for path, file in self.files.items():
            sure: _File | None = file if file.name_durable else file.older
            if sure is not None:
                found[path] = sure.durable
        return found

    def sync_names(self, directory: str) -> None:
        prefix = directory.rstrip("/")
        for path, file in self.files.items():
            if os.path.dirname(path) == prefix:
                file.name_durable, file.older = True, None
        for path in [path for path in self._removed if os.path.dirname(path) == prefix]:
            del self._removed[path]

    def put(self, path: str, data: bytes, older: _File | None = None) -> _File:
        file = self.files[path] = _File(data, self.now(), older)
        return file

    def drop(self, path: str) -> None:
        file = self.files.pop(path, None)
        if file is not None and file.name_durable:
            self._removed[path] = file

    def file(self, path: str) -> _File:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None


class _Handle:
    """An open file (``storage.local.AppendFile``)."""

    def __init__(self, hook: DiskHook, file: _File) -> None:
        self._hook = hook
        self._file = file
        self._open = True

    def write(self, data: bytes | memoryview) -> int:
        self._hook.step("write")
        size, error = self._hook.arriving(len(data))
        self._file.seen += data[:size]
        if error is not None:
            raise error
        self._hook.step("written")
        return size

    def sync(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")
        try:
            self._hook.step("sync")
        except OSError:
            self._file.fail_sync()
            raise
        self._file.sync()
        self._hook.step("synced")

    def close(self) -> None:
        self._open = False


class DiskView:
    """The disk as one process uses it (``storage.local.Disk``)."""

    def __init__(self, disk: MemoryDisk, hook: DiskHook | None = None) -> None:
        self._disk = disk
        self._hook = hook or NoFaults()

    def open_append(self, path: str) -> _Handle:
        self._hook.step("open")
        return _Handle(self._hook, self._disk.file(path))

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        data = self._disk.notes.get(path) or self._disk.file(path).seen
        return bytes(data[offset:] if size < 0 else data[offset : offset + size])

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = [name[len(prefix) :] for name in self._disk.files if name.startswith(prefix)]
        return sorted({name.split("/")[0] for name in below})

    def exists(self, path: str) -> bool:
        self._hook.step("look")
        return path in self._disk.files

    def create_exclusive(self, path: str, data: bytes) -> bool:
        self._hook.step("create")
        if path in self._disk.files:
            return False
        self._disk.put(path, data)
        self._hook.step("created")
        return True

    def write_atomic(self, path: str, data: bytes, *, label: str = "") -> None:
        self._hook.step("replace")
        file = self._disk.put(path, data, self._disk.files.get(path))
        self._hook.step("replaced")
        file.name_durable, file.older = True, None

    def overwrite(self, path: str, data: bytes) -> None:
        self._disk.notes[path] = data

    def remove(self, path: str) -> None:
        self._hook.step("remove")
        self._disk.drop(path)

    def sync_dir(self, path: str) -> None:
        self._hook.step("sync_dir")
        self._disk.sync_names(path)
        self._hook.step("dir_synced")

    def touch(self, path: str) -> None:
        self._disk.file(path).mtime = self._disk.now()

    def mtime(self, path: str) -> float:
        return self._disk.file(path).mtime
