"""Makes experiments that no driver would make: whole frames and checksums around lies."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from roots import RootWriter

import holdfast as tune
from holdfast.core import events as ev
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal

READERS: list[tuple[str, ...]] = [
    ("status",),
    ("status", "--json"),
    ("show",),
    ("verify",),
    ("gc", "--now"),
    ("export",),
    ("copy",),
]
"""Commands that read somebody's experiment; `arguments` completes them."""


def arguments(command: tuple[str, ...], root: Path, elsewhere: Path) -> list[object]:
    """The command's whole line."""
    if command[0] == "copy":
        return [*command, root, elsewhere / "copy"]
    if command[0] == "export":
        return [*command, root, elsewhere / "rows.csv", "--rows"]
    return [*command, root]


def good(path: Path) -> RootWriter:
    """A finished experiment with a checkpoint, and nothing wrong with it."""
    writer = RootWriter(path).open()
    n = writer.create({"lr": 0.5})
    writer.start(n)
    writer.report(n, {"loss": 1.0})
    writer.save(n, {"weights.txt": "w"})
    return writer


def with_records(path: Path, *records: bytes | ev.AnyEvent) -> Path:
    """An experiment whose driver is gone, with these records at the end of its journal."""
    writer = good(path)
    writer.journal.append([each if isinstance(each, bytes) else ev.encode(each) for each in records])
    return writer.die().path


def with_trial_in(path: Path, dirname: str, **more: Any) -> Path:
    """An experiment with a second trial whose directory has this name, and a committed and a deleted checkpoint."""
    at = 1_700_001_000.0
    return with_records(
        path,
        ev.TrialCreated(at, 1, "abcde_00001", {"lr": 0.1}, "1_lr=0.1", ("lr",), dirname=dirname, **more),
        ev.TrialStarted(at, 1, 1),
        ev.Reported(at, 1, 1, 101, 0.5, {"loss": 0.5}),
        ev.CheckpointStaged(at, 1, 1, 0, ".sealed-1-00000000", 1, 1),
        ev.CheckpointCommitted(at, 1, 0, "0" * 32, 1),
        ev.TrialTerminated(at, 1, 1, "returned"),
    )


def really_run(path: Path) -> Path:
    """An experiment that a driver has made and finished, with all that a restore needs."""
    run_config = tune.RunConfig(name=path.name, storage_path=str(path.parent), verbose=0)
    grid = tune.Tuner(train, param_space={"lr": 0.5}, run_config=run_config).fit()
    assert grid.num_errors == 0
    return path


def train(config: dict[str, Any]) -> None:
    """What `really_run` runs."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "weights.txt").write_text("w")
        tune.report({"loss": config["lr"]}, checkpoint=tune.Checkpoint.from_directory(directory))


def append(root: Path, *records: bytes | ev.AnyEvent) -> None:
    """Add records to the journal of an experiment that nobody writes, as a driver that dies afterwards."""
    claim = claim_epoch(root)
    journal = Journal.create_or_append(root, claim, threaded=False)
    journal.append([each if isinstance(each, bytes) else ev.encode(each) for each in records])
    journal.close()


def tree(top: Path) -> dict[str, Any]:
    """Everything below a directory: kind, content and time of writing."""
    found: dict[str, Any] = {}
    for parent, below, files in os.walk(top):
        for name in [*below, *files]:
            path = Path(parent, name)
            facts = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
            found[str(path.relative_to(top))] = (stat.S_IFMT(facts.st_mode), content, facts.st_mtime_ns)
    return found
