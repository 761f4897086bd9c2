"""Real experiments to be damaged: made by real drivers, with everything that a root can hold.

``python tests/fuzz/corpus.py [KIND...]`` makes those in ``recorded/`` anew. Tests use these, so that a seed means the
same damage on every machine; ``build`` makes others.

An experiment here has several journal segments (its drivers were killed), snapshots, values that are not plain data,
checkpoints of files and of dicts, a failed trial, a finished and an unfinished one. That of the kind "reports" has
neither checkpoints nor snapshots: what its journal loses is known by its result files alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

STEPS = 6
RECORDED = Path(__file__).parent / "recorded"

KINDS: dict[str, dict[str, Any]] = {
    "unfinished": {"kills": (5, 6, 6)},
    "finished": {"kills": (5, 7, 0)},
    # Its last driver has let go: of a killed one nothing in a store tells whether the newest part was ever sent.
    "store": {"kills": (5, 7, 0), "store": True},
    # What was not synced yet may be torn by a power cut, so a fault there is no proof of anything.
    "reports": {"kills": (13,), "trainable": "report_only", "snapshot_period_s": 10_000, "settle_s": 2.0},
}

KILL_AFTER = "HOLDFAST_TEST_KILL_AFTER"
"""Environment variable: results after which a driver is killed."""

SETTLE_S = "HOLDFAST_TEST_SETTLE_S"
"""Environment variable: how long it waits before, so that its records are synced and its result files written."""


class Thing:
    """A value that a journal cannot hold."""

    def __init__(self, weight: int) -> None:
        self.weight = weight


def expected(config: dict[str, Any], step: int) -> float:
    """What a trial reports at a step."""
    weight = config["thing"].weight if isinstance(config["thing"], Thing) else config["thing"]
    return float(config["x"] * 100 + step + weight)


def train(config: dict[str, Any]) -> None:
    """Counts up to ``STEPS``, with a checkpoint at every step; one of the trials fails half-way."""
    import holdfast as tune

    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        start = checkpoint.to_dict()["step"]
    for step in range(start + 1, STEPS + 1):
        if config["x"] == 2 and step == 4:
            raise ValueError("this trial fails by design")
        value = expected(config, step)
        state = {"step": step, "value": value, "bulk": bytes(range(256)) * 4}
        tune.report({"value": value, "nested": {"step": step}}, checkpoint=tune.Checkpoint.from_dict(state))


def report_only(config: dict[str, Any]) -> None:
    """What ``train`` does, without checkpoints."""
    import holdfast as tune

    for step in range(1, STEPS + 1):
        if config["x"] == 2 and step == 4:
            raise ValueError("this trial fails by design")
        tune.report({"value": expected(config, step), "nested": {"step": step}})


_DRIVER = """
import sys, time
sys.path.insert(0, {here!r})
import corpus, holdfast as tune
place, store = sys.argv[1], sys.argv[2] == "store"
filesystem = None
if store:
    from fsspec.implementations.local import LocalFileSystem
    filesystem = LocalFileSystem()

class Kill(tune.Callback):
    seen = 0
    def on_trial_result(self, **info):
        self.seen += 1
        # Who judges the damage resumes the experiment without being killed.
        if str(self.seen) == corpus.os.environ.get(corpus.KILL_AFTER):
            time.sleep(float(corpus.os.environ[corpus.SETTLE_S]))
            corpus.os.kill(corpus.os.getpid(), 9)

run_config = tune.RunConfig(name="exp", storage_path=place, storage_filesystem=filesystem, verbose=0,
                            callbacks=[Kill()], engine=tune.LocalEngine(cpus=1), if_exists="resume",
                            sync_config=tune.SyncConfig(unfenced_store=store))
tune.Tuner(
    getattr(corpus, sys.argv[3]),
    param_space={{"x": tune.grid_search([1, 2, 3, 4]), "thing": corpus.Thing(5), "kind": ("a", 1)}},
    tune_config=tune.TuneConfig(metric="value", mode="max", seed=7),
    run_config=run_config,
).fit()
"""


def unpack(kind: str, folder: Path) -> Path:
    """Lay out a recorded experiment below ``folder``."""
    with tarfile.open(RECORDED / f"{kind}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "exp"


def record(kinds: list[str]) -> None:
    """Make recorded experiments anew, in a place that is the same for everybody; all if none is named."""
    home = Path("/tmp/fuzz-corpus")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    shutil.copy(__file__, home)
    for kind in kinds or KINDS:
        settings = KINDS[kind]
        code = f"import sys; sys.path.insert(0, {str(home)!r}); import corpus; corpus.build(**{{**{settings!r}, "
        code += f"'folder': corpus.Path({str(home / kind)!r})}})"
        subprocess.run([sys.executable, "-c", code], check=True)
        RECORDED.mkdir(exist_ok=True)
        with tarfile.open(RECORDED / f"{kind}.tar.gz", "w:gz") as archive:
            archive.add(home / kind / "storage" / "exp", "exp")


def build(
    folder: Path,
    *,
    store: bool = False,
    kills: tuple[int, ...] = (5, 6, 6),
    trainable: str = "train",
    snapshot_period_s: int = 0,
    settle_s: float = 0.0,
) -> Path:
    """Make an experiment below ``folder``; each number is a driver that is killed after so many results.

    A 0 at the end lets the last driver finish.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "storage"
    code = _DRIVER.format(here=str(Path(__file__).parent))
    environment = {**os.environ, "HOLDFAST_LOCAL_CACHE_DIR": str(folder / "cache")}
    environment["TUNE_GLOBAL_CHECKPOINT_S"] = str(snapshot_period_s)
    environment[SETTLE_S] = str(settle_s)
    kind = "store" if store else "local"
    for results in kills:
        environment[KILL_AFTER] = str(results)
        done = subprocess.run([sys.executable, "-c", code, str(place), kind, trainable], env=environment)
        assert done.returncode == (-9 if results else 0), done.returncode
    shutil.rmtree(folder / "cache", ignore_errors=True)  # of a store: another machine reads it
    return place / "exp"


if __name__ == "__main__":
    record(sys.argv[1:])
