"""The command line and results of experiments in a store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import store_trials
from roots import small_experiment

import holdfast as tune
from holdfast.cli.export_to import log
from holdfast.errors import JournalDamagedError, ObjectDamagedError
from holdfast.journal import epoch as epochs
from holdfast.results import ExperimentAnalysis, Result, ResultGrid
from holdfast.results.history import open_history
from holdfast.trainable.sealed import MAGIC

Run = Callable[..., Any]


@pytest.fixture
def stored(bucket: str) -> str:
    """A finished experiment in a store, and its mirror here."""
    grid = store_trials.tuner(f"{bucket}/runs").fit()
    assert grid.num_errors == 0
    return grid.experiment_path


@pytest.fixture
def stored_apart(bucket: str, tmp_path: Path) -> str:
    """The same, but the later two checkpoints of each trial were made after the first one was committed.

    Otherwise it would depend on the machine's speed what is in which part of the journal.
    """
    grid = store_trials.tuner(
        f"{bucket}/runs", callback=store_trials.GoOnAfterSave(str(tmp_path)), hold_at=2, dir=str(tmp_path)
    ).fit()
    assert grid.num_errors == 0
    return grid.experiment_path


def test_reading_commands_take_a_uri_and_show_it(holdfast: Run, stored: str, bucket: str, cache: Path) -> None:
    assert stored == f"{bucket}/runs/exp"
    shutil.rmtree(cache)  # as on another machine
    for _ in range(2):  # with and without something in the cache
        status = holdfast("status", stored)
        assert status.code == 0
        assert f"  {stored}\n" in status.out
        assert str(cache) not in status.out
        assert "2 of 2 trials ended: 2 done; 8 reports" in status.out
    facts = json.loads(holdfast("status", stored, "--json").out)
    assert (facts["path"], facts["state"], facts["unshipped"]) == (stored, "finished", None)
    assert facts["durable_lag_s"] == 0.0
    shown = holdfast("show", stored, "0")
    assert f"path        {stored}/train_" in shown.out
    assert "It finished" in holdfast("show", stored, "1", "--story").out
    assert "experiment" in holdfast("show", stored, "--story").out
    assert holdfast("show", stored, "nobody").err.startswith(f"holdfast: {stored} has 2 trials")


def test_experiments_below_a_prefix_are_listed(holdfast: Run, stored: str, bucket: str, tmp_path: Path) -> None:
    for place in (bucket, f"{bucket}/runs", stored):
        found = json.loads(holdfast("list", place, "--json").out)
        assert [facts["path"] for facts in found] == [stored]
    assert "runs/exp" in holdfast("list", bucket).out
    assert holdfast("list", f"{bucket}/nothing").out.startswith(f"There is no experiment in {bucket}/nothing")
    assert "exp" in holdfast("list-experiments", bucket).out
    assert holdfast("export", stored, tmp_path / "all.csv", "--rows").out.startswith("8 rows written")


def test_what_is_not_there_is_said_with_its_uri(holdfast: Run, stored: str, bucket: str) -> None:
    answer = holdfast("status", f"{bucket}/runs")
    assert answer.code == 2
    assert f"There is no experiment at {bucket}/runs" in answer.err
    assert f"Did you mean {stored}?" in answer.err
    assert holdfast("verify", f"{bucket}/runs").code == 2


def test_results_are_read_from_a_uri(stored: str, bucket: str, cache: Path) -> None:
    shutil.rmtree(cache)
    grid = ResultGrid.from_path(stored)
    assert grid.experiment_path == stored
    assert stored in repr(grid)
    assert grid.filesystem.type_name == "py::s3"  # of pyarrow, over our store
    best = grid.get_best_result()
    assert best.path.startswith(f"{stored}/train_")
    result = Result.from_path(best.path)
    assert (result.path, result.metrics, result.status) == (best.path, best.metrics, "TERMINATED")
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert json.loads(Path(directory, "state.json").read_text()) == {"step": store_trials.STEPS}
    for place in (stored, f"{stored}/.holdfast/spec.json"):
        analysis = ExperimentAnalysis(place)
        assert analysis.experiment_path == stored
        assert analysis.get_last_checkpoint(best.path).path == result.checkpoint.path
    with pytest.raises(ValueError, match="No experiment snapshot file was found"):
        ExperimentAnalysis(f"{bucket}/runs")


def test_a_lone_trial_in_a_store_is_read_from_its_files(stored: str, bucket: str) -> None:
    known = ResultGrid.from_path(stored)[0]
    store_trials.clone(known.path, f"{bucket}/taken/trial")
    result = Result.from_path(f"{bucket}/taken/trial")
    assert result.path == f"{bucket}/taken/trial"
    assert result.metrics_history == known.metrics_history
    assert result.checkpoint is not None
    assert result.checkpoint.path == f"{bucket}/taken/trial/checkpoint_000003"
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "sub", "weights.bin").stat().st_size == 10_000
    with pytest.raises(tune.TuneError, match=f"There is no trial at {bucket}/taken/nothing"):
        Result.from_path(f"{bucket}/taken/nothing")


def test_a_file_system_object_leads_to_the_same(holdfast: Run, tmp_path: Path, cache: Path) -> None:
    fs = pytest.importorskip("pyarrow.fs")
    root = small_experiment(tmp_path / "exp").finish()
    local = fs.LocalFileSystem()
    assert ExperimentAnalysis(root.path, storage_filesystem=local).experiment_path == str(root.path)
    inside = fs.SubTreeFileSystem(str(tmp_path), local)
    grid = ResultGrid.from_path("exp", storage_filesystem=inside)
    assert grid.experiment_path == "exp"
    assert len(grid) == 4
    folder = root.trial_dir(0).name
    assert Result.from_path(f"exp/{folder}", storage_filesystem=inside).path == f"exp/{folder}"


def test_verify_reads_every_object_and_names_the_damaged_key(holdfast: Run, stored: str, bucket: str) -> None:
    whole = json.loads(holdfast("verify", stored, "--json").out)
    assert (whole["whole"], whole["findings"]) == (True, [])
    assert whole["checkpoints"] == len(store_trials.keys(store_trials.store_of(stored), "/_manifest.json")) >= 2
    assert "only names and sizes" in holdfast("verify", stored, "--quick").out

    store = store_trials.clone(stored, f"{bucket}/bad/exp")
    weights = store_trials.keys(store, "checkpoint_000003/sub/weights.bin")[0]
    store_trials.flip(store, weights)
    assert holdfast("verify", f"{bucket}/bad/exp", "--quick").code == 0
    answer = holdfast("verify", f"{bucket}/bad/exp")
    assert answer.code == 1
    assert f"damage: {weights}: its content is not what was saved" in answer.out
    store.delete([weights])
    assert f"damage: {weights}: is missing" in holdfast("verify", f"{bucket}/bad/exp", "--quick").out
    manifest = store_trials.keys(store, "checkpoint_000003/_manifest.json")[1]
    store.delete([manifest])
    assert f"damage: {manifest}: is missing" in holdfast("verify", f"{bucket}/bad/exp", "--quick").out


@pytest.mark.parametrize("name", ["trainable.pkl", "settings.pkl", "values.pkl"])
def test_verify_and_restore_name_a_damaged_object_of_a_store(
    holdfast: Run, stored: str, bucket: str, name: str, cache: Path
) -> None:
    url, key = f"{bucket}/bad/exp", f".holdfast/objects/{name}"
    store = store_trials.clone(stored, url)
    whole = store.get(key)
    store_trials.flip(store, key)
    answer = holdfast("verify", url)
    assert answer.code == 1
    assert f"damage: {key}: its content does not match its checksum" in answer.out
    with pytest.raises(ObjectDamagedError, match=name):
        tune.Tuner.restore(url)
    assert holdfast("status", url).code == 0
    shutil.rmtree(cache)  # what this machine has brought from there
    store.delete([key])
    assert f"damage: {key}: it is missing" in holdfast("verify", url).out
    store.put(key, whole)
    assert holdfast("verify", url).code == 0
    tune.Tuner.restore(url, store_trials.train).fit()
    assert holdfast("verify", url).code == 0
    assert store.get(".holdfast/objects/trainable.pkl").endswith(MAGIC)


@pytest.mark.parametrize("harm", ["flip", "delete", "swap"])
def test_verify_names_a_damaged_part(holdfast: Run, stored_apart: str, bucket: str, harm: str, tmp_path: Path) -> None:
    store = store_trials.clone(stored_apart, f"{bucket}/bad/exp")
    damaged, next_one, *_ = store_trials.parts_from_first_commit(store)
    if harm == "flip":
        store_trials.flip(store, damaged, at=60)
    elif harm == "delete":
        store.delete([damaged])
    else:
        store.put(damaged, store.get(next_one))
    answer = holdfast("verify", f"{bucket}/bad/exp")
    assert answer.code == 1
    assert f"damage: {damaged}" in answer.out
    assert holdfast("status", f"{bucket}/bad/exp").code == 1
    # What stands before the damage can be continued with elsewhere.
    refused = holdfast("repair", f"{bucket}/bad/exp")
    assert refused.code == 2
    assert "--before-damage" in refused.err
    assert holdfast("copy", f"{bucket}/bad/exp", tmp_path / "saved").code == 1
    saved = holdfast("copy", f"{bucket}/bad/exp", tmp_path / "saved", "--before-damage", "--json")
    assert json.loads(saved.out)["records"] > 0
    check_goes_on_after_a_repair(holdfast, tmp_path / "saved")


def check_goes_on_after_a_repair(holdfast: Run, saved: Path) -> None:
    """Checkpoints behind the damage came along: a restore refuses to begin before them, and a repair finds them."""
    with pytest.raises(JournalDamagedError, match="holdfast repair"):
        tune.Tuner.restore(str(saved)).fit()
    assert holdfast("repair", saved, "--yes").code == 0
    assert holdfast("verify", saved).code == 0
    grid = tune.Tuner.restore(str(saved)).fit()
    assert [result.metrics["step"] for result in grid] == [3, 3]
    for result in grid:
        assert result.metrics_dataframe is not None
        assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3]


def nobody_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was this process; without the part that says that it has left, it would be taken for alive."""
    assess = epochs.assess
    monkeypatch.setattr(epochs, "assess", lambda *args, **more: assess(*args, **more)._replace(alive=False))


