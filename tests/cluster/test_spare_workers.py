"""Workers that are kept ready on a real cluster."""

from __future__ import annotations

from ray_cluster import RayHosts

WORKERS = "pgrep -f '[r]ay::WorkerActor'; true"


def workers(cluster: RayHosts) -> set[tuple[str, int]]:
    """Workers that have dialled in, by machine and process."""
    return {(name, int(pid)) for name in "abc" for pid in cluster.hosts.run(name, "bash", "-c", WORKERS).split() if pid}


def test_a_killed_trial_continues_in_a_worker_that_was_ready(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "spare", steps=100, every=5, max_failures=1, listen={"spares": 1})
    note = experiment.wait_for_step(0, 6)
    ready = experiment.wait_for(lambda: workers(cluster) - {(note["host"], note["pid"])}, "a spare worker")
    cluster.hosts.run(note["host"], "kill", "-9", str(note["pid"]))
    assert experiment.finish()["trials"][0]["step"] == 100
    experiment.check_steps(0, 100)
    again = [note for note in experiment.notes(0) if note["what"] == "start"][1]
    assert (again["host"], again["pid"]) in ready
