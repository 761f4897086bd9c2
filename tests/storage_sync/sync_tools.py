"""What the tests of syncers share: a syncer that copies file by file, a small experiment, and ways to wait."""

from __future__ import annotations

import fnmatch
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.sync.syncer import BackgroundSyncer

WAIT_S = 20.0
CP = "cp -r {source}. {target}"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s in vain for {what}"
        time.sleep(0.01)


class Cut(Exception):
    """The copying stops here, as if the machine had been lost."""


class TreeSyncer(BackgroundSyncer):
    """Copies in place, file by file; `on_file` is called before each file and may raise `Cut`, which leaves half of it.

    Like rsync it leaves alone what is there already, unless it is `simple` as cp is.
    """

    def __init__(self, on_file: Callable[[str], None] | None = None, *, simple: bool = False) -> None:
        super().__init__()
        self.on_file = on_file
        self.simple = simple
        self.calls: list[tuple[str, str]] = []

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        self.calls.append(("up", remote_dir))
        self._copy(local_dir, remote_dir, exclude or ())

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        self.calls.append(("down", remote_dir))
        self._copy(remote_dir, local_dir, exclude or ())

    def remove(self, remote_dir: str) -> None:
        self.calls.append(("delete", remote_dir))
        shutil.rmtree(remote_dir)

    def _copy(self, source: str, target: str, exclude: Sequence[str]) -> None:
        if not os.path.isdir(source):
            raise FileNotFoundError(source)
        for rel in files_in(source):
            if any(fnmatch.fnmatch(rel, pattern) for pattern in exclude):
                continue
            destination = Path(target, rel)
            destination.parent.mkdir(parents=True, exist_ok=True)
            data = Path(source, rel).read_bytes()
            if not self.simple and destination.exists() and destination.read_bytes() == data:
                continue
            try:
                if self.on_file is not None:
                    self.on_file(rel)
            except Cut:
                destination.write_bytes(data[: len(data) // 2])
                raise
            destination.write_bytes(data)


def files_in(directory: str | os.PathLike[str]) -> list[str]:
    """All files below a directory, relative to it, in order."""
    top = Path(directory)
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def content_of(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    return {rel: Path(directory, rel).read_bytes() for rel in files_in(directory)}


class Experiment:
    """A root that grows as a real one does: a checkpoint first, then the record that refers to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = 0
        for folder in ("journal", "epochs", "objects", "snapshots"):
            (root / ".holdfast" / folder).mkdir(parents=True)
        (root / ".holdfast" / "spec.json").write_text("{}")
        (root / ".holdfast" / "epochs" / "00000001").write_text("claim")
        self.segment = 1
        self.checkpoint()

    def checkpoint(self) -> None:
        """Commit one more checkpoint, and record it."""
        n = self.records + 1
        stage = self.root / "trial" / f".sealed-1-{n:08x}"
        stage.mkdir(parents=True)
        (stage / "model.bin").write_bytes(b"%d" % n * 1000)
        (stage / "_manifest.json").write_text(f"model.bin {len(str(n)) * 1000}")
        stage.rename(self.root / "trial" / f"checkpoint_{n:06d}")
        (self.root / ".holdfast" / "objects" / f"value-{n}.pkl").write_text(f"value {n}")
        with self.journal.open("a") as file:
            file.write(f"{n}\n")
        with (self.root / "trial" / "result.json").open("a") as file:
            file.write(f'{{"n": {n}}}\n')
        self.records = n

    @property
    def journal(self) -> Path:
        return self.root / ".holdfast" / "journal" / f"{self.segment:08d}.hfj"

    def rotate(self) -> None:
        """Begin a new segment, and write a snapshot of all before it."""
        self.segment += 1
        for old in (self.root / ".holdfast" / "snapshots").iterdir():
            old.unlink()
        (self.root / ".holdfast" / "snapshots" / f"{self.records:012d}.hfs").write_text("snapshot")


def records_in(root: Path, *, damaged: int = 0) -> list[int]:
    """The records of an experiment, after checking that all they refer to is there, whole but for ``damaged``."""
    numbers: list[int] = []
    for segment in sorted((root / ".holdfast" / "journal").iterdir()):
        numbers += [int(line) for line in segment.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1)), "the history has a gap"
    assert [n for n in numbers if not _is_whole(root / "trial" / f"checkpoint_{n:06d}", n)][damaged:] == []
    for n in numbers:
        assert (root / ".holdfast" / "objects" / f"value-{n}.pkl").read_text() == f"value {n}"
    for snapshot in (root / ".holdfast").glob("snapshots/*"):
        assert int(snapshot.stem) <= len(numbers), "a snapshot knows more than the journal"
    return numbers


def _is_whole(checkpoint: Path, n: int) -> bool:
    model, manifest = b"%d" % n * 1000, f"model.bin {len(str(n)) * 1000}"
    return content_of(checkpoint) == {"model.bin": model, "_manifest.json": manifest.encode()}
