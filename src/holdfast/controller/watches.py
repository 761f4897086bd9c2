"""What depends on time: stalled trials, spent budgets, requests to shut down, and how long to wait.

Turns the passing of time and requests from outside into observations, and says so when trials ask for more than there
is. Holds nothing that a resumed experiment needs.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import observations as ob
from holdfast.core.policies import StopRule
from holdfast.core.state import UNIT, State, units

LOOK_EVERY_S = 0.2
MEASURE_EVERY_S = 5.0
LISTENING_S = 1.0  # between two looks the loop listens for no longer than this; the rest of a longer gap it was away


class Watches:
    """Looked at once per turn; cheap unless something is due."""

    def __init__(
        self,
        stop: StopRule,
        *,
        stall_timeout_s: float | None = None,
        grace_s: float = 30.0,
        free_space: Callable[[], int | None] | None = None,
    ) -> None:
        self._stop = stop
        self._stall_timeout_s = stall_timeout_s
        self._grace_s = grace_s
        self._free_space = free_space
        self._next_measure = 0.0
        self._heard: dict[int, float] = {}
        self._next_look = 0.0
        self._looked_at: float | None = None
        self._stop_told = False
        self.hurry = False  # do not even wait for last checkpoints
        self._insists = False  # do not wait for storage when everything else has ended
        self._end_reason = self._last_reason = ""
        self._end_told = False
        self._deadline: float | None = None

    def heard(self, n: int, at: float) -> None:
        """The trial gave a sign of life, or was just started."""
        if self._stall_timeout_s is not None:
            self._heard[n] = at

    def end(self, reason: str) -> None:
        """Someone wants this driver to end; asked again, at once. Safe to call from a signal handler."""
        self.hurry = bool(self._end_reason)
        self._end_reason = self._end_reason or reason
        self._last_reason = reason

    @property
    def is_ending(self) -> bool:
        """Whether someone has asked for the end."""
        return bool(self._end_reason)

    def insist(self) -> None:
        """Someone wants it again, as those do who have no patience with storage. Safe to call from a signal handler.

        Trials keep their grace: whoever sends SIGTERM twice may do so to everybody, as a matter of course.
        """
        self._insists = True

    def give_up(self, at: float) -> bool:
        """Has the driver been told to end, and is its grace over?"""
        return self.hurry or self._insists or (bool(self._end_reason) and self._grace_is_over(at))

    def why_leave(self, at: float) -> str:
        """Why storage is not waited for any longer; "" if it is."""
        return f"this driver is shutting down ({self._last_reason})" if self.give_up(at) else ""

    def look(self, state: State, at: float) -> list[ob.Observation]:
        """What time has brought since the last look."""
        self._forgive_absence(at)
        found: list[ob.Observation] = []
        if self._end_reason and not self._end_told:
            self._end_told = True
            found.append(ob.Interrupted(self._end_reason))
        if not self._stop_told and not state.stopping:
            why = self._stop.why_stop_all(state.lived(at))
            if why:
                self._stop_told = True
                found.append(ob.StopAll(why))
        if at >= self._next_look:
            self._next_look = at + LOOK_EVERY_S
            found += self._stalled(state, at)
            found += self._measured(at)
            if state.driver.draining and (self._grace_is_over(at) or (self._no_patience and not state.running)):
                found.append(ob.GraceOver())
        return found

    def _measured(self, at: float) -> list[ob.Observation]:
        """What the disk has free, now and then: others use it too."""
        if self._free_space is None or at < self._next_measure:
            return []
        self._next_measure = at + MEASURE_EVERY_S
        free = self._free_space()
        return [] if free is None else [ob.FreeSpace(free)]

    @property
    def _no_patience(self) -> bool:
        return self.hurry or self._insists

    def _grace_is_over(self, at: float) -> bool:
        """Grace for last checkpoints, counted from the first look at which the driver was ending."""
        if self._deadline is None:
            self._deadline = at + self._grace_s
        return at >= self._deadline

    def _forgive_absence(self, at: float) -> None:
        """While the loop waited for its own disk, or was suspended, no trial could be heard: that is not silence."""
        absent = at - self._looked_at - LISTENING_S if self._looked_at is not None else 0.0
        self._looked_at = at
        if absent > 0.0:
            self._heard = {n: min(at, heard + absent) for n, heard in self._heard.items()}

    def _stalled(self, state: State, at: float) -> list[ob.Observation]:
        limit = self._stall_timeout_s
        if limit is None or state.driver.draining:
            return []
        found: list[ob.Observation] = []
        for n in state.running:
            if n in state.driver.storage_trouble or n in state.driver.owed:
                self._heard[n] = at  # it waits for storage, and said so
                continue
            silent = at - self._heard.get(n, at)
            if silent > limit:
                found.append(ob.StalledAttempt(n, state.trials[n].attempt, silent))
        return found


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
