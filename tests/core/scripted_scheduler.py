"""A scheduler for tests of the core: its verdicts and requests are those that the test has set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import events as ev
from holdfast.core.policies import Reconfigure, Resize, SchedulerRequest, Stop, Verdict
from holdfast.core.state import DriverMemory, State, Trial
from holdfast.schedulers.fifo import FirstInFirstOut

FULFILS = {ev.TrialReconfigured: Reconfigure, ev.TrialResized: Resize, ev.TrialTerminated: Stop}


class ScriptedScheduler(FirstInFirstOut):
    """First in, first out, unless it was told otherwise.

    Attributes:
        verdicts: (trial, row) -> what it says to that report.
        standing: Its requests; those that an event has fulfilled are taken away.
        judged: (trial, row) of every report that it was asked about.
        idle: It starts nothing.
        still: Called when it is told of a standstill.
    """

    def __init__(self) -> None:
        self.verdicts: dict[tuple[int, int], str] = {}
        self.standing: list[SchedulerRequest] = []
        self.judged: list[tuple[int, int]] = []
        self.idle = False
        self.still: Callable[[], None] = lambda: None

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        key = (trial.n, trial.rows + 1)
        self.judged.append(key)
        verdict = self.verdicts.get(key, Verdict.CONTINUE)
        return verdict, "scripted" if verdict else ""

    def tell(self, state: State, memory: DriverMemory, event: ev.AnyEvent) -> None:
        kind = FULFILS.get(type(event))
        if kind is not None:
            self.standing = [w for w in self.standing if not (isinstance(w, kind) and w.n == event.n)]
        if isinstance(event, ev.StoodStill):
            self.still()

    def requests(self, state: State) -> list[SchedulerRequest]:
        return self.standing

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        return None if self.idle else super().choose(state, memory, fits)
