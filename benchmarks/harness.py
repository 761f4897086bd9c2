"""Measuring: fresh processes, taken in turns, and a table of medians, best values and ratios.

Owns the scratch directories, the environment of the measured processes and their end: whatever a measured process
leaves behind is found by a mark in its environment and ended by its id. Must never import holdfast or a peer.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import peers, yardstick
from benchmarks.child import OUT

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MARK = "HOLDFAST_BENCH_RUN"
OURS = "holdfast"


@dataclass(frozen=True)
class Bar:
    """What holdfast must reach."""

    value: float
    at_most: bool

    def ratio(self, value: float) -> float:
        """At least 1 if the bar is met, and by how much."""
        return _ratio(self.value, value) if self.at_most else _ratio(value, self.value)

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {number(self.value)}"


def at_most(value: float) -> Bar:
    """A bar for times and sizes."""
    return Bar(value, at_most=True)


def at_least(value: float) -> Bar:
    """A bar for rates."""
    return Bar(value, at_most=False)


@dataclass(frozen=True)
class Call:
    """One thing to measure in a fresh process: a function of the workload's module, or a command line."""

    label: str
    function: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()  # instead of a function: what follows the interpreter
    peer: str = ""  # whose interpreter; "" is ours
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0


@dataclass
class Row:
    """One measure: the samples of everybody who was measured."""

    measure: str
    unit: str
    samples: dict[str, list[float]]
    bar: Bar | None
    higher: bool  # is more better?

    def best(self, label: str) -> float:
        values = self.samples[label]
        return max(values) if self.higher else min(values)

    def median(self, label: str) -> float:
        return statistics.median(self.samples[label])


class ChildFailed(RuntimeError):
    """A measured process did not deliver."""


class Bench:
    """The measuring of one workload.

    Attributes:
        quick: Smaller numbers and fewer repeats.
        scratch: Where measured processes write: on the project's disk, because /tmp may be in memory. Nothing in it is
            removed before the last workload has ended: ext4 creates files several times slower for minutes after it
            has deleted many.
    """

    def __init__(self, name: str, scratch: Path, *, quick: bool, with_peers: bool) -> None:
        self.name = name
        self.scratch = scratch
        self.quick = quick
        self.with_peers = with_peers
        self.rows: list[Row] = []
        self.troubles: dict[str, str] = {}
        self.started = 0.0
        self.loads: list[float] = []
        self.yardsticks: list[yardstick.Yardstick] = []
        self._pythons: dict[str, str | None] = {"": sys.executable}

    def begin(self) -> None:
        """Note when, and how busy the machine was already."""
        self.started = time.time()
        self.look_at_machine()

    def look_at_machine(self) -> None:
        """Note how busy and how fast the machine is now."""
        self.loads.append(os.getloadavg()[0])
        self.yardsticks.append(yardstick.measure())

    # --- places and processes

    def directory(self) -> Path:
        """A new directory to write in."""
        path = self.scratch / f"{self.name}-{uuid.uuid4().hex[:8]}"
        path.mkdir(parents=True)
        return path

    def python(self, peer: str) -> str | None:
        """The interpreter for a call, or None if that peer is not to be measured."""
        if peer and not self.with_peers:
            return None
        if peer not in self._pythons:
            self._pythons[peer] = peers.ready(peer)
        return self._pythons[peer]

    def environment(self, mark: str, home: Path) -> dict[str, str]:
        """A clean environment: no settings of this shell, and a home that nobody misses."""
        kept = {name: value for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if (value := os.environ.get(name))}
        return {
            **kept,
            MARK: mark,
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AIR_NEW_OUTPUT": "0",
        }

    def start(self, call: Call, mark: str, home: Path) -> subprocess.Popen[bytes]:
        """Start a call; its figures will be in ``home/out.json``, its output in ``home/output.txt``."""
        python = self.python(call.peer)
        assert python is not None
        environment = {**self.environment(mark, home), **call.env, OUT: str(home / "out.json")}
        command = [python, *call.command]
        if not call.command:
            command += ["-m", f"benchmarks.{self.name}", call.function, json.dumps(call.arguments)]
        with open(home / "output.txt", "ab") as output:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)

    def once(self, call: Call) -> dict[str, Any]:
        """Run one call to its end and return its figures, with ``wall_s`` and ``exec_at`` added."""
        mark, home = uuid.uuid4().hex, self.directory()
        exec_at = time.monotonic()
        process = self.start(call, mark, home)
        # wait(timeout) would poll every 50 ms, which is more than some of the times measured here.
        watchdog = threading.Timer(call.timeout_s, process.kill)
        watchdog.start()
        try:
            code = process.wait()
            wall_s = time.monotonic() - exec_at
        finally:
            watchdog.cancel()
            end_marked(mark)
        out = home / "out.json"
        if code or not (call.command or out.is_file()):
            late = f" (after {wall_s:.0f} of {call.timeout_s:.0f} s)"
            raise ChildFailed(f"ended with {code}{late}: {tail(home / 'output.txt')}")
        figures: dict[str, Any] = {} if call.command else json.loads(out.read_text())
        return {**figures, "wall_s": wall_s, "exec_at": exec_at}

    def alternate(self, calls: list[Call], repeats: int) -> dict[str, list[dict[str, Any]]]:
        """A B A B ...: every call ``repeats`` times, in turns, so that all of them meet the same noise."""
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(repeats):
            for call in calls:
                if call.label in self.troubles or self.python(call.peer) is None:
                    continue
                try:
                    found.setdefault(call.label, []).append(self.once(call))
                except ChildFailed as error:
                    self.troubles[call.label] = str(error)
                    print(f"  {call.label}: {error}", file=sys.stderr)
            self.look_at_machine()
        return found

    # --- the table

    def row(
        self,
        measure: str,
        unit: str,
        samples: dict[str, list[float]],
        bar: Bar | None = None,
        *,
        higher: bool = False,
    ) -> None:
        """Add a line to the table; a bar says itself whether more is better."""
        samples = {label: values for label, values in samples.items() if values}
        if samples:
            self.rows.append(Row(measure, unit, samples, bar, (bar is not None and not bar.at_most) or higher))

    def figures(self, found: dict[str, list[dict[str, Any]]], key: str, factor: float = 1.0) -> dict[str, list[float]]:
        """One figure out of all samples of ``alternate``."""
        return {label: [run[key] * factor for run in runs if key in run] for label, runs in found.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "quick": self.quick,
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started)),
            "seconds": round(time.time() - self.started, 1),
            "machine": {
                "cpus": os.cpu_count(),
                "python": sys.version.split()[0],
                "load": self.loads,
                "yardsticks": [asdict(each) for each in self.yardsticks],
            },
            "peers": {name: list(peers.REQUIREMENTS[name]) for name, path in self._pythons.items() if name and path},
            "troubles": self.troubles,
            "rows": [
                {
                    "measure": row.measure,
                    "unit": row.unit,
                    "higher_is_better": row.higher,
                    "bar": None if row.bar is None else row.bar.value,
                    "samples": row.samples,
                }
                for row in self.rows
            ],
        }

    def save(self) -> Path:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path


