"""What every engine must do, as functions that take a factory of engines.

Each check gets ``make``: a function that returns a new engine, not yet opened, whose workers run
``holdfast.testing.scripted``. ``CHECKS`` is all of them; give them to ``pytest.mark.parametrize``.

Owns: the behaviour that ``engines.base.Engine`` promises. Must never: rely on how an engine runs its workers.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast.core.events import Cause
from holdfast.core.observations import (
    Capacity,
    Died,
    Joined,
    Observation,
    Raised,
    Report,
    Returned,
    Stopped,
)
from holdfast.engines.base import Engine
from holdfast.trainable.worker_messages import Decision, Run, Setup

MakeEngine = Callable[[], Engine]

DEADLINE_S = 60.0
"""How long a check waits before it fails; no check depends on it otherwise."""

_ENDS = (Returned, Stopped, Raised, Died)
_T = TypeVar("_T")


class ContractDriver:
    """Drives one engine and keeps what it says.

    Attributes:
        engine: The engine, open.
        seen: Every observation so far, in order.
        answers: The decision for each report; "go" where it says nothing else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: list[Observation] = []
        self.answers: dict[tuple[int, int], str] = {}

    def launch(self, n: int, *script: list[Any], attempt: int = 1, **fields: Any) -> None:
        """Launch an attempt that runs this script."""
        self.engine.launch(make_run(n, attempt, {"script": list(script)}, **fields))

    def until(self, found: Callable[[], _T | None]) -> _T:
        """Answer reports until ``found`` finds something."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            result = found()
            if result:
                return result
            assert time.monotonic() < deadline, f"nothing of that kind came; seen: {self.seen}"
            self.step(0.2)

    def step(self, timeout_s: float) -> None:
        """One poll; reports are answered."""
        for observation in self.engine.poll(timeout_s):
            self.seen.append(observation)
            if isinstance(observation, Report):
                n, attempt = observation.n, observation.attempt
                go = self.answers.get((n, attempt), "go")
                if go:
                    self.engine.reply(n, attempt, Decision(observation.ordinal, go))

    def end_of(self, n: int, attempt: int = 1) -> Any:
        """Wait for the attempt's end."""
        return self.until(lambda: next(iter(self.ends_of(n, attempt)), None))

    def ends_of(self, n: int, attempt: int = 1) -> list[Any]:
        """The ends of the attempt that were told so far."""
        return [o for o in self.seen if isinstance(o, _ENDS) and (o.n, o.attempt) == (n, attempt)]

    def reports_of(self, n: int) -> list[Report]:
        """The trial's reports so far."""
        return [o for o in self.seen if isinstance(o, Report) and o.n == n]

    def first(self, kind: type[_T]) -> _T:
        """Wait for the first observation of this kind."""
        return self.until(lambda: next((o for o in self.seen if isinstance(o, kind)), None))


def make_run(n: int, attempt: int, config: dict[str, Any], **fields: Any) -> Run:
    """A launch of trial ``n`` with the least that it needs."""
    name = f"trial_{n}"
    return Run(n, attempt, name, name, name, "", config, **{"resources": {"CPU": 1.0}, **fields})


def make_setup(root: str, **fields: Any) -> Setup:
    """A setup with the least that it needs."""
    return Setup(0, "contract", root, "", "", False, **fields)


@contextlib.contextmanager
def driving(make: MakeEngine, **fields: Any) -> Iterator[ContractDriver]:
    """An open engine, closed at the end; ``fields`` are of its setup."""
    with tempfile.TemporaryDirectory() as root:
        engine = make()
        engine.open(make_setup(root, **fields))
        try:
            yield ContractDriver(engine)
        finally:
            engine.close()


def check_capacity_is_told_before_anything_runs(make: MakeEngine) -> None:
    with driving(make) as driver:
        assert driver.first(Capacity).resources["CPU"] > 0
        assert isinstance(driver.seen[0], Capacity)


def check_an_attempt_reports_and_returns(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {"loss": 0.5}], ["report", {"loss": 0.25, "note": "é", "deep": {"a": [1, None]}}])
        assert isinstance(driver.end_of(0), Returned)
        metrics = [report.metrics for report in driver.reports_of(0)]
        assert metrics == [{"loss": 0.5}, {"loss": 0.25, "note": "é", "deep": {"a": [1, None]}}]
        assert [report.ordinal for report in driver.reports_of(0)] == [1, 2]


def check_a_worker_joins_before_it_reports(make: MakeEngine) -> None:
    with driving(make) as driver:
        for n in range(3):
            driver.launch(n, ["report", {}])
        for n in range(3):
            driver.end_of(n)
        joined: set[int] = set()
        for observation in driver.seen:
            if isinstance(observation, Joined):
                joined.add(observation.worker)
            elif isinstance(observation, Report):
                assert observation.worker in joined


def check_stop_and_pause_unwind_the_attempt(make: MakeEngine) -> None:
    with driving(make) as driver:
        for n, go in enumerate(("stop", "pause")):
            driver.answers[n, 1] = go
            driver.launch(n, ["report", {}], ["report", {}])
            assert isinstance(driver.end_of(n), Stopped)
            assert len(driver.reports_of(n)) == 1


def check_the_same_attempt_is_launched_once(make: MakeEngine) -> None:
    with driving(make) as driver:
        for _ in range(2):
            driver.launch(0, ["report", {}])
        driver.end_of(0)
        driver.launch(0, ["report", {}])
        driver.launch(1, ["report", {}])
        driver.end_of(1)
        assert len(driver.reports_of(0)) == len(driver.ends_of(0)) == 1


