"""What syncers are given to copy: moments of a journal, and trees of links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sync_tools import Experiment, content_of, files_in

from holdfast.errors import NewerFormatError, StorageError
from holdfast.storage.layout import SYNC_SEAL
from holdfast.sync import linked_tree
from holdfast.sync.linked_tree import (
    BadSeal,
    LinkedTree,
    MomentCopy,
    check_seal,
    number_after,
    read_seal,
    write_seal,
)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "root")


@pytest.fixture
def live(experiment: Experiment) -> Path:
    return experiment.root / ".holdfast"


# --- moments


def test_a_moment_is_the_journal_without_its_temporary_files(live: Path, tmp_path: Path) -> None:
    expected = content_of(live)
    (live / "journal" / ".tmp-1-abc").write_text("half")
    os.mknod(live / "socket", stat.S_IFSOCK | 0o600)
    MomentCopy(str(live), str(tmp_path / "moment")).update()
    assert content_of(tmp_path / "moment") == expected


def test_a_moment_follows_growth_replacement_and_deletion(experiment: Experiment, live: Path, tmp_path: Path) -> None:
    copy = MomentCopy(str(live), str(tmp_path / "moment"))
    for _ in range(3):
        copy.update()
        assert content_of(tmp_path / "moment") == content_of(live)
        experiment.checkpoint()
        experiment.rotate()
        experiment.checkpoint()
        new = live / "new"
        new.write_text(f'{{"n": {experiment.records}}}')
        new.replace(live / "spec.json")
    (live / "objects" / "value-1.pkl").unlink()
    copy.update()
    assert content_of(tmp_path / "moment") == content_of(live)


def test_only_what_is_new_is_read(experiment: Experiment, live: Path, tmp_path: Path) -> None:
    copy = MomentCopy(str(live), str(tmp_path / "moment"))
    copy.update()
    segment = tmp_path / "moment" / "journal" / experiment.journal.name
    before = segment.stat().st_ino
    marked = segment.read_text().replace("1", "X")
    segment.write_text(marked)  # to see what is left alone
    experiment.checkpoint()
    copy.update()
    assert segment.read_text() == marked + "2\n"
    assert segment.stat().st_ino == before


def test_a_segment_that_became_shorter_is_copied_whole(experiment: Experiment, live: Path, tmp_path: Path) -> None:
    experiment.checkpoint()
    copy = MomentCopy(str(live), str(tmp_path / "moment"))
    copy.update()
    os.truncate(experiment.journal, 2)
    copy.update()
    assert content_of(tmp_path / "moment") == content_of(live)


def test_a_moment_never_knows_more_than_it_holds(
    experiment: Experiment, live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment continues between any two files that are read, and even replaces its snapshots."""
    original = linked_tree._copy_range

    def copy_range(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        if experiment.records < 40:
            experiment.checkpoint()
            if experiment.records % 10 == 0:
                experiment.rotate()

    monkeypatch.setattr(linked_tree, "_copy_range", copy_range)
    moment = tmp_path / "moment"
    copy = MomentCopy(str(live), str(moment))
    while experiment.records < 40:
        copy.update()
        numbers = [int(n) for file in sorted((moment / "journal").iterdir()) for n in file.read_text().split()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {f"value-{n}.pkl" for n in numbers} <= {file.name for file in (moment / "objects").iterdir()}
        assert all(int(file.stem) <= len(numbers) for file in moment.glob("snapshots/*"))


def test_files_that_keep_vanishing_are_an_error_not_an_endless_loop(
    live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_range(source: object, *rest: object) -> None:
        raise FileNotFoundError(2, "gone", "snapshots/1")

    monkeypatch.setattr(linked_tree, "_copy_range", copy_range)
    with pytest.raises(StorageError, match=r"snapshots/1 vanished, the 10th time in a row"):
        MomentCopy(str(live), str(tmp_path / "moment")).update()


# --- seals


def test_a_sealed_moment_is_recognised_and_freed_of_what_is_obsolete(live: Path) -> None:
    seal = write_seal(str(live), 5)
    (live / "snapshots" / "000000000001.hfs").write_text("kept at the other end by a tool that never deletes")
    assert check_seal(str(live)) == seal
    assert set(files_in(live)) == {*seal.files, SYNC_SEAL}


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed", "torn seal"])
def test_a_moment_that_is_not_whole_is_recognised(live: Path, damage: str) -> None:
    write_seal(str(live), 5)
    victim = live / "objects" / "value-1.pkl"
    if damage == "missing":
        victim.unlink()
    elif damage == "shorter":
        victim.write_text("val")
    elif damage == "changed":
        victim.write_text("VALUE 1")
    else:
        os.truncate(live / SYNC_SEAL, 40)
    with pytest.raises(BadSeal, match=r"value-1\.pkl|seal cannot be read"):
        check_seal(str(live))


def test_a_seal_of_a_newer_format_is_not_guessed_at(live: Path) -> None:
    (live / SYNC_SEAL).write_text('{"format": 2, "number": 1, "files": {}}')
    with pytest.raises(NewerFormatError, match="pip install --upgrade holdfast"):
        read_seal(str(live))


def test_seals_in_a_row_have_different_sizes_and_growing_numbers(live: Path) -> None:
    sizes, numbers, number = [], [], 0
    for _ in range(20):
        number = number_after(number)
        write_seal(str(live), number)
        numbers.append(number)
        sizes.append((live / SYNC_SEAL).stat().st_size)
    assert numbers == sorted(set(numbers))
    assert len(set(sizes)) == len(sizes)


# --- trees


def test_a_tree_shows_all_but_the_journal_stages_and_temporary_files(experiment: Experiment, tmp_path: Path) -> None:
    root = experiment.root
    expected = {rel for rel in files_in(root) if not rel.startswith(".holdfast/")}
    for stage in (".stage-1-00000001", ".sealed-1-00000001", ".trash-00000001"):
        (root / "trial" / stage).mkdir()
        (root / "trial" / stage / "half").write_text("x")
    (root / "trial" / ".tmp-1-abc").write_text("half")
    inside = root / "trial" / "checkpoint_000001" / ".tmp-of-the-user"
    inside.write_text("what is in a checkpoint is the user's")
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    LinkedTree(str(root), str(tmp_path / "tree")).refresh()
    assert set(files_in(tmp_path / "tree")) == {*expected, "trial/checkpoint_000001/.tmp-of-the-user"}


def test_a_tree_follows_its_root(experiment: Experiment, tmp_path: Path) -> None:
    root, tree = experiment.root, tmp_path / "tree"
    links = LinkedTree(str(root), str(tree))
    links.refresh()
    (tree / ".holdfast").mkdir()
    (tree / ".holdfast" / "kept").write_text("x")
    experiment.checkpoint()
    (root / "trial" / "checkpoint_000001" / "model.bin").unlink()
    (root / "trial" / "result.json").unlink()
    (root / "trial" / "result.json").mkdir()
    (root / "trial" / "result.json" / "now a directory").write_text("x")
    (root / "trial" / "link").symlink_to("checkpoint_000002")
    links.refresh()
    (root / "trial" / "result.json" / "now a directory").unlink()
    (root / "trial" / "result.json").rmdir()
    (root / "trial" / "result.json").write_text("a file again")
    new = root / "trial" / "new"
    new.write_text("replaced")
    new.replace(root / "trial" / "checkpoint_000002" / "model.bin")
    links.refresh()
    expected = {rel: data for rel, data in content_of(root).items() if not rel.startswith(".holdfast/")}
    assert content_of(tree) == {**expected, ".holdfast/kept": b"x"}
    assert os.readlink(tree / "trial" / "link") == "checkpoint_000002"
    links.clear()
    assert files_in(tree) == [".holdfast/kept"]


def test_a_tree_costs_no_space(experiment: Experiment, tmp_path: Path) -> None:
    LinkedTree(str(experiment.root), str(tmp_path / "tree")).refresh()
    for rel in files_in(tmp_path / "tree"):
        assert (tmp_path / "tree" / rel).stat().st_ino == (experiment.root / rel).stat().st_ino


def test_where_links_are_not_possible_files_are_copied_once(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    tree = tmp_path / "tree"
    links = LinkedTree(str(experiment.root), str(tree))
    links.refresh()
    inode = (tree / "trial" / "checkpoint_000001" / "model.bin").stat().st_ino
    experiment.checkpoint()
    links.refresh()
    assert (tree / "trial" / "checkpoint_000001" / "model.bin").stat().st_ino == inode
    expected = {rel: data for rel, data in content_of(experiment.root).items() if not rel.startswith(".holdfast/")}
    assert content_of(tree) == expected
