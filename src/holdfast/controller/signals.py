"""Signals: SIGINT, SIGTERM, SIGHUP and SIGUSR1 start a graceful shutdown; a second SIGINT is immediate.

A second one of the others ends only the wait for storage, once the trials have ended.

Handlers only set flags and wake the loop: saving, or raising, inside a handler is how files get torn. They are
installed for the time of ``fit()``, in the main thread only; otherwise signals are left alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

EXIT_AFTER = {signal.SIGTERM: 143, signal.SIGHUP: 129}
"""These end the process after the orderly stop; after SIGINT and SIGUSR1 ``fit()`` returns."""

GIVE_UP_AFTER = 2
"""The second SIGINT makes the loop leave at once, between two writes; the third raises wherever the driver is."""

ECHO_S = 1.0
"""A signal that comes again within this time is the same one, sent to the process and to its group."""


class SignalWatch:
    """Which signal asked the driver to end, if any."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.repeats = 0  # SIGINTs after the first signal
        self.last_at = 0.0

    @property
    def exit_code(self) -> int | None:
        """How the process must end because of the signal, or None if the script continues."""
        return None if self.received is None else EXIT_AFTER.get(self.received)


@contextmanager
def watch_signals(
    on_end: Callable[[str], None], on_insist: Callable[[], None] = lambda: None, *, sigint: bool = True
) -> Iterator[SignalWatch]:
    """Turn the first signal into ``on_end(name)``; restore the former handlers afterwards.

    Args:
        on_end: Called inside the handler: must only set flags and wake the loop. Once more for a second SIGINT.
        on_insist: The same, for another signal that comes after the first.
        sigint: False leaves Ctrl+C alone (TUNE_DISABLE_SIGINT_HANDLER).
    """
    watch = SignalWatch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return
    owner = os.getpid()
    former: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork of the driver that kept our handlers: behave as if they were not there
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        now = time.monotonic()
        before, watch.last_at = watch.last_at, now
        if watch.received is None:
            watch.received = signal.Signals(number)
            on_end(watch.received.name)
        elif number == signal.SIGINT:
            watch.repeats += 1
            if watch.repeats >= GIVE_UP_AFTER:  # something is stuck: a user's callback, a dead file system
                raise KeyboardInterrupt
            on_end(watch.received.name)
        elif now - before > ECHO_S:
            on_insist()

    wanted = [signal.SIGTERM, signal.SIGHUP, *([signal.SIGINT] if sigint else [])]
    for number in wanted:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
            former[number] = signal.signal(number, handle)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # else it has a meaning of the user's own
        former[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, handle)
    try:
        yield watch
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
