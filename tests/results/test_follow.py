"""A follower always says what somebody says who opens the experiment now."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, many_trials, small_experiment

from holdfast.controller import opening
from holdfast.core import events as ev
from holdfast.errors import JournalDamagedError
from holdfast.results import follow
from holdfast.results.follow import Changes, Follower
from holdfast.results.history import open_history
from holdfast.results.report_data import experiment_facts, trial_details
from holdfast.results.story import trial_story

DEADLINE_S = 60.0
NOW = 1_700_001_000.0


def check_same(follower: Follower) -> None:
    """Compare all that a follower says with what a new reader says."""
    fresh = open_history(follower.history.root)
    expected, found = experiment_facts(fresh, NOW), follower.facts(NOW)
    for volatile in ("holder", "durable_lag_s"):
        del expected[volatile], found[volatile]
    assert found == expected
    assert follower.history.lost == fresh.lost
    assert follower.record == fresh.position.next_seq - 1
    for trial in fresh.state.trials:
        assert follower.trial(trial.n) == trial_details(fresh, trial)
        assert follower.rows(trial.n) == fresh.rows(trial.n)
        assert follower.story(trial.n) == trial_story(fresh, trial)


def test_what_is_new_is_told_once(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 0.1})
    follower = Follower.open(root.path)
    assert follower.advance() == Changes(follower.record, state="running")
    root.start(0)
    root.report(0, {"loss": 3.0})
    root.report(0, {"loss": 2.0})
    change = follower.advance()
    assert (change.trials, change.rows, change.reread) == ((0,), 2, False)
    assert change.record == root.journal.position.next_seq - 1
    assert follower.advance().trials == ()
    root.error(0, type="ValueError", message="too large")
    change = follower.advance()
    assert [line.kind for line in change.sentences] == ["TrialErrored"]
    assert "ValueError: too large" in change.sentences[0].text
    assert follower.failures()[0]["trials"] == ["abcde_00000"]
    check_same(follower)


def test_a_dead_driver_costs_no_reopening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    monkeypatch.setattr(follow, "open_nearest", _refuse)
    assert follower.history.state.counts["RUNNING"] == 1
    root.die()
    change = follower.advance()
    assert (change.trials, change.state, change.rows) == ((3,), "interrupted", 0)
    check_same(follower)
    assert follower.advance() == Changes(change.record, state="interrupted")
    # The next driver records what became of the trial, and continues it from its checkpoint.
    root.at += 100
    root.open()
    follower.advance()
    check_same(follower)
    root.cut(3, ev.Cause.DRIVER_LOST)
    root.start(3)
    change = follower.advance()
    assert (change.trials, change.state) == ((3,), "running")
    check_same(follower)
    root.report(3, {"loss": 1.0})
    root.end(3)
    root.add(ev.SearchEnded(root.tick(), "all samples"))
    root.finish()
    change = follower.advance()
    assert change.state == "finished"
    check_same(follower)


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the experiment was opened again")


def test_a_driver_that_came_and_died_between_two_looks(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp").die()
    follower = Follower.open(root.path)
    root.open()
    root.cut(3, ev.Cause.DRIVER_LOST)
    root.start(3)
    root.die()
    assert follower.advance().trials == (3,)
    check_same(follower)


def test_a_place_that_was_cut_away_is_read_again_and_said(tmp_path: Path) -> None:
    """A driver that was taken over has written behind the seal: whoever has read that must begin again."""
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 0.1})
    root.start(0)
    sealed = root.path / ".holdfast" / "journal"
    before = {file.name: file.read_bytes() for file in sealed.iterdir()}
    root.report(0, {"loss": 1.0})
    follower = Follower.open(root.path)
    assert follower.history.state.reports == 1
    root.die()
    for name, data in before.items():  # as a power cut leaves it
        (sealed / name).write_bytes(data)
    for mark in (root.path / ".holdfast" / "epochs").glob("*.synced"):
        mark.unlink()
    other = RootWriter.__new__(RootWriter)
    other.__dict__.update(root.__dict__)
    other.state = open_history(root.path).state
    other.open()
    other.create({"lr": 0.2})
    loaded = Follower(root.path, follower.history)
    assert len(loaded.curves) == 0  # they need the journal's beginning, and find that its end was another
    assert loaded.advance().reread
    change = follower.advance()
    assert change.reread
    assert change.trials == ()
    assert len(follower.history.state.trials) == 2
    check_same(follower)


def test_settings_that_change_are_shown_without_reopening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    monkeypatch.setattr(follow, "open_nearest", _refuse)
    root.add(ev.SettingsChanged(root.tick(), metric="accuracy", mode="max", words=("metric",)))
    change = follower.advance()
    assert [line.kind for line in change.sentences] == ["SettingsChanged"]
    assert (follower.facts()["metric"], follower.facts()["mode"]) == ("accuracy", "max")


def test_rows_of_a_rewound_trial_follow(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    assert [row["loss"] for row in follower.rows(3)] == [2.5, 2.0]
    root.retry(3, ev.Cause.SIGNAL, message="killed")
    root.start(3)
    follower.advance()
    assert [row["loss"] for row in follower.rows(3)] == [2.5]
    root.report(3, {"loss": 1.5})
    follower.advance()
    assert [row["loss"] for row in follower.rows(3)] == [2.5, 1.5]
    check_same(follower)


def test_opening_tells_its_progress_from_snapshot_and_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TELL_EVERY", 1000)
    for snapshot in (False, True):
        root = many_trials(tmp_path / f"exp{snapshot}", 50, snapshot=snapshot)
        told: list[tuple[int, int]] = []
        Follower.open(root.path, progress=lambda read, total, told=told: told.append((read, total)))
        assert told[0][0] == 0
        assert told == sorted(told)
        assert told[-1][0] > 0.5 * told[-1][1]
        assert len({total for _, total in told}) == 1


def test_damage_found_later_raises_or_is_kept(tmp_path: Path) -> None:
    root = small_experiment(tmp_path / "exp")
    strict, tolerant = Follower.open(root.path), Follower.open(root.path, tolerant=True)
    root.journal.append([b"no event"])
    with pytest.raises(JournalDamagedError):
        strict.advance()
    change = tolerant.advance()
    assert change.reread
    assert tolerant.history.damage is not None
    assert len(tolerant.history.state.trials) == 4
    assert not tolerant.advance().reread  # nobody has repaired it


def test_an_error_in_the_middle_of_reading_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_experiment(tmp_path / "exp")
    follower = Follower.open(root.path)
    root.report(3, {"loss": 1.0})
    root.create({"lr": 0.5})
    tell = follower._teller.sentence

    def fail(event: Any) -> Any:
        if isinstance(event, ev.TrialCreated):
            raise OSError("the disk does not answer")
        return tell(event)

    monkeypatch.setattr(follower._teller, "sentence", fail)
    with pytest.raises(OSError, match="does not answer"):
        follower.advance()
    assert follower.advance().reread
    check_same(follower)


DRIVER = """
import sys, json, time
from pathlib import Path
import holdfast as tune
def train(config):
    start, before = 0, tune.get_checkpoint()
    if before is not None:
        with before.as_directory() as folder:
            start = json.loads(Path(folder, "s.json").read_text()) + 1
    for step in range(start, 8):
        with tune.checkpoint_dir() as folder:
            Path(folder, "s.json").write_text(json.dumps(step))
        tune.report({"loss": 10 - step, "step": step}, checkpoint=tune.Checkpoint(folder))
        while step == 4 and not Path(config["go"]).exists():
            time.sleep(0.01)
