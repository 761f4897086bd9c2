"""The table itself: what it says of schedulers that break the rules."""

from __future__ import annotations

from typing import Any

import pytest
from table import (
    Population,
    Script,
    assert_exact_resume,
    assert_never_hangs,
    play,
    play_with_crashes,
    random_population,
)

from holdfast.core import events as ev
from holdfast.schedulers import FIFOScheduler, TrialScheduler
from simulator.schedulers_under_test import CopyingScheduler


def test_scripts_fail_are_lost_and_go_on_from_their_checkpoints():
    scripts = [Script([1, 2, 3, 4, 5], fails_at=(5,), lost_at=(2,), saves_every=2)]
    table = play(FIFOScheduler, Population(scripts, max_failures=1))
    assert table.statuses() == ["TERMINATED"]
    assert [report.metrics["score"] for report in table.reports()] == [1, 1, 2, 3, 4, 5]


def test_a_trial_that_fails_too_often_ends_in_error():
    table = play(FIFOScheduler, Population([Script([1, 2], fails_at=(2, 2)), Script([1])], max_failures=1))
    assert table.statuses() == ["ERROR", "TERMINATED"]


def test_a_scheduler_without_flaws_passes():
    for remembers in (True, False):
        assert_exact_resume(lambda r=remembers: CopyingScheduler(3, r), random_population(7, max_trials=4, max_steps=4))
    assert_never_hangs(lambda: CopyingScheduler(3, True), range(20))


def test_a_crash_lets_trials_repeat_what_they_had_not_saved():
    population = Population([Script([1, 2, 3, 4], saves_every=3)], slots=1)
    undisturbed = play(FIFOScheduler, population)
    third = undisturbed.history.index(undisturbed.reports()[1]) + 1
    table = play_with_crashes(FIFOScheduler, population, [third])
    assert [report.metrics["score"] for report in table.reports()] == [1, 2, 1, 2, 3, 4]


class Forgetful(TrialScheduler):
    """Stops the trial that brings the fourth report, but what it stores lags behind by one."""

    def __init__(self) -> None:
        self._seen = 0

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        self._seen += 1
        return self.STOP if self._seen == 4 else self.CONTINUE

    def get_state(self) -> dict[str, Any]:
        return {"seen": max(0, self._seen - 1)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]


class Dependent(TrialScheduler):
    """Decides by something that is not part of history."""

    made = 0

    def __init__(self) -> None:
        Dependent.made += 1
        self._mine = Dependent.made

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        return self.STOP if self._mine % 2 else self.CONTINUE


class Meddling(TrialScheduler):
    """Changes its memory when it is asked what to start."""

    def __init__(self) -> None:
        self._asked = 0

    def choose_trial_to_run(self, view: Any) -> Any:
        self._asked += 1
        return view.first_waiting()

    def get_state(self) -> dict[str, Any]:
        return {"asked": self._asked}


class Greedy(TrialScheduler):
    """Wants more for a trial than there is."""

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        view.resize_trial(trial, {"CPU": 99.0})
        return self.PAUSE


@pytest.mark.parametrize("kind", [Forgetful, Dependent])
def test_a_scheduler_that_is_not_the_same_after_it_was_rebuilt_is_caught(kind):
    with pytest.raises(AssertionError, match="rebuilt after event"):
        assert_exact_resume(kind, Population([Script([1, 2, 3]), Script([1, 2, 3])]))


def test_a_scheduler_that_changes_when_it_is_asked_is_caught():
    with pytest.raises(AssertionError, match="has changed something"):
        play(Meddling, Population([Script([1])]))


def test_a_scheduler_that_hangs_is_caught():
    with pytest.raises(AssertionError, match="nothing can happen any more"):
        assert_never_hangs(Greedy, [2])


def test_a_searcher_waits_while_too_many_trials_are_unfinished():
    table = play(FIFOScheduler, Population([Script([1, 2])] * 5, slots=4, max_live=2))
    assert table.statuses() == ["TERMINATED"] * 5
    running, most = 0, 0
    for event in table.events(ev.TrialStarted, ev.TrialTerminated):
        running += 1 if isinstance(event, ev.TrialStarted) else -1
        most = max(most, running)
    assert most == 2
