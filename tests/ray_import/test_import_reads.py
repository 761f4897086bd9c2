"""What ``holdfast import`` makes of recorded experiments: trials, results, checkpoints, errors; and what it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.ray_import import imported_history as history_module
from holdfast.results.history import open_history

Run = Callable[..., Any]
Recorded = Callable[[str], Path]


def files_below(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def state_file(path: Path) -> Path:
    return sorted(path.glob("experiment_state-*.json"))[-1]


def change_trials(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Rewrite both texts of each trial."""
    file = state_file(path)
    content = json.loads(file.read_text())
    for pair in content["trial_data"]:
        fixed, changing = json.loads(pair[0]), json.loads(pair[1])
        change(fixed, changing)
        pair[:] = [json.dumps(fixed), json.dumps(changing)]
    file.write_text(json.dumps(content))


def rows_in(folder: Path) -> dict[int, dict[str, Any]]:
    """The rows of a result.json by iteration; the last one of each counts."""
    rows = map(json.loads, (folder / "result.json").read_text().splitlines())
    return {row["training_iteration"]: row for row in rows}


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one + other))


@pytest.mark.parametrize("name", ["function", "class", "errored", "interrupted", "pbt", "objects"])
def test_an_import_is_whole_has_every_row_and_leaves_the_source_alone(
    holdfast: Run, recorded: Recorded, tmp_path: Path, name: str
) -> None:
    source, target = recorded(name), tmp_path / "new" / name
    before = files_below(source)
    answer = holdfast("import", source, target)
    assert answer.code == 0, answer.err
    assert "Not imported" in answer.out
    assert "searcher and scheduler" in answer.out
    assert files_below(source) == before
    assert list(target.parent.iterdir()) == [target]
    checked = holdfast("verify", target)
    assert checked.code == 0, checked.out
    for result in tune.ResultGrid.from_path(target):
        folder = source / Path(result.path).name
        if not (folder / "result.json").exists():
            assert result.metrics_dataframe is None or result.metrics_dataframe.empty
            continue
        told, frame = rows_in(folder), result.metrics_dataframe
        assert list(frame["training_iteration"]) == sorted(told)
        for key in ("loss", "score", "odd", "time_total_s", "timestamp", "hostname", "pid"):
            for iteration, row in told.items():
                if key in row:
                    found = frame.loc[frame["training_iteration"] == iteration, key].item()
                    assert same(found, row[key]) or found == pytest.approx(row[key]), (key, iteration)
        for checkpoint, metrics in result.best_checkpoints:
            content = files_below(folder / Path(checkpoint.path).name)
            assert content.items() <= files_below(Path(checkpoint.path)).items()
            rows = map(json.loads, (folder / "result.json").read_text().splitlines())
            names = {row.get("checkpoint_dir_name"): row["training_iteration"] for row in rows}  # the last one counts
            assert names.get(Path(checkpoint.path).name, metrics["training_iteration"]) == metrics["training_iteration"]


def test_trials_come_in_order_of_creation_with_their_ids_and_true_times(imported: Recorded) -> None:
    history = open_history(imported("function"))
    assert [trial.id for trial in history.state.trials] == ["9fe24_00000", "9fe24_00001", "9fe24_00002"]
    assert [trial.config for trial in history.state.trials] == [
        {"lr": lr, "shape": [2, 3], "nested": {"depth": 1}} for lr in (0.1, 0.2, 0.3)
    ]
    assert [trial.params for trial in history.state.trials] == [("lr",)] * 3
    first = history.state.trials[0]
    assert 1794957268 <= first.started_at < first.ended_at < 1794957269
    assert (history.spec.metric, history.spec.mode, history.spec.retention.num_to_keep) == ("loss", "min", 2)
    assert history.spec.trainable == "train"
    assert not history.spec.is_class


