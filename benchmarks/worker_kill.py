"""``kill -9`` of a trial's process: how long until that trial's next report has been accepted?

The trial kills itself right after a report with a checkpoint, writing the moment to a file first; its next attempt
continues from that checkpoint and writes down when its own first report returned.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

EVERY = 5
"""Reports between two kills."""


def run(bench: Bench) -> None:
    """Measure several kills in each run."""
    from benchmarks.harness import OURS, Call, at_most

    kills, repeats = (3, 1) if bench.quick else (10, 3)
    found = bench.alternate(
        [
            Call(OURS, "holdfast", {"kills": kills}),
            Call("ray tune", "ray", {"kills": 3}, peer="ray"),
        ],
        repeats,
    )
    gaps = {label: [gap for run in runs for gap in run["gaps"]] for label, runs in found.items()}
    bench.row("kill -9 of a worker to its trial's next report", "s", gaps, at_most(0.5))


def _trainable(tune: Any, moments: str, kills: int) -> Any:
    def note(what: str) -> None:
        with open(moments, "a") as file:
            file.write(f"{what} {time.monotonic()}\n")

    def train(config: dict[str, Any]) -> None:
        start, killed, first = 0, 0, True
        if os.path.exists(moments):
            with open(moments) as file:
                killed = file.read().count("kill")
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as path, open(os.path.join(path, "step")) as file:
                start = int(file.read())
        for step in range(start, (kills + 1) * EVERY):
            place = os.path.join(os.path.dirname(moments), f"checkpoint-{step}")
            os.makedirs(place, exist_ok=True)
            with open(os.path.join(place, "step"), "w") as file:
                file.write(str(step + 1))
            tune.report({"loss": 1.0 / (step + 1)}, checkpoint=tune.Checkpoint.from_directory(place))
            if first:
                note("report")
                first = False
            if step % EVERY == EVERY - 1 and killed < kills:
                note("kill")
                os.kill(os.getpid(), signal.SIGKILL)

    return train


def _gaps(moments: str, kills: int) -> dict[str, Any]:
    with open(moments) as file:
        notes = [line.split() for line in file]
    killed = [float(at) for what, at in notes if what == "kill"]
    reported = [float(at) for what, at in notes if what == "report"]
    assert len(killed) == kills, f"{len(killed)} kills instead of {kills}"
    return {"gaps": [next(at for at in reported if at > kill) - kill for kill in killed]}


def holdfast(kills: int) -> dict[str, Any]:
    """One trial with enough retries."""
    import holdfast as tune

    moments = os.path.join(os.environ["HOME"], "moments")
    tune.Tuner(
        _trainable(tune, moments, kills),
        run_config=tune.RunConfig(
            name="kill",
            storage_path=os.environ["HOME"],
            verbose=0,
            engine=tune.LocalEngine(cpus=2),
            failure_config=tune.FailureConfig(max_failures=10 * kills),
        ),
    ).fit()
    return _gaps(moments, kills)


def ray(kills: int) -> dict[str, Any]:
    """The same with Ray Tune."""
    from ray import tune

    moments = os.path.join(os.environ["HOME"], "moments")
    with child.ray_cluster(2):
        tune.Tuner(
            _trainable(tune, moments, kills),
            run_config=tune.RunConfig(
                name="kill",
                storage_path=os.environ["HOME"],
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=10 * kills),
            ),
        ).fit()
    return _gaps(moments, kills)


if __name__ == "__main__":
    child.main(globals())
