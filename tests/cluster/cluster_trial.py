"""An experiment for the tests of clusters: its settings are its argument, as JSON."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import copy_over_tcp

import holdfast as tune

SETTINGS: dict[str, Any] = {
    "trials": 1,
    "steps": 20,
    "sleep_s": 0.1,
    "every": 1,  # steps between checkpoints
    "bytes": 0,  # that each checkpoint has besides
    "hold": False,  # wait for the file "go" in the side directory after the last step
    "max_failures": 0,
    "engine": "ray",
    "requests": {},
    "together": 0,  # so many trials have to run at the same time before they go on
    "children": False,  # leave processes that detach themselves
    "exits_at": 0,  # the first attempt that reaches this step exits with code 7
    "takes": 0,  # so many bytes of memory are taken and kept after the first step, slowly
    "shared": False,  # all machines see the root
    "sync": {},  # of SyncConfig; a syncer "function:NOTES" is a function of this module
    "listen": {},  # RayEngine's host and port
    "restore": {},
}

CONFIG = ("steps", "sleep_s", "every", "bytes", "children", "together", "exits_at", "takes")


def train(config: dict[str, Any]) -> None:
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            step = json.loads(Path(directory, "state.json").read_text())["step"]
    host = os.uname().nodename
    with open(config["notes"].format(config["k"]), "a", buffering=1) as notes:

        def note(what: str, **more: Any) -> None:
            facts = {"what": what, "step": step, "host": host, "pid": os.getpid(), "at": time.time(), **more}
            notes.write(json.dumps(facts) + "\n")

        note("start")
        while len(glob.glob(config["notes"].format("*"))) < config.get("together", 0):
            time.sleep(0.05)
        if config.get("children"):
            leave_children(note)
        print(f"trial {config['k']} begins after step {step} on {host}")
        while step < config["steps"]:
            time.sleep(config["sleep_s"])
            step += 1
            note("report")
            if step % config["every"]:
                tune.report({"step": step, "host": host})
            else:
                with tempfile.TemporaryDirectory() as directory:
                    Path(directory, "state.json").write_text(json.dumps({"step": step}))
                    if config["bytes"]:
                        Path(directory, "data").write_bytes(os.urandom(1 << 16) * (config["bytes"] >> 16))
                    tune.report({"step": step, "host": host}, checkpoint=tune.Checkpoint.from_directory(directory))
            note("ack")
            if step == config.get("exits_at"):
                exit_once(config["notes"].format(f"{config['k']}-exited"))
            if config.get("takes"):
                take_memory(config["takes"])
        Path("artifact.txt").write_text(host)


def exit_once(flag: str) -> None:
    """Exit, but only once."""
    if not os.path.exists(flag):
        Path(flag).touch()
        os._exit(7)


def take_memory(size: int) -> None:
    kept = []
    for _ in range(size >> 24):
        kept.append(bytearray(os.urandom(1 << 20)) * 16)
        time.sleep(0.02)


def leave_children(note: Callable[..., None]) -> None:
    """Start a process in a session of its own, and a daemon that nobody is the parent of; note both."""
    with subprocess.Popen(["sleep", "10000"], start_new_session=True) as child:
        note("child", of=child.pid)
        child.returncode = 0  # it is not waited for
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writable, str(os.getpid()).encode())
            os.close(writable)
            time.sleep(10000)
        os._exit(0)
    os.close(writable)
    note("child", of=int(os.read(readable, 100)))
    os.close(readable)


def sync_config(given: dict[str, Any]) -> tune.SyncConfig:
    kind, _, notes = str(given.get("syncer", "")).partition(":")
    return tune.SyncConfig(**(given | {"syncer": partial(copy_over_tcp.copy, notes)} if kind == "function" else given))


def saved_step(result: tune.Result) -> int | None:
    """The step of the last checkpoint; None if there is none on this machine."""
    if result.checkpoint is None or "://" in result.checkpoint.path:
        return None
    with result.checkpoint.as_directory() as directory:
        return json.loads(Path(directory, "state.json").read_text())["step"]


def main() -> None:
    settings = {**SETTINGS, **json.loads(sys.argv[1])}
    cluster = tune.RayEngine(address=settings["address"], **settings["listen"])
    engine = cluster if settings["engine"] == "ray" else "local"
    path = os.path.join(settings["root"], settings["name"])
    failure_config = tune.FailureConfig(max_failures=settings["max_failures"])
    trainable = tune.with_resources(train, settings["requests"]) if settings["requests"] else train
    if tune.Tuner.can_restore(path):
        config = tune.RunConfig(engine=engine, verbose=1)
        tuner = tune.Tuner.restore(path, trainable=trainable, run_config=config, **settings["restore"])
    else:
        space = {name: settings[name] for name in CONFIG}
        space["k"] = tune.grid_search(list(range(settings["trials"])))
        space["notes"] = os.path.join(settings["side"], settings["name"] + "-{}.jsonl")
        config = tune.RunConfig(
            name=settings["name"],
            storage_path=settings["root"],
            engine=engine,
            failure_config=failure_config,
            log_to_file=settings.get("log_to_file", False),
            sync_config=tune.SyncConfig(syncer=None) if settings["shared"] else sync_config(settings["sync"]),
            verbose=1,
        )
        tuner = tune.Tuner(trainable, param_space=space, run_config=config)
    try:
        results = tuner.fit()
    except (tune.TuneError, ValueError) as error:
        print("RESULT " + json.dumps({"refused": str(error)}))
        return
    trials = [
        {
            "k": result.config["k"],
            "step": (result.metrics or {}).get("step"),
            "host": (result.metrics or {}).get("host"),
            "error": str(result.error) if result.error else "",
            "artifact": Path(result.path, "artifact.txt").exists(),
            "checkpoints": len(result.best_checkpoints),
            "saved": saved_step(result),
            "steps": [row["step"] for row in result.metrics_history],
        }
        for result in results
    ]
    print("RESULT " + json.dumps({"trials": sorted(trials, key=lambda trial: trial["k"])}))


if __name__ == "__main__":
    main()
