"""The same experiment on this machine and on a Ray cluster: only the engine differs.

    python examples/ray_cluster.py results                    # trials on this machine
    ray start --head                                          # a cluster, here of one machine
    python examples/ray_cluster.py results 127.0.0.1:6379     # trials on the cluster; also RAY_ADDRESS=...

Begun on one of them, it can be continued on the other. Needs ``pip install 'holdfast[ray]'`` for the cluster, on every
node.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import holdfast as tune

STEPS = 20


def train(config: dict) -> None:
    """Count, and remember how far; the checkpoint comes back to the driver's disk from any machine."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(start, STEPS + 1):
        metrics = {"score": step * config["rate"], "host": platform.node()}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def main(storage: str, address: str | None) -> tune.ResultGrid:
    """Start or continue the experiment ``<storage>/anywhere``, on a cluster if there is an address."""
    engine = tune.RayEngine(address=address) if address else "local"
    if address is None:
        print("on this machine; give the address of a Ray cluster to train there: `ray start --head` makes one")
    path = Path(storage, "anywhere")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=train, run_config=tune.RunConfig(engine=engine))
    else:
        tuner = tune.Tuner(
            train,
            param_space={"rate": tune.grid_search([0.5, 1.0, 1.5, 2.0])},
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(name=path.name, storage_path=path.parent, engine=engine),
        )
    results = tuner.fit()
    hosts = sorted({result.metrics["host"] for result in results})
    print(f"best score {results.get_best_result().metrics['score']:.1f}; trained on {', '.join(hosts)}")
    return results


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "results", given[1] if len(given) > 1 else os.environ.get("RAY_ADDRESS"))