def rows_of(saved: dict[str, Any]) -> list[Row]:
    """The rows of a saved result."""
    rows = []
    for row in saved["rows"]:
        bar = None if row["bar"] is None else Bar(row["bar"], at_most=not row["higher_is_better"])
        rows.append(Row(row["measure"], row["unit"], row["samples"], bar, row["higher_is_better"]))
    return rows


# --- processes that were left behind


def end_marked(mark: str) -> None:
    """End what a measured process left behind: daemons that do not die with it carry its mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def tail(path: Path, size: int = 1500) -> str:
    """The end of a process's output."""
    return path.read_bytes()[-size:].decode(errors="replace") if path.is_file() else ""


# --- printing


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ratio(above: float, below: float) -> float:
    if above == below:
        return 1.0
    return above / below if below else float("inf")


def advantage(row: Row, label: str) -> float:
    """How many times better our median is than that of ``label``."""
    ours, theirs = row.median(OURS), row.median(label)
    return _ratio(ours, theirs) if row.higher else _ratio(theirs, ours)


def verdict(row: Row, label: str) -> str:
    """What the last column says: the bar for us, the ratio for others."""
    if label == OURS:
        if row.bar is None:
            return ""
        ratio = row.bar.ratio(row.median(OURS))
        return f"{row.bar}  {'met' if ratio >= 1 else 'MISSED'} ({number(ratio)})"
    if OURS not in row.samples:
        return ""
    return f"holdfast is {number(advantage(row, label))} x as good"


def show(bench: Bench) -> str:
    """The table for a terminal."""
    lines = [
        f"{bench.name}   (load {bench.loads[0]:.1f} -> {bench.loads[-1]:.1f}, {os.cpu_count()} cores: "
        f"{yardstick.text(bench.yardsticks)})"
    ]
    for row in bench.rows:
        lines.append(f"  {row.measure} [{row.unit}]")
        for label in row.samples:
            median, best = number(row.median(label)), number(row.best(label))
            runs = len(row.samples[label])
            lines.append(f"    {label:<22} median {median:>9}  best {best:>9}  ({runs})  {verdict(row, label)}")
    lines += [f"  not measured: {label}: {text.splitlines()[0][:120]}" for label, text in bench.troubles.items()]
    return "\n".join(lines)


def markdown(saved: list[dict[str, Any]]) -> str:
    """The table for docs/benchmarks.md."""
    lines = ["| workload | measure | holdfast | bar | others |", "|---|---|---|---|---|"]
    for result in saved:
        for row in rows_of(result):
            ours, bar = "-", ""
            if OURS in row.samples:
                ours = number(row.median(OURS))
                if len(row.samples[OURS]) > 1:
                    ours += f" (best {number(row.best(OURS))})"
            if row.bar is not None:
                met = OURS in row.samples and row.bar.ratio(row.median(OURS)) >= 1
                bar = f"{row.bar} {'met' if met else '**missed**'}"
            others = [
                f"{label} {number(row.median(label))}"
                + (f" ({number(advantage(row, label))} x)" if OURS in row.samples else "")
                for label in row.samples
                if label != OURS
            ]
            lines.append(f"| {result['name']} | {row.measure}, {row.unit} | {ours} | {bar} | {'; '.join(others)} |")
    return "\n".join(lines)
