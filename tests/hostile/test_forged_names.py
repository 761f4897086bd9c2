"""Names in a journal, a snapshot, a manifest or a directory never lead out of the experiment's root."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forging import READERS, append, arguments, good, really_run, train, tree, with_records, with_trial_in

import holdfast as tune
from holdfast.checkpoints.delete import delete
from holdfast.checkpoints.manifest import BadManifest, FileEntry, Manifest, decode, encode
from holdfast.checkpoints.remote_place import RemotePlace
from holdfast.core import events as ev
from holdfast.errors import CheckpointDamagedError, DamageError, InternalError, JournalDamagedError, SyncError
from holdfast.shipping.remote_holder import look
from holdfast.storage.store import Fetching, Stat
from holdfast.sync.store_syncer import _inside

FORGED = ["../../victim", "../victim", "/tmp/victim", "..", ".", ".holdfast", "a/b", "a\0b", "x" * 300, "é" * 128]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that holds an experiment's home, room for copies, and something that is nobody's business."""
    victim = tmp_path / "victim"
    for name in ("checkpoint_000000", "checkpoint_000001", ".stage-1-00000000", ".sealed-1-00000000"):
        (victim / name).mkdir(parents=True)
        (victim / name / "precious.txt").write_text("mine")
    manifest = good(tmp_path / "spare" / "exp").checkpoint_dir(0, 0) / "_manifest.json"
    shutil.copy(manifest, victim / "checkpoint_000000")
    shutil.rmtree(tmp_path / "spare")
    (tmp_path / "home").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("dirname", FORGED[:2], ids=repr)
def test_a_forged_directory_name_is_damage_and_nothing_outside_is_touched(
    place: Path, holdfast: Callable[..., Any], command: tuple[str, ...], dirname: str
) -> None:
    root = with_trial_in(place / "home" / "exp", dirname)
    victim = tree(place / "victim")
    answer = holdfast(*arguments(command, root, place / "out"))
    assert answer.code == 1
    assert repr(dirname) in answer.said
    assert "record" in answer.said
    assert tree(place / "victim") == victim
    assert "Traceback" not in answer.said


@pytest.mark.parametrize("dirname", FORGED, ids=repr)
def test_every_name_that_is_not_one_name_is_refused_by_readers_of_the_journal(tmp_path: Path, dirname: str) -> None:
    root = with_trial_in(tmp_path / "exp", dirname)
    with pytest.raises(JournalDamagedError) as caught:
        tune.ResultGrid.from_path(root)
    assert caught.value.seq == 8
    assert "directory" in str(caught.value)


@pytest.mark.parametrize("dirname", ["plain", "with space", "ü-∂-名前", "x" * 255, "new\nline", "a=b,c", ".hidden"])
def test_names_that_users_choose_are_still_read(tmp_path: Path, dirname: str) -> None:
    root = with_trial_in(tmp_path / "exp", dirname)
    assert Path(tune.ResultGrid.from_path(root)[1].path).name == dirname


@pytest.mark.parametrize("field", ["id", "name", "tag"])
def test_other_names_of_a_trial_are_checked_too(tmp_path: Path, field: str) -> None:
    facts = {"id": "abcde_00001", "tag": "1", "name": "", field: "a\0b"}
    forged = ev.TrialCreated(1_700_001_000.0, 1, facts["id"], {}, facts["tag"], name=facts["name"])
    with pytest.raises(JournalDamagedError, match="NUL"):
        tune.ResultGrid.from_path(with_records(tmp_path / "exp", forged))


def test_a_forged_stage_is_damage(tmp_path: Path) -> None:
    staged = ev.CheckpointStaged(1_700_001_000.0, 0, 1, 1, "../../victim", 1, 1)
    with pytest.raises(JournalDamagedError, match=r"'\.\./\.\./victim'"):
        tune.ResultGrid.from_path(with_records(tmp_path / "exp", staged))


def test_a_forged_name_in_a_snapshot_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = good(tmp_path / "exp")
    honest = writer.trial_dir(0).name
    writer.state.trials[0] = msgspec.structs.replace(writer.trial(0), dirname="../../victim")
    writer.snapshot()
    grid = tune.ResultGrid.from_path(writer.die().path)
    assert Path(grid[0].path).name == honest
    assert "snapshot" in caplog.text


def test_a_trainable_whose_name_is_too_long_for_a_directory_is_damage(tmp_path: Path) -> None:
    from roots import RootWriter

    writer = RootWriter(tmp_path / "exp", trainable="x" * 300).open()
    writer.create({})
    root = writer.die().path
    with pytest.raises(DamageError, match="255"):
        tune.ResultGrid.from_path(root)[0].path  # noqa: B018


def test_a_restore_refuses_a_forged_name(place: Path) -> None:
    root = really_run(place / "home" / "exp")
    at = 4_000_000_000.0
    append(root, ev.TrialCreated(at, 1, "abcde_00001", {"lr": 0.1}, "1", dirname="../../victim"))
    victim, trials = tree(place / "victim"), _without_private(tree(root))
    with pytest.raises(JournalDamagedError, match="victim"):
        tune.Tuner.restore(str(root), trainable=train).fit()
    assert tree(place / "victim") == victim
    assert _without_private(tree(root)) == trials


def _without_private(found: dict[str, Any]) -> dict[str, Any]:
    return {path: facts for path, facts in found.items() if not path.startswith(".holdfast")}


