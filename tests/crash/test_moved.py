"""An experiment is its root, wherever that is: killed, then moved, renamed, copied or packed, it continues there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from experiments import Plan
from lab import Lab, driver_crash, mostly_slow

import holdfast as tune

PLAN = Plan(trials=4, steps=12, every=3, keep=2, pause_s=0.0)


def move(root: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    root.rename(target)


def rename(root: Path, target: Path) -> None:
    """The directory's name is the experiment's name as well."""
    target.parent.mkdir(parents=True)
    renamed = root.with_name("another name, with blanks")
    root.rename(renamed)
    target.symlink_to(renamed)


def copy(root: Path, target: Path) -> None:
    shutil.copytree(root, target, copy_function=shutil.copyfile)


def pack(root: Path, target: Path) -> None:
    """A zip file keeps neither inodes nor permissions nor exact times, and the original is gone."""
    archive = shutil.make_archive(str(root.parent / "packed"), "zip", root)
    shutil.rmtree(root)
    shutil.unpack_archive(archive, target)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def check_names_no_place(root: Path, *places: Path) -> None:
    """I11: no absolute path inside state. User objects are pickles of their own; what they hold is theirs."""
    for name, data in tree(root).items():
        if not name.startswith(".holdfast/objects/"):
            for place in places:
                assert str(place).encode() not in data, f"{name} names {place}"


@pytest.mark.parametrize("relocate", mostly_slow([move, rename, copy, pack], move))
def test_an_experiment_goes_on_in_another_place(lab: Lab, relocate: Callable[[Path, Path], None]) -> None:
    old, new = lab.root, lab.folder / "elsewhere" / "moved"
    for point in ("L5.after:3", "L2.after:4"):  # one checkpoint is on its way both times
        assert lab.run(PLAN, **driver_crash(point)).process.returncode == -9
    before = lab.check_nothing_lost()
    lab.check_no_process_left()  # nor anybody who still tidies up
    relocate(old, new)
    left = tree(old) if old.exists() else None
    check_names_no_place(new, old, lab.folder)

    lab.root = new
    assert lab.check_nothing_lost() == before
    output = lab.run(PLAN).must_finish()
    assert str(new) in output
    lab.check_finished(PLAN)
    check_names_no_place(new, old, lab.folder)
    if left is None:
        assert not old.exists(), "the experiment went on in its old place"
    else:
        assert tree(old) == left, "the copy has changed its original"


@pytest.fixture
def read_only(lab: Lab) -> Iterator[Path]:
    """A place where nothing can be written, once something is in it."""
    place = lab.folder / "read-only"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_results_can_be_read_where_nothing_can_be_written(lab: Lab, read_only: Path) -> None:
    """A dead experiment on a read-only medium; to continue there is refused in words."""
    lab.run(PLAN, **driver_crash("L6.after:8"))
    lab.check_no_process_left()
    shutil.copytree(lab.root, read_only / "exp")
    subprocess.run(["mount", "-o", "remount,ro", str(read_only)], check=True)
    state = lab.state()
    grid = tune.Tuner.restore(str(read_only / "exp")).get_results()
    assert len(grid) == len(state.trials)
    for result, trial in zip(grid, state.trials, strict=True):
        assert result.config == trial.config
        if trial.rows:
            assert result.metrics["token"] == trial.metrics["token"]
        if trial.latest():
            assert Path(result.checkpoint.path).is_dir()
    refused = lab.run(PLAN, root=read_only / "exp")
    assert refused.process.returncode == 1
    assert "holdfast.errors.StorageError" in refused.output
    assert "Read-only file system" in refused.output.splitlines()[-1]
