"""A Ray cluster on machines of ``hosts.py``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hosts import Hosts

from holdfast.engines.nanny_messages import WORKER_VARIABLE

PORT = 6379
LOOK_S = 0.1
HERE = Path(__file__).parent


class RayHosts:
    """Machines with a Ray node each, and experiments on them.

    Attributes:
        side: A directory that all machines share, for what trials write down about themselves. No experiment is in it.
    """

    def __init__(self, work: Path) -> None:
        self.side = work / "side"
        self.side.mkdir(parents=True)
        environment = {"HOME": "/tmp/home", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
        shared = {Path(sys.prefix), Path(sys.base_prefix), HERE.parent.parent}
        self.hosts = Hosts(work, [path for path in shared if str(path).startswith(("/tmp/", "/dev/shm/"))], environment)
        self._work = work

    @property
    def address(self) -> str:
        return f"{self.hosts.ip('a')}:{PORT}"

    def up(self, *names: str, cpus: int = 2, **environment: str) -> None:
        """Make sure that these machines run, with a Ray node each; "a" is the head."""
        for name in names:
            if not self.hosts.is_up(name):
                self.hosts.add(name)
                self._start_node(name, cpus, environment)

    def leave(self, name: str) -> None:
        """A machine leaves the cluster in order, and is switched off."""
        self.hosts.run(name, str(Path(sys.executable).parent / "ray"), "stop", "--force")
        self.hosts.power_off(name)

    def start_again(self, name: str, cpus: int = 2) -> None:
        """Start a node on a machine on which the former has ended; if it is the head, the GCS is still there."""
        where = [f"--address={self.address}", f"--node-ip-address={self.hosts.ip(name)}"]
        facts = [f"--resources={json.dumps({f'host_{name}': 100})}", "--object-store-memory=100000000"]
        ray = str(Path(sys.executable).parent / "ray")
        self.hosts.run(name, ray, "start", *where, f"--num-cpus={cpus}", *facts, "--disable-usage-stats")

    def restart(self, *names: str, cpus: int = 2) -> None:
        """End Ray on these machines, of which "a" is the first, and start it again: another cluster."""
        ray = str(Path(sys.executable).parent / "ray")
        for name in names:
            self.hosts.run(name, ray, "stop", "--force")
        for name in names:
            self._start_node(name, cpus)

    def _start_node(self, name: str, cpus: int, environment: Mapping[str, str] | None = None) -> None:
        ray = str(Path(sys.executable).parent / "ray")
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"] if name == "a" else [f"--address={self.address}"]
        )
        resources = json.dumps({f"host_{name}": 100})
        common = [f"--node-ip-address={self.hosts.ip(name)}", f"--num-cpus={cpus}", "--object-store-memory=100000000"]
        variables = [f"{key}={value}" for key, value in (environment or {}).items()]
        command = [ray, "start", *where, *common, f"--resources={resources}", "--disable-usage-stats"]
        command[:0] = ["env", *variables]
        try:
            self.hosts.run(name, *command, timeout_s=120)
        except AssertionError:
            self.hosts.run(name, ray, "stop", "--force")
            self.hosts.run(name, *command, timeout_s=180)  # on a busy machine a first try may time out

    def start(
        self, name: str, experiment: str, environment: dict[str, str] | None = None, **settings: Any
    ) -> Experiment:
        """Start the experiment of ``cluster_trial.py`` on a machine, by default on the cluster of machine "a".

        ``environment`` is the driver's alone.
        """
        address = settings.pop("address", "") or self.address
        given = {"address": address, "root": "/tmp/results", "name": experiment, "side": str(self.side)}
        argument = json.dumps(given | settings)
        log = self._work / f"{experiment}-{time.monotonic_ns()}.log"
        variables = [f"{key}={value}" for key, value in (environment or {}).items()]
        program = [sys.executable, str(HERE / "cluster_trial.py"), argument]
        process = self.hosts.start(name, "env", *variables, *program, log=log)
        return Experiment(self, experiment, process, log)

    def ours(self) -> list[str]:
        """Processes of holdfast and of its trials on all machines, without the driver; this machine sees them all."""
        spaces = {self.hosts.pid_space(name): name for name in self.hosts.names()}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                name = spaces.get(os.readlink(entry / "ns" / "pid")) if entry.name.isdigit() else None
                if name is None or not (entry / "cmdline").read_bytes():  # of another machine, or not reaped yet
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                marked = WORKER_VARIABLE.encode() in (entry / "environ").read_bytes()
                if marked or any(each in command for each in ("cluster.porter", "cluster.bridge", "WorkerActor")):
                    found.append(f"{command} on {name}")
        return found

    def close(self) -> None:
        self.hosts.close()


def interrupt(cluster: RayHosts, experiment: Experiment) -> None:
    """Ctrl+C."""
    cluster.hosts.run("a", "pkill", "-INT", "-f", "cluster_trial.py")
    experiment.process.wait(120)


def wait_looks(seconds: float, done: Callable[[], Any], what: str) -> None:
    """Wait for so many seconds, or on a busy machine longer, for whoever is waited for is late as well.

    The time is counted in looks. Between two of them a process starts and ends, of as low a priority as Ray gives to
    its workers.
    """
    looks = 0
    while not done():
        assert looks < seconds / LOOK_S, what
        looks += 1
        began = time.monotonic()
        subprocess.run(["nice", "-n", "15", sys.executable, "-c", "pass"], check=True)
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))


class Experiment:
    """A running experiment, and what its trials wrote down."""

    def __init__(self, cluster: RayHosts, name: str, process: Any, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.told: dict[str, Any] | None = None  # its results, once it has ended
        self._cluster = cluster

    def notes(self, trial: int) -> list[dict[str, Any]]:
        """What a trial wrote down: each start, and each step that was acknowledged."""
        path = self._cluster.side / f"{self.name}-{trial}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def wait_for(self, found: Callable[[], Any], what: str, limit_s: float = 120.0) -> Any:
        deadline = time.monotonic() + limit_s
        while True:
            result = found()
            if result:
                return result
            assert self.process.poll() is None, f"it ended before {what}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.log.read_text()}"
            time.sleep(0.05)

    def wait_for_step(self, trial: int, step: int) -> dict[str, Any]:
        """Wait until a step of a trial is acknowledged; returns its note."""

        def reached() -> dict[str, Any] | None:
            return next((note for note in self.notes(trial) if note["what"] == "ack" and note["step"] >= step), None)

        return self.wait_for(reached, f"step {step} of trial {trial}")

    def finish(self, limit_s: float = 180.0) -> dict[str, Any]:
        """Wait for its end; returns what it printed last, as data."""
        self.process.wait(limit_s)
        text = self.log.read_text()
        line = next((line for line in reversed(text.splitlines()) if line.startswith("RESULT ")), None)
        assert line is not None, f"it ended without a result:\n{text}"
        told = self.told = json.loads(line.removeprefix("RESULT "))
        return told

    def check_steps(self, trial: int, last: int) -> None:
        """Each attempt starts at a step that was accepted before, no step is skipped, and the results have each once.

        A trial notes that it reports a step, then that the step was acknowledged. Between the two it may be killed,
        while the driver has the report, and its checkpoint, already. So an attempt may start one step after the last
        one that was acknowledged, but only if that report had begun. An attempt that was given up, and whose machine
        thaws, may begin a report before it is ended. It must not be acknowledged.
        """
        expected = worker = None
        acknowledged = begun = 0
        for note in self.notes(trial):
            if note["what"] == "start":
                worker = note["host"], note["pid"]
                assert note["step"] <= max(acknowledged, begun), f"trial {trial} began at {note} after {acknowledged}"
                expected = note["step"] + 1
                begun = 0
            elif note["what"] == "report" and worker == (note["host"], note["pid"]):
                assert note["step"] == expected, f"trial {trial} went from {expected} to {note}"
                begun = note["step"]
            elif note["what"] == "ack":
                assert worker == (note["host"], note["pid"]), f"trial {trial} has an answer to an old attempt: {note}"
                assert note["step"] == expected == begun, f"trial {trial} went from {expected} to {note}"
                expected += 1
                acknowledged = note["step"]
        assert acknowledged == last
        if self.told is not None:
            steps = next(each["steps"] for each in self.told["trials"] if each["k"] == trial)
            assert steps == list(range(1, last + 1)), f"the results of trial {trial} have the steps {steps}"
