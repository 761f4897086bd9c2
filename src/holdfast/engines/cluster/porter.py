"""The porter: one process on each node that works for a driver elsewhere.

It owns the node's scratch directory, in which workers find their trainable and leave their files. It serves carriers,
sends what workers print, tells how they ended, and ends what they left. A cluster kills the processes that it started
as soon as it learns of the driver's death, so the porter is a daemon that the cluster does not know: it leaves when its
connection to the driver ends, and takes everything with it.

Must never: outlive its connection, or touch a process or directory that is not of its run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import msgspec

from holdfast.engines import kernel, process_tree
from holdfast.engines.cluster import marks
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.carrier import Warehouse
from holdfast.engines.cluster.courier import FILES
from holdfast.engines.cluster.handshake import Greeting, dial, frame, greeting_of
from holdfast.engines.cluster.node_output import NodeOutput
from holdfast.engines.cluster.node_store import NodeStore
from holdfast.engines.exits import OomWitness, tail
from holdfast.engines.link import SocketLink
from holdfast.space.naming import is_inside
from holdfast.storage.untrusted import read_regular

_decode_porter_plan = msgspec.json.Decoder(say.PorterPlan).decode

PRINT_S = 0.5
"""What is printed reaches the driver at most this late."""

KILL_S = 5.0
AGENT = "agent"
PREFIX = "holdfast-"

STATUS_S = 0.5
"""How long to look for a dead worker's exit status before it is told without."""

_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO = struct.Struct("@Q52xi")
_PIDFD_INFO_EXIT = 1 << 3
_FATAL = "Fatal Python error:"


class Watched:
    """A worker on this node."""

    def __init__(self, number: int, pid: int, log: str) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = kernel.open_pidfd(pid)
        self.log = log


