"""``holdfast ship`` and ``holdfast gc``: after an outage, and after interrupted work."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import store_trials
from roots import RootWriter, small_experiment

import holdfast as tune
from holdfast.controller.remote_experiment import mirror_root
from holdfast.core import events as ev
from holdfast.journal.reader import read_journal
from holdfast.results import ResultGrid
from holdfast.storage.remote_root import remote_of
from servers.process import poll
from servers.seaweedfs import SeaweedFS

Run = Callable[..., Any]


def mirror_of(url: str) -> Path:
    remote = remote_of(url)
    assert remote is not None
    return mirror_root(remote).path


def has_staged(root: Path, count: int) -> bool:
    return sum(isinstance(ev.decode(data), ev.CheckpointStaged) for _, data in read_journal(root)) >= count


def test_what_an_outage_kept_here_is_sent_later(
    holdfast: Run, bucket: str, tmp_path: Path, seaweedfs: SeaweedFS, fault_proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network goes, the trial saves once more, and the driver is killed: all of that is only in the mirror."""
    url = f"{bucket}/runs/exp"
    proxy = fault_proxy(seaweedfs.endpoint)
    process = store_trials.driver(f"{bucket}/runs", tmp_path, seaweedfs.environment(proxy.endpoint))
    mirror = mirror_of(url)
    proxy.down()
    (tmp_path / "stay").touch()
    (tmp_path / "go").touch()
    poll(lambda: has_staged(mirror, 3), 30, "a checkpoint after the outage")
    process.kill()
    process.wait()
    (tmp_path / "stay").unlink()

    facts = json.loads(holdfast("status", url, "--json").out)
    assert facts["state"] == "interrupted"
    assert facts["unshipped"]["records"] >= 2
    assert facts["unshipped"]["checkpoints"] >= 1
    left = facts["unshipped"]["records"]
    assert f"{left} records and" in holdfast("status", url).out
    assert f"are on this machine only. Upload them: holdfast ship {url}\n" in holdfast("status", url).out
    assert f"Upload it first: holdfast ship {url}" in holdfast("gc", url).err
    assert "because it is on this machine only" in holdfast("copy", url, tmp_path / "store only").out
    reports = ResultGrid.from_path(url)[0].metrics_history

    answer = holdfast("ship", url)
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"uploaded to {url}: {left} records and ")
    facts = json.loads(holdfast("status", url, "--json").out)
    assert (facts["unshipped"], facts["counts"]["PENDING"], facts["state"]) == (None, 1, "interrupted")
    assert holdfast("ship", url).out == f"everything is already in {url}\n"

    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert "This machine has nothing of" in holdfast("ship", url).err
    assert ResultGrid.from_path(url)[0].metrics_history == reports
    assert holdfast("verify", url).code == 0
    grid = tune.Tuner.restore(url).fit()
    assert grid[0].metrics["step"] == 3
    assert grid[0].metrics["training_iteration"] == store_trials.STEPS
    monkeypatch.undo()


def test_ship_sends_result_files_that_the_store_lacks(holdfast: Run, bucket: str) -> None:
    url = store_trials.tuner(f"{bucket}/runs", xs=(1,)).fit().experiment_path
    store = store_trials.store_of(url)
    lost = store_trials.keys(store, "/result.json")
    store.delete(lost)
    assert json.loads(holdfast("ship", url, "--json").out) == {"records": 0, "checkpoints": 0, "files": 1, "left": None}
    assert store_trials.keys(store, "/result.json") == lost
    assert holdfast("ship", "somewhere").code == 2


# ------------------------------------------------------------------------------------------- gc


