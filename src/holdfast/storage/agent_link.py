"""One agent process and the socket to it, as its driver sees them.

Owns the process, the thread that reads its answers, and the callers that wait for them. Must never start a second
process: the owner of a broken link creates a new one.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.storage import wire

_STOP_S = 5.0
_SEND_S = 60.0
_PING_EVERY_S = 10.0
_PINGS_UNANSWERED = 6
_LAST_WORDS_BYTES = 2000
# The interpreter's own directories come before the driver's, so that a file of the user's cannot shadow a module;
# holdfast's comes first, so that the agent is of the same version as its driver.
_CODE = (
    "import sys; fd, driver, home, *more = sys.argv[1:]; sys.path.insert(0, home); "
    "sys.path.extend(path for path in more if path not in sys.path); "
    "from holdfast.storage.agent import main; main(int(fd), int(driver))"
)
# Buffers of parts are used again and again. Left alone, the allocator would fetch each one from the kernel and give it
# back, which costs twice the time of a download; and it would keep freed ones per thread.
_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "268435456"}


class AgentGoneError(Exception):
    """The agent has died, or stopped answering, before it answered."""


class _Waiter:
    __slots__ = ("done", "reply")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.reply: wire.AgentReply | None = None


class AgentLink:
    """A running agent.

    Args:
        environ: The agent's environment.

    Attributes:
        gone: The agent cannot be asked any more.
        environ: What it was started with.
        pid: Its process id.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.gone = False
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, _Waiter] = {}
        self._opened: set[int] = set()
        self._numbers = itertools.count(1)
        self._heard = 0
        self._retired = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the agent)
        self._socket, theirs = socket.socketpair()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_SEND_S), 0))
        try:
            self._process = self._execute(theirs)
        except BaseException:
            self._socket.close()
            self._errors.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="holdfast-store", daemon=True)
        self._reader.start()

    def _execute(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        import holdfast

        home = os.path.dirname(os.path.dirname(os.path.abspath(holdfast.__file__)))
        paths = [os.path.abspath(path) for path in sys.path]
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
        fd = theirs.fileno()
        return subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", _CODE, str(fd), str(os.getpid()), home, *paths],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=(fd,),
            cwd="/",
            env=_MALLOC | self.environ,
        )

    def ask(
        self, store: int, spec: wire.StoreSpec, verb: str, arguments: tuple[Any, ...], timeout_s: float | None
    ) -> msgspec.Raw:
        """Send a request and wait for its answer.

        Raises:
            AgentGoneError: If the agent is not there any more.
            TimeoutError: If no answer came within ``timeout_s`` (None: wait while the agent lives).
            TuneError: What the agent's answer says.
        """
        waiter, number = _Waiter(), next(self._numbers)
        with self._lock:
            if self.gone:
                raise AgentGoneError(self._last_words())
            self._waiting[number] = waiter
        try:
            self._send(wire.AgentRequest(number, store, verb, arguments), spec)
            if not self._wait(waiter, timeout_s):
                raise TimeoutError
        finally:
            with self._lock:
                self._waiting.pop(number, None)
            if self._retired:
                self.stop_if_idle()
        if waiter.reply is None:
            raise AgentGoneError(self._last_words())
        if waiter.reply.error:
            raise wire.rebuild_error(waiter.reply.error, waiter.reply.message)
        return waiter.reply.value

    def _send(self, request: wire.AgentRequest, spec: wire.StoreSpec | None) -> None:
        data = wire.frame(request)
        with self._writing:
            if spec is not None and request.store not in self._opened:
                self._opened.add(request.store)
                data = wire.frame(wire.AgentRequest(0, request.store, wire.OPEN, spec)) + data
            try:
                self._socket.sendall(data)
            except OSError:  # it is dead, or has not read anything for a long time
                self._process.kill()
                self._end()

    def _wait(self, waiter: _Waiter, timeout_s: float | None) -> bool:
        """Wait, and make sure that there is somebody to wait for."""
        left = timeout_s
        heard, silent = self._heard, 0
        while not waiter.done.wait(_PING_EVERY_S if left is None else min(left, _PING_EVERY_S)):
            # Counted by our own wakings, not by a clock: a suspended machine has not been ignored by its agent.
            silent = silent + 1 if self._heard == heard else 0
            heard = self._heard
            if silent > _PINGS_UNANSWERED:
                # Its end may not be seen: a fork made while it was started can hold a copy of its socket.
                self._process.kill()
                self._end()
            if left is not None:
                left -= min(left, _PING_EVERY_S)
                if left <= 0:
                    return waiter.done.is_set()
            self._ping()
        return True

    def _ping(self) -> None:
        # Never waits for the lock: a thread that cannot send to a stopped agent would hold it.
        if self._writing.acquire(blocking=False):
            try:
                self._socket.send(wire.frame(wire.AgentRequest(0, 0, wire.PING)), socket.MSG_DONTWAIT)
            except OSError:
                pass
            finally:
                self._writing.release()

    def _read(self) -> None:
        for body in wire.bodies(self._socket):
            reply = wire.read_reply(body)
            self._heard += 1
            with self._lock:
                waiter = self._waiting.get(reply.number)
            if waiter is not None:
                waiter.reply = reply
                waiter.done.set()
        self._end()

    def _end(self) -> None:
        with self._lock:
            self.gone = True
            waiting = list(self._waiting.values())
        for waiter in waiting:
            waiter.done.set()

    def stop_if_idle(self) -> bool:
        """Let the agent finish what was asked of it, then end it; True if that is now."""
        self._retired = True
        with self._lock:
            idle = not self._waiting
        if idle:
            self.stop()
        return idle

    def stop(self) -> None:
        """End the agent. Stopping twice is allowed."""
        self._end()
        try:
            # Not only close: a fork of this process may hold a copy of the socket.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join(_STOP_S)
        self._socket.close()
        with self._lock:
            self._errors.close()

    def forget(self) -> None:
        """In a fork: close this process's copies, so that the agent sees its driver's end."""
        self._socket.close()
        self._errors.close()
        self._process.returncode = 0  # not this process's child; no warning that it still runs

    def _last_words(self) -> str:
        """Return the end of what the agent has printed."""
        try:
            fd = self._errors.fileno()
            size = os.fstat(fd).st_size
            text = os.pread(fd, _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES)).decode(errors="replace").strip()
        except (OSError, ValueError):  # closed by another thread
            return ""
        return f"Its last words: {text}" if text else ""
