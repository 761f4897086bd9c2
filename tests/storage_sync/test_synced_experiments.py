"""Experiments with a syncer of the user's, through the Tuner: what arrives, what a lost machine leaves."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import synced
from sync_tools import CP, until
from synced import EPOCHS, HELD, SYNCERS, Plain, check_copy, train, tuner

import holdfast as tune
from holdfast.controller.synced_backend import SyncedBackend
from holdfast.core.policies import Rules
from holdfast.core.state import State
from holdfast.errors import ExperimentExistsError, ExperimentLockedError, InvalidInputError, NotShippedError
from holdfast.journal import epoch
from holdfast.storage.layout import Root
from holdfast.syncer import CommandSyncer


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """Where the copy of the experiment is."""
    return tmp_path / "remote" / "exp"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """What the machine has; see ``lose``."""
    return tmp_path / "here"


def lose(here: Path) -> None:
    """The machine is gone with its disk; a copy that its driver had begun may write there a little longer."""

    def gone() -> bool:
        shutil.rmtree(here, ignore_errors=True)
        return not here.exists()

    until(gone, "somebody writes there still")


def restored(remote: Path, syncer: Any, **options: Any) -> tune.Tuner:
    return tune.Tuner.restore(str(remote), sync_config=tune.SyncConfig(syncer=syncer), **options)


def epochs(result: tune.Result) -> list[int]:
    return [row["epoch"] for row in result.metrics_history]


def checkpoints_in(directory: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in directory.glob("*/checkpoint_*")}


@pytest.mark.parametrize("kind", SYNCERS)
def test_a_finished_experiment_comes_back_whole(kind: str, remote: Path, here: Path) -> None:
    make = SYNCERS[kind]
    before = tuner(str(remote.parent), make(), trials=2).fit()
    assert [epochs(result) for result in before] == [list(range(EPOCHS))] * 2
    lose(here)
    assert tune.Tuner.can_restore(str(remote), sync_config=tune.SyncConfig(syncer=make()))
    again = restored(remote, make()).get_results()
    assert [result.metrics_history for result in again] == [result.metrics_history for result in before]
    assert [result.checkpoint.to_dict()["epoch"] for result in again] == [EPOCHS - 1] * 2


@pytest.mark.parametrize("kind", SYNCERS)
def test_a_killed_driver_on_a_lost_machine_is_continued_from_what_was_copied(
    kind: str, remote: Path, here: Path, tmp_path: Path
) -> None:
    driver = synced.start_driver(remote.parent, kind, **{HELD: "3"})
    try:
        until(lambda: len(list(remote.glob("*/checkpoint_000002/_manifest.json"))) == 2, "the copies of checkpoints")
        until(lambda: _knows(remote, tmp_path / "look", 2), "a journal at the other end that knows them")
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    lose(here)
    results = restored(remote, SYNCERS[kind](), trainable=train).fit()
    assert [epochs(result) for result in results] == [list(range(EPOCHS))] * 2
    assert all(result.metrics["first"] > 0 for result in results), "a trial has begun again"
    assert all(result.error is None for result in results)
    lose(here)
    assert [epochs(result) for result in restored(remote, SYNCERS[kind]()).get_results()] == [list(range(EPOCHS))] * 2


def _knows(remote: Path, scratch: Path, trials: int) -> bool:
    """Whether the journal at the other end knows a checkpoint of each trial; it may be under way just now."""
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        found = check_copy(remote, scratch / "exp")
    except (OSError, tune.TuneError, ValueError):
        return False
    return len({name.partition("/")[0] for name in found}) == trials


def test_a_restore_on_a_machine_that_has_newer_facts_goes_on_with_those(remote: Path, here: Path) -> None:
    syncer = Plain()
    tuner(str(remote.parent), syncer).fit()
    shutil.rmtree(remote)
    shutil.copytree(here / "exp" / ".holdfast", remote / ".holdfast")  # an old copy would say the same
    results = restored(remote, CP).fit()
    assert epochs(results[0]) == list(range(EPOCHS))
    assert not list(here.glob("exp.aside-*"))


# --- when copies are made


def test_without_sync_on_checkpoint_nothing_is_copied_between_the_periods(remote: Path) -> None:
    syncer = Plain()
    tuner(str(remote.parent), syncer, sync={"sync_on_checkpoint": False}).fit()
    assert syncer.rounds(remote) <= 2  # at the beginning and at the end


def test_obsolete_checkpoints_do_not_ask_for_copies_between_the_periods_either(remote: Path) -> None:
    syncer, epochs = Plain(), 30
    (result,) = tuner(
        str(remote.parent),
        syncer,
        space={"epochs": epochs},
        sync={"sync_on_checkpoint": False},
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
    ).fit()
    # Before the first trial, for the deletions after each commit that was open when it ended, and at the end.
    assert syncer.rounds(remote) <= 3 + Rules().max_uncommitted
    assert [path.name for path in Path(result.path).glob("checkpoint_*")] == [f"checkpoint_{epochs - 1:06d}"]
    assert checkpoints_in(remote) == {f"{Path(result.path).name}/checkpoint_{epochs - 1:06d}"}


def waits_for_copy(config: dict[str, Any]) -> None:
    """Ends when what it reported first has been copied, which nothing but the period can bring about."""
    tune.report({"epoch": 0}, checkpoint=tune.Checkpoint.from_dict({"epoch": 0}))
    until(lambda: list(Path(config["remote"]).glob("*/checkpoint_000000")), "a copy while the trial runs")
    tune.report({"epoch": 1})


@pytest.mark.parametrize("sync", [{"sync_on_checkpoint": False, "sync_period": 1}, {"sync_on_checkpoint": True}])
def test_copies_are_made_every_period_and_after_checkpoints(sync: dict[str, Any], remote: Path) -> None:
    syncer = Plain()
    run_config = tune.RunConfig(
        name="exp", verbose=0, sync_config=tune.SyncConfig(upload_dir=str(remote.parent), syncer=syncer, **sync)
    )
    (result,) = tune.Tuner(waits_for_copy, param_space={"remote": str(remote)}, run_config=run_config).fit()
    assert result.error is None
    assert epochs(result) == [0, 1]


class Slow(Plain):
    """Needs a moment for each copy."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        time.sleep(0.2)
        return super().sync_up(local_dir, remote_dir, exclude)


