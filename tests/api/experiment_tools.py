"""What tests of whole experiments share: starting drivers in other processes, waiting, and reading what is left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import holdfast as tune

HERE = Path(__file__).parent
TIMEOUT_S = 60.0

HEADER = """
import os, sys, time
from pathlib import Path
import holdfast as tune
from api_trainables import Counter, count, note, save, start_step, wait_for

DIR = Path({directory!r})
STORAGE = {storage!r}

def config(**more):
    return tune.RunConfig(**{{"name": "exp", "storage_path": STORAGE, "verbose": 0,
                             "engine": tune.LocalEngine(cpus=2), **more}})
"""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Poll until the condition holds and return what it said."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(0.01)
    return found


class DriverProcess:
    """A script that drives an experiment in a process of its own."""

    def __init__(self, script: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def wait_for(self, *places: Path) -> None:
        """Wait until all these files exist; the script must not end before."""
        self.wait_until(lambda: all(place.exists() for place in places), ", ".join(map(str, places)))

    def wait_for_lines(self, path: Path, count: int) -> None:
        """Wait until a file has this many lines; the script must not end before."""
        self.wait_until(lambda: len(lines(path)) >= count, f"{count} lines in {path}")

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until the condition holds; the script must not end before."""

        def holds() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"the script ended early:\n{self.end()[1]}"
            return False

        wait_until(holds, what)

    def kill(self) -> None:
        """``kill -9``."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the driver, or, as a terminal does, to all processes of its group."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the script's end: its exit code and everything it printed."""
        if not self.output:
            try:
                self.output = self.process.communicate(timeout=TIMEOUT_S)[0]
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.output = self.process.communicate()[0]
                raise AssertionError(f"the script does not end; it printed:\n{self.output}") from None
        return self.process.returncode, self.output


class Drivers:
    """Starts drivers in other processes, and ends what is left of them."""

    def __init__(self, directory: Path, storage: Path) -> None:
        self._directory = directory
        self._storage = storage
        self._started: list[DriverProcess] = []

    def start(self, code: str, **environment: str) -> DriverProcess:
        """Run this code; ``tune``, ``config()``, ``DIR``, ``STORAGE`` and the shared trainables are there already."""
        script = self._directory / f"script_{len(self._started)}.py"
        script.write_text(HEADER.format(directory=str(self._directory), storage=str(self._storage)) + code)
        source = str(Path(tune.__file__).parent.parent)
        known = {"PYTHONPATH": os.pathsep.join([source, str(HERE)]), "PYTHONUNBUFFERED": "1"}
        driver = DriverProcess(script, {**os.environ, **known, **environment})
        self._started.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._started:
            if driver.process.poll() is None:
                driver.process.kill()
            if not driver.process.stdout.closed:
                driver.end()


def statuses(grid: Iterable[tune.Result]) -> list[str]:
    return [result.status for result in grid]


def history(result: tune.Result, key: str = "training_iteration") -> list[Any]:
    """The values of one metric, row by row."""
    return [row[key] for row in result.metrics_history]


def json_rows(result: tune.Result) -> list[dict[str, Any]]:
    """The rows of the trial's ``result.json``."""
    return [json.loads(line) for line in Path(result.path, "result.json").read_text().splitlines()]


def csv_rows(result: tune.Result) -> list[dict[str, str]]:
    """The rows of the trial's ``progress.csv``."""
    with open(Path(result.path, "progress.csv"), newline="") as file:
        return list(csv.DictReader(file))


def checkpoints(result: tune.Result) -> list[str]:
    """Names of the checkpoint directories on disk."""
    return sorted(path.name for path in Path(result.path).glob("checkpoint_*"))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
