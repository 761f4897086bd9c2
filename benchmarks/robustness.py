"""What is left after kills, signals, damage and a name that is used twice: counted, not timed.

One small experiment of four trials runs on holdfast and on Ray Tune, with the same code. Each trial writes down what
was acknowledged, in a file of its own; afterwards that is compared with the results that the library has kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench, Call

TRIALS = 4
STEPS = 30
PAUSE_S = 0.05
WAIT_S = 180.0
NOOPS = 200


def run(bench: Bench) -> None:
    """Every scenario on everybody."""
    from benchmarks.harness import OURS, Call

    calls = [Call(OURS, "holdfast"), Call("ray tune", "ray", peer="ray")]
    calls = [call for call in calls if bench.python(call.peer) is not None]
    kills = 2 if bench.quick else 10
    _killed_drivers(bench, calls, kills)
    _killed_workers(bench, calls, 2 if bench.quick else 6)
    for name in ("sigterm", "ctrl_c", "damaged", "twice"):
        found = {call.label: globals()[f"_{name}"](bench, call) for call in calls}
        for measure in next(iter(found.values()), {}):
            bench.row(measure, "count", {label: [each[measure]] for label, each in found.items() if measure in each})
    _sizes(bench, calls)


# --- scenarios


def _killed_drivers(bench: Bench, calls: list[Call], kills: int) -> None:
    """Each run's driver is killed once, at a random moment, and restarted; what is lost, what is doubled?"""
    lost: dict[str, list[float]] = {}
    doubled: dict[str, list[float]] = {}
    for number in range(kills):
        for call in calls:
            with _Run(bench, call) as run:
                reports = random.Random(number).randrange(5, TRIALS * STEPS - 10)
                run.start("go")
                run.wait_for_reports(reports)
                run.kill()
                run.start("go")
                run.wait()
                steps = run.kept_steps()
                missing = sum(step not in steps.get(trial, []) for trial, step in run.acknowledged())
                lost.setdefault(call.label, []).append(missing)
                doubled.setdefault(call.label, []).append(sum(len(each) - len(set(each)) for each in steps.values()))
    bench.row("driver killed and restarted: acknowledged reports that are missing", "reports", lost)
    bench.row("driver killed and restarted: rows that are there twice", "rows", doubled)
    _runs_with(bench, "driver killed and restarted: runs that lost a report or doubled a row", lost, doubled)


def _runs_with(bench: Bench, measure: str, *samples: dict[str, list[float]]) -> None:
    labels = samples[0]
    found = {label: [float(sum(map(any, zip(*(each[label] for each in samples), strict=True))))] for label in labels}
    bench.row(measure, f"of {len(next(iter(labels.values()), []))}", found)


def _killed_workers(bench: Bench, calls: list[Call], kills: int) -> None:
    """A trial's process kills itself right after a report; is that report's row there in the end?"""
    lost: dict[str, list[float]] = {}
    for call in calls:
        with _Run(bench, call) as run:
            run.start("kill_workers", kills=kills)
            run.wait()
            steps = run.kept_steps()
            lost[call.label] = [sum(step not in steps.get(trial, []) for trial, step in run.acknowledged())]
    bench.row(f"{kills} workers killed: acknowledged reports that are missing in result.json", "reports", lost)


def _sigterm(bench: Bench, call: Call) -> dict[str, float]:
    """SIGTERM to the driver, as a spot machine or Kubernetes sends it, then the same script again."""
    with _Run(bench, call) as run:
        run.start("go")
        run.wait_for_reports(20)
        code = run.signal(signal.SIGTERM)
        run.start("go")
        run.wait()
        repeated = len(run.acknowledged()) - TRIALS * STEPS
        return {
            "SIGTERM: exit code is not 143, as after a graceful shutdown": float(code != 143),
            "SIGTERM after 20 reports: steps trained again": max(0, repeated),
        }


def _ctrl_c(bench: Bench, call: Call) -> dict[str, float]:
    """Ctrl+C: what does the returned grid call trials that have not finished?"""
    with _Run(bench, call) as run:
        run.start("go")
        run.wait_for_reports(20)
        run.signal(signal.SIGINT)
        finished = {trial for trial, step in run.acknowledged() if step == STEPS}
        called_done = [trial for trial, status, _ in run.returned() if status == "TERMINATED" and trial not in finished]
        return {"after Ctrl+C: unfinished trials that the results call TERMINATED": len(called_done)}


