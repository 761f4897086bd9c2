"""Waiting awake for a moment: only for what has lately come quickly."""

from __future__ import annotations

import time

import pytest

from holdfast.engines import spin_wait
from holdfast.engines.spin_wait import SpinWait


class Arrival:
    """Something that ``look`` finds at the given call, and ``sleep`` after the given seconds."""

    def __init__(self, at_look: int | None, asleep_s: float = 0.0) -> None:
        self.at_look = at_look
        self.asleep_s = asleep_s
        self.looks = 0

    def look(self) -> str:
        self.looks += 1
        return "seen" if self.looks == self.at_look else ""

    def sleep(self) -> str:
        time.sleep(self.asleep_s)
        return "slept"

    def wait(self, wait: SpinWait) -> str:
        return wait(self.look, self.sleep)


def test_what_comes_at_once_is_met_awake() -> None:
    assert Arrival(at_look=1).wait(SpinWait()) == "seen"


def test_what_comes_within_the_moment_is_met_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin_wait, "SPIN_S", 60.0)
    assert Arrival(at_look=3).wait(SpinWait()) == "seen"


def test_what_does_not_come_is_waited_for_asleep() -> None:
    assert Arrival(at_look=None).wait(SpinWait()) == "slept"


def test_after_a_long_wait_nobody_stays_awake_until_something_came_quickly_again() -> None:
    wait = SpinWait()
    Arrival(at_look=None, asleep_s=2 * spin_wait.SPIN_S).wait(wait)
    quick = Arrival(at_look=1)
    assert (quick.wait(wait), quick.looks) == ("slept", 0)


def test_after_a_short_sleep_the_next_wait_is_awake_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = SpinWait()
    Arrival(at_look=None, asleep_s=2 * spin_wait.SPIN_S).wait(wait)
    monkeypatch.setattr(spin_wait, "SPIN_S", 60.0)
    assert Arrival(at_look=1).wait(wait) == "slept"
    assert Arrival(at_look=1).wait(wait) == "seen"
