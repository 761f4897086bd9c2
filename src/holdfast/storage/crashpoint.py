"""Named places where a test can make this process die as if by ``kill -9``.

Owns the environment variable ``HOLDFAST_CRASH``, read once when the process starts: ``"name"`` dies at the
first passage of that place, ``"name:n"`` at the n-th. Must never do anything else, and must stay so cheap
that the places can stay in the shipped code: a crash test of code without its crash points tests other code.
"""

from __future__ import annotations

import itertools
import os
import signal

_name, _, _count = os.environ.get("HOLDFAST_CRASH", "").partition(":")
_armed: str = _name
_last: int = int(_count) if _count else 1
_passages = itertools.count(1)


def crashpoint(name: str) -> None:
    """Kill this process with SIGKILL if ``HOLDFAST_CRASH`` asks for it here; otherwise do nothing.

    Args:
        name: The place, ``<part>.<moment>``, for example ``journal.after_write``.
    """
    # One step, because threads pass at the same time and each passage must count once.
    if name == _armed and next(_passages) == _last:
        os.kill(os.getpid(), signal.SIGKILL)
