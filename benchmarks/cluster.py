"""A Ray cluster of two machines without a shared disk: holdfast's Ray engine beside Ray Tune on the same cluster.

The machines are made on this one (``cluster_hosts.py``), so everything shares its cores, and their disks are in memory.
The driver is on machine "a", trials on "b". Ray Tune needs storage that all machines share: it gets a directory in
memory, so its checkpoints cross no network. JSON and CSV logs on both sides.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.cluster_hosts import Cluster
    from benchmarks.harness import Bench

MB = 1 << 20
SIZE = 256 * MB
WORKERS = 8
WARM_UP = 50
EVERY = 5
"""Reports between two kills."""

ON_B = {"CPU": 1.0, "host_b": 0.01}


# --- what runs in the harness


def run(bench: Bench) -> None:
    """Measure everything on one cluster, in turns; without root or Ray say why not."""
    from benchmarks import cluster_hosts

    reason = cluster_hosts.why_not()
    python = None if reason else cluster_hosts.python_with_ray(bench)
    if reason or python is None:
        bench.troubles["skipped"] = (
            reason or "Ray is not installed: leave --no-peers out, or pip install 'holdfast[ray]'"
        )
        return
    with cluster_hosts.cluster(bench, python) as machines:
        _Turns(bench, machines).measure_all()


class _Turns:
    """Everybody who can be measured, one after the other."""

    def __init__(self, bench: Bench, machines: Cluster) -> None:
        from benchmarks.harness import OURS

        self._bench = bench
        self._machines = machines
        self._repeats = 1 if bench.quick else 3
        self._labels = {OURS: "holdfast", **({"ray tune": "ray"} if bench.with_peers else {})}

    def measure_all(self) -> None:
        self._reports()
        self._rates()
        self._checkpoints()
        self._starts()
        self._kills()
        self._power_offs()

    def _turns(self, function: str, *labels: str, **arguments: Any) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(self._repeats):
            for label in labels or self._labels:
                figures = self._one(function, label, **arguments)
                if figures is not None:
                    found.setdefault(label, []).append(figures)
            self._bench.look_at_machine()
        return found

    def _one(self, function: str, label: str, **arguments: Any) -> dict[str, Any] | None:
        from benchmarks.harness import ChildFailed

        began = time.monotonic()
        try:
            figures: dict[str, Any] = self._machines.measure(function, self._labels[label], **arguments)
        except (ChildFailed, AssertionError) as error:
            self._bench.troubles[f"{label}, {function}"] = str(error)
            print(f"  {label}: {error}", file=sys.stderr)
            return None
        print(f"  {label}, {function}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return figures

    def _reports(self) -> None:
        from benchmarks.harness import at_most

        found = self._turns("latency")
        row, figures = self._bench.row, self._bench.figures
        row("report() from another machine, p50", "ms", figures(found, "p50_ms"), at_most(0.3))
        row("report() from another machine, p99", "ms", figures(found, "p99_ms"))
        row("driver CPU per such report", "ms", figures(found, "cpu_ms"), at_most(0.15))

    def _rates(self) -> None:
        from benchmarks.harness import at_least

        found = self._turns("throughput")
        rates = self._bench.figures(found, "rate")
        self._bench.row(f"reports from {WORKERS} workers on another machine", "1/s", rates, at_least(5000))

    def _checkpoints(self) -> None:
        from benchmarks.harness import at_least, at_most

        found = self._turns("checkpoint", rounds=3)
        flat = {key: _flat(found, key) for key in ("rate", "blocked_ms", "of_cp")}
        row = self._bench.row
        row("256 MB checkpoint on another machine to committed", "MB/s", flat["rate"], at_least(300))
        row("256 MB checkpoint: blocked in report()", "ms", flat["blocked_ms"])
        row("256 MB checkpoint: blocked / cp -r beside it", "x", flat["of_cp"], at_most(1.2))

    def _starts(self) -> None:
        from benchmarks.harness import at_most

        found = self._turns("first_report")
        seconds = self._bench.figures(found, "first_s")
        self._bench.row("fit() to the first report, cluster running", "s", seconds, at_most(3))
        found = self._turns("warm", trials=12)
        self._bench.row("end of a trial to the next one on a warm actor", "ms", _flat(found, "gaps_ms"), at_most(10))

    def _kills(self) -> None:
        from benchmarks.harness import OURS, at_most

        found = self._turns("kill", kills=3)
        self._bench.row("kill -9 of a worker to its trial's next report", "s", _flat(found, "gaps"), at_most(2.5))
        found = self._turns("kill", OURS, kills=3, spares=1)
        self._bench.row("the same with a spare worker", "s", _flat(found, "gaps"), at_most(0.5))

    def _power_offs(self) -> None:
        """The machine of a trial is gone without a word; another one is free. Ray's health checks are its defaults."""
        from benchmarks.harness import at_most

        gaps: dict[str, list[float]] = {}

        def switch_off(side: Path) -> None:
            from benchmarks.cluster_hosts import wait_for

            notes = wait_for(lambda: len(found := _notes(side)) > 10 and found, "report", 120)
            victim = notes[-1]["host"]
            self._machines.hosts.power_off(victim)
            off_at = time.monotonic()
            again = wait_for(
                lambda: [note for note in _notes(side) if note["at"] > off_at and note["host"] != victim],
                f"report after the power-off of {victim}",
                180,
            )
            gaps.setdefault(current, []).append(again[0]["at"] - off_at)
            (side / "enough").touch()

        for _ in range(self._repeats):
            for current in self._labels:
                self._machines.up("b", "c")
                self._one("roam", current, during=switch_off)
        self._bench.row("power-off of a machine to its trial's next report", "s", gaps, at_most(20))


