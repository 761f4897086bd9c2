"""When faults strike: the chances of a story.

Owns the budget that is left and the windows in which something is broken. Must never know what a fault does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from holdfast.core.events import Cause
from holdfast.space.rng import Rng
from simulator.scenario import pick

LATE_S = (0.1, 2.0, 10.0)
COPY_S = (0.1, 2.0, 40.0)
ROT_S = (0.1, 2.0, 10.0)

_DEATHS = (
    Cause.EXIT,
    Cause.SIGNAL,
    Cause.OUT_OF_MEMORY,
    Cause.PREEMPTED,
    Cause.PREEMPTED,
    Cause.ENGINE_LOST,
)


RARE_ACTIONS = (
    *("create", "created", "sync_dir", "dir_synced", "open", "write", "written", "sync", "synced"),
    *("replace", "replaced", "remove", "sweep", "launch", "halt", "save_soon", "propose"),
    *("begin", "verify", "L2", "L5", "L6", "D1", "D2", "D4"),
)


class Moment:
    """A moment in a process's life: after so many actions, of any kind or of one."""

    def __init__(self, count: int, kind: str = "") -> None:
        self._left = count
        self._kind = kind

    def has_come(self, action: str) -> bool:
        """Tell it each action; True once."""
        if self._kind and not action.endswith(self._kind):
            return False
        self._left -= 1
        return self._left == -1


class Chaos:
    """Says what goes wrong, until its budget is spent.

    Args:
        rng: The story's generator.
        left: Faults of each kind.
        now: The story's time.
    """

    def __init__(self, rng: Rng, left: dict[str, int], now: Callable[[], float]) -> None:
        self.rng = rng
        self.left = left
        self._now = now
        self._disk_full_until = 0.0
        self._store_broken_until = 0.0
        self._store_slow_until = 0.0
        self._store_full_until = 0.0

    def strikes(self, kind: str, chance: float) -> bool:
        """Does a fault of this kind happen now? Uses up one."""
        if not self.left[kind] or self.rng.random() >= chance:
            return False
        self.left[kind] -= 1
        return True

    def _within(self, longest: tuple[float, ...]) -> float:
        return self.rng.uniform(0.0, pick(self.rng, longest))

    def survives(self, size: int) -> int:
        """How many of ``size`` things that nobody synced survive a power cut."""
        luck = self.rng.random()
        if size <= 0 or luck < 0.4:
            return 0
        return size if luck < 0.6 else self.rng.integers(0, size + 1)

    # --- drivers

    def kill_at(self) -> Moment | None:
        """When a new driver dies; often during its recovery."""
        return self._moment((12, 40, 150, 600)) if self.strikes("driver_kills", 0.9) else None

    def suspend_at(self) -> Moment | None:
        """When a new driver is suspended, long enough for another one to take over."""
        return self._moment((12, 100, 400)) if self.strikes("takeovers", 0.4) else None

    def _moment(self, counts: tuple[int, ...]) -> Moment:
        """Half of the time any action, else one of a kind that is rare."""
        if self.rng.random() < 0.5:
            return Moment(self.rng.integers(0, pick(self.rng, counts)))
        return Moment(self.rng.integers(0, 6), pick(self.rng, RARE_ACTIONS))

    def interrupt_after_s(self) -> float | None:
        """When somebody presses Ctrl+C."""
        return self._within((0.2, 2.0, 10.0, 40.0)) if self.strikes("interrupts", 0.5) else None

    def clock_jump_s(self) -> float:
        """By how much the wall clock is set before the next driver starts."""
        return self.rng.uniform(-7200.0, 7200.0) if self.strikes("clock_jumps", 0.5) else 0.0

    # --- the journal's disk

    def disk_error(self, action: str) -> OSError | None:
        """What a call that changes the disk is told; for appended bytes see ``arriving``."""
        if action == "sync" and self.strikes("failed_syncs", 0.1):
            return OSError(errno.EIO, "Input/output error")
        if action in ("create", "replace", "open") and self.disk_is_full():
            return OSError(errno.ENOSPC, "No space left on device")
        return None

    def disk_is_full(self) -> bool:
        return self._now() < self._disk_full_until

    def arriving(self, size: int) -> tuple[int, OSError | None]:
        """How many appended bytes reach the file, and the error if not all of them do."""
        if self.disk_is_full():
            return 0, OSError(errno.ENOSPC, "No space left on device")
        if self.strikes("full_disks", 0.03):
            self._disk_full_until = self._now() + self._within((2.0, 90.0))
            part = self.rng.integers(0, size)
            return part, None if part else OSError(errno.ENOSPC, "No space left on device")
        if self.strikes("failed_writes", 0.03):
            return self.rng.integers(0, size), OSError(errno.EIO, "Input/output error")
        return size, None

    # --- the checkpoints' storage

    def store_fault(self) -> str:
        if self._now() < self._store_broken_until:
            return "503 Slow Down"
        if self.strikes("store_troubles", 0.08):
            self._store_broken_until = self._now() + self.rng.uniform(0.0, 20.0)
            return "connection reset"
        return ""

    def store_delay_s(self, usual_s: float) -> float:
        if self._now() < self._store_slow_until:
            return 3.0
        if self.strikes("slow_stores", 0.03):
            self._store_slow_until = self._now() + self.rng.uniform(0.0, 30.0)
        return usual_s

    # --- workers

    def in_step(self) -> str:
        if self.strikes("worker_deaths", 0.08):
            return pick(self.rng, _DEATHS)
        if self.strikes("worker_exceptions", 0.06):
            return Cause.EXCEPTION if self.rng.random() < 0.8 else Cause.STORAGE
        if self.strikes("hangs", 0.03):
            return "hang"
        return ""

    def unwinding_fails(self) -> bool:
        return self.strikes("worker_exceptions", 0.1)

    def loading_fails(self) -> bool:
        return self.strikes("failed_loads", 0.5)

    def space_returns_in(self) -> float:
        if self._now() >= self._store_full_until and self.strikes("full_stores", 0.1):
            self._store_full_until = self._now() + self._within((5.0, 100.0))
        return max(0.0, self._store_full_until - self._now())

    def rots_in_s(self) -> float | None:
        """When a checkpoint that was just committed will be damaged, if it will."""
        return self._within(ROT_S) if self.strikes("rotten_checkpoints", 0.2) else None

    def stage_is_spoiled(self) -> bool:
        return self.strikes("spoiled_stages", 0.1)

    # --- the network

    def uplink(self) -> tuple[float, list[float]]:
        """Extra delay of a message, and those of its copies."""
        extra = self._within(LATE_S) if self.strikes("late_messages", 0.08) else 0.0
        copies = [self._within(COPY_S)] if self.strikes("repeated_messages", 0.15) else []
        return extra, copies

    def reply_is_lost(self) -> bool:
        return self.strikes("lost_replies", 0.08)

    def lost_at_death(self, in_flight: int) -> int:
        """A dead worker's last messages may be lost; what was sent long before has arrived."""
        return self.rng.integers(0, in_flight + 1) if in_flight else 0