# ------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("command", [("gc", "--now"), ("verify",), ("copy",)], ids=" ".join)
def test_a_trial_directory_that_is_a_link_is_not_followed(
    place: Path, holdfast: Callable[..., Any], command: tuple[str, ...]
) -> None:
    writer = good(place / "home" / "exp")
    directory = writer.trial_dir(0)
    root = writer.die().path
    away = place / "victim" / directory.name
    shutil.move(directory, away)
    for name in (".stage-1-aaaaaaaa", ".trash-aaaaaaaa"):
        (away / name).mkdir()
    directory.symlink_to(away)
    victim = tree(place / "victim")
    answer = holdfast(*arguments(command, root, place / "out"))
    assert tree(place / "victim") == victim
    if command[0] != "gc":
        assert answer.code == 1
        assert "symbolic link" in answer.said
        assert not list((place / "out").rglob("weights.txt"))


@pytest.mark.parametrize("command", [("verify",), ("copy",)], ids=" ".join)
def test_a_checkpoint_that_is_a_link_is_not_followed(
    place: Path, holdfast: Callable[..., Any], command: tuple[str, ...]
) -> None:
    writer = good(place / "home" / "exp")
    checkpoint = writer.checkpoint_dir(0, 0)
    root = writer.die().path
    shutil.move(checkpoint, place / "victim" / "moved")
    checkpoint.symlink_to(place / "victim" / "moved")
    victim = tree(place / "victim")
    answer = holdfast(*arguments(command, root, place / "out"))
    assert answer.code == 1
    assert "symbolic link" in answer.said
    assert tree(place / "victim") == victim


def test_a_driver_says_that_a_trial_directory_is_a_link(place: Path) -> None:
    root = really_run(place / "home" / "exp")
    directory = Path(tune.ResultGrid.from_path(root)[0].path)
    away = place / "victim" / directory.name
    shutil.move(directory, away)
    directory.symlink_to(away)
    victim = tree(place / "victim")
    with pytest.raises(DamageError, match="symbolic link"):
        tune.Tuner.restore(str(root), trainable=train).fit()
    assert tree(place / "victim") == victim


def test_a_root_may_be_reached_through_links(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = good(tmp_path / "real" / "exp").finish().path
    (tmp_path / "link").symlink_to(root.parent)
    (tmp_path / "exp").symlink_to(root)
    for way in (tmp_path / "link" / "exp", tmp_path / "exp"):
        assert holdfast("verify", way).code == 0
        assert holdfast("gc", way, "--now").code == 0
        assert holdfast("copy", way, tmp_path / f"copy of {way.parent.name}").code == 0


def test_a_deletion_never_goes_through_a_link(place: Path) -> None:
    (place / "home" / "trial").symlink_to(place / "victim")
    victim = tree(place / "victim")
    for name in ("checkpoint_000000", ".stage-1-00000000"):
        with pytest.raises(InternalError, match="symbolic link"):
            delete(place / "home" / "trial" / name)
    assert tree(place / "victim") == victim


def test_a_copy_is_not_continued_into_links(place: Path, holdfast: Callable[..., Any]) -> None:
    writer = good(place / "home" / "exp")
    folder = writer.trial_dir(0).name
    root = writer.finish().path
    target = place / "out" / "copy"
    (target / ".holdfast").mkdir(parents=True)
    (target / ".holdfast" / "copying.json").write_bytes(b'{"uid":"abcdef0123456789","source":"there"}')
    (target / folder).symlink_to(place / "victim")
    victim = tree(place / "victim")
    answer = holdfast("copy", root, target)
    assert answer.code == 1
    assert "symbolic link" in answer.said
    assert tree(place / "victim") == victim


# ------------------------------------------------------------------------------------------- stores

KEYS = ["../../victim/x", "/etc/x", "a//b", "./x", "a/../../x", "a\0b", "x" * 300]


class ForgedStore:
    """Lists whatever somebody has written there."""

    url = "s3://bucket"

    def __init__(self, prefix: str, names: list[str]) -> None:
        self._keys = [f"{prefix}{name}" for name in names]
        self.fetched: list[Fetching] = []

    def list(self, prefix: str) -> list[Stat]:
        return [Stat(key, 1, 0.0) for key in self._keys if key.startswith(prefix)]

    def fetch(self, files: list[Fetching]) -> list[str]:
        self.fetched += files
        return [""] * len(files)


def test_a_mirror_is_not_made_of_keys_that_lead_out_of_it() -> None:
    store: Any = ForgedStore(".holdfast/", [*KEYS, "objects/trainable.pkl"])
    listing = look(store, ".holdfast/")
    assert [stat.key for stat in listing.plain] == [".holdfast/objects/trainable.pkl"]
    assert not listing.base
    assert not listing.spans


@pytest.mark.parametrize("name", KEYS, ids=repr)
def test_a_checkpoint_is_not_fetched_if_a_key_leads_out_of_it(tmp_path: Path, name: str) -> None:
    place = RemotePlace("s3://bucket/runs/mine")
    store: Any = ForgedStore("mine/", ["good.txt", name])
    place._store = store
    with pytest.raises(CheckpointDamagedError, match="cannot be a file"):
        place.fetch_to(tmp_path / "copy", verify=False)
    assert not store.fetched
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", [*KEYS, "a/" + "y" * 256], ids=repr)
def test_a_manifest_whose_paths_lead_out_is_damaged(name: str) -> None:
    entry = FileEntry(name, 1, "0" * 32)
    manifest = Manifest(trial="t", index=0, attempt=1, stage="s", files=(entry,), total=1)
    with pytest.raises(BadManifest, match="leads out"):
        decode(encode(manifest))


@pytest.mark.parametrize("name", KEYS, ids=repr)
def test_a_syncer_does_not_download_to_elsewhere(name: str) -> None:
    with pytest.raises(SyncError, match="cannot become a file"):
        _inside("/here", name)