def test_gc_removes_what_is_ours_and_not_needed(holdfast: Run, tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    here = root.trial_dir(0)
    half, trash, later = here / ".stage-1-0123abcd", here / ".trash-0123abcd", here / ".stage-9-0123abcd"
    for place in (half, trash, later):
        place.mkdir()
        (place / "file").write_text("12345")
    back = here / "checkpoint_000001"  # dropped and deleted by the journal, and then it came back
    shutil.copytree(back, tmp_path / "kept")
    mine = [here / ".stage-mine", here / "checkpoint_1", here / "checkpoint_000077", root.path / ".stage-1-0123abcd"]
    for place in mine:
        place.mkdir()
        (place / "file").write_text("mine")
    temporary = root.path / ".holdfast" / ".tmp-12-ab"
    temporary.write_text("x")
    os.utime(temporary, (1, 1))

    dry = json.loads(holdfast("gc", root.path, "--dry-run", "--json").out)
    assert {each["path"] for each in dry["removed"]} == {str(half), str(trash), str(temporary)}
    assert dry["bytes"] == 11
    assert half.exists()
    answer = holdfast("gc", root.path)
    assert answer.code == 0
    assert "3 things removed, 11 B" in answer.out
    assert not any(place.exists() for place in (half, trash, temporary))
    assert later.exists()  # of an attempt that the journal does not know, and young
    holdfast("gc", root.path, "--now")
    assert not later.exists()
    assert all((place / "file").read_text() == "mine" for place in mine)
    assert back.exists()
    assert holdfast("verify", root.path).code == 0
    assert holdfast("gc", root.path, "--now").out == "Nothing to remove.\n"


def test_gc_removes_a_deleted_checkpoint_and_keeps_a_staged_one(holdfast: Run, tmp_path: Path) -> None:
    from holdfast.core.retention import Retention

    root = RootWriter(tmp_path / "exp", retention=Retention(num_to_keep=1)).open()
    root.create({"lr": 1})
    root.start(0)
    for step in range(2):
        root.report(0, {"loss": 1.0})
        root.save(0, {"model.txt": str(step)})
    shutil.copytree(root.checkpoint_dir(0, 0), tmp_path / "old")
    root.drop(0)
    shutil.copytree(tmp_path / "old", root.checkpoint_dir(0, 0))
    root.report(0, {"loss": 1.0})
    staged = root.stage(0, {"model.txt": "staged"})
    assert holdfast("gc", root.path).code == 1  # it is live
    root.die()
    removed = json.loads(holdfast("gc", root.path, "--now", "--json").out)["removed"]
    assert [(each["what"], each["path"]) for each in removed] == [
        ("deleted checkpoint", str(root.checkpoint_dir(0, 0)))
    ]
    record = root.trial(0).find(staged)
    assert record is not None
    assert (root.trial_dir(0) / record.sealed).is_dir()


def test_gc_in_a_store_goes_by_the_journal(holdfast: Run, bucket: str, cache: Path) -> None:
    url = store_trials.tuner(f"{bucket}/runs", xs=(1,)).fit().experiment_path
    store = store_trials.store_of(url)
    folder = store_trials.keys(store, "/result.json")[0].partition("/")[0]
    before = {stat.key for stat in store.list("")}
    gone = next(
        index for index in range(store_trials.STEPS) if f"{folder}/checkpoint_{index:06d}/state.json" not in before
    )
    garbage = {
        f"{folder}/checkpoint_{gone:06d}/state.json": "deleted checkpoint",
        f"{folder}/checkpoint_000009/half.bin": "unfinished checkpoint",
        ".holdfast/clock/0123": "left by a test of the store",
        ".holdfast/probe-0123": "left by a test of the store",
    }
    mine = {f"{folder}/checkpoint_9/x", f"{folder}/plots/checkpoint_000001/x", "other/checkpoint_000000/x", "notes.txt"}
    for key in (*garbage, *mine):
        store.put(key, b"12345")
    mirror = mirror_of(url)
    stage = mirror / folder / ".stage-1-0123abcd"
    stage.mkdir()
    aside = [mirror / ".holdfast.superseded-1", mirror.parent / "exp.superseded-0123abcd"]
    for place in aside:
        place.mkdir()

    removed = json.loads(holdfast("gc", url, "--json").out)["removed"]
    assert [each["what"] for each in removed] == ["deleted checkpoint", "stage"]  # the rest is young
    dry = json.loads(holdfast("gc", url, "--dry-run", "--now", "--json").out)
    assert dry["bytes"] == 15
    answer = holdfast("gc", url, "--now")
    assert answer.code == 0, answer.err
    assert f"removed: {url}/{folder}/checkpoint_000009 (unfinished checkpoint, 5 B)" in answer.out
    assert {stat.key for stat in store.list("")} == before | mine
    assert not any(place.exists() for place in (stage, *aside))
    assert holdfast("verify", url).code == 0
    assert ResultGrid.from_path(url)[0].metrics["step"] == 3
