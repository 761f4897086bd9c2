"""Several machines on one: each has its own network, processes, host name and temporary directory.

A machine is a process with namespaces of its own; its end is the end of everything on it. All hang on a bridge in a
further network namespace, so nothing of this machine's own network is touched. Needs root, ``unshare``, ``nsenter`` and
``ip``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

NETWORK = "10.77.0"
FIRST = 11
LIFE_S = 1800
"""No machine lives longer, whatever becomes of the test."""

_ON_MACHINE = """
set -e
hostname "$NAME"
for place in /tmp /dev/shm; do
  stage=$(mktemp -d "$WORK/stage.XXXXXX")
  mount -t tmpfs -o size=4g,mode=1777 none "$stage"
  for shared in $SHARED; do
    case $shared in "$place"/*)
      mkdir -p "$stage/${shared#"$place"/}"
      mount --bind "$shared" "$stage/${shared#"$place"/}";;
    esac
  done
  mount --move "$stage" "$place"
done
mkdir -p "$HOME"
ip link set lo up
touch "$WORK/$NAME.up"
sleep "$LIFE" &
wait $!
"""


def why_not() -> str:
    """Why machines cannot be made here; "" if they can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, to make machines with networks of their own"
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: util-linux, iproute2)"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"unshare does not work here: {probe.stderr.decode().strip()}"


class Hosts:
    """Machines that can reach one another.

    Args:
        work: A directory for their bookkeeping.
        shared: Directories below /tmp that every machine sees.
        environment: Variables of everything that runs there.
    """

    def __init__(self, work: Path, shared: Sequence[Path], environment: dict[str, str]) -> None:
        self._work = work
        self._shared = [*map(str, shared), str(work)]
        self._environment = environment
        self._pids: dict[str, int] = {}
        self._parents: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers: dict[str, int] = {}
        self._hub = self._start_hub()

    # --- machines

    def ip(self, name: str) -> str:
        return f"{NETWORK}.{self._numbers[name]}"

    def names(self) -> list[str]:
        """The machines that run."""
        return list(self._pids)

    def pid_space(self, name: str) -> str:
        """What all processes of a machine have in common, as /proc/PID/ns/pid shows it."""
        return os.readlink(f"/proc/{self._pids[name]}/ns/pid")

    def is_up(self, name: str) -> bool:
        return name in self._pids

    def add(self, name: str) -> None:
        """Switch a machine on; its disk is empty."""
        number = self._numbers.setdefault(name, FIRST + len(self._numbers))
        flag = self._work / f"{name}.up"
        flag.unlink(missing_ok=True)
        inside = {"NAME": name, "WORK": str(self._work), "SHARED": " ".join(self._shared), "LIFE": str(LIFE_S)}
        output = (self._work / f"{name}.log").open("wb")
        parent = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
            + ["bash", "-c", _ON_MACHINE],
            env={**os.environ, **self._environment, **inside},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output.close()
        _until(flag.exists, f"{name} did not start: {(self._work / f'{name}.log').read_text()}")
        pid = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])
        self._pids[name], self._parents[name] = pid, parent
        with contextlib.suppress(subprocess.CalledProcessError):
            self._in_hub("ip", "link", "del", f"p-{name}")  # of its former life
        self._in_hub("ip", "link", "add", f"p-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._in_hub("ip", "link", "set", f"p-{name}", "master", "br0", "up")
        for command in (
            f"addr add {NETWORK}.{number}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {NETWORK}.1",
        ):
            subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *command.split()], check=True, capture_output=True)

    def cut(self, name: str) -> None:
        """Pull the cable: packets vanish."""
        self._in_hub("ip", "link", "set", f"p-{name}", "down")

    def heal(self, name: str) -> None:
        self._in_hub("ip", "link", "set", f"p-{name}", "up")

    def power_off(self, name: str) -> None:
        """The machine is gone without a word."""
        self.cut(name)
        self.crash(name)

    def crash(self, name: str) -> None:
        """All processes of the machine end at once; its peers may hear of closed connections."""
        pid = self._pids.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._parents.pop(name).wait(30)

    def freeze(self, name: str, *, thaw: bool = False) -> None:
        """Stop every process of the machine, or let all go on."""
        code = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p -gt 1 ] && [ $p != $$ ] && kill -$SIGNAL $p; done; true"
        self.run(name, "env", f"SIGNAL={'CONT' if thaw else 'STOP'}", "bash", "-c", code)

    def limit(self, name: str, rate: str) -> None:
        """Limit what the machine can send, such as "80mbit"."""
        command = f"tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 100ms"
        subprocess.run(
            ["nsenter", "-t", str(self._pids[name]), "-n", *command.split()], check=True, capture_output=True
        )

    def traffic(self, name: str) -> int:
        """Bytes that a machine has received and sent since it was switched on."""
        show = self.in_hub("ip", "-s", "-j", "link", "show", f"p-{name}")
        [link] = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
        return int(link["stats64"]["rx"]["bytes"] + link["stats64"]["tx"]["bytes"])

    def forbid(self, name: str, address: str) -> None:
        """Let a machine find no way to this address any more."""
        command = ["ip", "route", "add", "unreachable", f"{address}/32"]
        subprocess.run(["nsenter", "-t", str(self._pids[name]), "-n", *command], check=True, capture_output=True)

    def close(self) -> None:
        for name in list(self._pids):
            self.crash(name)
        os.kill(self._hub, signal.SIGKILL)
        self._hub_parent.wait(30)

    # --- what runs on them

    def command(self, name: str, *command: str) -> list[str]:
        """The command line that runs a command on a machine."""
        inside = [f"{key}={value}" for key, value in self._environment.items()]
        return ["nsenter", "-t", str(self._pids[name]), "-n", "-m", "-p", "-u", "-i", "--", "env", *inside, *command]

    def start(self, name: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a program on a machine; Ctrl+C reaches it as in a terminal."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self.command(name, *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def run(self, name: str, *command: str, timeout_s: float = 120.0) -> str:
        """Run a program on a machine and return what it printed."""
        done = subprocess.run(
            self.command(name, *command), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command} on {name} failed: {done.stdout}{done.stderr}"
        return done.stdout

    # --- the hub

    def _start_hub(self) -> int:
        parent = self._hub_parent = subprocess.Popen(
            ["unshare", "--net", "--fork", "--kill-child=SIGKILL", "sleep", str(LIFE_S)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        _until(lambda: children.read_text().split(), "the hub did not start")
        pid = self._hub = int(children.read_text().split()[0])
        for command in ("link add br0 type bridge forward_delay 0 stp_state 0", f"addr add {NETWORK}.1/24 dev br0"):
            self._in_hub("ip", *command.split())
        self._in_hub("ip", "link", "set", "br0", "up")
        return pid

    def in_hub(self, *command: str) -> list[str]:
        """The command line that runs a command in the network to which all machines are connected."""
        return ["nsenter", "-t", str(self._hub), "-n", *command]

    def _in_hub(self, *command: str) -> None:
        subprocess.run(self.in_hub(*command), check=True, capture_output=True)


def _until(done: object, otherwise: str, limit_s: float = 30.0) -> None:
    assert callable(done)
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
