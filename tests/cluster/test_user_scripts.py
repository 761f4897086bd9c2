"""What users write: other engines, references to objects, modules beside the script, populations, wrong settings."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from ray_cluster import HERE, Experiment, RayHosts, interrupt

MODULE = "FACTOR = 3\n\n\ndef scaled(x):\n    return FACTOR * x\n"
SCRIPT = """
import json, sys
import holdfast as tune
from my_package.helper import scaled

def train(config):
    tune.report({"y": scaled(config["x"])})

if __name__ == "__main__":
    engine = tune.RayEngine(address=sys.argv[1])
    trainable = tune.with_resources(train, {"CPU": 1, "host_b": 1})
    config = tune.RunConfig(name="module", storage_path="/tmp/results", engine=engine, verbose=1)
    results = tune.Tuner(trainable, param_space={"x": tune.grid_search([1, 2])}, run_config=config).fit()
    print("RESULT " + json.dumps([[r.metrics.get("y"), str(r.error or "")] for r in results]))
"""


def run_script(cluster: RayHosts, name: str, **settings: Any) -> Experiment:
    """Start one of ``cluster_scripts.py`` on machine "a"."""
    notes = cluster.side / f"{name}.jsonl"
    given = json.dumps({"address": cluster.address, "notes": str(notes)} | settings)
    log = cluster.side.parent / f"{name}-{time.monotonic_ns()}.log"
    process = cluster.hosts.start("a", sys.executable, str(HERE / "cluster_scripts.py"), name, given, log=log)
    return Experiment(cluster, name, process, log)


def notes_of(cluster: RayHosts, name: str) -> list[dict[str, Any]]:
    path = cluster.side / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_cannot_begin_is_refused_with_what_to_do(cluster: RayHosts) -> None:
    told = run_script(cluster, "refusals").finish()
    assert "'licence', which no node of the cluster has" in told["unknown"]
    assert "no node of the cluster has as much" in told["large"]
    assert "There is no Ray cluster at" in told["wrong"]
    assert f"cannot listen at *:{cluster.address.rsplit(':', 1)[1]}: Address already in use" in told["port"]
    assert "no cluster was named" in told["nowhere"]
    assert f"ray job submit --address=http://{cluster.hosts.ip('a')}:8265" in told["client"]
    left = cluster.hosts.run("a", "bash", "-c", "pgrep -af '[c]luster.porter|[c]luster.bridge'; true")
    assert left == ""


@pytest.mark.cluster
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pip install 'ray[client]'")
def test_a_script_that_is_a_ray_client_is_told_to_be_submitted(cluster: RayHosts) -> None:
    told = run_script(cluster, "client").finish()
    assert "ray.init() has made this process a Ray Client" in told["joined"]
    assert "ray job submit" in told["joined"]
    assert not told["written"]


def test_a_module_beside_the_script_travels_with_it(cluster: RayHosts) -> None:
    for path, text in {"my_package/__init__.py": "", "my_package/helper.py": MODULE, "script.py": SCRIPT}.items():
        write = 'mkdir -p $(dirname /tmp/user/$0) && printf %s "$1" > /tmp/user/$0'
        cluster.hosts.run("a", "bash", "-c", write, path, text)
    printed = cluster.hosts.run("a", sys.executable, "/tmp/user/script.py", cluster.address)
    assert json.loads(printed.rsplit("RESULT ", 1)[1]) == [[3, ""], [6, ""]]


@pytest.mark.cluster
def test_a_shared_mount_is_used_by_every_machine(cluster: RayHosts) -> None:
    root = cluster.side / "mount"
    experiment = cluster.start("a", "mount", trials=6, steps=5, root=str(root), shared=True)
    trials = experiment.finish()["trials"]
    assert [(trial["step"], trial["checkpoints"], trial["artifact"]) for trial in trials] == [(5, 5, True)] * 6
    assert len({trial["host"] for trial in trials}) > 1


@pytest.mark.cluster
def test_a_mount_that_a_machine_does_not_have_is_refused(cluster: RayHosts) -> None:
    told = cluster.start("a", "unmounted", shared=True).finish()["refused"]
    assert "Unable to set up cluster storage: " in told
    assert "cannot see /tmp/results/unmounted" in told
    assert Path("/tmp/results/unmounted").exists() is False


@pytest.mark.cluster
def test_an_experiment_changes_its_engine(cluster: RayHosts) -> None:
    settings = {"trials": 2, "steps": 60, "every": 5}
    for engine, step in (("local", 10), ("ray", 30)):
        experiment = cluster.start("a", "change", engine=engine, **settings)
        for k in range(2):
            experiment.wait_for_step(k, step)
        interrupt(cluster, experiment)
    experiment = cluster.start("a", "change", engine="local", **settings)
    assert [trial["step"] for trial in experiment.finish()["trials"]] == [60, 60]
    for k in range(2):
        experiment.check_steps(k, 60)
        assert len([note for note in experiment.notes(k) if note["what"] == "start"]) == 3


@pytest.mark.cluster
def test_references_live_as_long_as_their_session(cluster: RayHosts) -> None:
    settings = {"go": str(cluster.side / "references-go"), "again": False}
    first = run_script(cluster, "references", data=[1, 2], extra=10, **settings)
    first.wait_for(lambda: len(notes_of(cluster, "references")) == 3, "start of all trials")
    assert {(tuple(note["data"]), note["extra"]) for note in notes_of(cluster, "references")} == {((1, 2), 10)}
    assert len({note["host"] for note in notes_of(cluster, "references")}) > 1
    cluster.hosts.run("a", "pkill", "-9", "-f", "cluster_scripts.py")
    first.process.wait(60)
    second = run_script(cluster, "references", data=[], extra=0, **settings)
    second.process.wait(120)
    assert "'data'" in second.log.read_text()
    assert "param_space=..." in second.log.read_text()
    assert len(notes_of(cluster, "references")) == 3
    Path(settings["go"]).touch()
    third = run_script(cluster, "references", data=[5, 6], extra=20, **settings | {"again": True})
    told = third.finish()
    assert told["errors"] == []
    # Trial 0 waits for nothing: it may have ended in the first session.
    assert told["sums"] in ([[0, 13], [1, 31], [2, 31]], [[0, 31], [1, 31], [2, 31]])


@pytest.mark.cluster
def test_bundles_on_several_machines(cluster: RayHosts) -> None:
    told = run_script(cluster, "bundles").finish()
    assert told["errors"] == []
    assert len(told["hosts"]) == 5
    assert all(here != there for here, there in told["hosts"])


@pytest.mark.cluster
def test_a_population_whose_donors_are_on_other_machines(cluster: RayHosts) -> None:
    told = run_script(cluster, "population").finish()
    assert (told["errors"], set(told["steps"])) == ([], {12})
    copies = [note for note in notes_of(cluster, "population") if note["me"] != note["of"]]
    assert [note for note in copies if note["host"] != note["from_host"]]


@pytest.mark.cluster
def test_two_hundred_trials(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "many", trials=200, steps=2, sleep_s=0.2, every=2)
    trials = experiment.finish(400.0)["trials"]
    assert [(trial["step"], trial["error"]) for trial in trials] == [(2, "")] * 200
    for k in range(200):
        experiment.check_steps(k, 2)


@pytest.mark.cluster
def test_a_machine_with_another_version_is_not_used_and_named(cluster: RayHosts) -> None:
    other = cluster.side / "other"
    shutil.copytree(Path(holdfast.__file__).parent, other / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "holdfast" / "_version.py").write_text('__version__ = "0.0.1"\n')
    cluster.up("v", PYTHONPATH=os.pathsep.join([str(other), *filter(None, sys.path)]))
    try:
        experiment = cluster.start("a", "version", trials=2, steps=2)
        trials = experiment.finish()["trials"]
        assert {trial["step"] for trial in trials} == {2}
        assert "v" not in {trial["host"] for trial in trials}
        assert "v has Python" in experiment.log.read_text()
        assert "and holdfast 0.0.1, the driver has" in experiment.log.read_text()
    finally:
        cluster.leave("v")
