"""A real experiment goes out and comes back with the tools that people use: cp, rsync, aws s3 sync."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sync_tools import CP, content_of

import holdfast as tune
from holdfast.errors import SyncError
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.synced_copy import SyncedCopy
from holdfast.sync.syncer import Syncer
from holdfast.sync.syncer_setting import resolve_syncer
from servers import aws

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "format-1" / "experiment"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that a real run has left behind: finished and failed trials, checkpoints, a stage, a piece of trash."""
    copy = tmp_path / "here" / "exp"
    shutil.copytree(GOLDEN, copy)
    return copy


def there_and_back(root: Path, remote: str, syncer: Syncer, tmp_path: Path) -> None:
    """Send the experiment, change it, send it again, and fetch it on another machine."""
    sync = SyncedCopy(root, remote, syncer)
    sync.step(0)
    assert sync.trouble is None
    trial = next(path.parents[1] for path in sorted(root.glob("*/checkpoint_*/_manifest.json")))
    shutil.copytree(trial / "checkpoint_000002", trial / "checkpoint_000077")
    with next(root.glob(".holdfast/journal/00000002-*")).open("ab") as segment:
        segment.write(b"\0" * 100)
    sync.flush(timeout=120)
    sync.close()
    elsewhere = tmp_path / "elsewhere" / "exp"
    fetcher = SyncedCopy(elsewhere, remote, syncer)
    fetcher.fetch()
    fetcher.close()
    sent = {rel: data for rel, data in content_of(root).items() if "/.trash-" not in rel and "/.sealed-" not in rel}
    assert content_of(elsewhere) == sent


def results_of(root: Path) -> list[object]:
    return [
        (result.metrics, result.checkpoint and result.checkpoint.path) for result in tune.ResultGrid.from_path(root)
    ]


def test_cp_brings_an_experiment_there_and_back(root: Path, tmp_path: Path) -> None:
    there_and_back(root, str(tmp_path / "remote"), CommandSyncer(CP), tmp_path)


def test_a_fetched_experiment_shows_the_same_results(root: Path, tmp_path: Path) -> None:
    sync = SyncedCopy(root, str(tmp_path / "remote"), CommandSyncer(CP))
    sync.flush(timeout=60)
    before = results_of(root)
    root.rename(tmp_path / "lost with its machine")
    sync.fetch()
    sync.close()
    assert results_of(root) == before
    assert before


@pytest.mark.parametrize("options", ["", "--delete", "--delete {exclude}"])
def test_rsync_brings_an_experiment_there_and_back(root: Path, tmp_path: Path, rsync: str, options: str) -> None:
    syncer = CommandSyncer(f"{rsync} {options} {{source}} {{target}}")
    there_and_back(root, str(tmp_path / "remote"), syncer, tmp_path)


def test_rsync_leaves_out_what_is_excluded(tmp_path: Path, rsync: str) -> None:
    for name in ("keep/a", "leave/b", "keep/c.tmp"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(name)
    syncer = CommandSyncer(f"{rsync} {{exclude}} {{source}} {{target}}")
    syncer.sync_up(str(tmp_path / "source"), str(tmp_path / "target"), ["leave/*", "*.tmp"])
    syncer.wait()
    assert content_of(tmp_path / "target") == {"keep/a": b"keep/a"}


def test_rsync_without_its_option_for_directories_is_found_out(root: Path, tmp_path: Path, rsync: str) -> None:
    """`rsync {source} {target}` says "skipping directory" and ends with code 0."""
    sync = SyncedCopy(root, str(tmp_path / "remote"), CommandSyncer("rsync {source} {target}"))
    sync.step(0)
    sync.close()
    assert sync.trouble is not None
    assert "reports success, but" in sync.trouble


@pytest.mark.slow
def test_aws_s3_sync_brings_an_experiment_there_and_back(root: Path, tmp_path: Path, bucket: str) -> None:
    syncer = resolve_syncer(f"{aws.SYNC} {{source}} {{target}}")
    assert syncer is not None
    there_and_back(root, f"{bucket}/results/exp", syncer, tmp_path)


@pytest.mark.slow
def test_aws_leaves_out_what_is_excluded_and_deletes(tmp_path: Path, bucket: str) -> None:
    for name in ("keep/a", "leave/b"):
        (tmp_path / "source" / name).parent.mkdir(parents=True)
        (tmp_path / "source" / name).write_text(name)
    syncer = CommandSyncer(
        f"{aws.SYNC} {{exclude}} {{source}} {{target}}",
        delete_template="aws s3 rm --only-show-errors --recursive {target}",
    )
    syncer.sync_up(str(tmp_path / "source"), f"{bucket}/some", ["leave/*"])
    syncer.wait()
    syncer.sync_down(f"{bucket}/some", str(tmp_path / "back"))
    syncer.wait()
    assert content_of(tmp_path / "back") == {"keep/a": b"keep/a"}
    syncer.delete(f"{bucket}/some")
    syncer.wait()
    syncer.sync_down(f"{bucket}/some", str(tmp_path / "after"))
    syncer.wait()
    assert content_of(tmp_path / "after") == {}


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_an_error_in_the_words_of_aws(root: Path, bucket: str) -> None:
    syncer = CommandSyncer(f"{aws.SYNC} {{source}} {{target}}")
    syncer.sync_up(str(root), "s3://there-is-no-such-bucket/x")
    with pytest.raises(SyncError, match=r"Ran command: aws s3 sync(.|\n)*NoSuchBucket"):
        syncer.wait()