def looks_for_copies(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"epoch": step}, checkpoint=tune.Checkpoint.from_dict({"epoch": step}))
        assert list(Path(config["remote"]).glob(f"*/checkpoint_{step:06d}/_manifest.json")), f"{step} is not there"


def test_with_wait_for_commit_a_report_returns_when_its_checkpoint_was_copied(remote: Path) -> None:
    (result,) = tuner(
        str(remote.parent),
        Slow(),
        trainable=looks_for_copies,
        space={"remote": str(remote)},
        checkpoint_config=tune.CheckpointConfig(wait_for_commit=True),
    ).fit()
    assert result.error is None, result.error


def test_a_report_that_waits_for_a_copy_that_never_succeeds_ends_the_run_in_order(
    remote: Path, here: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    with pytest.raises(NotShippedError, match="the line is dead"):
        tuner(
            str(remote.parent),
            DiesInTheMiddle(mark),
            sync={"sync_timeout": 5.0},
            checkpoint_config=tune.CheckpointConfig(wait_for_commit=True),
            failure_config=tune.FailureConfig(grace_s=1.0),
        ).fit()
    mark.unlink()
    (result,) = tune.Tuner.restore(str(here / "exp")).fit()
    assert epochs(result) == list(range(EPOCHS))


def test_whoever_is_told_to_end_does_not_wait_for_a_syncer_that_hangs(remote: Path, here: Path) -> None:
    hung = threading.Event()

    def hangs(source: str, target: str) -> None:
        hung.set()
        time.sleep(3600)

    root, config = Root(here / "exp"), tune.SyncConfig(upload_dir=str(remote.parent), syncer=hangs)
    root.private.mkdir(parents=True)
    root.spec_file.write_text("{}")
    backend = SyncedBackend(root, "group", config)
    backend._check_other_end = lambda takeover: None  # type: ignore[method-assign]
    journal = backend.open(backend.claim(takeover=False))
    backend.follow(journal, lambda: None, State())
    with pytest.raises(NotShippedError, match="some of it is on this machine only"):
        backend.finish(State(), lambda: "told to end" if hung.is_set() else "")
    journal.close()
    backend.close()


# --- retention


def loses_the_line(config: dict[str, Any]) -> None:
    """Goes on saving when nothing is copied any more."""
    tune.report({"epoch": 0}, checkpoint=tune.Checkpoint.from_dict({"epoch": 0}))
    until(lambda: list(Path(config["remote"]).glob("*/checkpoint_000000/_manifest.json")), "a copy of the first one")
    Path(config["mark"]).touch()
    for step in (1, 2):
        tune.report({"epoch": step}, checkpoint=tune.Checkpoint.from_dict({"epoch": step}))


def test_a_checkpoint_is_not_deleted_before_the_one_that_takes_its_place_was_copied(
    remote: Path, here: Path, tmp_path: Path
) -> None:
    """Neither at the other end, where it is all that a lost machine would leave, nor here."""
    mark = tmp_path / "mark"
    with pytest.raises(NotShippedError):
        tuner(
            str(remote.parent),
            DiesInTheMiddle(mark),
            trainable=loses_the_line,
            space={"remote": str(remote), "mark": str(mark)},
            sync={"sync_timeout": 5.0},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ).fit()
    assert {name[-1] for name in checkpoints_in(remote)} == {"0"}
    assert {name[-1] for name in checkpoints_in(here / "exp")} == {"0", "1", "2"}
    assert check_copy(remote, tmp_path / "look") <= checkpoints_in(remote)
    mark.unlink()
    tune.Tuner.restore(str(here / "exp")).fit()
    assert {name[-1] for name in checkpoints_in(remote)} == {"2"}
    assert {name[-1] for name in checkpoints_in(here / "exp")} == {"2"}


@pytest.mark.parametrize("kind", SYNCERS)
def test_what_retention_deletes_goes_at_the_other_end_too(kind: str, remote: Path, tmp_path: Path) -> None:
    results = tuner(
        str(remote.parent), SYNCERS[kind](), trials=2, checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
    ).fit()
    kept = {f"{Path(result.path).name}/checkpoint_{EPOCHS - 1:06d}" for result in results}
    assert check_copy(remote, tmp_path / "look") == kept
    assert checkpoints_in(remote) == kept


class CutAnywhere(Plain):
    """Looks at the other end after each of its copies and deletions: the machine might be lost there."""

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self.scratch = scratch
        self.looks = 0
        self.remote: Path | None = None

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Any = None) -> bool:
        done = super().sync_up(local_dir, remote_dir, exclude)
        self._look()
        return done

    def delete(self, remote_dir: str) -> bool:
        done = super().delete(remote_dir)
        self._look()
        return done

    def _look(self) -> None:
        assert self.remote is not None
        self.looks += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
        if (self.remote / ".holdfast" / ".sync-seal.json").exists():  # before, there is no experiment
            check_copy(self.remote, self.scratch / "exp")