def test_a_newest_part_that_is_gone_is_missed_by_every_command_on_an_empty_machine(
    holdfast: Run, stored: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/bad/exp"
    store = store_trials.clone(stored, url)
    gone = store_trials.keys(store, ".hfp")[-2:]
    store.delete(gone)
    nobody_lives(monkeypatch)
    for command in (("status",), ("show",), ("export", tmp_path / "out.csv"), ("copy", tmp_path / "copy"), ("verify",)):
        answer = holdfast(command[0], url, *command[1:])
        assert answer.code == 1, command
        assert gone[0] in answer.out + answer.err, command
        assert "--before-damage" in answer.out + answer.err, command
    for read in (ResultGrid.from_path, lambda path: tune.Tuner.restore(path, store_trials.train).fit()):
        with pytest.raises(JournalDamagedError, match="is missing"):
            read(url)
    assert holdfast("copy", url, tmp_path / "saved", "--before-damage").code in (0, 1)
    if holdfast("verify", tmp_path / "saved").code == 1:
        assert holdfast("repair", tmp_path / "saved", "--yes").code == 0
    grid = tune.Tuner.restore(str(tmp_path / "saved"), store_trials.train).fit()
    assert [list(result.metrics_dataframe["step"]) for result in grid] == [[0, 1, 2, 3], [0, 1, 2, 3]]  # type: ignore[index]


def test_checkpoints_in_a_store_that_its_journal_does_not_know_are_found(
    holdfast: Run, stored_apart: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All newest parts are gone, and with them whatever said that they were there."""
    url = f"{bucket}/bad/exp"
    store = store_trials.clone(stored_apart, url)
    newest = store_trials.parts_from_first_commit(store)
    store.delete([*newest, *(stat.key for stat in store.list(".holdfast/marks/"))])
    nobody_lives(monkeypatch)
    answer = holdfast("verify", url)
    assert answer.code == 1
    assert "the journal has lost the record of this checkpoint" in answer.out
    with pytest.raises(JournalDamagedError, match="has lost records"):
        tune.Tuner.restore(url, store_trials.train).fit()


def test_a_live_driver_is_seen_from_here_and_from_elsewhere(
    holdfast: Run, bucket: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/runs/exp"
    process = store_trials.driver(f"{bucket}/runs", tmp_path, {})
    try:
        facts = json.loads(holdfast("status", url, "--json").out)
        assert (facts["state"], facts["holder"]["pid"]) == ("running", process.pid)
        assert facts["durable_lag_s"] >= 0.0
        for command in (("copy", url, tmp_path / "copy"), ("gc", url), ("ship", url)):
            answer = holdfast(*command)
            assert answer.code in (0, 1)
            if command[0] != "ship":
                assert f"pid {process.pid}" in answer.err
        assert not (tmp_path / "copy").exists()
        monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "other"))
        for _ in range(2):
            facts = json.loads(holdfast("status", url, "--json").out)
            assert facts["state"] == "running"
            assert facts["unshipped"] is None
            with monkeypatch.context() as other:
                other.setattr("socket.gethostname", lambda: "elsewhere")
                assert json.loads(holdfast("status", url, "--json").out)["durable_lag_s"] is None
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
        facts = json.loads(holdfast("status", url, "--json").out)
        assert (facts["state"], facts["counts"]["TERMINATED"]) == ("finished", 1)
        assert holdfast("verify", url).code == 0
    finally:
        process.kill()
        process.wait()


def test_resume_takes_a_uri(holdfast: Run, bucket: str, tmp_path: Path, cache: Path) -> None:
    url = store_trials.interrupted(f"{bucket}/runs", tmp_path)
    assert f"resume: holdfast resume {url}" in holdfast("status", url).out
    shutil.rmtree(cache)
    answer = holdfast("resume", url, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["state"] == "finished"
    assert [result.metrics["step"] for result in ResultGrid.from_path(url)] == [3, 3, 3]


@pytest.mark.parametrize("mirror", [False, True], ids=["empty machine", "a reader's mirror"])
def test_a_store_whose_whole_journal_is_gone_is_damaged_and_nothing_begins_anew(
    holdfast: Run, stored: str, bucket: str, cache: Path, tmp_path: Path, mirror: bool
) -> None:
    url = f"{bucket}/bad/exp"
    store = store_trials.clone(stored, url)
    if mirror:
        assert holdfast("status", url).code == 0
    lost = [stat.key for stat in store.list(".holdfast/") if stat.key.split("/")[1] in ("parts", "marks")]
    store.delete(lost)
    if mirror:
        # What it knows is more than the store has: nothing is lost, and it is shown.
        assert len(ResultGrid.from_path(url)) == 2
        shutil.rmtree(cache)
    there = store_trials.keys(store, "")
    for command in (("status",), ("show",), ("logs",), ("export", tmp_path / "out.csv"), ("verify",), ("list",)):
        answer = holdfast(command[0], url, *command[1:])
        assert answer.code == 1, command
        assert "AMAGED" in answer.out or "has lost records" in answer.err, command
    again = tune.RunConfig(name="exp", storage_path=f"{bucket}/bad", if_exists="resume", verbose=0)
    for read in (
        ResultGrid.from_path,
        lambda path: ExperimentAnalysis(path).trials,
        lambda path: tune.Tuner.restore(path, store_trials.train).fit(),
        lambda path: tune.Tuner(
            store_trials.train, param_space={"x": tune.grid_search([1, 2])}, run_config=again
        ).fit(),
        # What a driver that refused has left behind vouches for nothing.
        lambda path: tune.Tuner.restore(path, store_trials.train).fit(),
        ResultGrid.from_path,
    ):
        with pytest.raises(JournalDamagedError, match=r"has lost records: .* checkpoints were committed"):
            read(url)
    assert [key for key in store_trials.keys(store, "") if not key.startswith(".holdfast/")] == [
        key for key in there if not key.startswith(".holdfast/")
    ]


def test_readers_on_another_machine_compare_with_the_checkpoints_in_the_store(
    holdfast: Run, stored_apart: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/bad/exp"
    store = store_trials.clone(stored_apart, url)
    store.delete([*store_trials.parts_from_first_commit(store), *(stat.key for stat in store.list(".holdfast/marks/"))])
    nobody_lives(monkeypatch)
    with pytest.raises(JournalDamagedError, match="has lost records"):
        ResultGrid.from_path(url)
    assert holdfast("status", url).code == 1
    assert holdfast("show", url).code == 1


def test_an_experiment_in_a_store_is_logged_while_it_runs_and_exported_from_elsewhere(
    holdfast: Run, bucket: str, cache: Path, tmp_path: Path
) -> None:
    from trackers.file_tracker import FileTrackerCallback, read_files

    callback = FileTrackerCallback(str(tmp_path / "live"))
    grid = store_trials.tuner(f"{bucket}/runs", callback=callback).fit()
    expected = {
        result.metrics["trial_id"]: [[(row["training_iteration"], row["loss"]) for row in rows]]
        for result in grid
        if (rows := result.metrics_dataframe.to_dict("records"))
    }
    assert read_files(tmp_path / "live") == expected

    shutil.rmtree(cache)  # as on another machine
    out = tmp_path / "tensorboard"
    for written in (len(grid) + 1, 0):
        answer = holdfast("export", grid.experiment_path, out, "--to", "tensorboard")
        assert answer.code == 0
        assert f"{written} file{'s' if written != 1 else ''} written" in answer.out
    assert len(list(out.glob("*/events.out.tfevents.*"))) == len(grid)

    afterwards = FileTrackerCallback(str(tmp_path / "afterwards"))
    exporter, held_back = log(afterwards, open_history(grid.experiment_path))
    assert (exporter.found, held_back) == (0, 0)
    assert read_files(tmp_path / "afterwards") == expected
