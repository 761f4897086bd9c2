"""A trial that saves checkpoints to S3 while it trains: how long it waits, and how fast its steps are meanwhile.

One trial, ten rounds: write a checkpoint, report it, make steps. The writing is the trial's own affair and does not
count as waiting. The same rounds without checkpoints tell how fast the steps can be. Steps *on a device* wait, as for
an accelerator. Steps *on a core* compute, and share two cores with the upload and with the server, which takes most.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench
    from benchmarks.loopback import Loopback

MB = 1 << 20
ROUNDS = 10
STEP_S = 0.01
RAY, FOREIGN, NONE, ON_CORE = "ray tune", "holdfast, foreign", "holdfast, none", ", on a core"
_HASHED = bytes(MB)


def run(bench: Bench) -> None:
    """Measure one trial at a time, each into a bucket of its own."""
    from benchmarks.harness import OURS
    from benchmarks.loopback import serve

    size, compute_s, repeats = (64 * MB, 1.5, 1) if bench.quick else (256 * MB, 5.0, 2)
    common = {"size": size, "steps": round(compute_s / STEP_S), "hashes": _hashes_per_step()}
    with serve(bench) as server:
        found = _in_turns(bench, server, common, repeats)
    if OURS in found:
        _rows(bench, f"{ROUNDS} x {size // MB} MB", found)


def _in_turns(bench: Bench, server: Loopback, common: dict[str, int], repeats: int) -> dict[str, list[dict[str, Any]]]:
    from benchmarks.harness import OURS, Call

    found: dict[str, list[dict[str, Any]]] = {}
    on_device = {**common, "hashes": 0}
    for _ in range(repeats):
        for label, function, arguments in (
            (OURS, "holdfast", {**on_device, "way": "in place"}),
            (RAY, "ray", {**on_device, "way": "foreign"}),
            (FOREIGN, "holdfast", {**on_device, "way": "foreign"}),
            (NONE, "holdfast", {**on_device, "way": "none"}),
            (f"{OURS}{ON_CORE}", "holdfast", {**common, "way": "in place"}),
            (f"{NONE}{ON_CORE}", "holdfast", {**common, "way": "none"}),
        ):
            with server.bucket() as bucket:
                peer = "" if function == "holdfast" else function
                given = {**arguments, "bucket": bucket, "endpoint": server.endpoint}
                call = Call(label, function, given, peer=peer, env=server.environment)
                before = server.cpu_s()
                for runs in bench.alternate([call], 1).values():
                    found.setdefault(label, []).append({**runs[0], "server_s": server.cpu_s() - before})
    return found


def _rows(bench: Bench, shape: str, found: dict[str, list[dict[str, Any]]]) -> None:
    from benchmarks.harness import OURS, at_least, at_most

    blocked = bench.figures(found, "blocked_s")
    theirs = blocked.get(RAY, [])
    for way, label in (("in place", OURS), ("foreign", FOREIGN)):
        ours = blocked.get(label, [])
        bench.row(f"{shape} {way}: blocked in report(), all together", "s", {OURS: ours, RAY: theirs})
        if theirs:
            shares = {OURS: [100 * value / statistics.median(theirs) for value in ours]}
            bench.row(f"{shape} {way}: blocked, of Ray Tune's", "%", shares, at_most(10))
    for key, what in (("longest_s", "longest report()"), ("total_s", "the whole of fit()")):
        figures = bench.figures(found, key)
        bench.row(f"{shape}: {what}", "s", {label: figures.get(label, []) for label in (OURS, RAY)})
    shares = {label: _shares(found, label, NONE) for label in (OURS, RAY)}
    bench.row(f"{shape}: steps on a device, of their rate without checkpoints", "%", shares, at_least(95))
    shares = {OURS: _shares(found, f"{OURS}{ON_CORE}", f"{NONE}{ON_CORE}")}
    bench.row(f"{shape}: steps on a core, of their rate without checkpoints", "%", shares, at_least(95))
    bench.row(f"{shape}: CPU of holdfast and of writing the files", "s", {OURS: bench.figures(found, "beside_s")[OURS]})
    bench.row(f"{shape}: CPU of the server meanwhile", "s", {OURS: bench.figures(found, "server_s")[OURS]})


def _shares(found: dict[str, list[dict[str, Any]]], label: str, without: str) -> list[float]:
    """Each run's rate of steps in per cent of the run without checkpoints of the same turn."""
    pairs = zip(found.get(label, []), found.get(without, []), strict=False)
    return [100 * run["rate"] / alone["rate"] for run, alone in pairs]


# --- in the measured processes


