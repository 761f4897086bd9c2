"""What workers of a node print, on its way to the driver.

Nothing more is read from a file while the driver has not read what was sent: a trial may print faster than a network
takes it, and the files on the node's disk are the queue. They have the bound of all output,
``RunConfig.max_output_bytes``; what is dropped is the oldest that was not sent, and a line in the output says so.

Owns: the place in each file up to which it was sent. Must never: block, or let a worker wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.handshake import frame
from holdfast.engines.link import SocketLink
from holdfast.storage import trial_logs

WINDOW_BYTES = 48 * 1024
"""How much may be under way that the driver has not read.

It has to fit into the receive buffer with which a connection begins (64 KiB on Linux). Once that is full the kernel may
send nothing, and ends the connection when the lease is over, although the driver's machine answers: a driver that is
stopped for longer, as by Ctrl+Z or a debugger, would lose all nodes.
"""

PAUSE_S = 1.0
"""A driver that has read nothing for so long, although it could, is not reading now."""

QUEUE_BYTES = 2 * 1024 * 1024
"""As much is sent at once; and as much may wait to be sent when the node is left."""

PIECE_BYTES = 16 * 1024
"""Files take turns in pieces of this size."""

KEPT_LOG_BYTES = 4 * 1024 * 1024
"""A worker's log that is longer begins again; what was not sent of it yet is moved to another file."""

DRAIN_S = 2.0
"""How long the end of a worker waits for its output: the driver must hear of it before it gives the worker up."""

LAST_BYTES = 256 * 1024
"""What is sent of a file when that time is over."""


