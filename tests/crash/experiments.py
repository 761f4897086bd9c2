"""Experiments as users write them, run as driver processes that tests kill: ``experiments.py ROOT PLAN``.

Owns the trainables of the crash tests and the ground truth about them: after each ``report()`` that returned, the
training function itself appends a line to a side file and fsyncs it. The library knows nothing of that file, so it
cannot fake it. Must never look into the experiment's root.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

import holdfast as tune
from holdfast.journal import segment_writer
from holdfast.storage import crashpoint

SIDE = "CRASH_TEST_SIDE"
"""Environment variable: the side file."""

WORKER_CRASH = "CRASH_TEST_WORKER_CRASH"
"""Environment variable: what ``HOLDFAST_CRASH`` is in workers; the variable itself arms the driver alone."""

assert crashpoint  # it has read the environment by now


class Plan(msgspec.Struct, kw_only=True):
    """What a driver process does."""

    train: str = "chain"
    trials: int = 6
    steps: int = 20
    every: int = 5  # steps between checkpoints
    pause_s: float = 0.01  # per step
    bytes: int = 2_000  # of a checkpoint
    hold: str = ""  # trials wait before each step while this file exists,
    hold_at: int = 0  # from this one on
    sprints: bool = False  # the side file survives kills, but no power cut: reports follow at once
    copied: str = "sometimes"  # checkpoints come from elsewhere: "always", "never" or every second one
    seed: int | None = 7
    cpus: float = 2
    keep: int | None = None
    max_failures: int = -1
    fail_fast: bool = False
    grace_s: float = 30.0
    stop: str = ""
    durability: str = "group"
    segment_bytes: int = 0
    takeover: bool = False
    restore: dict[str, bool] = {}
    again: bool = False  # a restore is given the trainable and the space again
    gate: str = ""  # wait for this file before fit()
    creation_gate: str = ""  # and for this one before there is a Tuner


def first_hash(x: float) -> str:
    """The state of a trial before its first step."""
    return hashlib.sha256(repr(x).encode()).hexdigest()


def next_hash(state: str, step: int) -> str:
    """One step of training."""
    return hashlib.sha256(f"{state} {step}".encode()).hexdigest()


def loss_of(config: dict[str, Any], step: int) -> float:
    """Falls with the steps until it does not move any more: sooner for some configs than for others."""
    return round(config["x"] + max(0.0, 1.0 - step * config["rate"]), 6)


# --- what trials do


def load(config: dict[str, Any]) -> tuple[int, str]:
    """Step and state to continue from; a checkpoint that is not whole fails the trial."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return 0, first_hash(config["x"])
    with checkpoint.as_directory() as directory:
        return read(directory)


def read(directory: str) -> tuple[int, str]:
    saved = json.loads((Path(directory) / "state.json").read_text())
    weights = (Path(directory) / "sub" / "weights.bin").read_bytes()
    assert weights == weights_of(saved["hash"], len(weights)), "a checkpoint of two states was loaded"
    assert len(weights) == saved["bytes"], "half a checkpoint was loaded"
    return saved["step"], saved["hash"]


def save(directory: str, step: int, state: str, size: int) -> None:
    folder = Path(directory)
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "weights.bin").write_bytes(weights_of(state, size))
    (folder / "state.json").write_text(json.dumps({"step": step, "hash": state, "bytes": size}))


