"""An experiment on NFS, to be run inside the NFS machine: one driver's life."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from typing import Any

import holdfast as tune

STEPS = 4


def train(config: dict[str, Any]) -> None:
    """Keeps a file of each checkpoint open: what retention deletes then lives on as ``.nfs...`` for a while."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    held = []
    for step in range(start + 1, STEPS + 1):
        tune.report({"loss": config["x"] - step, "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        for name in glob.glob(os.path.join(tune.get_context().get_trial_dir(), "checkpoint_*", "*")):
            with contextlib.suppress(OSError):  # it may be deleted just now
                held.append(open(name, "rb"))  # noqa: SIM115


def live(storage: str) -> None:
    """Begin the experiment or continue it, until its end."""
    path = os.path.join(storage, "exp")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, train)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1.0, 2.0])},
            run_config=tune.RunConfig(
                name="exp",
                storage_path=storage,
                verbose=0,
                sync_config=tune.SyncConfig(syncer=None),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                engine=tune.LocalEngine(cpus=2),
            ),
        )
    found = [(result.config["x"], result.metrics["step"], len(result.metrics_history)) for result in tuner.fit()]
    print(sorted(found))


if __name__ == "__main__":
    live(sys.argv[1])