def test_a_class_keeps_its_dict_as_it_is_and_gets_counters(imported: Recorded, recorded: Recorded) -> None:
    target = imported("class")
    result = tune.ResultGrid.from_path(target)[0]
    assert result.checkpoint is not None
    directory = Path(result.checkpoint.path)
    source = target.parents[1] / "ray" / "class" / directory.parent.name / directory.name
    assert (directory / "_dict_checkpoint.pkl").read_bytes() == (source / "_dict_checkpoint.pkl").read_bytes()
    assert json.loads((directory / ".holdfast_trainable.json").read_text())["iteration"] == 3
    assert open_history(target).spec.is_class


def test_failures_keep_their_text_and_repeated_iterations_count_once(holdfast: Run, imported: Recorded) -> None:
    target = imported("errored")
    grid = tune.ResultGrid.from_path(target)
    assert [result.error is not None for result in grid] == [True, False, False, False]
    assert "ValueError: the third step is too much" in str(grid[0].error)
    trials = open_history(target).state.trials
    assert [trial.total_failures for trial in trials] == [2, 1, 0, 0]
    assert trials[0].error is not None
    assert trials[0].error.type == "ValueError"
    assert trials[0].error.location.endswith("record.py:80")
    assert [len(result.metrics_dataframe) for result in grid] == [2, 4, 4, 4]
    story = holdfast("show", target, 1, "--story").out
    assert "only this time" in story


def test_what_had_not_ended_is_unfinished(imported: Recorded) -> None:
    state = open_history(imported("interrupted")).state
    assert [trial.status for trial in state.trials] == ["TERMINATED"] + ["PENDING"] * 5
    assert [trial.rows for trial in state.trials] == [3, 3, 0, 0, 0, 0]
    latest = state.trials[1].latest()
    assert latest is not None
    assert (latest.index, latest.iteration) == (2, 3)


def test_configs_that_changed_on_the_way_are_told_with_their_rows(holdfast: Run, imported: Recorded) -> None:
    target = imported("pbt")
    trials = open_history(target).state.trials
    assert [trial.config for trial in trials] == [{"lr": 0.5}, {"lr": 1.0}]
    story = holdfast("show", target, 0, "--story").out
    assert "lr" in story


def test_a_trial_that_was_to_go_on_from_anothers_checkpoint_does_so(
    holdfast: Run, recorded: Recorded, tmp_path: Path
) -> None:
    """In the recorded state, trial 0 was told to continue with the last checkpoint of trial 1."""
    source = recorded("pbt")

    def run(fixed: dict[str, Any], _: dict[str, Any]) -> None:
        if fixed["trial_id"].endswith("00000"):
            fixed["status"] = "PAUSED"

    change_trials(source, run)
    assert holdfast("import", source, tmp_path / "new").code == 0
    state = open_history(tmp_path / "new").state
    assert state.start_point(state.trials[0]) == ((1, 8), 8)
    assert state.trials[0].config == {"lr": 0.5}
    assert holdfast("verify", tmp_path / "new").code == 0


def test_a_missing_checkpoint_gives_way_to_the_one_before_with_a_note(
    holdfast: Run, recorded: Recorded, tmp_path: Path
) -> None:
    source = recorded("interrupted")
    folder = next(source.glob("slow_*_00001_*"))
    for file in (folder / "checkpoint_000002").iterdir():
        file.unlink()
    (folder / "checkpoint_000002").rmdir()
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0
    assert f"{folder.name}/checkpoint_000002 is not there: the one before it is checkpoint_000001" in answer.out
    latest = open_history(tmp_path / "new").state.trials[1].latest()
    assert latest is not None
    assert (latest.index, latest.iteration) == (1, 2)


def all_rows(target: Path) -> list[list[int]]:
    frames = [result.metrics_dataframe for result in tune.ResultGrid.from_path(target)]
    return [[] if frame is None or frame.empty else list(frame["training_iteration"]) for frame in frames]


