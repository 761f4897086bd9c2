"""Virtual time: one clock, and what is to happen when; nobody waits for it.

Owns the order of everything that happens outside the drivers' own code. Must never read a real clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

START_WALL = 1_700_000_000.0


class Timeline:
    """A monotonic clock that moves only when somebody waits.

    Attributes:
        now: Seconds since the story began.
        wall_offset: What the machine's wall clock shows at ``now == 0``; a clock jump changes it.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.wall_offset = START_WALL
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    @property
    def wall(self) -> float:
        """What ``time.time()`` would say."""
        return self.wall_offset + self.now

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen after ``delay_s``; of two at the same moment the first planned comes first."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + max(0.0, delay_s), self._order, action))

    def pass_time(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Let time pass, at most ``seconds`` and no longer than until ``enough()``; runs what is due on the way."""
        end = self.now + seconds
        queue = self._queue
        while not enough():
            if not queue or queue[0][0] > end:
                self.now = max(self.now, end)
                return
            at, _, action = heapq.heappop(queue)
            self.now = max(self.now, at)
            action()


class FakeClock:
    """A driver's clock (``controller.clock.Clock``): wall time when it started, plus simulated time since.

    Args:
        timeline: The story's time.
        not_before: Never shows less than this, however the wall clock was set.
        woken: While True, a sleep is cut short.
    """

    def __init__(self, timeline: Timeline, not_before: float = 0.0, woken: Callable[[], bool] = lambda: False) -> None:
        self._timeline = timeline
        self._base = max(timeline.wall, not_before) - timeline.now
        self._woken = woken

    def now(self) -> float:
        """Seconds since 1970, as this clock shows them."""
        return self._base + self._timeline.now

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass; returns at once in real time."""
        self._timeline.pass_time(seconds, self._woken)
