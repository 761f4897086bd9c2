"""A laboratory for one experiment: start drivers, find and kill their processes, and compare what is left with the
ground truth.

Owns the reading of /proc by a marker in the environment, and the checks of the invariants. Must never change an
experiment's root except in methods that say so.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from experiments import SIDE, WORKER_CRASH, Plan, first_hash, loss_of, next_hash

from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.core.observations import Report
from holdfast.core.state import State, Status
from holdfast.journal.reader import read_journal
from holdfast.storage.layout import Root
from holdfast.trainable.spool_writer import SpoolFolder

SCRIPT = str(Path(__file__).with_name("experiments.py"))
MARK = "CRASH_TEST_MARK"
DEADLINE_S = 60.0
STEP_S = 0.005
LONGEST_LOOK_S = 0.1
LONGEST_PAUSE_S = 0.05


class Acknowledged(msgspec.Struct, array_like=True, frozen=True):
    """One line of the side file: ``report()`` of this step has returned."""

    trial: str
    step: int
    hash: str
    token: str
    saved: bool


class Process:
    """One living process of the laboratory."""

    def __init__(self, pid: int, name: str, command: str) -> None:
        self.pid = pid
        self.is_worker = name.startswith("holdfast:")  # or a fork of one
        self.is_nanny = "holdfast.engines.nanny" in command and not self.is_worker
        self.text = f"{pid} {name}: {command[:80]}"

    def __repr__(self) -> str:
        return self.text


class Lab:
    """One experiment at ``root``, its side file, and every process that was started for it."""

    def __init__(self, folder: Path, name: str = "exp") -> None:
        self.folder = folder
        self.root = folder / "store" / name
        self.side = folder / "side.jsonl"
        self.temp = folder / "temp"
        self.temp.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.drivers: list[subprocess.Popen[bytes]] = []

    # --- drivers

    def start(self, plan: Plan, root: Path | None = None, **environment: str) -> Driver:
        """Start a driver that begins the experiment, or continues it."""
        output = self.folder / f"driver-{len(self.drivers)}.log"
        variables = {
            **os.environ,
            MARK: self.mark,
            SIDE: str(self.side),
            "TMPDIR": str(self.temp),
            "PYTHONFAULTHANDLER": "1",
            **environment,
        }
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, str(root or self.root), msgspec.json.encode(plan).decode()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        self.drivers.append(process)
        return Driver(self, process, output)

    def run(self, plan: Plan, root: Path | None = None, **environment: str) -> Driver:
        """Start a driver and wait until it has ended, however it does."""
        driver = self.start(plan, root, **environment)
        driver.wait()
        return driver

    def close(self) -> None:
        """Leave no process behind, whatever the test did."""
        for process in self.drivers:
            if process.poll() is None:
                process.kill()
            process.wait()
        until(lambda: not self.kill_all(), "the processes of a test do not go away")

    # --- processes

    def processes(self) -> list[Process]:
        """Everything alive that a driver of this laboratory has started, the drivers included."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                process = look(int(name), mark)
                if process is not None:
                    found.append(process)
        return found

    def kill_all(self) -> list[Process]:
        """SIGKILL for everybody, in no particular order; returns who was there."""
        found = self.processes()
        for process in found:
            kill(process.pid)
        return found

    # --- what is on disk

    def acknowledged(self) -> list[Acknowledged]:
        """The side file: every report that has returned. A torn last line was not finished, so nobody relies on it."""
        try:
            data = self.side.read_bytes()
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        return [msgspec.json.decode(line, type=Acknowledged) for line in lines]

    def history(self) -> list[ev.AnyEvent]:
        """Every fact that a driver which opened the experiment now would start from."""
        return [ev.decode(payload) for _, payload in read_journal(self.root)]

    def journal_bytes(self) -> int:
        """How much all drivers have written so far."""
        total = 0
        for path in (self.root / ".holdfast" / "journal").glob("*.hfj"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def state(self) -> State:
        return open_state(self.root, read_spec(Root(self.root)).retention).state

    def trial_dirs(self) -> list[Path]:
        return sorted(path for path in self.root.iterdir() if path.is_dir() and path.name != ".holdfast")

    def dir_of(self, trial_id: str) -> Path:
        (found,) = [path for path in self.trial_dirs() if f"_{trial_id}_" in path.name]
        return found

    # --- the invariants

    def check_nothing_lost(self) -> list[ev.AnyEvent]:
        """I1: every report that has returned is a fact, or becomes one, whether or not its attempt survived."""
        acknowledged = self.acknowledged()  # first, and the journal last: trials may be at work meanwhile
        tokens = {report.metrics["token"] for report in self.ran_ahead()}
        history = self.history()
        tokens |= {event.metrics["token"] for event in history if isinstance(event, ev.Reported)}
        lost = [line for line in acknowledged if line.token not in tokens]
        assert not lost, f"acknowledged and lost: {lost}"
        return history

    def ran_ahead(self) -> list[Report]:
        """What trials had reported to drivers that never read it, as the next one would find it."""
        owners = SpoolFolder(self.root).owners()
        running = {trial.n: trial for trial in self.state().trials if trial.status == Status.RUNNING} if owners else {}
        return [
            found
            for owner in owners
            if owner.n in running and running[owner.n].attempt == owner.attempt
            for found in SpoolFolder(self.root).read(owner, running[owner.n].ordinal)
        ]

    def check_rework(self, history: Iterable[ev.AnyEvent]) -> int:
        """No attempt starts before the last acknowledged checkpoint; returns how many attempts were repeats."""
        tokens = {line.token for line in self.acknowledged()}
        rows: dict[int, int] = {}
        token: dict[int, str] = {}
        saved: dict[int, dict[int, int]] = {}  # trial -> index -> row, of acknowledged checkpoints that are not damaged
        again = 0
        for event in history:
            if isinstance(event, ev.TrialStarted):
                again += event.attempt > 1
                needed = max(saved.get(event.n, {}).values(), default=0)
                assert event.rows >= needed, f"{event} goes back before row {needed}"
                rows[event.n] = event.rows
            elif isinstance(event, ev.Reported):
                rows[event.n] += 1
                token[event.n] = event.metrics["token"]
            elif isinstance(event, ev.CheckpointStaged) and token[event.n] in tokens:
                saved.setdefault(event.n, {})[event.index] = rows[event.n]
            elif isinstance(event, ev.CheckpointRejected):
                saved.get(event.n, {}).pop(event.index, None)
            elif isinstance(event, ev.TrialRequeued) and event.mode == "restart":
                saved.pop(event.n, None)
        return again

    def check_finished(self, plan: Plan, configs: list[dict[str, Any]] | None = None, *, tidy: bool = True) -> State:
        """The experiment has ended as if nothing had ever happened to it."""
        history = self.check_nothing_lost()
        self.check_rework(history)
        state = self.state()
        assert state.counts[Status.TERMINATED] == len(state.trials) == plan.trials, state.counts
        if configs is not None:
            assert [searched(trial.config) for trial in state.trials] == configs
        rows = surviving_rows(history)
        values = {line.token: line for line in self.acknowledged()}
        for trial in state.trials:
            check_rows(rows[trial.n], trial.config, plan, values)
            self.check_files(trial.id, rows[trial.n])
        if tidy:
            self.check_tidy()
        return state

    def check_files(self, trial_id: str, rows: list[dict[str, Any]]) -> None:
        """I6: the result files show each step once, with the values of the surviving rows."""
        folder = self.dir_of(trial_id)
        with open(folder / "result.json") as file:
            lines = [json.loads(line) for line in file]
        assert [(line["training_iteration"], line["token"]) for line in lines] == [
            (number, row["token"]) for number, row in enumerate(rows, start=1)
        ]
        with open(folder / "progress.csv", newline="") as file:
            table = list(csv.DictReader(file))
        assert [(line["training_iteration"], line["token"]) for line in table] == [
            (str(number), row["token"]) for number, row in enumerate(rows, start=1)
        ]

    def check_tidy(self) -> None:
        """Nothing temporary is left in the trials' directories, nor a socket anywhere."""
        for folder in self.trial_dirs():
            odd = [name for name in os.listdir(folder) if name.startswith(".")]
            assert not odd, f"left in {folder.name}: {odd}"
        assert not [path for path in self.root.rglob("*") if path.is_socket()]

    def check_no_process_left(self, within_s: float = DEADLINE_S) -> None:
        """I7: nobody runs on. How soon they end is looked at by tests that have nothing else to do."""
        until(lambda: not self.processes(), lambda: f"still running: {self.processes()}", within_s)


class Driver:
    """One driver process."""

    def __init__(self, lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
        self.lab = lab
        self.process = process
        self.pid = process.pid
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, limit_s: float = DEADLINE_S) -> int:
        """The exit code; negative for a signal."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints where it hangs
            self.process.wait()
            raise AssertionError(f"the driver has not ended after {limit_s} s\n{self.output}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def must_finish(self) -> str:
        """Wait for the end of the experiment; returns what the driver printed."""
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.output}"
        assert "fit() has returned, errors: 0" in self.output, self.output
        return self.output


def look(pid: int, mark: bytes) -> Process | None:
    """The process if it lives and has ``mark`` in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        if mark not in environment.split(b"\0"):
            return None
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return Process(pid, name, command)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def until(
    true: Callable[[], object], story: str | Callable[[], str], limit_s: float = DEADLINE_S, step_s: float = STEP_S
) -> None:
    """Poll until something is so. A machine that stands still between two looks uses up little of the time.

    Those that are waited for need the CPU: a look that reads a whole journal, or all of /proc, is rarer than others.
    """
    spent, last = 0.0, time.monotonic()
    while True:
        begun = time.monotonic()
        if true():
            return
        now = time.monotonic()
        spent, last = spent + min(now - last, LONGEST_LOOK_S + step_s), now
        if spent > limit_s:
            raise AssertionError(story if isinstance(story, str) else story())
        time.sleep(max(step_s, min(2 * (now - begun), LONGEST_PAUSE_S)))


def searched(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that the search has chosen."""
    return {key: config[key] for key in ("x", "rate")}


def surviving_rows(history: Iterable[ev.AnyEvent]) -> dict[int, list[dict[str, Any]]]:
    """What each trial reported, without what later attempts have superseded: written here anew, not taken from the
    library, because it is what the library is compared with."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for event in history:
        if isinstance(event, ev.TrialStarted):
            del rows.setdefault(event.n, [])[event.rows :]
        elif isinstance(event, ev.Reported):
            rows[event.n].append(event.metrics)
    return rows


def check_rows(
    rows: list[dict[str, Any]], config: dict[str, Any], plan: Plan, acknowledged: dict[str, Acknowledged]
) -> None:
    """Each step once, each with the state that an uninterrupted training would have had."""
    count = plan.steps if not plan.stop else len(rows)
    assert [row["step"] for row in rows] == list(range(1, count + 1))
    state = first_hash(config["x"])
    for row in rows:
        state = next_hash(state, row["step"])
        assert row["hash"] == state
        assert row["loss"] == loss_of(config, row["step"])
        line = acknowledged.get(row["token"])
        if line is not None:
            assert (line.step, line.hash) == (row["step"], row["hash"])


def mostly_slow(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Parameters of a test: only these few belong to the fast lane."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


def worker_crash(point: str) -> dict[str, str]:
    """Environment in which workers die at a crash point and the driver does not."""
    return {WORKER_CRASH: point}


def driver_crash(point: str) -> dict[str, str]:
    """Environment in which the driver dies at a crash point and workers do not."""
    return {"HOLDFAST_CRASH": point}
