"""Machines with a Ray node each for ``cluster.py``, made on this one by ``tests/cluster/hosts.py``.

Owns those machines, and the processes that are measured on them. Must never measure anything itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.child import OUT
from benchmarks.harness import ROOT, Bench, ChildFailed, tail

PORT = 6379
CPUS = 4
PEER = "ray_cluster"


def why_not() -> str:
    """Why machines cannot be made here; "" if they can."""
    return str(_hosts_module().why_not())


def python_with_ray(bench: Bench) -> str | None:
    """An interpreter that has Ray and what holdfast needs: that of the peers, or else our own."""
    probe = [sys.executable, "-c", "import ray"]
    if python := bench.python(PEER):
        return python
    return sys.executable if subprocess.run(probe, capture_output=True, check=False).returncode == 0 else None


def _hosts_module() -> Any:
    folder = str(ROOT / "tests" / "cluster")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import hosts

    return hosts


class Cluster:
    """Machines "a", the head and the driver's, "b", and others that come and go.

    Attributes:
        storage: A directory in memory that all machines share; for those who cannot do without one.
    """

    def __init__(self, bench: Bench, python: str, storage: Path) -> None:
        self.storage = storage
        self._bench = bench
        self._python = python
        environment = {
            "HOME": "/tmp/home",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AIR_NEW_OUTPUT": "0",
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        }
        code = "import sys; print(sys.prefix); print(sys.base_prefix)"
        prefixes = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
        shared = {*(Path(prefix).resolve() for prefix in prefixes if prefix), ROOT, storage}
        places = sorted(path for path in shared if str(path).startswith(("/tmp/", "/dev/shm/")))
        self.hosts = _hosts_module().Hosts(bench.directory(), places, environment)

    def up(self, *names: str) -> None:
        """Make sure that these machines run, with a Ray node each."""
        for name in names:
            if not self.hosts.is_up(name):
                self.hosts.add(name)
                self._start_node(name)

    def _start_node(self, name: str) -> None:
        ray = str(Path(self._python).parent / "ray")
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        where = head if name == "a" else [f"--address={self.address}"]
        resources = {f"host_{name}": 100} | ({} if name == "a" else {"roam": 100})
        settings = [f"--num-cpus={CPUS}", "--object-store-memory=200000000", f"--resources={json.dumps(resources)}"]
        command = [ray, "start", *where, f"--node-ip-address={self.hosts.ip(name)}", *settings]
        try:
            self.hosts.run(name, *command, timeout_s=120)
        except AssertionError:
            self.hosts.run(name, ray, "stop", "--force")
            self.hosts.run(name, *command, timeout_s=180)  # on a busy machine a first try may time out

    @property
    def address(self) -> str:
        return f"{self.hosts.ip('a')}:{PORT}"

    def measure(self, function: str, who: str, during: Callable[[Path], None] | None = None, **arguments: Any) -> Any:
        """Run a function of ``cluster.py`` on machine "a", for one contender, and return its figures.

        Args:
            during: Called with the side directory while it runs.
        """
        side = self._bench.directory()
        out, log = side / "out.json", side / "output.txt"
        given = {"who": who, "side": str(side), "storage": f"{self.storage}/{side.name}", **arguments}
        command = ["env", f"{OUT}={out}", f"RAY_ADDRESS={self.address}", self._python, "-m", "benchmarks.cluster"]
        process = self.hosts.start("a", *command, function, json.dumps(given), log=log)
        try:
            if during is not None:
                during(side)
            code = process.wait(300)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise ChildFailed(f"{function}: {error}: {tail(log)}") from error
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(given["storage"], ignore_errors=True)
        if code or not out.is_file():
            raise ChildFailed(f"{function} ended with {code}: {tail(log)}")
        return json.loads(out.read_text())


@contextmanager
def cluster(bench: Bench, python: str) -> Iterator[Cluster]:
    """Two machines, which are gone afterwards."""
    storage = Path(tempfile.mkdtemp(prefix="hfb-", dir="/dev/shm"))
    machines = Cluster(bench, python, storage)
    try:
        machines.up("a", "b")
        yield machines
    finally:
        machines.hosts.close()
        shutil.rmtree(storage, ignore_errors=True)


def wait_for(found: Callable[[], Any], what: str, limit_s: float) -> Any:
    """Poll until there is something."""
    deadline = time.monotonic() + limit_s
    while not (result := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {limit_s:.0f} s")
        time.sleep(0.02)
    return result
