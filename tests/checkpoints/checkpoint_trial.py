"""A trial with its directory, and small trees of files, for the tests in this folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.checkpoints.commit import Committed, commit
from holdfast.checkpoints.stage import Stage
from holdfast.core.observations import SealedStage

FILES = {"note.txt": b"epoch 1", "optimizer/state.bin": b"o" * 5_000, "weights.bin": b"w" * 300_000}


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def read_tree(root: Path) -> dict[str, bytes]:
    """All files but our own two, by relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("_manifest.json", ".holdfast-seal")
    }


def fill_disk(mount: Path) -> Path:
    """Write until there is no space left; the file to remove to have space again."""
    ballast = mount / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


class Trial:
    """One attempt of one trial: stages as a worker does, commits as the driver does."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.id = "t1"
        self.attempt = 1
        self.stage = Stage(directory, self.id, self.attempt)

    def sealed(self, files: dict[str, bytes] | None = None) -> SealedStage:
        """Stage files in place and seal them."""
        directory = write_tree(self.stage.new_directory(), FILES if files is None else files)
        return self.stage.seal(directory)

    def commit(self, name: str, index: int = 0) -> Committed:
        return commit(self.dir, name, index, trial_id=self.id, attempt=self.attempt)

    def saved(self, index: int = 0, files: dict[str, bytes] | None = None) -> Path:
        """A committed checkpoint."""
        self.commit(self.sealed(files).name, index)
        return self.dir / f"checkpoint_{index:06d}"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.dir.iterdir())


def open_to_others(path: Path) -> None:
    """Let other users pass through the directories that pytest has made for a test."""
    for each in (path, *path.parents):
        if each == path or each.name.startswith(("pytest-", "popen-")):
            each.chmod(each.stat().st_mode | 0o055)
