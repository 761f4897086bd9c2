"""Says so when trials ask for more than there is, at once and again while nothing starts."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.state import UNIT, State, units


class ResourceWatch:
    """Notices that trials wait and nothing runs."""

    def __init__(self, state: State, warn: Callable[[str], None], every_s: float = 60.0) -> None:
        self._state = state
        self._warn = warn
        self._every_s = every_s
        self._next = 0.0

    def look(self, at: float) -> None:
        """Warn if the first waiting trial cannot start although nothing else is running."""
        state = self._state
        if state.running or not state.pending or not state.driver.capacity or at < self._next:
            return
        trial = state.trials[state.pending[0]]
        capacity, wanted = state.driver.capacity, units(trial.request)
        missing = {name: amount for name, amount in wanted.items() if amount > capacity.get(name, 0)}
        if not missing:
            return
        self._next = at + self._every_s
        self._warn(
            f"Trial {trial.id} can never start: it asks for {_shown(wanted)}, and this machine has {_shown(capacity)}. "
            "Ask for less with tune.with_resources(...), or declare more with RunConfig(engine=LocalEngine(...)). "
            "Waiting; Ctrl+C ends the run."
        )


def _shown(amounts: dict[str, int]) -> str:
    names = [name for name in sorted(amounts) if name != "memory"] or sorted(amounts)
    return ", ".join(f"{name} {amounts[name] / UNIT:g}" for name in names)