class GrowingFile:
    """One file, sent as it grows.

    Args:
        path: Where it is printed to.
        rest: A file for what was printed before ``path`` has begun again, and was not sent yet.
        limit: The most bytes that are kept; 0 keeps all.
        begins_again_at: Size at which the file begins again although nothing is dropped; None for half of the limit.

    Attributes:
        sent: How much ``read`` has returned.
        passed: How much of what was printed was read or dropped.
    """

    def __init__(self, path: str, rest: str, limit: int, begins_again_at: int | None = None) -> None:
        self.sent = self.passed = 0
        self._path = path
        self._rest_path = rest
        self._limit = limit
        self._half = max(KEPT_LOG_BYTES, limit // 2) if limit else None
        self._begins_again_at = begins_again_at or self._half
        self._at = 0
        self._rest: BinaryIO | None = None
        self._head = self._note = b""  # these are read first
        self._ends_line = True

    def read(self, size: int) -> bytes:
        """What comes next; b"" if nothing was printed since."""
        try:
            data = self._next(size)
        except OSError:
            return b""
        if data:
            self.sent += len(data)
            self._ends_line = data.endswith(b"\n")
        return data

    def _next(self, size: int) -> bytes:
        if self._note:
            data = (b"" if self._ends_line else b"\n") + self._head + self._note
            self._head = self._note = b""
            return data
        data = self._rest.read(size) if self._rest is not None else b""
        if not data:
            self._forget_rest()
            with open(trial_logs.open_log(self._path), "rb") as file:
                file.seek(self._at)
                data = file.read(size)
            self._at += len(data)
        self.passed += len(data)
        return data

    def end(self) -> int:
        """What ``passed`` is once everything that is printed now was read."""
        try:
            size = os.stat(self._path).st_size
        except OSError:
            size = 0
        return self.passed + self._left_of_rest() + max(0, size - self._at)

    @property
    def is_sent(self) -> bool:
        """Whether nothing is left."""
        return self.passed >= self.end()

    def bound(self) -> None:
        """Keep the file short. Whoever prints to it appends, and continues at its beginning."""
        with contextlib.suppress(OSError):  # tried again; a full disk must not stop anybody else
            size = os.stat(self._path).st_size
            waits = size if self._rest is not None else size - self._at
            if self._half is not None and waits > self._half:
                self.drop_all_but(self._half, trial_logs.cut_note(self._half, self._limit))
            elif self._rest is None and self._begins_again_at is not None and size > self._begins_again_at:
                self._move_rest(self._at)

    def drop_all_but(self, kept: int, note: bytes) -> None:
        """Drop what was not sent, but for the newest, and the head of the attempt that this belongs to.

        Raises:
            OSError: Nothing was dropped.
        """
        size = os.stat(self._path).st_size
        begin = trial_logs.next_line(self._path, max(self._at, size - kept))
        head = trial_logs.last_head(self._path, self._at, begin)
        if self._rest is not None and not head:
            head = trial_logs.last_head(self._rest_path, self._rest.tell(), os.stat(self._rest_path).st_size)
        dropped = self._left_of_rest() + begin - self._at
        self._move_rest(begin)
        self.passed += dropped
        self._head, self._note = head or self._head, note

    def _move_rest(self, begin: int) -> None:
        fresh = f"{self._rest_path}.tmp"
        trial_logs.move_rest(self._path, begin, fresh, max(self._limit, 2 * KEPT_LOG_BYTES) if self._limit else None)
        self._forget_rest()
        os.rename(fresh, self._rest_path)
        self._rest, self._at = os.fdopen(trial_logs.open_log(self._rest_path), "rb"), 0

    def _left_of_rest(self) -> int:
        return 0 if self._rest is None else os.fstat(self._rest.fileno()).st_size - self._rest.tell()

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None
            os.unlink(self._rest_path)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._forget_rest()


class WorkerOutput:
    """Files that one worker prints to: its log, and those that its attempt has chosen."""

    def __init__(self, log: GrowingFile) -> None:
        self.log = log
        self.followed: dict[str, GrowingFile] = {}
        self.ends: dict[str, int] | None = None  # the attempt has ended: its files are followed up to here
        self.when_sent: Callable[[], None] | None = None  # the worker is gone: to be called when everything was sent
        self.deadline = 0.0

    def close(self) -> None:
        for file in (self.log, *self.followed.values()):
            file.close()

    @property
    def is_sent(self) -> bool:
        """Whether nothing is left."""
        return all(file.is_sent for file in (self.log, *self.followed.values()))


class NodeOutput:
    """The output of all workers of a node.

    Args:
        link: To the driver.
        top: The scratch directory.
        limit: The most bytes that are kept of one file; 0 keeps all.

    Attributes:
        is_behind: There is more to send than may wait.
    """

    def __init__(self, link: SocketLink, top: str, limit: int) -> None:
        self.is_behind = False
        self._link = link
        self._top = top
        self._limit = limit
        self._workers: dict[int, WorkerOutput] = {}
        self._rests = self._turn = 0
        self._unread = 0
        self._full_since: float | None = None
        self._leaves = False

    def __bool__(self) -> bool:
        return bool(self._workers)

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return self._link.unsent() < QUEUE_BYTES if self._leaves else self._unread + PIECE_BYTES <= WINDOW_BYTES

    @property
    def _is_paused(self) -> bool:
        """Whether the driver does not read."""
        return self._full_since is not None and time.monotonic() - self._full_since > PAUSE_S

    def was_read(self, size: int) -> None:
        """The driver has read so much."""
        if self._is_paused:  # it can hear of ends only now
            for output in self._workers.values():
                output.deadline = max(output.deadline, time.monotonic() + DRAIN_S)
        self._unread -= size
        self._full_since = None

    def hurry(self) -> None:
        """The node is left: send everything, however much of it the driver has read."""
        self._leaves = True

    # --- who prints

    def watch(self, number: int, log: str) -> None:
        """A worker prints to this file."""
        self._workers[number] = WorkerOutput(self._file(log, KEPT_LOG_BYTES))

    def follow(self, number: int, paths: list[str]) -> None:
        """Its attempt prints to these files, below the scratch directory."""
        output = self._workers.get(number)
        if output is not None:
            self.send()
            self._unfollow(number, output)
            output.followed = {path: self._file(os.path.join(self._top, path)) for path in paths}

    def stop_following(self, number: int) -> None:
        """The attempt has ended: ``AllSent`` follows what its files have now."""
        output = self._workers.get(number)
        if output is None:
            self._link.send(frame(say.AllSent(number)))
            return
        output.ends = {path: file.end() for path, file in output.followed.items()}
        self.send()

    def end(self, number: int, when_sent: Callable[[], None]) -> None:
        """The worker is gone: call this when its output was sent, or the time for that is over."""
        output = self._workers.get(number)
        if output is None:
            when_sent()
            return
        output.when_sent, output.deadline = when_sent, time.monotonic() + DRAIN_S
        self.send()

    def _file(self, path: str, begins_again_at: int | None = None) -> GrowingFile:
        self._rests += 1
        rest = f"{self._top}/{say.LOGS}/unsent-{self._rests}"
        return GrowingFile(path, rest, self._limit, begins_again_at)

    def close(self) -> None:
        """Forget what was not sent."""
        for output in self._workers.values():
            output.close()
        self._workers.clear()

    # --- sending

    def bound(self) -> None:
        """Keep all files short."""
        for output in self._workers.values():
            for file in (output.log, *output.followed.values()):
                file.bound()

    def send(self) -> None:
        """Send what was printed, as much as may wait to be sent."""
        files = deque((number, path) for number, output in self._workers.items() for path in ("", *output.followed))
        files.rotate(-self._turn)  # where the last call has stopped, or each file would wait for those before it
        left = QUEUE_BYTES  # others have to be heard now and then
        quiet = 0
        while left > 0 and self.has_room and quiet < len(files):
            sent = self._send_piece(*files[0])
            files.rotate(-1)
            self._turn += 1
            quiet = 0 if sent else quiet + 1
            left -= sent
        self.is_behind = quiet < len(files)
        if self.has_room:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()
        self._tell_ends()

    def _send_piece(self, number: int, path: str) -> int:
        """Send a piece of a followed file, or of the worker's log ("")."""
        output = self._workers[number]
        file = output.followed[path] if path else output.log
        offset, data = file.sent, file.read(PIECE_BYTES)
        if data:
            self._link.send(frame(say.Appended(path, offset, data) if path else say.Printed(number, data)))
            self._unread += len(data)
        return len(data)

    def _tell_ends(self) -> None:
        for number, output in list(self._workers.items()):
            if output.ends is not None and all(
                file.passed >= output.ends[path] or file.is_sent for path, file in output.followed.items()
            ):
                self._unfollow(number, output)
            is_over = time.monotonic() >= output.deadline and not self._is_paused
            if output.when_sent is not None and (output.is_sent or is_over):
                self._send_last(number, output)
                self._unfollow(number, output)
                output.close()
                del self._workers[number]
                output.when_sent()

    def _unfollow(self, number: int, output: WorkerOutput) -> None:
        for file in output.followed.values():
            file.close()
        output.followed = {}
        if output.ends is not None:
            output.ends = None
            self._link.send(frame(say.AllSent(number)))

    def _send_last(self, number: int, output: WorkerOutput) -> None:
        """Drop what has no time to be sent."""
        kept = f"the last {LAST_BYTES:,} bytes are kept (the connection to the driver was too slow)"
        for file in (output.log, *output.followed.values()):
            if file.end() - file.passed > LAST_BYTES:
                with contextlib.suppress(OSError):
                    file.drop_all_but(LAST_BYTES, f"{trial_logs.CUT_TEXT}: {kept} ---\n".encode())
        paths = ("", *output.followed)
        pieces = 2 + LAST_BYTES // PIECE_BYTES  # with the note
        while pieces and sum([self._send_piece(number, path) for path in paths]):
            pieces -= 1