@pytest.mark.parametrize("damage", ["torn", "cut", "gone"])
@pytest.mark.parametrize("name", ["interrupted", "class"])
def test_results_that_result_json_lacks_come_from_the_state(
    holdfast: Run, recorded: Recorded, tmp_path: Path, damage: str, name: str
) -> None:
    """The state has the last result, and with each checkpoint the result that it came with."""
    whole, source = recorded(name), tmp_path / "ray" / "damaged"
    assert holdfast("import", whole, tmp_path / "whole").code == 0
    whole.rename(source)
    for file in source.glob("*/result.json"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:-1]) + (lines[-1][:-50] if damage == "torn" else b""))
        if damage == "gone":
            file.unlink()
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0, answer.err
    assert "left out" not in answer.out
    assert all_rows(tmp_path / "new") == all_rows(tmp_path / "whole")
    states = [open_history(tmp_path / each).state for each in ("whole", "new")]
    kept = [
        [[(made.index, made.iteration) for made in trial.committed()] for trial in state.trials] for state in states
    ]
    assert kept[0] == kept[1]
    assert holdfast("verify", tmp_path / "new").code == 0


def test_results_and_checkpoints_that_nothing_tells_of_are_named(
    holdfast: Run, recorded: Recorded, tmp_path: Path
) -> None:
    source = recorded("interrupted")
    change_trials(source, lambda _, changing: changing.update(checkpoint_manager={"value": "00"}, last_result={}))
    folder = next(source.glob("slow_*_00001_*"))
    with open(folder / "result.json", "r+b") as file:
        file.truncate(os.path.getsize(folder / "result.json") - 50)
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0, answer.err
    assert f"the last line of {folder.name}/result.json is cut short and is left out" in answer.out
    assert f"{folder.name}/checkpoint_000002 is left out" in answer.out
    assert all_rows(tmp_path / "new")[:2] == [[1, 2, 3], [1, 2]]


def test_a_gap_before_the_last_result_is_named(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    change_trials(source, lambda _, changing: changing.update(checkpoint_manager={"value": "00"}))
    folder = next(source.glob("train_*_00000_*"))
    lines = (folder / "result.json").read_text().splitlines(keepends=True)
    (folder / "result.json").write_text(lines[0])
    answer = holdfast("import", source, tmp_path / "new")
    assert "of trial 9fe24_00000 these iterations are not known and are left out: 2 to 3" in answer.out
    assert f"{folder.name}/checkpoint_000002 is left out" in answer.out
    assert all_rows(tmp_path / "new")[0] == [1, 4]


def test_a_state_older_than_a_retry_adds_nothing(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    """Within a second, the iteration 3 of before the failure is no later result than the iteration 2 after it."""
    source = recorded("function")
    folder = next(source.glob("train_*_00000_*"))
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    again = {**rows[1], "time_total_s": 9.0, "iterations_since_restore": 1}
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in [*rows, again]))
    assert holdfast("import", source, tmp_path / "new").code == 0
    assert all_rows(tmp_path / "new")[0] == [1, 2]


