"""The clock of the controller, so that tests can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """``now`` never runs backwards; ``sleep`` may be cut short."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Wall time at the start, plus monotonic time since: a clock that is set back or forward changes nothing."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._base = max(time.time(), not_before) - time.monotonic()

    def now(self) -> float:
        return self._base + time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
