"""The schedule of one trial of a population, trained again."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from table import Population, Script, Table, assert_exact_resume, assert_never_hangs, play

from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.schedulers import PopulationBasedTrainingReplay, create_scheduler
from holdfast.schedulers.pbt_replay import Change, read_schedule

MARKER = {"__object__": "data", "type": "a.Data"}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Trial 2 is a copy of 1 as of iteration 4, which is one of 0 as of iteration 2."""
    path = tmp_path / "pbt_policy_x_00002.txt"
    write(path, ["1", "0", 3, 2, {"lr": 1}, {"lr": 2}], ["2", "1", 6, 4, {"lr": 2}, {"lr": 3}])
    return path


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configs(table: Table) -> list[tuple[int, Any]]:
    """The config of each report of trial 0, with its iteration."""
    config, found = {}, []
    for event in table.history:
        if isinstance(event, ev.TrialCreated | ev.TrialReconfigured):
            config = event.config
        elif isinstance(event, ev.Reported):
            found.append((len(found) + 1, config.get("lr")))
    return found


def alone(**settings: Any) -> Population:
    return Population([Script([1, 2, 3, 4, 5, 6])], **settings)


@pytest.mark.parametrize("is_class", [False, True])
def test_the_trial_changes_its_config_where_its_ancestors_were_copied(policy, is_class, caplog):
    population = Population([Script([1, 2, 3, 4, 5, 6], saves_every=0 if is_class else 1)], is_class=is_class)
    with caplog.at_level(logging.WARNING, "holdfast"):
        table = play(lambda: PopulationBasedTrainingReplay(str(policy)), population)
    assert configs(table) == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    assert table.state.trials[0].shown_tag == "replay_pbt_policy_x_00002.txt@perturbed[lr=3]"
    starts = table.events(ev.TrialStarted)
    assert [event.rows for event in starts] == [0, 2, 4]
    assert "is replaced by that of pbt_policy_x_00002.txt" in caplog.text


def test_the_file_is_read_once(policy):
    scheduler = PopulationBasedTrainingReplay(str(policy))
    policy.unlink()
    assert play(lambda: scheduler, alone()).statuses() == ["TERMINATED"]


def test_changes_that_were_missed_are_made_up_for(policy):
    table = play(
        lambda: PopulationBasedTrainingReplay(str(policy)), Population([Script([1, 2, 3], stride=5, saves_every=1)])
    )
    assert [event.config for event in table.events(ev.TrialReconfigured)] == [{"lr": 1}, {"lr": 3}]


def test_what_a_later_copy_has_overwritten_is_left_out(tmp_path):
    """Files of other tools keep lines of the trial from before it became a copy of one without a file."""
    path = write(tmp_path / "p.txt", ["2", "5", 2, 2, {"lr": 8}, {"lr": 9}], ["2", "1", 6, 4, {"lr": 2}, {"lr": 3}])
    schedule = read_schedule(path)
    assert schedule is not None
    assert (schedule.first, schedule.changes) == ({"lr": 2}, [Change(4, {"lr": 3})])


def test_an_empty_policy_trains_with_the_config_of_the_trial(tmp_path):
    path = write(tmp_path / "empty.txt")
    table = play(lambda: PopulationBasedTrainingReplay(str(path)), alone())
    assert table.state.trials[0].config == {"n": 0}
    assert table.events(ev.TrialPaused) == []


def test_objects_are_those_of_the_new_trial(tmp_path):
    path = write(tmp_path / "p.txt", ["1", "0", 3, 2, {"d": [MARKER], "lr": 1}, {"d": [MARKER], "lr": 2}])
    mine = {"__object__": "other", "type": "a.Data"}
    table = play(
        lambda: PopulationBasedTrainingReplay(str(path)), Population([Script([1, 2, 3], config={"d": [mine]})])
    )
    assert table.state.trials[0].config == {"d": [mine], "lr": 2}
    with pytest.raises(InvalidInputError, match="'d/0'"):
        play(lambda: PopulationBasedTrainingReplay(str(path)), alone())


def test_a_second_trial_is_refused(policy):
    with pytest.raises(ValueError, match="More than one trial"):
        play(lambda: PopulationBasedTrainingReplay(str(policy)), Population([Script([1]), Script([1])]))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Policy file not found"):
        PopulationBasedTrainingReplay(str(tmp_path / "none.txt"))


@pytest.mark.parametrize("text", ["{", "[1, 2]", '["a", "b", 1, null, {}, {}]', '["a", "b", 1, 2, 3, {}]', "7"])
def test_a_file_that_is_no_policy_is_refused(tmp_path, text):
    path = tmp_path / "p.txt"
    path.write_text(f"{text}\n")
    with pytest.raises(ValueError, match=r"p\.txt, line 1"):
        create_scheduler("pbt_replay", policy_file=str(path))


def test_a_replay_that_was_rebuilt_goes_on_as_before(policy):
    for is_class in (False, True):
        scripts = [Script([1, 2, 3, 4, 5, 6], saves_every=0 if is_class else 2, commit_s=0.3, fails_at=(5,))]
        population = Population(scripts, is_class=is_class, max_failures=1)
        assert_exact_resume(lambda: PopulationBasedTrainingReplay(str(policy)), population)


def test_replays_of_random_trials_come_to_an_end(policy):
    assert_never_hangs(lambda: PopulationBasedTrainingReplay(str(policy)), range(100), max_trials=1)


def test_without_a_policy_it_cannot_be_made_by_name() -> None:
    with pytest.raises(InvalidInputError, match=r"create_scheduler\('pbt_replay', policy_file=\.\.\.\)"):
        create_scheduler("pbt_replay")
