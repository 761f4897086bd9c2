"""Ways in which files are damaged: what disks, people, other programs and strangers do to them."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path


class Trap:
    """Whoever unpickles this makes a file, which gives him away."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (self.path, "w")


def damage(root: Path, rng: random.Random, outside: Path) -> str:
    """Damage one file below ``root``, or two, and say what was done.

    Args:
        root: A copy of an experiment.
        rng: Decides.
        outside: A directory that nobody may touch; links lead there.
    """
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    # Small folders would hardly be met among hundreds of checkpoint files.
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    path = rng.choice(folders[rng.choice(sorted(folders))]) if rng.random() < 0.7 else rng.choice(files)
    kind = rng.choice(KINDS)
    times = {each: each.stat().st_mtime_ns for each in files}
    for each in files:
        if each.stat().st_nlink > 1 and (each == path or kind in (swap, trap)):
            _own(each)
    told = kind(path, rng, files, outside)
    _set_times(times)
    return f"{kind.__name__} {path.relative_to(root)}{f' ({told})' if told else ''}"


def _own(path: Path) -> None:
    """Make a hard link a file of its own."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def _set_times(times: dict[Path, int]) -> None:
    """Files are as old as before: a new time would be a sign of life of the driver, on any machine but its own."""
    for path, time_ns in times.items():
        if path.is_file() and not path.is_symlink() and not any(parent.is_symlink() for parent in path.parents):
            os.utime(path, ns=(time_ns, time_ns))


def flip(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Another bit, as a disk may give back."""
    data = bytearray(path.read_bytes())
    if not data:
        data = bytearray(b"\0")
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place} of {len(data)}"


def not_text(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A byte that is not UTF-8."""
    data = bytearray(path.read_bytes() or b" ")
    place = rng.randrange(len(data))
    data[place] = 0xFF
    path.write_bytes(data)
    return f"byte {place}"


def cut(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Shorter than it was."""
    size = path.stat().st_size
    length = rng.randrange(size) if size else 0
    os.truncate(path, length)
    return f"to {length} of {size} bytes"


def empty(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Nothing left."""
    path.write_bytes(b"")
    return ""


def zero(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A range of zeros, as a file system leaves it after a power cut."""
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.choice([1, 64, 4096]))
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)
    return f"bytes {start} to {stop}"


def append(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Something behind the end."""
    with open(path, "ab") as file:
        file.write(rng.randbytes(rng.choice([1, 40, 5000])))
    return ""


def garbage(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Something else altogether."""
    path.write_bytes(rng.randbytes(rng.choice([3, 100, 10_000])))
    return ""


def delete(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Gone."""
    path.unlink()
    return ""


def delete_folder(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Gone with all that was beside it."""
    shutil.rmtree(path.parent)
    return str(path.parent.name)


def delete_private(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Some of the folders below ``.holdfast`` are gone, as a whole."""
    private = next(parent for file in files for parent in file.parents if parent.name == ".holdfast")
    there = sorted(folder.name for folder in private.iterdir() if folder.name in PRIVATE_FOLDERS)
    gone = rng.sample(there, rng.randint(1, min(3, len(there))))
    for name in gone:
        shutil.rmtree(private / name)
    return ", ".join(sorted(gone))


def swap(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """Two files that changed places, alike if possible."""
    alike = [other for other in files if other.suffix == path.suffix and other != path] or files
    other = rng.choice(alike)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"with {other.parent.name}/{other.name}"


def copy_over(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """An older or another file in its place."""
    alike = [other for other in files if other.suffix == path.suffix and other != path] or files
    other = rng.choice(alike)
    path.write_bytes(other.read_bytes())
    return f"{other.parent.name}/{other.name}"


def link(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A symbolic link to somewhere else."""
    targets = [str(outside / "secret.txt"), "/dev/zero", "/dev/null", str(rng.choice(files)), "nowhere", str(path)]
    target = rng.choice(targets)
    path.unlink()
    path.symlink_to(target)
    return target


def link_folder(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A directory that is a link to one outside."""
    shutil.rmtree(path.parent)
    path.parent.symlink_to(outside / "folder")
    return str(path.parent.name)


def fifo(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A pipe that nobody writes to."""
    path.unlink()
    os.mkfifo(path)
    return ""


def folder(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A directory where a file was."""
    path.unlink()
    path.mkdir()
    return ""


def huge(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A file with a hole that is larger than memory."""
    os.truncate(path, 1 << 40)
    return "1 TiB"


def trap(path: Path, rng: random.Random, files: list[Path], outside: Path) -> str:
    """A pickle that does something when it is loaded."""
    pickles = [other for other in files if other.suffix == ".pkl"] or [path]
    target = rng.choice(pickles)
    target.write_bytes(pickle.dumps(Trap(str(outside / "executed"))))
    return f"{target.parent.name}/{target.name}"


PRIVATE_FOLDERS = ("epochs", "journal", "marks", "objects", "parts", "snapshots")

KINDS = (
    [flip] * 6
    + [cut] * 3
    + [delete] * 2
    + [swap] * 2
    + [
        not_text,
        empty,
        zero,
        append,
        garbage,
        delete_folder,
        delete_private,
        copy_over,
        link,
        link_folder,
        fifo,
        folder,
        huge,
        trap,
    ]
)
