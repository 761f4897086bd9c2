"""How long ``report(checkpoint=...)`` keeps the training waiting.

"In place" is a directory from ``checkpoint_dir()``; "foreign" is a directory of the user, which has to be copied.
``cp -r`` of the same files runs between the reports, in the same trial.

Apart, each checkpoint finds an idle disk. Back to back, it is reported while those before it are still being committed.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench

MB = 1 << 20
IN_TURN = 6
"""Checkpoints that are reported back to back."""

SHAPES = {"256 MB": (1, 256 * MB), "200 x 64 KB": (200, 64 << 10)}


def run(bench: Bench) -> None:
    """Measure one large file and many small ones."""
    from benchmarks.harness import OURS, Call, at_most

    repeats, rounds = (1, 3) if bench.quick else (3, 5)
    for shape, (files, size) in SHAPES.items():
        arguments = {"files": files, "size": size, "rounds": rounds}
        found = bench.alternate(
            [Call(OURS, "holdfast", arguments), Call("ray tune", "ray", arguments, peer="ray")], repeats
        )
        if OURS not in found:
            continue
        blocked = {label: _flat(runs, "foreign_s", 1000) for label, runs in found.items()}
        cp = _flat(found[OURS], "cp_s", 1000)
        in_place = {OURS: _flat(found[OURS], "in_place_s", 1000), "ray tune": blocked.get("ray tune", [])}
        bench.row(f"{shape} in place: blocked in report()", "ms", in_place, at_most(20))
        bench.row(f"{shape} foreign: blocked in report()", "ms", {**blocked, "cp -r": cp})
        bench.row(f"{shape} foreign: blocked / cp -r beside it", "x", bench.figures(found, "of_cp"), at_most(1.2))
        in_turn = {label: _flat(runs, "foreign_in_turn_s", 1000) for label, runs in found.items()}
        mine = {OURS: _flat(found[OURS], "in_place_in_turn_s", 1000)}
        bench.row(f"{shape} in place, back to back: blocked in report()", "ms", mine)
        bench.row(f"{shape} foreign, back to back: blocked in report()", "ms", in_turn)


def _flat(runs: list[dict[str, Any]], key: str, factor: float) -> list[float]:
    return [value * factor for run in runs for value in run.get(key, [])]


def _fill(path: str, files: int, size: int) -> None:
    """Files of random bytes: nothing may profit from zeros."""
    os.makedirs(path, exist_ok=True)
    piece = os.urandom(min(size, 4 * MB))
    for number in range(files):
        with open(os.path.join(path, f"part-{number:04d}"), "wb") as file:
            for _ in range(size // len(piece)):
                file.write(piece)


def _settle() -> None:
    """Whatever was written before, in the background too, is not for the next action to wait for."""
    os.sync()
    time.sleep(0.5)
    os.sync()


def _timed(action: Any) -> float:
    _settle()
    return _seconds(action)


def _seconds(action: Any) -> float:
    before = time.monotonic()
    action()
    return time.monotonic() - before


def _copy_rounds(tune: Any, home: str, files: int, size: int, rounds: int) -> dict[str, list[float]]:
    """In a trial: report a foreign directory and copy it with ``cp``, in turns.

    No copy is removed before the end: one that reuses memory and blocks which were freed just now is several times
    faster, and that would be always the same one.
    """
    import shutil
    import subprocess

    source, copies = os.path.join(home, "source"), os.path.join(home, "copies")
    _fill(source, files, size)
    os.mkdir(copies)

    def report() -> None:
        tune.report({"loss": 0.0}, checkpoint=tune.Checkpoint.from_directory(source))

    def copy(number: int) -> None:
        subprocess.run(["cp", "-r", source, os.path.join(copies, str(number))], check=True)

    figures: dict[str, list[float]] = {"foreign_s": [], "cp_s": []}
    for number in range(rounds):
        figures["foreign_s"].append(_timed(report))
        figures["cp_s"].append(_timed(lambda: copy(number)))  # noqa: B023
    _settle()
    figures["foreign_in_turn_s"] = [_seconds(report) for _ in range(IN_TURN)]
    shutil.rmtree(copies)
    return figures


def _write(home: str, figures: dict[str, list[float]]) -> None:
    import json

    with open(os.path.join(home, "figures"), "w") as file:
        json.dump(figures, file)


def _read(home: str) -> dict[str, Any]:
    import json
    import shutil
    import statistics

    with open(os.path.join(home, "figures")) as file:
        figures: dict[str, Any] = json.load(file)
    shutil.rmtree(os.path.join(home, "ckpt"))  # gigabytes; few enough files not to slow what follows
    return {**figures, "of_cp": statistics.median(figures["foreign_s"]) / statistics.median(figures["cp_s"])}


def holdfast(files: int, size: int, rounds: int) -> dict[str, Any]:
    """One trial; both ways."""
    import holdfast as tune

    home = os.environ["HOME"]

    def report_in_place() -> float:
        with tune.checkpoint_dir() as path:
            _fill(path, files, size)
            checkpoint = tune.Checkpoint.from_directory(path)
            return _seconds(lambda: tune.report({"loss": 0.0}, checkpoint=checkpoint))

    def train(config: dict[str, Any]) -> None:
        figures: dict[str, list[float]] = {"in_place_s": []}
        for _ in range(rounds):
            _settle()
            figures["in_place_s"].append(report_in_place())
        _settle()
        figures["in_place_in_turn_s"] = [report_in_place() for _ in range(IN_TURN)]
        _write(home, {**figures, **_copy_rounds(tune, home, files, size, rounds)})

    grid = tune.Tuner(train, run_config=tune.RunConfig(name="ckpt", storage_path=home, verbose=0)).fit()
    assert grid[0].checkpoint is not None
    return _read(home)


def ray(files: int, size: int, rounds: int) -> dict[str, Any]:
    """One trial; Ray Tune knows the foreign way only."""
    from ray import tune

    home = os.environ["HOME"]

    def train(config: dict[str, Any]) -> None:
        _write(home, _copy_rounds(tune, home, files, size, rounds))

    with child.ray_cluster(2):
        tune.Tuner(train, run_config=tune.RunConfig(name="ckpt", storage_path=home, verbose=0)).fit()
    return _read(home)


if __name__ == "__main__":
    child.main(globals())
