"""What is lost when processes, machines and connections are: nothing that was acknowledged."""

from __future__ import annotations

import time

from ray_cluster import RayHosts, interrupt, wait_looks

ON_B = {"CPU": 1, "host_b": 1}


def test_trials_on_machines_that_share_nothing(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "plain", trials=4, steps=4, log_to_file=True)
    trials = experiment.finish()["trials"]
    assert [(trial["step"], trial["artifact"], trial["checkpoints"]) for trial in trials] == [(4, True, 4)] * 4
    assert len({trial["host"] for trial in trials}) > 1
    printed = cluster.hosts.run("a", "bash", "-c", "cat /tmp/results/plain/*/stdout")
    assert sorted(printed.split("\n"))[1:] == [
        f"trial {trial['k']} begins after step 0 on {trial['host']}" for trial in trials
    ]
    for name in "abc":
        look = "ls -d /tmp/holdfast-* 2>/dev/null; pgrep -f '[c]luster.porter'; true"
        left = cluster.hosts.run(name, "bash", "-c", look)
        assert left == "", f"left on {name}"


def test_a_killed_worker_is_counted_and_named(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "killed", steps=12, every=3, max_failures=1)
    note = experiment.wait_for_step(0, 5)
    cluster.hosts.run(note["host"], "kill", "-9", str(note["pid"]))
    assert experiment.finish()["trials"][0]["step"] == 12
    experiment.check_steps(0, 12)
    text = experiment.log.read_text()
    assert f"killed by SIGKILL, which holdfast did not send on {note['host']}" in text


def test_a_worker_that_another_process_terminates_is_preempted(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "terminated", steps=12, every=3)
    note = experiment.wait_for_step(0, 5)
    cluster.hosts.run(note["host"], "kill", "-TERM", str(note["pid"]))
    told = experiment.finish()["trials"][0]
    assert (told["step"], told["error"]) == (12, "")
    experiment.check_steps(0, 12)
    assert cluster.hosts.run("a", "bash", "-c", "grep -rlsa preempted /tmp/results/terminated/.holdfast/journal")


def test_a_worker_that_crashes_or_exits_is_counted_and_named_at_once(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "crashes", steps=16, every=2, max_failures=2, exits_at=12, requests=ON_B)
    note = experiment.wait_for_step(0, 5)
    cluster.hosts.run("b", "kill", "-SEGV", str(note["pid"]))
    wait_looks(1.0, lambda: "SIGSEGV" in experiment.log.read_text(), "word of the crash")
    exited = cluster.side / "crashes-0-exited.jsonl"
    experiment.wait_for(exited.exists, "exit")
    wait_looks(1.0, lambda: "exit code 7" in experiment.log.read_text(), "word of the exit")
    assert experiment.finish()["trials"][0]["step"] == 16
    experiment.check_steps(0, 16)
    text = experiment.log.read_text()
    assert "killed by SIGSEGV" in text
    assert text.count("on b") >= 2


def test_a_machine_that_joins_is_used_at_once(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "joins", trials=7, steps=1000000, every=1000)
    for k in range(6):
        experiment.wait_for_step(k, 1)
    try:
        cluster.up("d")
        wait_looks(10.0, lambda: experiment.notes(6), "trial on the new machine")
        assert experiment.notes(6)[0]["host"] == "d"
    finally:
        interrupt(cluster, experiment)
        cluster.leave("d")


def test_a_machine_that_is_switched_off_costs_no_failure_and_no_step(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "off", trials=3, steps=150, every=5)
    notes = [experiment.wait_for_step(k, 6) for k in range(3)]
    victim = next(note["host"] for note in notes if note["host"] != "a")
    cluster.hosts.power_off(victim)
    look = "grep -rlsa node_lost /tmp/results/off; true"  # the journal
    wait_looks(15.0, lambda: cluster.hosts.run("a", "bash", "-c", look), "word of the loss")
    trials = experiment.finish()["trials"]
    assert [(trial["step"], trial["error"]) for trial in trials] == [(150, "")] * 3
    for k in range(3):
        experiment.check_steps(k, 150)
    assert victim not in {trial["host"] for trial in trials}


def test_a_short_cut_goes_unnoticed(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "blip", trials=3, steps=60)
    notes = [experiment.wait_for_step(k, 5) for k in range(3)]
    victim = next(note["host"] for note in notes if note["host"] != "a")
    cluster.hosts.cut(victim)
    time.sleep(3.0)  # shorter than the lease: that is what is tested
    cluster.hosts.heal(victim)
    assert all(trial["step"] == 60 for trial in experiment.finish()["trials"])
    for k in range(3):
        assert [note["what"] for note in experiment.notes(k)].count("start") == 1
        experiment.check_steps(k, 60)


def test_a_killed_driver_leaves_nobody_and_its_experiment_continues(cluster: RayHosts) -> None:
    experiment = cluster.start("a", "driver", trials=3, steps=40, children=True)
    for k in range(3):
        experiment.wait_for_step(k, 5)
    running = " ".join(cluster.ours())
    assert all(each in running for each in ("cluster.porter", "WorkerActor", "sleep 10000"))
    cluster.hosts.run("a", "pkill", "-9", "-f", "cluster_trial.py")
    wait_looks(2.0, lambda: not cluster.ours(), f"somebody is left: {cluster.ours()}")
    experiment.process.wait(30)
    again = cluster.start("a", "driver")
    assert all(trial["step"] == 40 for trial in again.finish()["trials"])
    for k in range(3):
        again.check_steps(k, 40)
