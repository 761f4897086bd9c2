"""Waiting awake for a moment before falling asleep.

Driver and worker talk in short questions and answers: most answers take less than a tenth of a millisecond. A process
that sleeps meanwhile may let its CPU go idle, and on a virtual machine waking that CPU takes longer than the answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

AWAKE_S = 0.0001
"""How long to look again and again; after a wait that took longer, the next one is slept through from its beginning."""

T = TypeVar("T")

_let_others_run: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class SpinWait:
    """Waits for one kind of thing that has lately come quickly, or has not."""

    __slots__ = ("_brisk",)

    def __init__(self) -> None:
        self._brisk = True

    def __call__(self, look: Callable[[], T], sleep: Callable[[], T]) -> T:
        """What ``look`` found within a moment, if that is anything; otherwise what ``sleep`` returned."""
        began = time.monotonic()
        if self._brisk:
            while not (found := look()):
                if time.monotonic() - began > AWAKE_S:
                    break
                _let_others_run()
            else:
                return found
        found = sleep()
        self._brisk = time.monotonic() - began < AWAKE_S
        return found
