"""``kill -9`` of the driver, and the same script at once again: how long until a report has been accepted?

Counted from the exec of the second run, imports included.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

STEPS = 100_000
PAUSE_S = 0.02
ENOUGH = 20
"""Reports of the first run before it is killed."""


def run(bench: Bench) -> None:
    """Kill and restart; the second run is ended as soon as it has reported."""
    from benchmarks.harness import OURS, Call

    calls = [Call(OURS, "holdfast"), Call("ray tune", "ray", peer="ray")]
    seconds: dict[str, list[float]] = {}
    for _ in range(1 if bench.quick else 5):
        for call in calls:
            if bench.python(call.peer) is not None and call.label not in bench.troubles:
                _kill_and_restart(bench, call, seconds)
    bench.row("kill -9 of the driver; exec of the restart to the first report", "s", seconds)


def _kill_and_restart(bench: Bench, call: Any, seconds: dict[str, list[float]]) -> None:
    import dataclasses
    import uuid

    from benchmarks.harness import end_marked, tail

    mark, home = uuid.uuid4().hex, bench.directory()
    moments = home / "moments"
    moments.mkdir()
    began, first = 0.0, None
    for generation in (1, 2):
        arguments = {"generation": generation, "moments": str(moments)}
        began = time.monotonic()
        process = bench.start(dataclasses.replace(call, arguments=arguments), mark, home)
        try:
            first = _await_reports(process, moments / str(generation), 1 if generation == 2 else ENOUGH)
        finally:
            process.kill()
            process.wait()
            if generation == 2:
                end_marked(mark)
        if first is None:
            bench.troubles[call.label] = f"run {generation} did not report: {tail(home / 'output.txt')}"
            print(f"  {call.label}: {bench.troubles[call.label]}")
            return
    assert first is not None
    seconds.setdefault(call.label, []).append(first - began)


def _await_reports(process: Any, path: Any, count: int) -> float | None:
    """The moment of the first report, once there are ``count``."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if path.is_file() and len(lines := path.read_text().split("\n")) > count:
            return float(lines[0])
        time.sleep(0.005)
    return None


def _trainable(tune: Any, generation: int, moments: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        start = 0
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as path, open(os.path.join(path, "step")) as file:
                start = int(file.read())
        place = os.path.join(moments, f"checkpoint-{os.getpid()}")
        os.makedirs(place, exist_ok=True)
        for step in range(start, STEPS):
            time.sleep(PAUSE_S)
            with open(os.path.join(place, "step"), "w") as file:
                file.write(str(step + 1))
            tune.report({"loss": 1.0 / (step + 1)}, checkpoint=tune.Checkpoint.from_directory(place))
            with open(os.path.join(moments, str(generation)), "a") as file:
                file.write(f"{time.monotonic()}\n")

    return train


def holdfast(generation: int, moments: str) -> None:
    """Two trials."""
    import holdfast as tune

    train = _trainable(tune, generation, moments)
    if generation == 2:
        tune.Tuner.restore(os.path.join(os.environ["HOME"], "kill"), trainable=train).fit()
        return
    run_config = tune.RunConfig(
        name="kill",
        storage_path=os.environ["HOME"],
        verbose=0,
        engine=tune.LocalEngine(cpus=2),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
    )
    tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=2), run_config=run_config).fit()


def ray(generation: int, moments: str) -> None:
    """The same with Ray Tune; a killed driver takes its local cluster with it, so the restart needs a new one."""
    from ray import tune

    train = _trainable(tune, generation, moments)
    with child.ray_cluster(2):
        if generation == 2:
            tune.Tuner.restore(os.path.join(os.environ["HOME"], "kill"), trainable=train).fit()
            return
        run_config = tune.RunConfig(
            name="kill",
            storage_path=os.environ["HOME"],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        )
        tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=2), run_config=run_config).fit()


if __name__ == "__main__":
    child.main(globals())
