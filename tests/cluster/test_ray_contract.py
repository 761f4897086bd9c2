"""Ray as the engine keeps the promises of every engine, and those of one whose workers are elsewhere."""

from __future__ import annotations

import sys

import pytest

from ray_cluster import HERE, Experiment, RayHosts


@pytest.mark.cluster
def test_the_contracts_on_ray(cluster: RayHosts) -> None:
    ask, log = cluster.side / "contract", cluster.side.parent / "contract.log"
    command = [sys.executable, str(HERE / "cluster_contract.py"), cluster.address, str(ask)]
    experiment = Experiment(cluster, "contract", cluster.hosts.start("a", *command, log=log), log)

    def asks_or_ends() -> bool:
        return ask.exists() or "RESULT " in log.read_text()

    while experiment.wait_for(asks_or_ends, "word of the contract", 300.0) and ask.exists():
        asked = ask.read_text()
        if asked == "lose":
            cluster.hosts.crash("b")
        elif asked == "lose all":
            cluster.hosts.run("a", "pkill", "-9", "-f", "cluster[.]porter")
        else:
            cluster.up("b")
        ask.unlink()
    told = experiment.finish()
    assert told["failed"] == {}, "\n".join(told["failed"].values())
    assert told["checks"] > 20
