"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.policies import Verdict
from holdfast.core.state import State, Trial


class FIFOScheduler:
    """Starts trials in the order in which they were created and never ends one early."""

    def judge(self, state: State, trial: Trial, result: Mapping[str, Any]) -> tuple[str, str]:
        return Verdict.CONTINUE, ""

    def choose(self, state: State, fits: Callable[[int], bool]) -> int | None:
        held = state.session.held_until
        for n in state.pending:
            if fits(n):
                return n
            if state.uniform and n not in held:
                return None  # the others ask for the same resources: no need to look at them all
        for n in state.paused:
            if fits(n):
                return n
        return None