def weights_of(state: str, size: int) -> bytes:
    return (bytes.fromhex(state) * (size // 32 + 1))[:size]


def acknowledge(step: int, state: str, token: str, saved: bool, sync: bool = True) -> None:
    """Note, durably, that this report was acknowledged; one write, because several trials share the file."""
    line = [tune.get_context().get_trial_id(), step, state, token, saved]
    fd = os.open(os.environ[SIDE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def step_once(config: dict[str, Any], step: int, state: str) -> None:
    """Report one step, with a checkpoint when one is due, and write it down once that has returned."""
    token = uuid.uuid4().hex
    metrics = {"step": step, "hash": state, "loss": loss_of(config, step), "token": token}
    saved = step % config["every"] == 0
    if not saved:
        tune.report(metrics)
    elif config["copied"] == "always" or (config["copied"] == "sometimes" and step // config["every"] % 2):
        with tempfile.TemporaryDirectory() as directory:
            save(directory, step, state, config["bytes"])
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))
    else:
        with tune.checkpoint_dir() as directory:
            save(directory, step, state, config["bytes"])
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(directory))
    acknowledge(step, state, token, saved, sync=not config["sprints"])


def chain(config: dict[str, Any]) -> None:
    """Each step's state is a hash of the one before it, so every lost or repeated step shows."""
    start, state = load(config)
    for step in range(start + 1, config["steps"] + 1):
        time.sleep(config["pause_s"])
        while step >= config["hold_at"] and config["hold"] and os.path.exists(config["hold"]):
            time.sleep(0.005)
        state = next_hash(state, step)
        step_once(config, step, state)


class ChainClass(tune.Trainable):
    """The same as a class: a step has been acknowledged when the next one begins."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count, self.state = 0, first_hash(config["x"])
        self.reported: tuple[int, str, str] | None = None

    def step(self) -> dict[str, Any]:
        if self.reported is not None:
            acknowledge(*self.reported, saved=False)
        time.sleep(self.config["pause_s"])
        self.count += 1
        self.state = next_hash(self.state, self.count)
        token = uuid.uuid4().hex
        self.reported = (self.count, self.state, token)
        metrics = {"step": self.count, "hash": self.state, "loss": loss_of(self.config, self.count), "token": token}
        return metrics | {"done": self.count >= self.config["steps"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        save(checkpoint_dir, self.count, self.state, self.config["bytes"])

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count, self.state = read(checkpoint_dir)
        self.reported = None


GRANDCHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if sys.argv[1] == "daemon":
    os.setsid()
    if os.fork():
        os._exit(0)
open(sys.argv[2] + "/" + str(os.getpid()), "w").close()
os.close(int(sys.argv[3]))
time.sleep(600)
"""


def breeding(config: dict[str, Any]) -> None:
    """Starts processes that ignore every polite signal: one child, one daemon that left session and parent."""
    folder = os.path.dirname(os.environ[SIDE]) + "/grandchildren"
    os.makedirs(folder, exist_ok=True)
    reading, writing = os.pipe()
    for kind in ("child", "daemon"):
        subprocess.Popen([sys.executable, "-S", "-c", GRANDCHILD, kind, folder, str(writing)], pass_fds=[writing])
    if os.fork() == 0:  # a fork that never executes anything, as data loaders are
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        Path(folder, str(os.getpid())).touch()
        os.close(writing)
        time.sleep(600)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)  # it ends when the last of the three is there
    os.close(reading)
    chain(config)


def failing(config: dict[str, Any]) -> None:
    """Has children as well, and raises after three steps."""
    breeding(config | {"steps": 3})
    raise ValueError("this trial fails")


# --- stop rules with a memory


class NoProgress(tune.Stopper):
    """Ends a trial that has not improved for three results. Remembers, and cannot say what: no ``get_state``."""

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, int]] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        best, at = self.best.get(trial_id, (float("inf"), 0))
        step = result["training_iteration"]
        if result["loss"] < best:
            best, at = result["loss"], step
        self.best[trial_id] = (best, at)
        return step - at >= 3

    def stop_all(self) -> bool:
        return False


class Counting(tune.Stopper):
    """Ends a trial after so many results, counted by itself: a repeated one must not count twice."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.counts[trial_id] = self.counts.get(trial_id, 0) + 1
        return self.counts[trial_id] >= 5 + int(10 * result["config"]["rate"])

    def rewind(self, trial_id: str, rows: int) -> None:
        self.counts[trial_id] = min(rows, self.counts.get(trial_id, 0))

    def stop_all(self) -> bool:
        return False


def stop_rule(name: str) -> Any:
    rules = {
        "plateau": lambda: tune.stopper.TrialPlateauStopper("loss", std=1e-9, num_results=4, grace_period=5),
        "no progress": NoProgress,
        "counting": Counting,
        "": lambda: None,
    }
    return rules[name]()


# --- the driver


def make_tuner(root: str, plan: Plan) -> tune.Tuner:
    """Continue the experiment at ``root`` if there is one; otherwise begin it."""
    trainable = {"chain": chain, "class": ChainClass, "breeding": breeding, "failing": failing}[plan.train]
    space = {
        "x": tune.uniform(0, 1),
        "rate": tune.choice([0.05, 0.1, 0.2, 0.4]),
        "steps": plan.steps,
        "every": plan.every,
        "pause_s": plan.pause_s,
        "bytes": plan.bytes,
        "copied": plan.copied,
        "sprints": plan.sprints,
        "hold": plan.hold,
        "hold_at": plan.hold_at,
    }
    if tune.Tuner.can_restore(root):
        again = {"trainable": trainable, "param_space": space} if plan.again else {}
        return tune.Tuner.restore(root, takeover=plan.takeover, **plan.restore, **again)
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=plan.trials, seed=plan.seed, metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=os.path.basename(root),
            storage_path=os.path.dirname(root),
            stop=stop_rule(plan.stop),
            verbose=1,
            engine=tune.LocalEngine(cpus=plan.cpus),
            durability=plan.durability,
            failure_config=tune.FailureConfig(
                max_failures=plan.max_failures, grace_s=plan.grace_s, fail_fast=plan.fail_fast
            ),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=plan.keep, checkpoint_frequency=plan.every if plan.train == "class" else 0
            ),
        ),
    )


def wait_for(gate: str) -> None:
    """Say that this process is ready and wait for the others."""
    if gate:
        print("ready", flush=True)
        while not os.path.exists(gate):
            time.sleep(0.001)


def main(root: str, text: str) -> None:
    """One driver's life."""
    os.environ.pop("HOLDFAST_CRASH", None)
    if WORKER_CRASH in os.environ:
        os.environ["HOLDFAST_CRASH"] = os.environ.pop(WORKER_CRASH)
    plan = msgspec.json.decode(text, type=Plan)
    if plan.segment_bytes:
        segment_writer.SEGMENT_BYTES = plan.segment_bytes
    wait_for(plan.creation_gate)
    tuner = make_tuner(root, plan)
    wait_for(plan.gate)
    grid = tuner.fit()
    print(f"fit() has returned, errors: {grid.num_errors}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
