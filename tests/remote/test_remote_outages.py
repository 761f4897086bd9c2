"""The way to the store is lost for a while, or for good: nothing fails, nothing is lost, nothing is claimed falsely."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Driver, kill, mostly_slow, until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab

from holdfast.core import events as ev
from servers.fault_proxy import Answer, Delay, FaultProxy
from servers.install import Unavailable
from servers.seaweedfs import SeaweedFS

HURRY = {"denied_s": 1.0, "store_timeout_s": 3.0, "grace_s": 1.0, "last_words_s": 0.5, "reply_s": 0.2}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[SeaweedFS]:
    """A SeaweedFS that a test may stop."""
    server = SeaweedFS(tmp_path / "weed")
    try:
        server.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        yield server


def no_failures(history: list[ev.AnyEvent]) -> bool:
    return not any(isinstance(event, ev.AttemptFailed | ev.TrialErrored) for event in history)


def check_in_order(lab: RemoteLab, plan: RemotePlan) -> None:
    state = lab.check_finished(plan)
    assert state.total_failures == 0
    assert no_failures(lab.history())
    lab.check_stored()
    lab.check_no_process_left()


def everything_denied(proxy: FaultProxy) -> Any:
    return proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"))


# --- outages that end


@pytest.mark.slow
def test_a_server_that_is_gone_for_a_while_stops_nobody(
    machines: Callable[..., RemoteLab], own_server: SeaweedFS
) -> None:
    """Trials train on, and what they report during the outage is acknowledged; later the store has it all."""
    lab = machines(own_server)
    plan = saving(lab, steps=20, every=10, pause_s=0.05, keep=2)
    driver = lab.start(plan)
    lab.started(driver, reports=4)
    own_server.stop()
    acknowledged = len(lab.acknowledged())
    (lab.folder / "hold").unlink()
    until(lambda: len(lab.acknowledged()) >= acknowledged + 10 or driver.ended, lambda: driver.output)
    own_server.start()
    driver.must_finish()
    check_in_order(lab, plan)


@pytest.mark.parametrize("kind", mostly_slow(["refuse", "reset", "hang"], "refuse"))
def test_a_network_that_is_gone_for_a_while_is_waited_for(proxied: tuple[RemoteLab, FaultProxy], kind: Any) -> None:
    lab, proxy = proxied
    plan = saving(lab, steps=16, every=2, pause_s=0.03, keep=2)
    driver = lab.start(plan)
    lab.started(driver, reports=4, saved=2)
    proxy.down(kind)
    acknowledged = len(lab.acknowledged())
    shipped = lab.shipped_seq()
    (lab.folder / "hold").unlink()
    until(lambda: len(lab.acknowledged()) >= acknowledged + 3 or driver.ended, lambda: driver.output)
    assert lab.shipped_seq() <= shipped + 20
    proxy.up()
    driver.must_finish()
    check_in_order(lab, plan)


def test_trouble_is_told_while_it_lasts(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    plan = saving(lab, steps=16, every=4, pause_s=0.05, keep=None, max_failures=-1, store_timeout_s=3.0)
    driver = lab.start(plan)
    lab.started(driver, reports=4)
    with proxy.outage():
        (lab.folder / "hold").unlink()
        until(lambda: "unreachable" in driver.output or driver.ended, lambda: driver.output)
        assert "everything waits on the local disk" in driver.output
    driver.must_finish()
    check_in_order(lab, plan)


def saving(lab: RemoteLab, **fields: Any) -> RemotePlan:
    """Trials that save at every step, held after the second one while ``lab.folder/hold`` exists."""
    (lab.folder / "hold").touch()
    known = {"trials": 2, "steps": 10, "every": 1, "keep": 1, "max_failures": 0, "hold_at": 3}
    return RemotePlan(**{**known, "hold": str(lab.folder / "hold"), **fields})


@pytest.mark.parametrize("kind", mostly_slow(["refuse", "hang"], "hang"))
def test_in_an_outage_trials_that_keep_few_checkpoints_never_wait(
    proxied: tuple[RemoteLab, FaultProxy], kind: Any
) -> None:
    """A newer checkpoint takes the place of one that waits; the local disk does not fill meanwhile."""
    lab, proxy = proxied
    plan = saving(lab)
    driver = lab.start(plan)
    lab.started(driver, reports=4, saved=4)
    proxy.down(kind)
    (lab.folder / "hold").unlink()
    until(lambda: len(lab.acknowledged()) == 20 or driver.ended, lambda: driver.output)
    until(lambda: most_local(lab) <= 3 or driver.ended, lambda: driver.output)
    assert not driver.ended, driver.output
    proxy.up()
    driver.must_finish()
    check_in_order(lab, plan)
    assert most_local(lab) == 0, "the store has them, and no trial will start from them"


def most_local(lab: RemoteLab) -> int:
    """How many checkpoints and stages of a trial are in the mirror, at most."""
    return max(len([*path.glob("checkpoint_*"), *path.glob(".sealed-*")]) for path in lab.trial_dirs())


# --- the agent


@pytest.mark.slow
def test_an_agent_that_is_killed_with_uploads_under_way_is_replaced(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    proxy.rule(Delay(0.3), method="PUT", path="weights.bin")
    plan = RemotePlan(trials=3, steps=8, every=2, pause_s=0.02, bytes=300_000, max_failures=0, cpus=3)
    driver = lab.start(plan)
    for number in range(1, 4):
        proxy.wait_for(number, 30, method="PUT", path="weights.bin")
        for agent in lab.agents():
            kill(agent.pid)
    driver.must_finish()
    check_in_order(lab, plan)


@pytest.mark.slow
def test_an_agent_that_hangs_is_replaced(lab: RemoteLab) -> None:
    """Its driver asks it whether it lives, every ten seconds in real life."""
    plan = saving(lab, steps=16, every=2, pause_s=0.05, keep=None, agent_ping_s=1.0)
    driver = lab.start(plan)
    lab.started(driver, reports=4)
    until(lambda: len(lab.agents()) == 1, "the agent is not there")
    kill(lab.agents()[0].pid, signal.SIGSTOP)
    (lab.folder / "hold").unlink()
    driver.must_finish()
    check_in_order(lab, plan)


# --- outages that do not end


def must_not_claim(lab: RemoteLab, driver: Driver) -> str:
    """The driver has ended by itself, and said that not everything is in the store (I9)."""
    assert driver.wait() == 1, driver.output
    assert "fit() has returned" not in driver.output
    assert "NotShippedError" in driver.output, driver.output
    assert lab.url in driver.output.splitlines()[-1]
    lab.check_no_process_left()
    return driver.output


@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "after"), [("denied", "restore"), ("unreachable", "ship")])
def test_a_store_that_stays_away_ends_the_run_in_order_and_nothing_is_lost(
    proxied: tuple[RemoteLab, FaultProxy], trouble: str, after: str
) -> None:
    lab, proxy = proxied
    plan = saving(lab, steps=16, every=2, pause_s=0.05, sync_timeout=1.0, **HURRY)
    driver = lab.start(plan)
    lab.started(driver, reports=4, saved=2)
    before = set(lab.committed_keys())
    if trouble == "denied":
        everything_denied(proxy)
    else:
        proxy.down()
    (lab.folder / "hold").unlink()
    output = must_not_claim(lab, driver)
    assert trouble in output
    assert "not in the store" in output.splitlines()[-1]
    lab.check_nothing_lost()
    assert no_failures(lab.history())
    kept = {key.rpartition("/")[0] for key in lab.committed_keys()}
    assert kept >= {key.rpartition("/")[0] for key in before}, "each trial has its checkpoint still"
    lab.check_manifests_are_whole()
    proxy.clear()
    proxy.up()
    if after == "ship":
        ship(lab)
        assert lab.stored_history() == lab.history()
    lab.start(RemotePlan(), "a").must_finish()
    check_in_order(lab, plan)


def ship(lab: RemoteLab) -> None:
    """`holdfast ship URL`, as the message says."""
    environment = {**os.environ, **lab.environment, "HOLDFAST_LOCAL_CACHE_DIR": str(lab.cache("a"))}
    command = [sys.executable, "-m", "holdfast", "ship", lab.url]
    folder = Path(__file__).parents[1] / "crash"  # the trainable is made of a module there
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_store_that_takes_no_checkpoints_ends_the_run_in_order(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """The journal arrives and checkpoints do not, as with a quota or a policy on a prefix."""
    lab, proxy = proxied
    proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), method="PUT", path="/checkpoint_")
    plan = RemotePlan(trials=2, steps=4, every=2, max_failures=0, **HURRY)
    output = must_not_claim(lab, lab.run(plan))
    assert "checkpoint" in output.splitlines()[-1]
    proxy.clear()
    lab.start(plan).must_finish()
    check_in_order(lab, plan)


@pytest.mark.slow
def test_result_files_that_cannot_be_uploaded_are_no_success(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), method="PUT", path="/result.json")
    plan = RemotePlan(trials=2, steps=4, every=2, max_failures=0, sync_timeout=5.0, **HURRY)
    output = must_not_claim(lab, lab.run(plan))
    assert "result files" in output.splitlines()[-1]
    proxy.clear()
    lab.start(plan).must_finish()
    check_in_order(lab, plan)


@pytest.mark.slow
def test_with_durability_sync_a_store_that_stays_away_ends_the_run_too(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """Each reply waits for the store, so trials stand still; the run must end all the same."""
    lab, proxy = proxied
    plan = saving(lab, steps=8, every=4, keep=None, durability="sync", sync_timeout=1.0, **HURRY)
    driver = lab.start(plan)
    lab.started(driver, reports=3)
    everything_denied(proxy)
    (lab.folder / "hold").unlink()
    acknowledged = {line.token for line in lab.acknowledged()}
    assert driver.wait() == 1, driver.output
    assert "fit() has returned" not in driver.output
    proxy.clear()
    tokens = {event.metrics["token"] for event in lab.stored_history() if isinstance(event, ev.Reported)}
    assert acknowledged <= tokens, "acknowledged with durability='sync' and not in the store"
    lab.start(RemotePlan()).must_finish()
    check_in_order(lab, plan)


@pytest.mark.slow
def test_ctrl_c_during_an_outage_does_not_wait_for_ever(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    plan = RemotePlan(trials=2, steps=200, every=2, pause_s=0.03, max_failures=0, grace_s=1.0, store_timeout_s=3.0)
    driver = lab.start(plan)
    lab.started(driver, reports=4, saved=1)
    proxy.down()
    driver.process.send_signal(signal.SIGINT)
    until(lambda: not [p for p in lab.processes() if p.is_worker] or driver.ended, lambda: driver.output)
    while not driver.ended:
        driver.process.send_signal(signal.SIGINT)
        try:
            driver.process.wait(1.0)
        except subprocess.TimeoutExpired:
            continue
    assert driver.process.returncode != 0, driver.output
    assert "fit() has returned" not in driver.output
    lab.check_no_process_left()
    lab.check_nothing_lost()
    proxy.up()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("saves", [True, False])
def test_a_second_signal_ends_the_wait_of_a_finished_experiment_for_a_dead_store(
    proxied: tuple[RemoteLab, FaultProxy], number: signal.Signals, saves: bool
) -> None:
    """The first one asks for an orderly end, whose grace would last for minutes here."""
    lab, proxy = proxied
    plan = saving(lab, grace_s=600.0, steps=4, every=1 if saves else 100, echo_s=0.01)
    driver = lab.start(plan)
    lab.started(driver, reports=4)
    proxy.down("hang")
    (lab.folder / "hold").unlink()
    until(lambda: ended_attempts(lab) == 2 or driver.ended, lambda: driver.output)
    driver.process.send_signal(number)
    time.sleep(1.1)  # signals that come together are one
    assert not driver.ended, driver.output
    insist(driver, number)
    check_said_what_is_missing(lab, driver, number, ["checkpoints"] if saves else [])
    proxy.up()
    ship(lab)
    assert lab.stored_history() == lab.history()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_wait_of_an_interrupted_experiment_for_a_dead_store(
    proxied: tuple[RemoteLab, FaultProxy], number: signal.Signals
) -> None:
    lab, proxy = proxied
    driver = lab.start(saving(lab, grace_s=600.0, steps=400, pause_s=0.02, echo_s=0.01))
    lab.started(driver, reports=4)
    proxy.down("hang")
    (lab.folder / "hold").unlink()
    driver.process.send_signal(number)
    until(lambda: ended_attempts(lab) == 2 or driver.ended, lambda: driver.output)
    time.sleep(1.1)
    assert not driver.ended, driver.output
    insist(driver, number)
    check_said_what_is_missing(lab, driver, number, ["checkpoints"])
    proxy.up()


def insist(driver: Driver, number: signal.Signals) -> None:
    """Signal once more, and again if the driver was so busy that two signals were one."""
    while not driver.ended:
        driver.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(10.0)


def ended_attempts(lab: RemoteLab) -> int:
    return sum(isinstance(event, ev.AttemptInterrupted | ev.TrialTerminated) for event in lab.history())


def check_said_what_is_missing(lab: RemoteLab, driver: Driver, number: signal.Signals, words: list[str]) -> None:
    last = must_not_claim(lab, driver).splitlines()[-1]
    for word in [f"holdfast ship '{lab.url}'", "records of the journal", number.name, *words]:
        assert word in last
    lab.check_nothing_lost()


# --- at the start


def test_a_claim_that_fails_for_the_store_s_sake_can_be_repeated_by_the_same_process(
    proxied: tuple[RemoteLab, FaultProxy],
) -> None:
    """As in a notebook, where the process stays. The first fit() finds the store closed, a later one does not.

    A refusal is asked about once more if credentials were not just read, so two refusals are one failure or two.
    """
    lab, proxy = proxied
    rule = proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), method="PUT", path="/parts/", times=2)
    plan = RemotePlan(trials=2, steps=4, every=2, fits=3)
    driver = lab.run(plan)
    assert rule.hits
    assert "StoreDeniedError" in driver.output
    driver.must_finish()
    check_in_order(lab, plan)
