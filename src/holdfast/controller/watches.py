"""What depends on time: stalled trials, spent budgets, requests to shut down, and how long to wait.

Turns the passing of time and requests from outside into observations, and says so when trials ask for more than there
is. Holds nothing that a resumed experiment needs.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import observations as ob
from holdfast.core.policies import StopRule
from holdfast.core.state import UNIT, DriverMemory, State, units
from holdfast.core.user_asked import is_stopping_all
from holdfast.display.words import plural

LOOK_EVERY_S = 0.2
MEASURE_EVERY_S = 5.0
ASKED_EVERY_S = 0.5  # with the looks above and the loop's sleep: a request is taken within a second
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
        requests: Callable[[], list[ob.Observation]] | None = None,
        is_waiting: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._stop = stop
        self._stall_timeout_s = stall_timeout_s
        self._grace_s = grace_s
        self._free_space = free_space
        self._next_measure = 0.0
        self._requests = requests
        self._next_requests = 0.0
        self._is_waiting = is_waiting
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

    def end(self, reason: str, at: float | None = None) -> None:
        """Someone wants this driver to end; asked again, at once. Safe to call from a signal handler.

        The grace of trials counts from ``at``, or from the next look if nobody waits for the end: the loop may be
        waiting for its storage when a signal arrives.
        """
        self.hurry = bool(self._end_reason)
        if at is not None and self._deadline is None:
            self._deadline = at + self._grace_s
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

    def look(self, state: State, memory: DriverMemory, at: float) -> list[ob.Observation]:
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
            found += self._stalled(state, memory, at)
            found += self._measured(at)
            found += self._asked(at)
            self._end_for_user(memory)
            if memory.draining and (self._grace_is_over(at) or (self._no_patience and not state.running)):
                found.append(ob.GraceOver())
        return found

    def _measured(self, at: float) -> list[ob.Observation]:
        """What the disk has free, now and then: others use it too."""
        if self._free_space is None or at < self._next_measure:
            return []
        self._next_measure = at + MEASURE_EVERY_S
        free = self._free_space()
        return [] if free is None else [ob.FreeSpace(free)]

    def _asked(self, at: float) -> list[ob.Observation]:
        """What people ask for. Whoever has asked waits, so their files are looked at again soon."""
        if self._requests is None or at < self._next_requests:
            return []
        found = self._requests()
        self._next_requests = at if found else at + ASKED_EVERY_S
        return found

    def _end_for_user(self, memory: DriverMemory) -> None:
        """A request has the effect of a first signal; that this driver ends is decided already."""
        if is_stopping_all(memory) and not self._end_reason:
            self._end_reason = self._last_reason = memory.draining
            self._end_told = True

    @property
    def _no_patience(self) -> bool:
        return self.hurry or self._insists

    def _grace_is_over(self, at: float) -> bool:
        """Grace for last checkpoints, counted from the signal, or the first look at which the driver was ending."""
        if self._deadline is None:
            self._deadline = at + self._grace_s
        return at >= self._deadline

    def _forgive_absence(self, at: float) -> None:
        """While the loop waited for its own disk, or was suspended, no trial could be heard: that is not silence."""
        absent = at - self._looked_at - LISTENING_S if self._looked_at is not None else 0.0
        self._looked_at = at
        if absent > 0.0:
            self._heard = {n: min(at, heard + absent) for n, heard in self._heard.items()}

    def _stalled(self, state: State, memory: DriverMemory, at: float) -> list[ob.Observation]:
        limit = self._stall_timeout_s
        if limit is None or memory.draining:
            return []
        found: list[ob.Observation] = []
        for n in state.running:
            if n in memory.storage_trouble or n in memory.owed:
                self._heard[n] = at  # it waits for storage, and said so
                continue
            attempt = state.trials[n].attempt
            if self._is_waiting is not None and self._is_waiting(n, attempt):
                self._heard[n] = at  # it has no worker yet, which is not its fault
                continue
            silent = at - self._heard.get(n, at)
            if silent > limit:
                found.append(ob.StalledAttempt(n, attempt, silent))
        return found


class ResourceWatch:
    """Notices that trials wait and nothing runs.

    Args:
        state: Of the experiment.
        memory: Of the driver.
        warn: Called with the warning.
        every_s: How often it is repeated.
        elsewhere: Trials run on a cluster, whose machines come and go.
    """

    def __init__(
        self,
        state: State,
        memory: DriverMemory,
        warn: Callable[[str], None],
        every_s: float = 60.0,
        *,
        elsewhere: bool = False,
    ) -> None:
        self._state = state
        self._memory = memory
        self._elsewhere = elsewhere
        self._warn = warn
        self._every_s = every_s
        self._next = 0.0

    def look(self, at: float) -> None:
        """Warn if the first waiting trial cannot start although nothing else is running."""
        state, capacity = self._state, self._memory.capacity
        if at < self._next:
            return
        if self._elsewhere and not capacity:
            self._tell_all_lost(at)
            return
        if state.running or not state.pending or not capacity:
            return
        trial = state.trials[state.pending[0]]
        wanted = units(trial.request)
        missing = {name: amount for name, amount in wanted.items() if amount > capacity.get(name, 0)}
        if not missing and self._memory.could_hold(wanted):
            return
        self._next = at + self._every_s
        if self._elsewhere:
            alone = "" if missing else ", but none has it alone"
            self._warn(
                f"Trial {trial.id} waits for a machine: it asks for {_shown(wanted)}, and those of the cluster that "
                f"can be reached have {_shown(capacity)} in all{alone}. It starts when one joins, for which an "
                "autoscaler is not asked; Ctrl+C ends the run."
            )
            return
        self._warn(
            f"Trial {trial.id} can never start: it asks for {_shown(wanted)}, and this machine has {_shown(capacity)}. "
            "Ask for less with tune.with_resources(...), or declare more with RunConfig(engine=LocalEngine(...)). "
            "Waiting; Ctrl+C ends the run."
        )

    def _tell_all_lost(self, at: float) -> None:
        """Trials that have been given to the engine wait as well: nothing can run."""
        count = len(self._state.running) + len(self._state.pending)
        if count:
            self._next = at + self._every_s
            waiting = f"{plural(count, 'trial')} {'waits' if count == 1 else 'wait'}"
            self._warn(
                f"All machines of the cluster are lost, and {waiting} for one. Trials start when one comes back "
                "or joins; Ctrl+C ends the run."
            )


def _shown(amounts: dict[str, int]) -> str:
    names = [name for name in sorted(amounts) if name != "memory"] or sorted(amounts)
    return ", ".join(f"{name} {amounts[name] / UNIT:g}" for name in names)
