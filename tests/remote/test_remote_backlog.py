"""While the store is away, checkpoints wait on the local disk and trials train on, up to a number of bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from lab import Driver, until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab

from holdfast.core import events as ev
from servers.fault_proxy import Delay, FaultProxy

SIZE = 2_000
IMPATIENT = """
import sys
from holdfast.cli import main, status
status.PATIENCE_S = 0.5
sys.exit(main.main())
"""
"""The command line, waiting for a store not as long as in real life."""


def saving(lab: RemoteLab, **fields: Any) -> RemotePlan:
    """Trials that save at every step and keep all, held after the second one while ``lab.folder/hold`` exists."""
    (lab.folder / "hold").touch()
    known = {"trials": 2, "steps": 30, "every": 1, "keep": None, "max_failures": 0, "hold_at": 3, "bytes": SIZE}
    return RemotePlan(**{**known, "hold": str(lab.folder / "hold"), **fields})


def lose_the_store(lab: RemoteLab, proxy: FaultProxy, driver: Driver, kind: Any = "refuse") -> None:
    """Both trials have saved twice; then the network goes, and they continue."""
    lab.started(driver, reports=4, saved=4)
    proxy.down(kind)
    (lab.folder / "hold").unlink()


def status(lab: RemoteLab, *arguments: str) -> str:
    """What `holdfast status URL` prints on the driver's machine, which has lost the store too."""
    environment = {**os.environ, **lab.environment, "HOLDFAST_LOCAL_CACHE_DIR": str(lab.cache())}
    command = [sys.executable, "-c", IMPATIENT, "status", lab.url, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=lab.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_all_arrived(lab: RemoteLab, plan: RemotePlan, saved: int) -> None:
    """Every checkpoint is in the store, each trial's in order, and nothing failed."""
    state = lab.check_finished(plan)
    assert state.total_failures == 0
    assert not state.staged_bytes
    lab.check_stored()
    lab.check_no_process_left()
    assert len(lab.committed_keys()) == saved
    for n in range(plan.trials):
        order = [e.index for e in lab.history() if isinstance(e, ev.CheckpointCommitted) and e.n == n]
        assert order == sorted(order)


@pytest.mark.parametrize("kind", ["refuse", pytest.param("hang", marks=pytest.mark.slow)])
def test_in_an_outage_trials_that_keep_all_checkpoints_train_on(
    proxied: tuple[RemoteLab, FaultProxy], kind: Any
) -> None:
    """Later the store has every checkpoint."""
    lab, proxy = proxied
    plan = saving(lab)
    driver = lab.start(plan)
    lose_the_store(lab, proxy, driver, kind)
    until(lambda: len(lab.acknowledged()) == 60 or driver.ended, lambda: driver.output)
    assert not driver.ended, driver.output
    assert not any(isinstance(event, ev.BacklogFilled) for event in lab.history())
    proxy.up()
    driver.must_finish()
    check_all_arrived(lab, plan, saved=60)


def test_only_when_the_limit_is_reached_do_trials_wait_and_say_why(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    plan = saving(lab, backlog=10 * SIZE)
    driver = lab.start(plan)
    lose_the_store(lab, proxy, driver)
    until(lambda: any(isinstance(e, ev.BacklogFilled) for e in lab.history()) or driver.ended, lambda: driver.output)
    until(lambda: "trials that save wait" in driver.output or driver.ended, lambda: driver.output)
    assert lab.url in driver.output
    assert "max_backlog_bytes" in driver.output
    facts = json.loads(status(lab, "--json"))["backlog"]
    assert facts["checkpoints"] >= 10
    assert facts["bytes"] > 10 * SIZE == facts["limit_bytes"]
    assert facts["oldest_s"] > 0
    assert facts["waiting_since"]
    acknowledged = len(lab.acknowledged())
    assert acknowledged <= 4 + 10 + 2 * 2, "four before the outage, what fits, and two of each trial"
    until(lambda: "checkpoints (" in status(lab), "the backlog is not shown")  # once the oldest is two seconds old
    told = status(lab)
    assert f"are not yet in {lab.url}, limit 20.0 kB" in told
    proxy.up()
    driver.must_finish()
    assert any(isinstance(event, ev.BacklogEased) for event in lab.history())
    check_all_arrived(lab, plan, saved=60)
    facts = json.loads(status(lab, "--json"))["backlog"]
    assert (facts["checkpoints"], facts["bytes"], facts["waiting_since"]) == (0, 0, None)


def test_a_limit_of_nothing_leaves_each_trial_one_checkpoint(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """A store that is slow, and not away: trials continue at its pace, both of them."""
    lab, proxy = proxied
    proxy.rule(Delay(0.05), method="PUT", path="/checkpoint_")
    plan = RemotePlan(trials=3, steps=6, every=1, keep=None, max_failures=0, backlog=0, bytes=SIZE)
    driver = lab.start(plan)
    driver.must_finish()
    check_all_arrived(lab, plan, saved=18)
    most = waiting = 0
    for event in lab.history():
        waiting += isinstance(event, ev.CheckpointStaged)
        waiting -= isinstance(event, ev.CheckpointCommitted)
        most = max(most, waiting)
    assert most <= 2 * 2 + 2, "two of each running trial, and the last ones of one that has ended"


@pytest.mark.parametrize("machine", ["the same", pytest.param("another", marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_in_an_outage_leaves_its_backlog_to_the_next(
    proxied: tuple[RemoteLab, FaultProxy], machine: str
) -> None:
    """On the same machine nothing is lost. Elsewhere a trial continues from what the store has, not from scratch."""
    lab, proxy = proxied
    plan = saving(lab, silence_s=0.5)
    driver = lab.start(plan)
    lab.started(driver, reports=4, saved=4)
    until(lambda: len(lab.committed_keys()) == 4, lambda: driver.output)
    until(lambda: committed(lab.stored_history()) == 4, lambda: driver.output)
    proxy.down()
    (lab.folder / "hold").unlink()
    until(lambda: len(lab.acknowledged()) >= 30 or driver.ended, lambda: driver.output)
    lab.kill_all()
    driver.process.wait()
    proxy.up()
    if machine == "another":
        lab.lose("a")
        successor = lab.start(RemotePlan(silence_s=0.5, takeover=True), "b")
        successor.must_finish()
        starts = [e for e in lab.history() if isinstance(e, ev.TrialStarted)]
        assert {e.rows for e in starts[2:]} == {2}, "each trial goes on from its second checkpoint"
        lab.check_stored()
        return
    acknowledged = {line.token for line in lab.acknowledged()}
    lab.start(plan).must_finish()
    assert acknowledged <= {e.metrics["token"] for e in lab.history() if isinstance(e, ev.Reported)}
    check_all_arrived(lab, plan, saved=60)


def committed(history: list[ev.AnyEvent]) -> int:
    return sum(isinstance(event, ev.CheckpointCommitted) for event in history)


def test_what_retention_does_not_keep_leaves_the_backlog(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """Trials that keep two of thirty need no more room than for those, and never wait."""
    lab, proxy = proxied
    plan = saving(lab, keep=2)
    driver = lab.start(plan)
    lose_the_store(lab, proxy, driver)
    until(lambda: len(lab.acknowledged()) == 60 or driver.ended, lambda: driver.output)
    until(lambda: json.loads(status(lab, "--json"))["backlog"]["checkpoints"] <= 6 or driver.ended, "not dropped")
    assert not any(isinstance(event, ev.BacklogFilled) for event in lab.history())
    proxy.up()
    driver.must_finish()
    check_all_arrived(lab, plan, saved=4)


def interrupted(lab: RemoteLab) -> int:
    return sum(isinstance(event, ev.AttemptInterrupted) for event in lab.history())


@pytest.mark.slow
def test_ctrl_c_reaches_trials_that_wait_for_room(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """They are told to stop at once, and not when their grace is over: what they saved is on the local disk."""
    lab, proxy = proxied
    plan = saving(lab, backlog=4 * SIZE, grace_s=600.0, echo_s=0.01)
    driver = lab.start(plan)
    lose_the_store(lab, proxy, driver)
    until(lambda: "trials that save wait" in driver.output or driver.ended, lambda: driver.output)
    driver.process.send_signal(signal.SIGINT)
    until(lambda: interrupted(lab) == 2 or driver.ended, lambda: driver.output)
    assert not driver.ended, driver.output
    proxy.up()
    driver.wait()
    lab.check_nothing_lost()
    lab.start(plan).must_finish()
    check_all_arrived(lab, plan, saved=60)