def test_the_journal_at_the_other_end_never_refers_to_what_is_gone_there(remote: Path, tmp_path: Path) -> None:
    syncer = CutAnywhere(tmp_path / "look")
    syncer.remote = remote
    results = tuner(str(remote.parent), syncer, trials=2, checkpoint_config=tune.CheckpointConfig(num_to_keep=1)).fit()
    assert [epochs(result) for result in results] == [list(range(EPOCHS))] * 2
    assert syncer.looks > 3
    assert len(syncer.deleted) == 2 * (EPOCHS - 1)


# --- failures


def breaks_the_line(config: dict[str, Any]) -> None:
    tune.report({"epoch": 0}, checkpoint=tune.Checkpoint.from_dict({"epoch": 0}))
    Path(config["mark"]).touch()
    tune.report({"epoch": 1})


class DiesInTheMiddle(Plain):
    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Any = None) -> bool:
        self.broken = self.mark.exists()
        return super().sync_up(local_dir, remote_dir, exclude)


def test_a_copy_that_fails_at_the_end_is_an_error_that_says_what_to_do(
    remote: Path, here: Path, tmp_path: Path
) -> None:
    syncer = DiesInTheMiddle(tmp_path / "mark")
    config = tune.SyncConfig(upload_dir=str(remote.parent), syncer=syncer, sync_timeout=5)
    broken = tune.Tuner(
        breaks_the_line,
        param_space={"mark": str(syncer.mark)},
        run_config=tune.RunConfig(name="exp", verbose=0, sync_config=config),
    )
    with pytest.raises(NotShippedError) as caught:
        broken.fit()
    text = str(caught.value)
    for needed in (
        str(remote),
        "the line is dead",
        f"safe in {here / 'exp'}",
        f'Tuner.restore("{here / "exp"}").fit()',
    ):
        assert needed in text
    assert epochs(tune.ResultGrid.from_path(here / "exp")[0]) == [0, 1]
    syncer.mark.unlink()
    tune.Tuner.restore(str(here / "exp")).fit()  # what the message says
    lose(here)
    assert epochs(restored(remote, CP).get_results()[0]) == [0, 1]


def test_a_command_that_never_works_is_an_error_in_its_own_words(remote: Path) -> None:
    command = "echo no such tool >&2; false {source} {target}"
    with pytest.raises(NotShippedError, match=r"Ran command: echo no such tool(.|\n)*no such tool"):
        tuner(str(remote.parent), command, sync={"sync_timeout": 20}).fit()


# --- what belongs to somebody else


def test_another_experiment_at_the_other_end_is_not_written_over(remote: Path, here: Path) -> None:
    first = tuner(str(remote.parent), CP).fit()
    lose(here)
    with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore\(.*sync_config=SyncConfig\(syncer=\.\.\.\)\)"):
        tuner(str(remote.parent), CP, trials=2).fit()
    lose(here)
    assert restored(remote, CP).get_results()[0].metrics_history == first[0].metrics_history


