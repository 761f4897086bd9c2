"""Spin briefly before sleeping.

Driver and worker talk in short questions and answers: most answers take less than a tenth of a millisecond. A process
that sleeps meanwhile may let its CPU go idle, and on a virtual machine waking that CPU takes longer than the answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

SPIN_S = 0.0001
"""How long to spin; after a wait that took longer, the next one sleeps from its beginning."""

T = TypeVar("T")

_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class SpinWait:
    """Waits for one kind of thing, and spins only if the last one came quickly."""

    __slots__ = ("_spins",)

    def __init__(self) -> None:
        self._spins = True

    def __call__(self, look: Callable[[], T], sleep: Callable[[], T]) -> T:
        """What ``look`` found while spinning, if anything; otherwise what ``sleep`` returned."""
        began = time.monotonic()
        if self._spins:
            while not (found := look()):
                if time.monotonic() - began > SPIN_S:
                    break
                _yield_cpu()
            else:
                return found
        found = sleep()
        self._spins = time.monotonic() - began < SPIN_S
        return found
