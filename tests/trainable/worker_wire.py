"""A driver for tests: a real socket, a real worker loop in a thread, every message seen."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.observations import Hint, Raised, Report, Returned, Stopped, WorkerMessage
from holdfast.storage.framing import READ_BYTES
from holdfast.trainable.api import report
from holdfast.trainable.pickling import dump_objects, dump_trainable
from holdfast.trainable.runner import run_attempts
from holdfast.trainable.worker_messages import (
    FRAMING,
    Decision,
    Quit,
    Run,
    Setup,
    ToWorker,
    decode_to_worker,
    frame,
)

TIMEOUT_S = 30.0
FROM_WORKER = msgspec.msgpack.Decoder(WorkerMessage)
ENDS = (Returned, Stopped, Raised)


class SocketChannel:
    """The worker's end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = FRAMING.decoder()
        self._queue: deque[ToWorker] = deque()

    def send(self, *messages: WorkerMessage) -> None:
        self.sock.sendall(b"".join(frame(message) for message in messages))

    def receive(self) -> ToWorker:
        while not self._queue:
            self._feed(self.sock.recv(READ_BYTES))
        return self._queue.popleft()

    def pending(self) -> list[ToWorker]:
        try:
            while True:
                self._feed(self.sock.recv(READ_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            messages = list(self._queue)
            self._queue.clear()
            return messages

    def _feed(self, data: bytes) -> None:
        if not data:
            raise EOFError("the driver is gone")
        self._queue.extend(decode_to_worker(payload) for payload in self._buffer.feed(data))


class Driver:
    """Starts a worker for one trainable, sends it runs and collects what it answers."""

    def __init__(self, root: Path, trainable: Any, objects: dict[str, Any] | None = None, **settings: Any) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "trainable.pkl").write_bytes(dump_trainable(trainable))
        (root / "objects.pkl").write_bytes(dump_objects(objects or {}))
        settings.setdefault("is_class", isinstance(trainable, type))
        settings.setdefault("chdir", False)
        settings.setdefault("working_dir", str(root))
        self.root = root
        self.setup = Setup(7, "exp", str(root), "trainable.pkl", "objects.pkl", **settings)
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(TIMEOUT_S)
        self._buffer = FRAMING.decoder()
        self._queue: deque[WorkerMessage] = deque()
        self.seen: list[WorkerMessage] = []
        self.hints: list[str] = []
        self._theirs = theirs
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        with self._theirs:
            run_attempts(self.setup, SocketChannel(self._theirs))

    def send(self, message: ToWorker) -> None:
        self.sock.sendall(frame(message))

    def launch(self, config: dict[str, Any] | None = None, n: int = 0, attempt: int = 1, **facts: Any) -> Run:
        """Send a run; the trial is called after its number."""
        facts.setdefault("trial_dir", f"trial_{n}")
        run = Run(n, attempt, f"id_{n}", f"name_{n}", tag=f"{n}_tag", config=config or {}, **facts)
        self.send(run)
        return run

    def next(self) -> WorkerMessage:
        """The worker's next message."""
        while not self._queue:
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise EOFError("the worker is gone")
            for message in map(FROM_WORKER.decode, self._buffer.feed(data)):
                if isinstance(message, Hint):  # shown by a driver, and never answered
                    self.hints.append(message.text)
                else:
                    self._queue.append(message)
        message = self._queue.popleft()
        self.seen.append(message)
        return message

    def decide(self, ordinal: int, go: str = "go", save: bool = False) -> None:
        self.send(Decision(ordinal, go, save))

    def play(self, stop_at: int = 0, go: str = "stop", save: bool = False) -> list[WorkerMessage]:
        """Answer reports until the attempt ends; the one numbered ``stop_at`` is answered with ``go``."""
        messages: list[WorkerMessage] = []
        while True:
            message = self.next()
            messages.append(message)
            if isinstance(message, Report):
                last = message.ordinal == stop_at
                self.decide(message.ordinal, go if last else "go", last and save)
            elif isinstance(message, ENDS):
                return messages

    def attempt(self, config: dict[str, Any] | None = None, **facts: Any) -> list[WorkerMessage]:
        """One whole attempt, always told to continue."""
        self.launch(config, **facts)
        return self.play()

    def close(self) -> None:
        try:
            self.send(Quit())
        except OSError:
            pass
        self.thread.join(TIMEOUT_S)
        self.sock.close()
        assert not self.thread.is_alive(), "the worker did not leave"


def metrics(messages: list[WorkerMessage]) -> list[dict[str, Any]]:
    return [message.metrics for message in messages if isinstance(message, Report)]


def kinds(messages: list[WorkerMessage]) -> list[str]:
    return [type(message).__name__ for message in messages]


def three_reports(config: dict[str, Any]) -> None:
    """A trainable."""
    for i in range(3):
        report({"loss": config["x"] - i})


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.01)
