"""One script that starts an experiment the first time and resumes it every other time.

Put it into a batch job, a Kubernetes pod or a loop in a shell: whenever it is killed, run it again.
``RunConfig(if_exists="resume")`` does the same in one argument; this longer form can also pass options to the restore.
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast as tune

STEPS = 20


def train(config: dict) -> None:
    """Count, and remember how far."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(start, STEPS + 1):
        score = step * config["rate"]
        tune.report({"score": score}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def main(storage: str) -> tune.ResultGrid:
    """Start or continue the experiment ``<storage>/auto``."""
    path = Path(storage, "auto")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=train, resume_errored=True)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"rate": tune.uniform(0.5, 2.0)},
            tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=4),
            run_config=tune.RunConfig(name=path.name, storage_path=path.parent),
        )
    results = tuner.fit()
    print(f"best score {results.get_best_result().metrics['score']:.2f} of {len(results)} trials")
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