def check_attempts_run_side_by_side(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.answers = {(0, 1): "", (1, 1): ""}
        driver.launch(0, ["report", {}])
        driver.launch(1, ["report", {}])
        driver.until(lambda: driver.reports_of(0) and driver.reports_of(1))
        assert not driver.ends_of(0)
        assert not driver.ends_of(1)
        for n in (1, 0):
            driver.engine.reply(n, 1, Decision(1))
            driver.end_of(n)


def check_an_exception_is_told_once_and_the_next_attempt_runs(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {}], ["raise", "no such file"])
        end = driver.end_of(0)
        assert isinstance(end, Raised)
        assert end.error.message == "no such file"
        driver.launch(0, ["report", {"again": True}], attempt=2)
        assert isinstance(driver.end_of(0, 2), Returned)
        assert len(driver.ends_of(0)) == 1


def check_a_dead_process_is_told_once_after_its_last_report(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, *(["report", {"step": i}] for i in range(5)), ["exit", 3])
        end = driver.end_of(0)
        assert isinstance(end, Died)
        assert (end.cause, "3" in end.detail) == (Cause.EXIT, True)
        assert driver.seen.index(end) > driver.seen.index(driver.reports_of(0)[-1])
        assert len(driver.reports_of(0)) == 5
        driver.launch(1, ["report", {}])
        driver.end_of(1)
        assert len(driver.ends_of(0)) == 1


def check_halt_ends_an_attempt_that_hangs(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {}], ["hang"])
        driver.until(lambda: driver.reports_of(0))
        driver.engine.halt(0, 1, 0.0)
        driver.engine.halt(0, 1, 0.0)
        assert isinstance(driver.end_of(0), Died)
        driver.launch(1, ["report", {}])
        assert isinstance(driver.end_of(1), Returned)
        assert len(driver.ends_of(0)) == 1


def check_halt_with_grace_lets_a_stopped_attempt_unwind(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.answers[0, 1] = ""
        driver.launch(0, ["report", {}])
        driver.until(lambda: driver.reports_of(0))
        driver.engine.reply(0, 1, Decision(1, "stop"))
        driver.engine.halt(0, 1, DEADLINE_S)
        assert isinstance(driver.end_of(0), Stopped)


def check_nothing_is_told_of_an_attempt_after_its_end(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.answers[0, 1] = ""
        driver.launch(0, ["report", {"old": True}], ["report", {"old": True}])
        driver.until(lambda: driver.reports_of(0))
        driver.engine.halt(0, 1, 0.0)
        end = driver.end_of(0)
        driver.launch(0, *(["report", {"old": False}] for _ in range(5)), attempt=2)
        driver.engine.reply(0, 1, Decision(1))
        assert isinstance(driver.end_of(0, 2), Returned)
        later = driver.seen[driver.seen.index(end) + 1 :]
        assert {o.attempt for o in later if isinstance(o, (Report, *_ENDS))} == {2}
        assert [report.metrics for report in driver.reports_of(0)] == [{"old": True}] + [{"old": False}] * 5


def check_unequal_requests_run_after_one_another(make: MakeEngine) -> None:
    with driving(make) as driver:
        for n, cpus in enumerate((1.0, 2.0, 0.5, 2.0, 1.0)):
            driver.launch(n, ["report", {}], resources={"CPU": cpus})
            assert isinstance(driver.end_of(n), Returned)


def check_nothing_happens_to_attempts_that_are_not_there(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {}])
        driver.end_of(0)
        for n in (0, 7):
            driver.engine.halt(n, 1, 0.0)
            driver.engine.halt(n, 1, 1.0)
            driver.engine.reply(n, 1, Decision(1))
            driver.engine.save_soon(n, 1)
        driver.launch(1, ["report", {}])
        assert isinstance(driver.end_of(1), Returned)
        assert (len(driver.ends_of(0)), driver.ends_of(7)) == (1, [])


def check_save_soon_reaches_the_attempt(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {}], ["await_save"])
        driver.until(lambda: driver.reports_of(0))
        driver.engine.save_soon(0, 1)
        driver.end_of(0)
        assert driver.reports_of(0)[-1].metrics == {"saved": True}


def check_wake_ends_a_poll_from_another_thread(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.first(Capacity)
        waker = threading.Timer(0.05, driver.engine.wake)
        waker.start()
        assert list(driver.engine.poll(DEADLINE_S)) == []
        waker.join()


def check_close_may_be_called_again_and_ends_what_runs(make: MakeEngine) -> None:
    with driving(make) as driver:
        driver.launch(0, ["report", {}], ["hang"])
        driver.until(lambda: driver.reports_of(0))
        driver.engine.close()
        driver.engine.close()
        driver.engine.wake()
        assert list(driver.engine.poll(0.0)) == []


CHECKS: list[Callable[[MakeEngine], None]] = [
    check_capacity_is_told_before_anything_runs,
    check_an_attempt_reports_and_returns,
    check_a_worker_joins_before_it_reports,
    check_stop_and_pause_unwind_the_attempt,
    check_the_same_attempt_is_launched_once,
    check_attempts_run_side_by_side,
    check_an_exception_is_told_once_and_the_next_attempt_runs,
    check_a_dead_process_is_told_once_after_its_last_report,
    check_halt_ends_an_attempt_that_hangs,
    check_halt_with_grace_lets_a_stopped_attempt_unwind,
    check_nothing_is_told_of_an_attempt_after_its_end,
    check_unequal_requests_run_after_one_another,
    check_nothing_happens_to_attempts_that_are_not_there,
    check_save_soon_reaches_the_attempt,
    check_wake_ends_a_poll_from_another_thread,
    check_close_may_be_called_again_and_ends_what_runs,
]
