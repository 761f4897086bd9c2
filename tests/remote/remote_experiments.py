"""Experiments in stores, run as driver processes that tests kill: ``remote_experiments.py URL PLAN``.

The trainable is the one of the crash tests, and so is the ground truth: a side file that the training function itself
writes after each ``report()`` that returned; here with the time. Limits that are minutes in real life can be set to
seconds by the plan. Must never look into the mirror or the store.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "crash"))

import experiments  # it has read the environment by now
import msgspec

import holdfast as tune
from holdfast.controller import remote_backend, shipped_journal, signals
from holdfast.journal import epoch, segment_writer
from holdfast.shipping import shipper
from holdfast.storage import agent_client, agent_link, options

AGENT_CRASH = "REMOTE_TEST_AGENT_CRASH"
"""Environment variable: what ``HOLDFAST_CRASH`` is in the storage agent."""


class RemotePlan(experiments.Plan, kw_only=True):
    """What a driver process of an experiment in a store does."""

    trials: int = 4
    machine: str = ""  # pretend to be on this one
    silence_s: float = 0.0  # after which a driver on another machine counts as dead
    denied_s: float = 0.0  # how long a refusing store is waited for
    last_words_s: float = 0.0  # how long a driver that gave up tries to let go
    reply_s: float = 0.0  # how long an append of durability="sync" waits at a time
    store_timeout_s: float = 0.0  # of small requests
    agent_ping_s: float = 0.0  # how often an agent is asked whether it lives
    echo_s: float = 0.0  # within which a signal that comes again is the same one
    sync_timeout: float = 1800.0
    sync_period: float = 300.0
    wait_for_commit: bool = False
    backlog: int | None = None  # bytes of checkpoints that may wait for the store
    unfenced: bool = False
    merging: int = 0  # so many parts become one object, and as many of the newest stay single
    anew: bool = False  # do not restore what is there
    restore_only: bool = False  # do not begin the experiment if it is not there
    slow: str = ""  # while this file exists, each step takes much longer
    fits: int = 1  # call fit() so often if it raises


# --- what trials do

SLOW_S = 0.3


def acknowledge(step: int, state: str, token: str, saved: bool) -> None:
    """Note, durably, that this report was acknowledged, and when."""
    line = [tune.get_context().get_trial_id(), step, state, token, saved, time.time()]
    fd = os.open(os.environ[experiments.SIDE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def step_once(config: dict[str, Any], step: int, state: str) -> None:
    """Report one step, with a checkpoint when one is due, and write it down once that has returned."""
    token = uuid.uuid4().hex
    metrics = {"step": step, "hash": state, "loss": experiments.loss_of(config, step), "token": token}
    saved = step % config["every"] == 0
    if not saved:
        tune.report(metrics)
    else:
        with tempfile.TemporaryDirectory() as directory:
            experiments.save(directory, step, state, config["bytes"])
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))
    acknowledge(step, state, token, saved)


def chain(config: dict[str, Any]) -> None:
    """Each step's state is a hash of the one before it, so every lost or repeated step shows."""
    start, state = experiments.load(config)
    for step in range(start + 1, config["steps"] + 1):
        while config["hold"] and step >= config["hold_at"] and os.path.exists(config["hold"]):
            time.sleep(0.01)
        time.sleep(SLOW_S if config["slow"] and os.path.exists(config["slow"]) else config["pause_s"])
        state = experiments.next_hash(state, step)
        step_once(config, step, state)


# --- the driver


def make_tuner(url: str, plan: RemotePlan) -> tune.Tuner:
    """Continue the experiment at ``url`` if there is one; otherwise begin it."""
    if plan.restore_only or (not plan.anew and tune.Tuner.can_restore(url)):
        return tune.Tuner.restore(url, takeover=plan.takeover, **plan.restore)
    storage, _, name = url.rpartition("/")
    return tune.Tuner(
        chain,
        param_space={
            "x": tune.uniform(0, 1),
            "rate": tune.choice([0.05, 0.1, 0.2, 0.4]),
            "steps": plan.steps,
            "every": plan.every,
            "pause_s": plan.pause_s,
            "bytes": plan.bytes,
            "slow": plan.slow,
            "hold": plan.hold,
            "hold_at": plan.hold_at,
        },
        tune_config=tune.TuneConfig(num_samples=plan.trials, seed=plan.seed, metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=name,
            storage_path=storage,
            verbose=1,
            engine=tune.LocalEngine(cpus=plan.cpus),
            durability=plan.durability,
            failure_config=tune.FailureConfig(max_failures=plan.max_failures, grace_s=plan.grace_s),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=plan.keep, wait_for_commit=plan.wait_for_commit),
            sync_config=tune.SyncConfig(
                sync_timeout=plan.sync_timeout,
                sync_period=plan.sync_period,
                unfenced_store=plan.unfenced,
                max_backlog_bytes=plan.backlog,
            ),
        ),
    )


def set_limits(plan: RemotePlan) -> None:
    """Make seconds of what are minutes."""
    if plan.segment_bytes:
        segment_writer.SEGMENT_BYTES = plan.segment_bytes
    if plan.echo_s:
        signals.ECHO_S = plan.echo_s
    if plan.machine:
        epoch.this_machine = lambda: plan.machine
    if plan.silence_s:
        epoch.SILENCE_S = plan.silence_s
    if plan.denied_s:
        shipped_journal.DENIED_S = plan.denied_s
    if plan.merging:
        remote_backend.Shipper = functools.partial(shipper.Shipper, merging=(plan.merging, plan.merging))
    if plan.last_words_s:
        remote_backend.LAST_WORDS_S = plan.last_words_s
    if plan.reply_s:
        shipped_journal.SYNC_REPLY_S = plan.reply_s
    if plan.store_timeout_s:
        limited = functools.partial(options.StoreOptions, timeout_s=plan.store_timeout_s)
        agent_client.StoreOptions = limited
    if plan.agent_ping_s:
        agent_link._PING_EVERY_S = plan.agent_ping_s


def main(url: str, text: str) -> None:
    """One driver's life."""
    logging.basicConfig(level=logging.WARNING)
    os.environ.pop("HOLDFAST_CRASH", None)
    if AGENT_CRASH in os.environ:
        os.environ["HOLDFAST_CRASH"] = os.environ.pop(AGENT_CRASH)
    plan = msgspec.json.decode(text, type=RemotePlan)
    set_limits(plan)
    experiments.wait_for(plan.creation_gate)
    tuner = make_tuner(url, plan)
    experiments.wait_for(plan.gate)
    for left in reversed(range(plan.fits)):
        try:
            grid = tuner.fit()
            break
        except Exception as error:
            if not left:
                raise
            print(f"{type(error).__name__}: {error}", flush=True)
    print(f"fit() has returned, errors: {grid.num_errors}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