class Porter:
    """One node's porter.

    Args:
        plan: How it starts.
        top: Its scratch directory.
        sock: The connection to the driver.
    """

    def __init__(self, plan: say.PorterPlan, top: str, sock: socket.socket) -> None:
        self._plan = plan
        self._run = marks.run_on(plan.run, plan.node)
        self._top = top
        self._link = SocketLink(sock)
        self._workers: dict[int, Watched] = {}
        self._output = NodeOutput(self._link, top, plan.max_output_bytes)
        self._oom = OomWitness()
        self._warehouse = Warehouse(top, NodeStore(plan.store, f"{top}/{FILES}"))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._link.socket, selectors.EVENT_READ, None)
        self._agent = kernel.open_pidfd(plan.agent) if plan.agent else None
        if self._agent is not None:
            self._selector.register(self._agent, selectors.EVENT_READ, AGENT)

    def serve(self) -> None:
        """Work until the driver says so or is gone."""
        looked = 0.0
        while True:
            more = self._output.is_behind and self._output.has_room
            for key, _ in self._selector.select(0.0 if more else PRINT_S if self._output else None):
                if isinstance(key.data, Watched):
                    self._ended(key.data)
                elif key.data == AGENT:
                    self._selector.unregister(key.fileobj)
                    self._link.send(frame(say.AgentGone()))
                elif not self._hear():
                    return
            if time.monotonic() - looked >= PRINT_S:
                looked = time.monotonic()
                self._oom.look()
                self._output.bound()
                self._output.send()
                self._find_ended()
            elif self._output.is_behind:
                self._output.send()
            self._link.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.waiting else 0)
            self._selector.modify(self._link.socket, events, None)

    def end_everything(self) -> None:
        """Kill what any worker of this run has left on this node, and remove the scratch directory."""
        deadline = time.monotonic() + KILL_S
        while left := marks.marked(self._marks, self._run):
            process_tree.kill_trees(left)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self._output.close()
        shutil.rmtree(self._top, ignore_errors=True)

    @property
    def _marks(self) -> str:
        return f"{self._top}/.marks"

    # --- orders

    def _hear(self) -> bool:
        payloads = self._link.receive()
        if payloads is None:
            return False
        for payload in payloads:
            order = say.decode_order(payload)
            if isinstance(order, say.Leave):
                self._say_farewell()
                return False
            if isinstance(order, say.OutputRead):
                self._output.was_read(order.size)
            else:
                self._carry_out(order)
        return True

    def _carry_out(self, order: say.PorterOrder) -> None:
        if isinstance(order, say.WatchWorker):
            log = f"{self._top}/{say.LOGS}/{say.WORKER_LOG.format(order.worker)}"
            worker = self._workers[order.worker] = Watched(order.worker, order.pid, log)
            self._output.watch(order.worker, log)
            if worker.pidfd is None:
                self._ended(worker)
            else:
                self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        elif isinstance(order, say.FollowFiles):
            self._output.follow(order.worker, [path for path in order.paths if is_inside(path)])
        elif isinstance(order, say.StopFollowing):
            self._output.stop_following(order.worker)
        elif isinstance(order, say.KillTree):
            self._kill(order.worker)
        elif isinstance(order, say.TerminateTree):
            if order.worker in self._workers:
                with contextlib.suppress(OSError):
                    os.kill(self._workers[order.worker].pid, signal.SIGTERM)
        elif isinstance(order, say.OpenCarrier):
            threading.Thread(target=self._carry, args=(order.number,), daemon=True, name="holdfast-carrier").start()
        elif isinstance(order, say.Remove) and is_inside(order.path):
            self._output.send()  # files that are followed may be among them
            threading.Thread(
                target=shutil.rmtree, args=(os.path.join(self._top, order.path), True), daemon=True
            ).start()

    def _carry(self, number: int) -> None:
        plan = self._plan
        try:
            sock = dial(plan.addresses, plan.secret, greeting_of("carrier", number, plan.node, plan.ip))
        except Exception:
            traceback.print_exc()
            return
        self._warehouse.serve(sock)

    def _kill(self, number: int) -> None:
        worker = self._workers.get(number)
        roots = {*marks.marked(self._marks, self._run, number)}
        if worker is not None:
            roots.add(worker.pid)
        process_tree.kill_trees(roots)

    # --- what becomes of workers

    def _find_ended(self) -> None:
        """Workers whose end no descriptor tells."""
        for worker in list(self._workers.values()):
            if worker.pidfd is None and not process_tree.is_running(worker.pid):
                self._ended(worker)

    def _ended(self, worker: Watched) -> None:
        if self._workers.pop(worker.number, None) is None:
            return
        status = _exit_status(worker)
        if worker.pidfd is not None:
            self._selector.unregister(worker.pidfd)
            os.close(worker.pidfd)
        deadline = time.monotonic() + KILL_S
        while left := marks.marked(self._marks, self._run, worker.number):
            process_tree.kill_trees(left)
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        crash = next((line for line in reversed(tail(worker.log, 0).splitlines()) if line.startswith(_FATAL)), "")
        oom = self._oom.explains() if status in (-1, int(signal.SIGKILL)) else False
        gone = frame(say.WorkerGone(worker.number, status, oom, crash))
        self._output.end(worker.number, partial(self._link.send, gone))

    def _say_farewell(self) -> None:
        """Send what is left, for a moment: the driver waits for it."""
        deadline = time.monotonic() + KILL_S
        self._output.hurry()
        self._output.send()
        while (self._link.waiting or self._output.is_behind) and time.monotonic() < deadline:
            self._link.flush()
            self._output.send()
            time.sleep(0.005 if self._link.waiting else 0.0)


def _exit_status(worker: Watched) -> int:
    """How a process that is not our child has ended; -1 if that cannot be known."""
    deadline = time.monotonic() + STATUS_S
    while True:
        status = _status_of_zombie(worker.pid)
        if status is None and worker.pidfd is not None:
            status = _status_of_pidfd(worker.pidfd)
        if status is not None or time.monotonic() > deadline:
            return -1 if status is None else status
        time.sleep(0.002)


