"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.events import AnyEvent
from holdfast.core.policies import SchedulerRequest, Verdict
from holdfast.core.state import DriverMemory, State, Trial
from holdfast.schedulers.base import TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Starts trials in the order in which they were created and never ends one early.

    A good base for your own scheduler: override ``on_trial_result``.
    """

    def get_state(self) -> dict[str, Any] | None:
        """Nothing to remember; what derives from it and has a memory is told everything again."""
        return {} if type(self) is FIFOScheduler else None

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class FirstInFirstOut:
    """The same as the core asks it: without views, because a default must cost nothing."""

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        return Verdict.CONTINUE, ""

    def tell(self, state: State, memory: DriverMemory, event: AnyEvent) -> None:
        pass

    def requests(self, state: State) -> Iterable[SchedulerRequest]:
        return ()

    def wants_save(self, n: int) -> bool:
        return False

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        for n in state.pending:
            if fits(n):
                return n
            if state.uniform and not memory.holds_back(n):
                return None  # the others ask for the same resources: no need to look at them all
        for n in state.paused:
            if fits(n):
                return n
        return None
