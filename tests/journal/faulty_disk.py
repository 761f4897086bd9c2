"""An in-memory `Disk` that fails the way disks fail, at the moment that a test chooses.

It keeps, for every file, what processes see and what a power cut would leave. A name is durable after
`sync_dir`, content after a sync that succeeded. After a sync that failed, the content it should have covered is
seen as before but never becomes durable, whatever later syncs answer: that is what kernels do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field


class Killed(BaseException):
    """The process died here, as by ``kill -9``: no handler may run on."""


@dataclass
class _File:
    seen: bytearray
    durable: bytearray = field(default_factory=bytearray)
    lost: list[tuple[int, int]] = field(default_factory=list)
    dirty_from: int = 0
    name_durable: bool = False
    mtime: float = 0.0

    def sync(self) -> None:
        self.durable = bytearray(self.seen)
        for start, end in self.lost:
            self.durable[start:end] = bytes(end - start)
        self.dirty_from = len(self.seen)

    def fail_sync(self) -> None:
        self.lost.append((self.dirty_from, len(self.seen)))
        self.dirty_from = len(self.seen)


class _Handle:
    def __init__(self, disk: FaultyDisk, file: _File) -> None:
        self._disk = disk
        self._file = file
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        data = bytes(data)
        fitting = self._disk.fitting(data)
        self._disk.step("write", lambda part: self._file.seen.extend(data[: int(len(data) * part)]))
        if fitting == 0 and data:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.seen += data[:fitting]
        self._disk.step("written")
        return fitting

    def sync(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        try:
            self._disk.step("sync")
        except OSError:
            self._file.fail_sync()
            raise
        self._file.sync()
        self._disk.step("synced")

    def close(self) -> None:
        self.closed = True


class FaultyDisk:
    """A disk in memory.

    Attributes:
        clock: The disk's own time, for modification times.
        capacity: Bytes that fit on it, or None.
        steps: Names of the steps taken so far; each is a place where the process can die.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.capacity: int | None = None
        self.steps: list[str] = []
        self.notes: dict[str, bytes] = {}  # overwritten in place and never synced: no power cut leaves any
        self._files: dict[str, _File] = {}
        self._faults: dict[str, list[BaseException]] = {}
        self._kill_at: int | None = None
        self._torn_part = 0.0

    # ------------------------------------------------------------------------------------------- faults

    def fail(self, step: str, error: BaseException, times: int = 1) -> None:
        """Let the next ``times`` steps of this name raise ``error``."""
        self._faults.setdefault(step, []).extend([error] * times)

    def kill_at(self, number: int, torn_part: float = 0.0) -> None:
        """Die at the step of this number; if that is a write, this part of its bytes still arrives."""
        self._kill_at = number
        self._torn_part = torn_part

    def survive(self) -> None:
        """Start a new process on the disk as the dead one left it."""
        self._kill_at = None
        self._faults.clear()

    def power_cut(self) -> None:
        """Lose everything that is not durable, and start again."""
        self.survive()
        self.notes.clear()
        self._files = {path: file for path, file in self._files.items() if file.name_durable}
        for file in self._files.values():
            file.seen = bytearray(file.durable)
            file.lost.clear()
            file.dirty_from = len(file.seen)

    def step(self, name: str, when_torn: Callable[[float], object] | None = None) -> None:
        if self._kill_at is not None and len(self.steps) >= self._kill_at:
            if when_torn is not None:
                when_torn(self._torn_part)
            raise Killed
        self.steps.append(name)
        faults = self._faults.get(name)
        if faults:
            raise faults.pop(0)

    def fitting(self, data: bytes) -> int:
        if self.capacity is None:
            return len(data)
        used = sum(len(file.seen) for file in self._files.values())
        return max(0, min(len(data), self.capacity - used))

    # ------------------------------------------------------------------------------------------- raw bytes

    def content(self, path: str) -> bytearray:
        """What processes see of a file, to be changed in place by a test that damages it."""
        return self._files[path].seen

    def make_durable(self) -> None:
        """Pretend that all was written long ago."""
        for file in self._files.values():
            file.durable = bytearray(file.seen)
            file.name_durable = True

    # ------------------------------------------------------------------------------------------- Disk

    def open_append(self, path: str) -> _Handle:
        self.step("open")
        return _Handle(self, self._file(path))

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        data = self.notes.get(path) or self._file(path).seen
        return bytes(data[offset:] if size < 0 else data[offset : offset + size])

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({name[len(prefix) :].split("/")[0] for name in self._files if name.startswith(prefix)})

    def exists(self, path: str) -> bool:
        return path in self._files

    def create_exclusive(self, path: str, data: bytes) -> bool:
        self.step("create")
        if path in self._files:
            return False
        if self.fitting(data) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._files[path] = _File(bytearray(data), bytearray(data), dirty_from=len(data), mtime=self.clock)
        self.step("created")
        return True

    def write_atomic(self, path: str, data: bytes, *, label: str = "") -> None:
        self.step("replace")
        if self.fitting(data) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        file = _File(bytearray(data), bytearray(data), dirty_from=len(data), mtime=self.clock, name_durable=True)
        self._files[path] = file
        self.step("replaced")

    def overwrite(self, path: str, data: bytes) -> None:
        self.notes[path] = data

    def remove(self, path: str) -> None:
        self.step("remove")
        self._files.pop(path, None)

    def sync_dir(self, path: str) -> None:
        self.step("sync_dir")
        for name, file in self._files.items():
            if os.path.dirname(name) == path.rstrip("/"):
                file.name_durable = True

    def touch(self, path: str) -> None:
        self._file(path).mtime = self.clock

    def mtime(self, path: str) -> float:
        return self._file(path).mtime

    def _file(self, path: str) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None