def _flat(found: dict[str, list[dict[str, Any]]], key: str) -> dict[str, list[float]]:
    return {label: [value for run in runs for value in run[key]] for label, runs in found.items()}


def _notes(side: Path) -> list[dict[str, Any]]:
    try:
        lines = (side / "notes").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


# --- what runs on machine "a": one experiment of one contender


def _library(who: str) -> Any:
    if who == "ray":
        from ray import tune
    else:
        import holdfast as tune  # type: ignore[no-redef]
    return tune


def _fit(
    who: str,
    train: Any,
    request: dict[str, float],
    storage: str,
    trials: int = 1,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> float:
    """Run an experiment; returns the moment in which ``fit()`` was called."""
    tune = _library(who)
    run_config: dict[str, Any] = {"name": "cluster", "storage_path": storage, "verbose": 0}
    if who == "holdfast":
        from holdfast.callbacks.csv_logger import CSVLoggerCallback
        from holdfast.callbacks.json_logger import JsonLoggerCallback

        # Not on storage that machine "b" sees: that is what is measured.
        run_config |= {"storage_path": f"/tmp/results-{os.getpid()}", "engine": tune.RayEngine(**engine or {})}
    else:
        from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
    run_config["callbacks"] = [JsonLoggerCallback(), CSVLoggerCallback()]
    run_config["failure_config"] = tune.FailureConfig(max_failures=20)
    tuner = tune.Tuner(
        tune.with_resources(train, tune.PlacementGroupFactory([request])),
        param_space={"k": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(reuse_actors=True, **settings),
        run_config=tune.RunConfig(**run_config),
    )
    began = time.monotonic()
    tuner.fit()
    return began


def _metrics(step: int) -> dict[str, Any]:
    return {"loss": 1.0 / (step + 1), "accuracy": 0.5, "lr": 1e-3, "epoch": step}


def latency(who: str, side: str, storage: str) -> dict[str, Any]:
    """One trial that reports as fast as it can; it tells through a pipe when the driver's CPU time is to be read."""
    reports, pipe, figures = (500 if who == "ray" else 3000), f"{side}/pipe", f"{side}/figures"
    os.mkfifo(pipe)
    marks: list[float] = []
    read_end = os.open(pipe, os.O_RDWR)

    def look() -> None:
        for _ in range(2):
            os.read(read_end, 1)
            marks.append(time.process_time())

    threading.Thread(target=look, daemon=True).start()

    def train(config: dict[str, Any]) -> None:
        tune = _library(who)
        times = []
        for step in range(WARM_UP + reports):
            if step == WARM_UP:
                Path(pipe).write_text("1")
            before = time.perf_counter()
            tune.report(_metrics(step))
            times.append(time.perf_counter() - before)
        Path(pipe).write_text("2")
        Path(figures).write_text(json.dumps(sorted(times[WARM_UP:])))

    _fit(who, train, ON_B, storage)
    times = json.loads(Path(figures).read_text())
    return {
        "p50_ms": times[reports // 2] * 1000,
        "p99_ms": times[reports * 99 // 100] * 1000,
        "cpu_ms": (marks[1] - marks[0]) / reports * 1000,
    }


def throughput(who: str, side: str, storage: str) -> dict[str, Any]:
    """Trials that begin when all of them are there."""
    reports = 100 if who == "ray" else 2000

    def train(config: dict[str, Any]) -> None:
        tune = _library(who)
        Path(side, f"ready-{config['k']}").touch()
        while len(list(Path(side).glob("ready-*"))) < WORKERS:
            time.sleep(0.01)
        began = time.monotonic()
        for step in range(reports):
            tune.report(_metrics(step))
        Path(side, f"moments-{config['k']}").write_text(json.dumps([began, time.monotonic()]))

    _fit(who, train, {"CPU": 0.5, "host_b": 0.01}, storage, WORKERS)
    moments = [json.loads(path.read_text()) for path in Path(side).glob("moments-*")]
    assert len(moments) == WORKERS, f"{len(moments)} trials have run"
    began, ended = min(first for first, _ in moments), max(last for _, last in moments)
    return {"rate": WORKERS * reports / (ended - began)}


def checkpoint(who: str, side: str, storage: str, rounds: int) -> dict[str, Any]:
    """One trial with one large file; each checkpoint is committed before the next one, and copied with cp beside."""

    def note_commits() -> None:
        """Ray Tune has written a checkpoint when report() returns; ours gets its name when it is committed."""
        place = Path(f"/tmp/results-{os.getpid()}/cluster")
        for number in range(rounds):
            while len(list(place.glob("*/checkpoint_*"))) <= number:
                time.sleep(0.005)
            Path(side, f"commit-{number}.new").write_text(str(time.monotonic()))
            os.rename(f"{side}/commit-{number}.new", f"{side}/commit-{number}")

    def train(config: dict[str, Any]) -> None:
        tune = _library(who)
        source, figures = "/tmp/source", []
        subprocess.run(["rm", "-rf", source, "/tmp/copy"], check=True)
        os.mkdir(source)
        Path(source, "data").write_bytes(os.urandom(4 * MB) * (SIZE // (4 * MB)))
        for number in range(rounds):
            began = time.monotonic()
            tune.report({"loss": 0.0}, checkpoint=tune.Checkpoint.from_directory(source))
            reported = committed = time.monotonic()
            if who == "holdfast":
                while not os.path.exists(f"{side}/commit-{number}"):
                    time.sleep(0.005)
                committed = float(Path(side, f"commit-{number}").read_text())
            before = time.monotonic()
            subprocess.run(["cp", "-r", source, "/tmp/copy"], check=True)
            figures.append([reported - began, committed - began, time.monotonic() - before])
            subprocess.run(["rm", "-rf", "/tmp/copy"], check=True)
        subprocess.run(["rm", "-rf", source], check=True)
        Path(side, "figures").write_text(json.dumps(figures))

    if who == "holdfast":
        threading.Thread(target=note_commits, daemon=True).start()
    _fit(who, train, ON_B, storage)
    figures = json.loads(Path(side, "figures").read_text())
    subprocess.run(["rm", "-rf", f"/tmp/results-{os.getpid()}"], check=True)
    cp = statistics.median(copied for _, _, copied in figures)
    return {
        "rate": [SIZE / MB / committed for _, committed, _ in figures],
        "blocked_ms": [blocked * 1000 for blocked, _, _ in figures],
        "of_cp": [blocked / cp for blocked, _, _ in figures],
    }


def first_report(who: str, side: str, storage: str) -> dict[str, Any]:
    """Imports are not counted; joining the cluster is."""

    def train(config: dict[str, Any]) -> None:
        _library(who).report(_metrics(0))
        Path(side, "moment").write_text(str(time.monotonic()))

    began = _fit(who, train, ON_B, storage)
    return {"first_s": float(Path(side, "moment").read_text()) - began}


def warm(who: str, side: str, storage: str, trials: int) -> dict[str, Any]:
    """One trial at a time, on actors that are reused."""

    def train(config: dict[str, Any]) -> None:
        began = time.monotonic()
        _library(who).report(_metrics(0))
        Path(side, f"moments-{config['k']}").write_text(json.dumps([began, time.monotonic()]))

    _fit(who, train, ON_B, storage, trials, max_concurrent_trials=1)
    moments = sorted(json.loads(path.read_text()) for path in Path(side).glob("moments-*"))
    assert len(moments) == trials, f"{len(moments)} trials have run"
    return {"gaps_ms": [(moments[k + 1][0] - moments[k][1]) * 1000 for k in range(trials - 1)]}


def _saved_step(tune: Any) -> int:
    saved = tune.get_checkpoint()
    if saved is None:
        return 0
    with saved.as_directory() as path:
        return int(Path(path, "step").read_text())


def _report_step(tune: Any, step: int) -> None:
    place = f"/tmp/step-{os.getpid()}"
    os.makedirs(place, exist_ok=True)
    Path(place, "step").write_text(str(step))
    tune.report(_metrics(step), checkpoint=tune.Checkpoint.from_directory(place))


def kill(who: str, side: str, storage: str, kills: int, spares: int = 0) -> dict[str, Any]:
    """A trial that kills its own process after a report with a checkpoint; before it does, spare workers get ready."""

    def train(config: dict[str, Any]) -> None:
        tune, killed = _library(who), len(list(Path(side).glob("kill-*")))
        for step in range(_saved_step(tune), (kills + 1) * EVERY):
            _report_step(tune, step + 1)
            if not Path(side, f"report-{killed}").exists():
                Path(side, f"report-{killed}").write_text(str(time.monotonic()))
            if step % EVERY == EVERY - 1 and killed < kills:
                time.sleep(3.0 if spares else 0.0)
                Path(side, f"kill-{killed}").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)

    _fit(who, train, ON_B, storage, engine={"spares": spares} if spares else None)

    def moment(name: str) -> float:
        return float(Path(side, name).read_text())

    return {"gaps": [moment(f"report-{k + 1}") - moment(f"kill-{k}") for k in range(kills)]}


def roam(who: str, side: str, storage: str) -> dict[str, Any]:
    """One trial on any machine but "a", until there is enough."""

    def train(config: dict[str, Any]) -> None:
        tune, step = _library(who), 0
        while not Path(side, "enough").exists():
            step = step or _saved_step(tune)
            time.sleep(0.1)
            step += 1
            _report_step(tune, step)
            note = {"step": step, "host": os.uname().nodename, "at": time.monotonic()}
            with open(f"{side}/notes", "a") as file:
                file.write(json.dumps(note) + "\n")

    _fit(who, train, {"CPU": 1.0, "roam": 1.0}, storage)
    return {}


if __name__ == "__main__":
    child.main(globals())