def _hashes_per_step() -> int:
    """How many megabytes this machine hashes in the time of a step: the same work for everybody."""
    import hashlib

    done, began = 0, time.monotonic()
    while time.monotonic() - began < 50 * STEP_S:
        hashlib.sha256(_HASHED).digest()
        done += 1
    return max(1, done // 50)


def _step(hashes: int) -> None:
    import hashlib

    if not hashes:
        time.sleep(STEP_S)
    for _ in range(hashes):
        hashlib.sha256(_HASHED).digest()


def _write(path: str, size: int) -> None:
    """A file of random bytes, because nothing may profit from zeros."""
    piece = os.urandom(4 * MB)
    with open(os.path.join(path, "weights"), "wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)


def _trainable(tune: Any, home: str, size: int, steps: int, hashes: int, way: str) -> Any:
    import tempfile

    def report(checkpoint: Any = None) -> float:
        before = time.monotonic()
        tune.report({"loss": 0.0}, checkpoint=checkpoint)
        return time.monotonic() - before

    def save_and_report() -> float:
        if way == "none":
            return report()
        if way == "in place":
            with tune.checkpoint_dir() as path:
                _write(path, size)
            return report(tune.Checkpoint.from_directory(path))
        with tempfile.TemporaryDirectory(dir=home) as path:
            _write(path, size)
            return report(tune.Checkpoint.from_directory(path))

    def train(config: dict[str, Any]) -> None:
        import json

        figures: dict[str, list[float]] = {"reports": [], "computing": [], "cpu": []}
        for _ in range(ROUNDS):
            figures["reports"].append(save_and_report())
            before, cpu = time.monotonic(), time.thread_time()
            for _ in range(steps):
                _step(hashes)
            figures["computing"].append(time.monotonic() - before)
            figures["cpu"].append(time.thread_time() - cpu)
        with open(os.path.join(home, "figures"), "w") as file:
            json.dump(figures, file)

    return train


def _figures(home: str, steps: int, total_s: float) -> dict[str, Any]:
    import json

    with open(os.path.join(home, "figures")) as file:
        figures = json.load(file)
    busy_s = sum(figures["reports"]) + sum(figures["computing"])
    return {
        **figures,
        "blocked_s": sum(figures["reports"]),
        "longest_s": max(figures["reports"]),
        "rate": ROUNDS * steps / busy_s,
        "total_s": total_s,
        "beside_s": _cpu_of_run() - sum(figures["cpu"]),
    }


def _cpu_of_run() -> float:
    """CPU time of all processes of this run, which have its mark in their environment."""
    from pathlib import Path

    from benchmarks.harness import MARK
    from benchmarks.loopback import cpu_of

    wanted, total = f"{MARK}={os.environ[MARK]}".encode(), 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                total += cpu_of(entry.name)
        except OSError:
            continue
    return total


def holdfast(size: int, steps: int, hashes: int, way: str, bucket: str, endpoint: str) -> dict[str, Any]:
    """One trial; fit() returns when everything is in the bucket."""
    import shutil

    import holdfast as tune

    home = os.environ["HOME"]
    mirror = os.environ["HOLDFAST_LOCAL_CACHE_DIR"] = os.path.join(home, "mirror")
    tuner = tune.Tuner(
        _trainable(tune, home, size, steps, hashes, way),
        run_config=tune.RunConfig(name="ckpt", storage_path=f"s3://{bucket}", verbose=0),
    )
    before = time.monotonic()
    grid = tuner.fit()
    total_s = time.monotonic() - before
    assert grid.num_errors == 0
    assert (grid[0].checkpoint is None) == (way == "none")
    shutil.rmtree(mirror)  # gigabytes; few enough files not to slow what follows
    return _figures(home, steps, total_s)


def ray(size: int, steps: int, hashes: int, way: str, bucket: str, endpoint: str) -> dict[str, Any]:
    """One trial; the start of the cluster is not counted."""
    from pyarrow.fs import S3FileSystem
    from ray import tune

    home = os.environ["HOME"]
    filesystem = S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["AWS_REGION"],
        endpoint_override=endpoint,
    )
    with child.ray_cluster(2):
        tuner = tune.Tuner(
            _trainable(tune, home, size, steps, hashes, way),
            run_config=tune.RunConfig(
                name="ckpt", storage_path=f"{bucket}/ray", storage_filesystem=filesystem, verbose=0
            ),
        )
        before = time.monotonic()
        grid = tuner.fit()
        total_s = time.monotonic() - before
        assert grid.num_errors == 0
        assert (grid[0].checkpoint is None) == (way == "none")
        return _figures(home, steps, total_s)


if __name__ == "__main__":
    child.main(globals())