def test_metadata_of_checkpoints_and_other_files_come_along(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    folder = next(source.glob("train_*_00000_*"))
    (folder / "checkpoint_000003" / ".metadata.json").write_text('{"by": "me"}')
    (folder / "checkpoint_000002" / ".metadata.json").write_text("{torn")
    (folder / "plots" / "deep").mkdir(parents=True)
    (folder / "plots" / "deep" / "loss.png").write_text("png")
    assert holdfast("import", source, tmp_path / "new").code == 0
    result = tune.ResultGrid.from_path(tmp_path / "new")[0]
    assert result.checkpoint is not None
    assert result.checkpoint.get_metadata() == {"by": "me"}
    assert (Path(result.path) / "plots" / "deep" / "loss.png").read_text() == "png"
    assert holdfast("verify", tmp_path / "new").code == 0


def test_trials_that_the_state_does_not_list_are_named(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    (source / "train_9fe24_00003").mkdir()
    (source / "train_9fe24_00003" / "params.json").write_text("{}")
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0
    assert "does not list the trials in train_9fe24_00003" in answer.out


def test_a_full_disk_ends_the_import_and_leaves_nothing(
    holdfast: Run, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "checkpoint")

    monkeypatch.setattr(history_module, "copy_regular", full)
    refused(holdfast, recorded("function"), tmp_path / "new", 1, "No space left")


def test_objects_in_configs_become_named_placeholders(imported: Recorded, holdfast: Run, recorded: Recorded) -> None:
    target = imported("objects")
    trial = open_history(target).state.trials[0]
    assert trial.config == {"widget": {"__object__": "widget", "type": "__main__.Widget"}, "lr": 0.1}


def test_without_readable_pickles_the_results_tell_enough(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    (source / "tuner.pkl").write_bytes(b"torn")
    change_trials(source, lambda _, changing: changing.update(checkpoint_manager={"value": "00"}))
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0
    assert "tuner.pkl cannot be read" in answer.out
    trial = open_history(tmp_path / "new").state.trials[0]
    assert [(record.index, record.iteration) for record in trial.committed()] == [(2, 3), (3, 4)]


def test_nothing_that_is_pickled_is_executed(recorded: Recorded, tmp_path: Path) -> None:
    """Every pickle that is read is a trap; the command runs in a process of its own, so nothing is loaded before."""
    source, witness = recorded("function"), tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {witness}",)

    trap = pickle.dumps(Trap())
    hexed = {"_type": "CLOUDPICKLE_FALLBACK", "value": trap.hex()}

    def change(fixed: dict[str, Any], changing: dict[str, Any]) -> None:
        fixed["config"]["object"] = hexed
        fixed["storage"], fixed["placement_group_factory"] = hexed, trap.hex()
        changing["checkpoint_manager"] = hexed

    change_trials(source, change)
    for file in ("tuner.pkl", "trainable.pkl", f"{next(source.glob('train_*')).name}/params.pkl"):
        (source / file).write_bytes(trap)
    command = [sys.executable, "-m", "holdfast", "import", str(source), str(tmp_path / "new")]
    subprocess.run(command, check=True, capture_output=True)
    assert not witness.exists()
    config = open_history(tmp_path / "new").state.trials[0].config
    assert config["object"] == {"__object__": "object", "type": "posix.system"}


NESTED = json.loads("[" * 300 + "]" * 300)


@pytest.mark.parametrize(
    "value", ["\ud800", "a\0b", 10**30, -1, True, float("inf"), float("nan"), [], {"\ud800": 1}, NESTED]
)
def test_odd_values_are_taken_as_far_as_they_can_be(
    holdfast: Run, recorded: Recorded, tmp_path: Path, value: Any
) -> None:
    source = recorded("errored")

    def change(fixed: dict[str, Any], changing: dict[str, Any]) -> None:
        fixed["config"]["odd"] = value if value is not NESTED else 1
        for name in ("experiment_tag", "custom_trial_name", "evaluated_params", "relative_logdir", "max_failures"):
            fixed[name] = value if value is not NESTED and fixed["trial_id"].endswith("2") else fixed.get(name)
        for name in ("start_time", "num_failures", "error_filename", "last_result_time"):
            changing[name] = value if value is not NESTED else None

    change_trials(source, change)
    for file in source.glob("*/result.json"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for name in ("loss", "pid", "hostname", "time_this_iter_s", "timestamp", "odd", "config"):
            rows[1][name] = value
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0, answer.err
    assert holdfast("verify", tmp_path / "new").code == 0
    assert len(tune.ResultGrid.from_path(tmp_path / "new")) == 4


# --- what it refuses


def refused(holdfast: Run, source: Path, target: Path, code: int, *words: str) -> None:
    answer = holdfast("import", source, target)
    assert answer.code == code, answer
    for word in words:
        assert word in answer.err, answer.err
    assert not os.path.lexists(target) or target.read_text() == "mine"
    assert not target.parent.exists() or [path for path in target.parent.iterdir() if ".scratch" in path.name] == []


def test_a_directory_without_a_state_is_refused(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    refused(holdfast, tmp_path / "nowhere", tmp_path / "new", 2, "nowhere")
    refused(holdfast, source.parent, tmp_path / "new", 2, "experiment_state-*.json", f"Did you mean {source}")
    state = state_file(source)
    refused(holdfast, state, tmp_path / "new", 2, "not a directory")
    state.unlink()
    refused(holdfast, source, tmp_path / "new", 2, "experiment_state-*.json")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b'{"trial_data": [[', b"[]", b'{"trial_data": []}', b'{"trial_data": [[1]]}']
)
def test_of_a_damaged_state_the_older_one_is_offered(
    holdfast: Run, recorded: Recorded, tmp_path: Path, content: bytes
) -> None:
    source = recorded("function")
    older = state_file(source)
    newer = source / "experiment_state-2099-01-01_00-00-00.json"
    newer.write_bytes(content)
    refused(holdfast, source, tmp_path / "new", 1, newer.name, f"--state {older.name}")
    answer = holdfast("import", source, tmp_path / "new", "--state", older.name)
    assert answer.code == 0, answer.err
    assert len(open_history(tmp_path / "new").state.trials) == 3
    older.unlink()
    refused(holdfast, source, tmp_path / "other", 1, newer.name, "no older one")


def test_a_target_that_exists_is_left_as_it_is(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source = recorded("function")
    (tmp_path / "file").write_text("mine")
    refused(holdfast, source, tmp_path / "file", 2, "exists already")
    (tmp_path / "empty").mkdir()
    assert holdfast("import", source, tmp_path / "empty").code == 2
    assert list((tmp_path / "empty").iterdir()) == []
    inside = holdfast("import", source, source / "new")
    assert (inside.code, "is inside" in inside.err) == (2, True)
    assert not (source / "new").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc", "..", ".holdfast", "a\0b"])
def test_names_do_not_lead_out_of_the_directory(holdfast: Run, recorded: Recorded, tmp_path: Path, name: str) -> None:
    source = recorded("function")
    outside = source.parent / "outside"
    outside.mkdir()
    (outside / "result.json").write_text('{"training_iteration": 1, "secret": 1}\n')
    change_trials(source, lambda fixed, _: fixed.update(relative_logdir=name))
    assert holdfast("import", source, tmp_path / "new").code == 0
    history = open_history(tmp_path / "new")
    assert all("secret" not in (trial.metrics or {}) for trial in history.state.trials)
    change_trials(source, lambda fixed, _: fixed.update(trial_id=name))
    refused(holdfast, source, tmp_path / "other", 1, "cannot be imported")


def test_links_are_not_followed(holdfast: Run, recorded: Recorded, tmp_path: Path) -> None:
    source, secret = recorded("interrupted"), tmp_path / "secret"
    secret.mkdir()
    (secret / "step.txt").write_text("secret")
    folder = next(source.glob("slow_*_00001_*"))
    (folder / "checkpoint_000002" / "link").symlink_to(secret / "step.txt")
    (folder / "checkpoint_000003").symlink_to(secret)
    (folder / "other").symlink_to(secret)
    (folder / "kept.txt").write_text("an artifact")
    done = next(source.glob("slow_*_00000_*"))
    (done / "result.json").unlink()
    (done / "result.json").symlink_to(secret / "step.txt")
    answer = holdfast("import", source, tmp_path / "new")
    assert answer.code == 0
    assert "symbolic link" in answer.out
    content = files_below(tmp_path / "new")
    assert b"secret" not in content.values()
    assert content[f"{folder.name}/kept.txt"] == b"an artifact"
    latest = open_history(tmp_path / "new").state.trials[1].latest()
    assert latest is not None
    assert latest.index == 1
    assert holdfast("verify", tmp_path / "new").code == 0


@pytest.mark.parametrize("point", ["import.written", "import.renamed", "epoch.claimed", "L1.sealed:4"])
def test_a_killed_import_leaves_a_whole_experiment_or_none(recorded: Recorded, tmp_path: Path, point: str) -> None:
    source, target = recorded("function"), tmp_path / "new"
    command = [sys.executable, "-m", "holdfast", "import", str(source), str(target)]
    ended = subprocess.run(command, env={**os.environ, "HOLDFAST_CRASH": point}, capture_output=True, check=False)
    assert ended.returncode == -9, ended
    assert target.exists() == (point == "import.renamed")
    if not target.exists():
        subprocess.run(command, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "holdfast", "verify", str(target)], check=True, capture_output=True)