def _status_of_zombie(pid: int) -> int | None:
    """From the last field of its line, while nobody has reaped it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        if fields[0] in "ZX":
            return int(fields[49])
    return None


def _status_of_pidfd(pidfd: int) -> int | None:
    """From Linux 6.15 on the kernel tells whoever holds a descriptor, once the process has been reaped."""
    info = bytearray(_PIDFD_INFO.size)
    info[:8] = _PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder)
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
        mask, status = _PIDFD_INFO.unpack(info)
        if mask & _PIDFD_INFO_EXIT:
            return int(status)
    return None


def make_scratch(plan: say.PorterPlan) -> str:
    """A new scratch directory; those of drivers of the same experiment that are gone are removed."""
    base = plan.scratch or tempfile.gettempdir()
    os.makedirs(base, exist_ok=True)
    mine = f"{PREFIX}{plan.experiment[:16]}-"
    for name in os.listdir(base):
        old = os.path.join(base, name)
        if name.startswith(mine) and not os.path.islink(old) and not _in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    top = os.path.join(base, f"{mine}{plan.run}-{plan.node[:8]}")
    os.mkdir(top, mode=0o700)  # code and checkpoints of the user are in it
    os.makedirs(f"{top}/{say.LOGS}")
    if plan.probe:
        probe = Path(top, say.PROBE, say.PROBE_FILE)
        probe.parent.mkdir(parents=True)
        probe.write_text(plan.probe)
    # The lock is there only once it is held: whoever finds it free removes the directory.
    lock = os.open(f"{top}/.locking", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends
    os.rename(f"{top}/.locking", f"{top}/.lock")
    return top


def _in_use(top: str) -> bool:
    """Whether a porter lives in this scratch directory."""
    try:
        fd = os.open(f"{top}/.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - os.stat(top).st_mtime < 60  # one may be about to make it
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def sees_root(plan: say.PorterPlan) -> bool:
    """Whether this node has the experiment's own directory, on the driver's machine or on a shared file system."""
    try:
        content = read_regular(os.path.join(plan.root, plan.marker)).decode()
    except (OSError, UnicodeDecodeError, ValueError):
        return False
    return content == plan.marked and (plan.shared or plan.boot == boot_id())


def boot_id() -> str:
    """What tells this machine, since it was switched on, from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def greeting(plan: say.PorterPlan, top: str) -> Greeting:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in containers
        user = os.environ.get("USER") or str(os.geteuid())
    return greeting_of("porter", 0, plan.node, plan.ip, sees_root=sees_root(plan), scratch=top, user=user)


def start_daemon(plan: say.PorterPlan) -> str:
    """Start a porter on this machine that nobody here is the parent of. Returns "", or why it did not start."""
    import subprocess

    command = [sys.executable, "-m", "holdfast.engines.cluster.porter"]
    done = subprocess.run(
        command,
        input=msgspec.json.encode(plan),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    text = done.stdout.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 and not text else text or f"it ended with exit code {done.returncode}"


def main() -> None:
    """Read the plan, dial the driver, detach, and serve.

    The first process returns when the second has reached the driver, so that whoever started it learns of a failure.
    """
    plan = _decode_porter_plan(sys.stdin.buffer.read())
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        with open(readable, "rb") as pipe:
            text = pipe.read()
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        os._exit(0 if not text else 1)
    os.close(readable)
    os.setsid()
    if os.fork():
        os._exit(0)
    _serve(plan, writable)


def _serve(plan: say.PorterPlan, writable: int) -> None:
    porter = None
    try:
        top = make_scratch(plan)
        try:
            sock = dial(plan.addresses, plan.secret, greeting(plan, top))
        except BaseException:
            shutil.rmtree(top, ignore_errors=True)
            raise
        porter = Porter(plan, top, sock)
        _detach(f"{top}/porter.log")
        os.close(writable)
    except BaseException as error:
        os.write(writable, json.dumps(f"{type(error).__name__}: {error}").encode()[1:-1])
        os._exit(1)
    try:
        porter.serve()
    except BaseException:
        traceback.print_exc()
    finally:
        porter.end_everything()
        os._exit(0)


def _detach(log: str) -> None:
    os.chdir("/")
    kernel.set_name("holdfast:porter")
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # it leaves with its connection, and not before
    null = os.open(os.devnull, os.O_RDWR)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


if __name__ == "__main__":
    main()