def _damaged(bench: Bench, call: Call) -> dict[str, float]:
    """The checkpoint that the results call a trial's latest is cut in the middle; how many trials fail after that?"""
    with _Run(bench, call) as run:
        run.start("go")
        run.wait_for_reports(40)
        run.signal(signal.SIGINT)
        run.cut_latest_checkpoints()
        run.start("go")
        run.wait()
        ended = {trial for trial, step in run.acknowledged() if step == STEPS}
        return {"latest checkpoints damaged: trials that did not get to their end": TRIALS - len(ended)}


def _twice(bench: Bench, call: Call) -> dict[str, float]:
    """The same name again, without a restore: are the first run's results still the experiment's?"""
    with _Run(bench, call) as run:
        run.start("new")
        run.wait()
        run.start("new", trials=1, allowed_to_fail=True)
        run.wait(allowed_to_fail=True)
        run.start("count")
        run.wait()
        return {"same name started twice: trials of the first run that a restore misses": TRIALS - run.figure("trials")}


def _sizes(bench: Bench, calls: list[Call]) -> None:
    state: dict[str, list[float]] = {}
    for call in calls:
        with _Run(bench, call) as run:
            run.start("noops")
            run.wait()
            state[call.label] = [run.figure("state_bytes") / NOOPS / 1000]
    bench.row("state per no-op trial", "KB", state)
    installed = {call.label: [_installed_mb(bench, call.peer)] for call in calls}
    bench.row("installed with its dependencies", "MB", installed)


