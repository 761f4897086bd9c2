"""SIGINT and SIGTERM from the first moment of the command until the server takes them: none is lost in between.

Must never import what takes time to import.
"""

from __future__ import annotations

import signal
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StoppedEarly(BaseException):
    """A signal came before the server was up."""


class StopSignals:
    """Takes the signals when it is made.

    Attributes:
        interrupts: Whether one ends what is being done; otherwise it is only remembered.
        came: Whether there was one.
    """

    def __init__(self) -> None:
        self.interrupts = True
        self.came = False
        self._before = {number: signal.signal(number, self._take) for number in NUMBERS}

    def restore(self) -> None:
        """Leave the signals to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self.interrupts:
            raise StoppedEarly