def test_a_copy_that_was_gone_on_with_elsewhere_is_not_written_over(remote: Path, here: Path, tmp_path: Path) -> None:
    tuner(str(remote.parent), CP).fit()
    here.rename(tmp_path / "another machine")
    restored(remote, CP).fit()
    lose(here)
    (tmp_path / "another machine").rename(here)
    with pytest.raises(ExperimentExistsError, match="resumed on another machine"):
        tune.Tuner.restore(str(here / "exp")).fit()
    assert restored(remote, CP).fit()[0].error is None
    assert list(here.glob("exp.aside-*")), "what was here is kept"


def test_a_driver_of_another_machine_was_last_heard_of_when_it_last_copied(
    remote: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the download would make a driver seem alive that has been dead for days."""
    driver = synced.start_driver(remote.parent, "a command", **{HELD: "1"})
    try:
        until(lambda: list(remote.glob(".holdfast/.sync-seal.json")), "the first copy")
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    lose(here)
    monkeypatch.setattr(epoch, "this_machine", lambda: "another one")
    restarted = restored(remote, CP)
    with pytest.raises(ExperimentLockedError, match="last heartbeat"):
        restarted.fit()
    lose(here)
    monkeypatch.setattr(epoch, "SILENCE_S", 0.0)
    restored(remote, CP).fit()


def test_an_address_without_its_syncer_is_refused(remote: Path) -> None:
    with pytest.raises(InvalidInputError, match="needs the syncer that made the copy"):
        tune.Tuner.restore(str(remote), sync_config=tune.SyncConfig())
    assert not tune.Tuner.can_restore(str(remote), sync_config=tune.SyncConfig(syncer=CP))


def test_one_script_starts_and_resumes_on_an_empty_machine(remote: Path, here: Path) -> None:
    first = tuner(str(remote.parent), CP, if_exists="resume").fit()
    again = tuner(str(remote.parent), CP, if_exists="resume").fit()
    lose(here)
    elsewhere = tuner(str(remote.parent), CP, if_exists="resume").fit()
    assert first[0].metrics_history == again[0].metrics_history == elsewhere[0].metrics_history


# --- spellings


def test_older_spellings_reach_the_syncer(remote: Path, here: Path) -> None:
    with pytest.warns(DeprecationWarning, match="sync_to_cloud"), pytest.warns(DeprecationWarning, match="_period"):
        config = tune.SyncConfig(upload_dir=str(remote.parent), sync_to_cloud=CP, cloud_sync_period=60)
    with pytest.warns(DeprecationWarning, match="local_dir"):
        run_config = tune.RunConfig(name="exp", verbose=0, local_dir=str(here / "older"), sync_config=config)
    tune.Tuner(train, run_config=run_config).fit()
    assert (here / "older" / "exp" / ".holdfast").is_dir()
    lose(here)
    assert epochs(restored(remote, CP).get_results()[0]) == list(range(EPOCHS))


def test_a_directory_for_the_experiment_and_an_address_for_its_copy(remote: Path, here: Path) -> None:
    results = tuner(str(remote.parent), CP, storage_path=here / "mine").fit()
    assert results.experiment_path == str(here / "mine" / "exp")
    assert checkpoints_in(remote) == checkpoints_in(here / "mine" / "exp")


def test_a_uri_is_where_the_users_syncer_copies_to(tmp_path: Path, here: Path) -> None:
    def vault(source: str, target: str) -> None:
        synced.copy(*(place.replace("vault://", f"{tmp_path}/vault/") for place in (source, target)))

    config = tune.RunConfig(
        name="exp", verbose=0, storage_path="vault://shelf", sync_config=tune.SyncConfig(syncer=vault)
    )
    tune.Tuner(train, run_config=config).fit()
    assert (tmp_path / "vault" / "shelf" / "exp" / ".holdfast").is_dir()
    lose(here)
    back = tune.Tuner.restore("vault://shelf/exp", sync_config=tune.SyncConfig(syncer=vault))
    assert epochs(back.get_results()[0]) == list(range(EPOCHS))


def test_a_delete_command_of_the_users_deletes(remote: Path) -> None:
    syncer = CommandSyncer(CP, delete_template="rm -r {target}")
    (result,) = tuner(str(remote.parent), syncer, checkpoint_config=tune.CheckpointConfig(num_to_keep=2)).fit()
    names = {path.rpartition("/")[2] for path in checkpoints_in(remote)}
    assert names == {f"checkpoint_{epoch:06d}" for epoch in (EPOCHS - 2, EPOCHS - 1)}
    assert result.error is None
