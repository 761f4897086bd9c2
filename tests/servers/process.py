"""One server process: start, stop, pause, resume, and the ports and files that it has.

Owns: the life of the process, the reservation of ports between test processes, the log. Must never leave a process
behind, whatever kills the test process, and must never talk to anything but the loopback address.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from servers.install import Unavailable

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_TAIL_BYTES = 2000
# Below the kernel's range for outgoing connections: a port that is free while its server is stopped stays free.
PORTS = range(15000, 30000)
PORT_ATTEMPTS = 200
_GUARD = Path(__file__).with_name("guard.py")


class ServerFailed(RuntimeError):
    """A server that is installed did not come up, or died."""


class Port:
    """A TCP port that no other test process of this machine takes until `release`.

    The reservation is an abstract Unix socket named after the port: the kernel drops it with the process.
    """

    def __init__(self) -> None:
        chooser = random.SystemRandom()
        for _ in range(PORT_ATTEMPTS):
            self.number = chooser.choice(PORTS)
            self._mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._mark.bind(f"\0holdfast-test-port-{self.number}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((HOST, self.number))
            except OSError:
                self._mark.close()
            else:
                return
        raise ServerFailed(f"no free port in {PORTS} after {PORT_ATTEMPTS} attempts")

    def release(self) -> None:
        self._mark.close()


def poll(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until the condition holds.

    Raises:
        TimeoutError: It did not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(POLL_S)


def accepts(port: int) -> bool:
    """Whether somebody listens on this port."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def descendants(pid: int) -> list[int]:
    """The processes below this one, as far as it still knows them."""
    try:
        lists = [path.read_text() for path in Path("/proc", str(pid), "task").glob("*/children")]
    except OSError:
        return []
    children = [int(word) for text in lists for word in text.split()]
    return children + [below for child in children for below in descendants(child)]


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def _state(pid: int) -> str:
    """The letter of the kernel for what the process does: R, S, T (stopped), Z (ended) and others."""
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]


class Server:
    """A server process over a directory of its own.

    Use it as a context manager. `stop` ends it; `start` brings it back on the same ports and data. Start servers
    from the main thread: the kernel ends them together with the thread that started them.
    """

    name = "server"
    """What messages call it."""
    durable = True
    """Whether data survives `stop` and `start`."""
    start_timeout_s = 60.0
    """How long `start` waits for the first answer."""
    stop_signal = signal.SIGKILL
    """What `stop` sends. Those that keep their word only after an orderly end have another one."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._ports: dict[str, Port] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    # What a kind of server says of itself.

    def command(self) -> list[str]:
        """The command line; the first word is an absolute path. Raises Unavailable if it is not installed."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it answers now. Exceptions of the network count as no."""
        return accepts(self.port)

    def prepare(self) -> None:
        """Write the configuration files; the directories exist."""

    def clean(self) -> None:
        """Remove what the server leaves outside of its directory."""

    def variables(self) -> dict[str, str]:
        """Environment variables of the server process beside the usual few."""
        return {}

    # What all of them do.

    @property
    def port(self) -> int:
        """The port that clients use."""
        return self.reserve("main")

    @property
    def endpoint(self) -> str:
        """The URL that clients use."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running: call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives (paused or not)."""
        return self._process is not None and self._process.poll() is None

    def reserve(self, purpose: str) -> int:
        """A port for this purpose, the same one at each call."""
        if purpose not in self._ports:
            self._ports[purpose] = Port()
        return self._ports[purpose].number

    def start(self) -> Self:
        """Start it, and return when it answers; one that does not is closed.

        Raises:
            Unavailable: It is not installed.
            ServerFailed: It ended, or did not answer in time.
        """
        if self.running:
            raise ServerFailed(f"{self.name} runs already as process {self.pid}")
        if threading.current_thread() is not threading.main_thread():
            raise ServerFailed(f"{self.name} would die with this thread: start servers from the main thread")
        try:
            self._launch()
            poll(self._answers_or_died, self.start_timeout_s, f"{self.name} to answer")
        except BaseException as error:
            tail = self._log_tail()
            self.close()
            if isinstance(error, TimeoutError):
                raise ServerFailed(f"{error}; end of its log: {tail}") from None
            raise
        return self

    def stop(self) -> None:
        """End it. Ports and data are kept for the next `start`."""
        if self._process is not None and not self._paused and self.stop_signal != signal.SIGKILL:
            self._signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self._process is None:
            return
        family = descendants(self._process.pid)
        self._signal(signal.SIGKILL)
        for pid in family:  # sshd puts each connection into a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        group = self._process.pid
        poll(lambda: not members(group), STOP_TIMEOUT_S, f"the helpers of {self.name} to end")
        self._process = None
        self._paused = False
        self.clean()

    def pause(self) -> None:
        """Let it hang: connections are accepted by the kernel, nothing is answered."""
        self._signal(signal.SIGSTOP)
        self._paused = True
        poll(lambda: _state(self.pid) in "TtZ", STOP_TIMEOUT_S, f"{self.name} to be stopped by the signal")

    def resume(self) -> None:
        """Undo `pause`."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """Stop it for good and give the ports back."""
        self.stop()
        for port in self._ports.values():
            port.release()
        self._ports.clear()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> None:
        scratch = self.directory / "tmp"
        for folder in (self.data, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "TMPDIR": str(scratch)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *self.command()],
                cwd=self.directory,
                env=environment | self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _answers_or_died(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerFailed(
                f"{self.name} ended with code {self._process.returncode}; end of its log: {self._log_tail()}"
            )
        try:
            return self.ready()
        except OSError:
            return False

    def _log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if self.log.exists() else "(none)"


__all__ = ["HOST", "Port", "Server", "ServerFailed", "Unavailable", "accepts", "descendants", "members", "poll"]
