"""Trials that crash and recover: an exception, a process that is killed, and one that hangs.

Each trial fails once, halfway, and is retried from its latest checkpoint. Every step appears once in
the results, however often it was retried.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import holdfast as tune

STEPS = 10


def train(config: dict) -> None:
    """Count to ten; on the first attempt something goes wrong before step 6."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    first_attempt = checkpoint is None
    for step in range(start, STEPS + 1):
        if first_attempt and step == 6:
            meet_misfortune(config["misfortune"])
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def meet_misfortune(kind: str) -> None:
    """What may happen to a training."""
    if kind == "exception":
        raise ConnectionError("the data server is away")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hangs":
        time.sleep(3600)


class Watch(tune.Callback):
    """Says what is being retried."""

    def on_trial_recover(self, trial, **info) -> None:
        print(f"{trial.config['misfortune']}: failure {trial.num_failures}, will be retried")


def main(storage: str) -> tune.ResultGrid:
    """Run three unlucky trials, each with two retries."""
    results = tune.Tuner(
        train,
        param_space={"misfortune": tune.grid_search(["exception", "killed", "hangs"])},
        run_config=tune.RunConfig(
            name="retries",
            storage_path=storage,
            if_exists="resume",
            failure_config=tune.FailureConfig(max_failures=2, stall_timeout_s=2),
            callbacks=[Watch()],
        ),
    ).fit()
    for result in results:
        steps = [row["step"] for row in result.metrics_history]
        print(f"{result.config['misfortune']}: {result.status}, steps {steps}")
        assert steps == list(range(1, STEPS + 1))
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
