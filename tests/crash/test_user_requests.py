"""Requests of users, with drivers and requesters that die at every step: what was accepted happens once, or not at all.

A request of which no record tells was made for a driver that is dead: the next one refuses and removes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from experiments import Plan
from lab import Lab, driver_crash, mostly_slow, until
from test_crash_points import ASKING_POINTS, REQUEST_POINTS

from holdfast.controller.request_files import UserRequest, create_request, folder_of
from holdfast.controller.user_requests import add_note, add_tags, set_samples, stop_all, stop_trial
from holdfast.core import events as ev
from holdfast.core.events import Action
from holdfast.core.state import Status
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.errors import RequestRefusedError
from holdfast.results.grid import ResultGrid

UNTAKEN = "request.read"


def held(lab: Lab, **facts) -> tuple[Plan, Path]:
    """Trials that wait in the middle until a file goes."""
    hold = lab.folder / "hold"
    hold.touch()
    return Plan(trials=2, steps=8, every=2, pause_s=0.0, hold=str(hold), hold_at=4, **facts), hold


def is_training(lab: Lab, trials: int = 2) -> bool:
    """Whether so many trials have reported what they report before they wait."""
    if not (lab.root / ".holdfast" / "journal").is_dir():
        return False
    return sum(isinstance(event, ev.Reported) for event in lab.history()) >= 3 * trials


def begun(lab: Lab, plan: Plan, **environment: str):
    driver = lab.start(plan, **environment)
    until(lambda: driver.ended or is_training(lab), lambda: driver.output)
    assert not driver.ended, driver.output
    return driver


def left_over(lab: Lab) -> list[str]:
    return os.listdir(folder_of(lab.root))


def requests_in(lab: Lab) -> list[ev.UserRequested]:
    return [event for event in lab.history() if isinstance(event, ev.UserRequested)]


@pytest.mark.parametrize("point", mostly_slow(REQUEST_POINTS, "request.answered"))
def test_a_note_is_taken_once_though_the_driver_is_killed(lab: Lab, point: str) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan, **driver_crash(point))
    create_request(lab.root, UserRequest(epoch=1, action=Action.NOTE, text="remember"))
    assert driver.wait() == -9
    hold.unlink()
    lab.run(plan).must_finish()
    state = lab.check_finished(plan)
    assert [note.text for note in state.notes] == ([] if point == UNTAKEN else ["remember"])
    (answer,) = requests_in(lab)
    assert bool(answer.refused) == (point == UNTAKEN)
    assert left_over(lab) == []


@pytest.mark.parametrize("point", mostly_slow(REQUEST_POINTS, "request.answered"))
def test_a_stopped_trial_ends_though_the_driver_is_killed(lab: Lab, point: str) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan, **driver_crash(point))
    trial = lab.state().trials[0].id
    create_request(lab.root, UserRequest(epoch=1, action=Action.STOP, trial=trial))
    assert driver.wait() == -9
    hold.unlink()
    lab.run(plan).must_finish()
    lab.check_nothing_lost()
    stopped, other = lab.state().trials
    assert stopped.status == other.status == Status.TERMINATED
    assert (stopped.reason == STOPPED_BY_USER) == (point != UNTAKEN)
    assert other.rows == plan.steps
    starts = [event.n for event in lab.history() if isinstance(event, ev.TrialStarted)]
    assert starts.count(0) == (2 if point == UNTAKEN else 1)  # the next driver does not start what is to end
    assert left_over(lab) == []


@pytest.mark.parametrize("point", mostly_slow(REQUEST_POINTS, "request.before_remove"))
def test_samples_are_added_once_though_the_driver_is_killed(lab: Lab, point: str) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan, **driver_crash(point))
    create_request(lab.root, UserRequest(epoch=1, action=Action.SAMPLES, num_samples=3))
    assert driver.wait() == -9
    hold.unlink()
    lab.run(plan).must_finish()
    assert len(lab.state().trials) == (2 if point == UNTAKEN else 3)
    assert {trial.status for trial in lab.state().trials} == {Status.TERMINATED}
    assert left_over(lab) == []


ASK = """
import sys
from holdfast.controller.user_requests import add_note
add_note(sys.argv[1], "from somebody who dies")
"""


@pytest.mark.parametrize("point", ASKING_POINTS)
def test_somebody_who_is_killed_while_asking_leaves_a_whole_request_or_none(lab: Lab, point: str) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    asking = subprocess.run([sys.executable, "-c", ASK, str(lab.root)], env={**os.environ, **driver_crash(point)})
    assert asking.returncode == -9
    assert "Noted" in add_note(lab.root, "taken by now", wait_s=60.0)
    hold.unlink()
    driver.must_finish()
    created = ["from somebody who dies"] if point == "request.created" else []
    assert [note.text for note in lab.state().notes] == [*created, "taken by now"]


def test_many_ask_at_once_and_all_are_answered_in_order_of_time(lab: Lab) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    first, second = (trial.id for trial in lab.state().trials)
    answers: list[str] = []

    def ask(number: int) -> None:
        answers.append(add_note(lab.root, f"note {number}", first if number % 2 else "", wait_s=60.0))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert "added to" in add_tags(lab.root, ["keep", "paper"], second, wait_s=60.0)
    hold.unlink()
    driver.must_finish()
    grid = ResultGrid.from_path(lab.root)
    assert sorted([*grid.notes, *grid[0].notes]) == [f"note {number}" for number in range(8)]
    assert (grid[1].tags, grid[0].tags, grid.tags) == (["keep", "paper"], [], [])
    times = [event.at for event in requests_in(lab)]
    assert times == sorted(times)


def test_a_trial_is_stopped_gracefully_and_a_second_request_is_answered_in_words(lab: Lab) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    trial = lab.state().trials[0].id
    assert "TERMINATED" in stop_trial(lab.root, trial, wait_s=60.0)
    with pytest.raises(RequestRefusedError, match="told to stop already"):
        stop_trial(lab.root, trial, wait_s=60.0)
    with pytest.raises(RequestRefusedError, match="there is no trial nobody"):
        stop_trial(lab.root, "nobody", wait_s=60.0)
    hold.unlink()
    driver.must_finish()
    stopped, other = lab.state().trials
    assert (stopped.status, stopped.reason, stopped.rows) == (Status.TERMINATED, STOPPED_BY_USER, 4)
    assert stopped.latest() is not None  # the report that it ended with came with a checkpoint
    assert other.rows == plan.steps
    with pytest.raises(RequestRefusedError, match="No driver runs"):
        stop_trial(lab.root, trial)


def test_stopping_all_leaves_everything_resumable(lab: Lab) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    assert "resume" in stop_all(lab.root, wait_s=60.0)
    hold.unlink()
    assert driver.wait() == 0, driver.output
    assert lab.state().stopped == "the user stopped the experiment"
    assert {trial.status for trial in lab.state().trials} == {Status.PENDING}
    lab.check_no_process_left()
    lab.run(plan).must_finish()
    lab.check_finished(plan)
    assert left_over(lab) == []


def test_a_live_experiment_gets_more_samples(lab: Lab, uninterrupted: list[dict]) -> None:
    """The trials that are added are those that the search would have made anyway."""
    plan, hold = held(lab)
    driver = begun(lab, plan)
    assert "num_samples=5" in set_samples(lab.root, 5, wait_s=60.0)
    with pytest.raises(RequestRefusedError, match="may only grow"):
        set_samples(lab.root, 4, wait_s=60.0)
    hold.unlink()
    driver.must_finish()
    state = lab.state()
    assert (len(state.trials), state.counts[Status.TERMINATED]) == (5, 5)
    names = ("x", "rate")
    assert [[trial.config[name] for name in names] for trial in state.trials] == [
        [config[name] for name in names] for config in uninterrupted[:5]
    ]


def test_a_request_for_a_dead_driver_is_refused_and_removed_by_the_next(lab: Lab) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    driver.kill()
    create_request(lab.root, UserRequest(epoch=1, action=Action.STOP))
    hold.unlink()
    lab.run(plan).must_finish()
    lab.check_finished(plan)
    (answer,) = requests_in(lab)
    assert "made for driver 1" in answer.refused
    assert left_over(lab) == []


def test_files_that_nobody_asked_with_do_no_harm(lab: Lab) -> None:
    plan, hold = held(lab)
    driver = begun(lab, plan)
    folder = Path(folder_of(lab.root))
    folder.mkdir()
    names = {f"{number:032x}.json": content for number, content in enumerate(BAD)}
    for name, content in names.items():
        (folder / f"{name}.part").write_bytes(content)
        os.rename(folder / f"{name}.part", folder / name)
    (folder / "README").write_text("mine")
    until(lambda: left_over(lab) == ["README"], lambda: f"{left_over(lab)}\n{driver.output}")
    assert "Noted" in add_note(lab.root, "still here", wait_s=60.0)
    hold.unlink()
    driver.must_finish()
    lab.check_finished(plan)
    assert all(answer.refused for answer in requests_in(lab)[:-1])
    assert len(requests_in(lab)) == len(names) + 1


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"epoch": 1, "action": "dance"}',
    b'{"epoch": 1, "action": "note", "text": ""}',
    b'{"epoch": 1, "action": "note", "text": "\\ud800"}',
    b'{"epoch": 1, "action": "note", "text": "' + b"x" * 100_000 + b'"}',
    b'{"epoch": 1, "action": "tag", "tags": ["a b"]}',
    b'{"epoch": 1, "action": "samples", "num_samples": 0}',
    b'{"epoch": 1, "action": "samples", "num_samples": 1e400}',
    b'{"epoch": 0, "action": "stop"}',
    b'{"epoch": 1, "action": "stop", "trial": "../../etc"}',
    b'{"epoch": 1, "action": "stop", "format": 2}',
    b"[" * 50_000,
]
