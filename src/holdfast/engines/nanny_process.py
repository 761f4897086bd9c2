"""The driver's handle on its nanny process.

Owns: that process, the link to it, and the search for what it leaves if it is killed.
Must never: wait for it without a limit.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.engines import boot, kernel, process_tree
from holdfast.engines.exits import size_of
from holdfast.engines.link import SocketLink
from holdfast.engines.nanny_messages import (
    RUN_VARIABLE,
    KillWorker,
    NannyMessage,
    NannyPlan,
    StartWorker,
    TerminateWorker,
    decode_nanny,
)
from holdfast.trainable.worker_messages import frame

STOP_S = 10.0
SWEEP_S = 5.0


class NannyProcess:
    """One nanny and the workers it has; ``again`` if its driver had one before.

    Attributes:
        link: For the selector of whoever polls.
        pidfd: Readable when the nanny has ended; None if the platform has none.
    """

    def __init__(
        self,
        *,
        runner: str,
        start: str,
        preload: tuple[str, ...],
        sys_path: tuple[str, ...],
        log_dir: Path,
        again: bool = False,
    ) -> None:
        self._run = uuid.uuid4().hex
        self._log = log_dir / "nanny.log"
        self._note = log_dir / "nanny.run"
        if again:
            self._leave_note()
        else:
            self._sweep_after_a_crash()
        ours, theirs = socket.socketpair()
        plan = NannyPlan(
            driver=os.getpid(),
            fd=theirs.fileno(),
            run=self._run,
            runner=runner,
            fork=start != "spawn",
            preload=preload,
            argv=tuple(sys.argv),
        )
        try:
            self._process = self._execute(plan, sys_path or sys.path)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.link = SocketLink(ours)
        self._ready = False
        self.pidfd = kernel.open_pidfd(self._process.pid)

    def _sweep_after_a_crash(self) -> None:
        """If driver and nanny were both killed, children of trials may have survived them; the note names them."""
        with contextlib.suppress(OSError):
            process_tree.sweep(self._note.read_text(encoding="ascii", errors="replace"), SWEEP_S)
        self._note.write_text(self._run, encoding="ascii")

    def _leave_note(self) -> None:
        """Unless there is one: it is of a driver that has taken the experiment over, and needs it."""
        with contextlib.suppress(FileExistsError), open(self._note, "x", encoding="ascii") as note:
            note.write(self._run)

    def _execute(self, plan: NannyPlan, sys_path: Sequence[str]) -> subprocess.Popen[bytes]:
        paths = [path or os.getcwd() for path in sys_path]  # "" is the driver's directory, not the trial's
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                boot.command("nanny", msgspec.json.encode(plan).decode(), paths),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(plan.fd,),
                # A session of its own: Ctrl+C and hang-ups of the terminal reach the driver alone.
                start_new_session=True,
                env=os.environ | {RUN_VARIABLE: self._run},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start_worker(self, worker: int, fd: int, log: str) -> None:
        """Start a worker on the socket ``fd``, which is given away."""
        self.link.send_with_fd(frame(StartWorker(worker, log)), fd)

    def terminate_worker(self, worker: int) -> None:
        self.link.send(frame(TerminateWorker(worker)))

    def kill_worker(self, worker: int) -> None:
        self.link.send(frame(KillWorker(worker)))

    def receive(self) -> list[NannyMessage] | None:
        """What the nanny says; None when it is gone."""
        payloads = self.link.receive()
        if payloads is None:
            return None
        messages: list[NannyMessage] = [decode_nanny(payload) for payload in payloads]
        self._ready = self._ready or bool(messages)
        return messages

    def stop(self) -> bool:
        """Have the nanny end everything; False if something was left that cannot be killed."""
        if not self._ready:
            return self.bury()  # it may be in the middle of a long import, and has no worker that we know of
        with contextlib.suppress(OSError):
            # Not only close: a fork of this process may hold a copy of the socket.
            self.link.socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
            if self._process.returncode == 0:
                self.forget()
                return True
        return self.bury()

    def bury(self) -> bool:
        """The nanny is dead or does not answer: end it and what it left; False if something is still there."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        swept = process_tree.sweep(self._run, SWEEP_S)
        self.forget()
        return swept

    def forget(self) -> None:
        """Close what this process has open for the nanny."""
        self.link.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        if self._process.returncode is None:
            return  # in a fork of the driver
        with contextlib.suppress(OSError):
            if self._note.read_text(encoding="ascii", errors="replace") != self._run:
                return  # of the driver that took the experiment over: it will need it
            self._note.unlink()
            if size_of(str(self._log)) == 0:
                self._log.unlink()
