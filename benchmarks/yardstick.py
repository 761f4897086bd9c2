"""How fast the machine itself is at the moment: what every contender in a table pays for.

On a shared host the same core may be twice as fast a minute later, and waking another process three times as slow. Bars
are figures of a quiet machine, so each result keeps what the machine could do while it was measured.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

LOOPS = 1_000_000
ROUND_TRIPS = 2000


@dataclass(frozen=True)
class Yardstick:
    """Both in the same plain Python that everybody uses."""

    loop_ms: float  # a million turns of an empty loop
    round_trips: float  # per second, of one byte to another process and back


def measure() -> Yardstick:
    """Takes about 0.2 s."""
    began = time.perf_counter()
    for _ in range(LOOPS):
        pass
    return Yardstick((time.perf_counter() - began) * 1000, _round_trips())


def _round_trips() -> float:
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        here.close()
        while byte := there.recv(1):
            there.send(byte)
        os._exit(0)
    there.close()
    began = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        here.send(b"?")
        here.recv(1)
    rate = ROUND_TRIPS / (time.perf_counter() - began)
    here.close()
    os.waitpid(child, 0)
    return rate


def text(samples: list[Yardstick]) -> str:
    """The range of what was measured, for a table."""
    loops = sorted(each.loop_ms for each in samples)
    trips = sorted(each.round_trips / 1000 for each in samples)
    return (
        f"a million loops in {loops[0]:.0f} to {loops[-1]:.0f} ms, "
        f"{trips[0]:.0f} to {trips[-1]:.0f} thousand round trips per second"
    )