root = Path(sys.argv[1])
if (root / ".holdfast").exists():
    tuner = tune.Tuner.restore(str(root), trainable=train)
else:
    tuner = tune.Tuner(train, param_space={"go": str(root) + ".go", "x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name=root.name, storage_path=str(root.parent), verbose=0,
                                  engine=tune.LocalEngine(cpus=2)))
tuner.fit()
"""


def _follow_until(follower: Follower, condition: Any) -> list[Changes]:
    deadline = time.monotonic() + DEADLINE_S
    changes = [follower.advance()]
    while not condition():
        assert time.monotonic() < deadline, experiment_facts(follower.history)
        time.sleep(0.02)
        changes.append(follower.advance())
    return changes


def test_a_real_driver_is_killed_and_resumed_while_it_is_followed(tmp_path: Path) -> None:
    root, script = tmp_path / "exp", tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), str(root)]
    with subprocess.Popen(command, start_new_session=True) as driver:
        deadline = time.monotonic() + DEADLINE_S
        while not list(root.glob(".holdfast/journal/*.hfj")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        follower = Follower.open(root)
        _follow_until(follower, lambda: follower.history.state.reports == 10)
        assert follower.facts()["state"] == "running"
        os.kill(driver.pid, signal.SIGKILL)
    _follow_until(follower, lambda: follower.facts()["state"] == "interrupted")
    assert sorted(follower.history.lost) == [0, 1]
    check_same(follower)
    Path(f"{root}.go").touch()
    with subprocess.Popen(command, start_new_session=True) as driver:
        changes = _follow_until(follower, lambda: follower.facts()["state"] == "finished")
        assert driver.wait(DEADLINE_S) == 0
    changes.append(follower.advance())
    assert not any(change.reread for change in changes)
    assert any("took over" in line.text for change in changes for line in change.sentences)
    check_same(follower)
    assert [[row["step"] for row in follower.rows(n)] for n in (0, 1)] == [list(range(8))] * 2
    json.dumps(follower.facts())