def _installed_mb(bench: Bench, peer: str) -> float:
    """What an installation into an empty environment takes; of holdfast, its own four dependencies."""
    from benchmarks.harness import ROOT
    from benchmarks.peers import PLACE

    if peer:
        return _megabytes(PLACE / peer) - _bare_mb(bench)
    target = bench.directory() / "installed"
    python = bench.python("")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([*command, str(ROOT)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _megabytes(target)


def _bare_mb(bench: Bench) -> float:
    import venv

    place = bench.directory() / "bare"
    venv.create(place, with_pip=True)
    return _megabytes(place)


def _megabytes(place: Path) -> float:
    return sum(path.lstat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


class _Run:
    """One experiment in a directory of its own, and the processes that work on it, one after the other."""

    def __init__(self, bench: Bench, call: Call) -> None:
        self._bench, self._call = bench, call
        self._mark = uuid.uuid4().hex
        self.home = bench.directory()
        self._process: Any = None

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        from benchmarks.harness import end_marked

        end_marked(self._mark)

    def start(self, what: str, **arguments: Any) -> None:
        """Start a process."""
        import dataclasses

        arguments.pop("allowed_to_fail", None)
        call = dataclasses.replace(self._call, arguments={"what": what, **arguments})
        self._process = self._bench.start(call, self._mark, self.home)

    def wait(self, *, allowed_to_fail: bool = False) -> None:
        """Wait until it has ended."""
        from benchmarks.harness import ChildFailed, tail

        code = self._process.wait(WAIT_S)
        if code and not allowed_to_fail:
            raise ChildFailed(f"{self._call.label} ended with {code}: {tail(self.home / 'output.txt')}")

    def wait_for_reports(self, count: int) -> None:
        """Wait until so many reports were acknowledged."""
        end = time.monotonic() + WAIT_S
        while len(self.acknowledged()) < count and self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def kill(self) -> None:
        """End the driver with SIGKILL, and what it leaves behind, so that the restart is not disturbed."""
        from benchmarks.harness import end_marked

        self._process.kill()
        self._process.wait()
        time.sleep(1)
        end_marked(self._mark)

    def signal(self, number: int) -> int:
        """Send a signal, wait, and return the exit code."""
        self._process.send_signal(number)
        return int(self._process.wait(WAIT_S))

    def acknowledged(self) -> list[tuple[str, int]]:
        """What trials have written down: trial and step, in order."""
        try:
            lines = (self.home / "side").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def kept_steps(self) -> dict[str, list[int]]:
        """The steps in the result files, by trial."""
        found: dict[str, list[int]] = {}
        for path in sorted((self.home / "exp").glob("*/result.json")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                found.setdefault(str(row["config"]["x"]), []).append(int(row["step"]))
        return found

    def returned(self) -> list[tuple[str, str, str]]:
        """What the last ``fit()`` has returned: trial, status, and the path of its latest checkpoint."""
        file = self.home / "grid.json"
        return [(trial, status, path) for trial, status, path in json.loads(file.read_text())] if file.exists() else []

    def cut_latest_checkpoints(self) -> None:
        """Leave half of what the latest checkpoint of each trial holds."""
        for _, _, path in self.returned():
            if path:
                file = Path(path, "step")
                os.truncate(file, file.stat().st_size // 2)

    def figure(self, name: str) -> float:
        """What the last process has handed back."""
        return float(json.loads((self.home / "out.json").read_text())[name])


# --- what runs in the measured processes


def holdfast(what: str, **arguments: Any) -> dict[str, Any] | None:
    """A process of ours."""
    import holdfast as tune

    return _experiment(tune, what, **arguments)


def ray(what: str, **arguments: Any) -> dict[str, Any] | None:
    """A process of Ray Tune."""
    from ray import tune

    with child.ray_cluster(TRIALS):
        return _experiment(tune, what, **arguments)


def _experiment(tune: Any, what: str, kills: int = 0, trials: int = TRIALS) -> dict[str, Any] | None:
    home = os.environ["HOME"]
    root = os.path.join(home, "exp")
    if what == "noops":
        return _noops(tune, home)
    if what == "count":
        return {"trials": len(tune.Tuner.restore(root, trainable=_trainable(tune, 0)).get_results())}
    train = _trainable(tune, kills)
    if what == "go" and tune.Tuner.can_restore(root):
        tuner = tune.Tuner.restore(root, trainable=train)
    else:
        known = {"name": "exp", "storage_path": home, "verbose": 0}
        known["failure_config"] = tune.FailureConfig(max_failures=10 * kills)
        if hasattr(tune, "LocalEngine"):
            known["engine"] = tune.LocalEngine(cpus=TRIALS)
        space = {"x": tune.grid_search(list(range(trials)))}
        tuner = tune.Tuner(train, param_space=space, run_config=tune.RunConfig(**known))
    grid = tuner.fit()
    with open(os.path.join(home, "grid.json"), "w") as file:
        # Ray knows no config of a trial that has not reported.
        told = [
            (str((result.config or {}).get("x")), _status(grid, i), result.checkpoint.path if result.checkpoint else "")
            for i, result in enumerate(grid)
        ]
        json.dump(told, file)
    return None


def _status(grid: Any, index: int) -> str:
    """The status that the returned results show, wherever the library keeps it."""
    analysis = getattr(grid, "_experiment_analysis", None)
    return str(grid[index]._source.status if analysis is None else analysis.trials[index].status)


def _noops(tune: Any, home: str) -> dict[str, Any]:
    def noop(config: dict[str, Any]) -> dict[str, float]:
        return {"loss": 1.0}

    more = {"reuse_actors": True} if not hasattr(tune, "LocalEngine") else {}
    tune.Tuner(
        noop,
        tune_config=tune.TuneConfig(num_samples=NOOPS, **more),
        run_config=tune.RunConfig(name="noops", storage_path=home, verbose=0),
    ).fit()
    root = Path(home, "noops")
    if (root / ".holdfast").is_dir():
        return {"state_bytes": sum(path.stat().st_size for path in (root / ".holdfast" / "journal").iterdir())}
    return {"state_bytes": max(path.stat().st_size for path in root.glob("experiment_state-*.json"))}


def _trainable(tune: Any, kills: int) -> Any:
    side = os.path.join(os.environ["HOME"], "side")

    def train(config: dict[str, Any]) -> None:
        start, me = 0, str(config["x"])
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as path, open(os.path.join(path, "step")) as file:
                start = int(file.read())
        for step in range(start + 1, STEPS + 1):
            time.sleep(PAUSE_S)
            with _saved(step) as place:
                tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(place))
            with open(side, "a") as file:
                file.write(f"{me} {step}\n")
            if kills and me == "0" and step % (STEPS // (kills + 1)) == 0 and _first_time(me, step):
                os.kill(os.getpid(), signal.SIGKILL)

    return train


@contextlib.contextmanager
def _saved(step: int) -> Iterator[str]:
    """A directory with the step at the end of a file, so that half of the file says nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "step"), "w") as file:
            file.write(f"{step:>2000}")
        yield place


def _first_time(trial: str, step: int) -> bool:
    mark = os.path.join(os.environ["HOME"], f"killed-{trial}-{step}")
    with contextlib.suppress(FileExistsError):
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        return True
    return False


if __name__ == "__main__":
    child.main(globals())
