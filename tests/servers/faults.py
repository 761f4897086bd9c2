"""What can go wrong with a request, which requests it meets, and what is known of a request afterwards.

Owns: the vocabulary of the fault proxy. Must never touch a socket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# Clients tell the two apart: obstore sends a create-only put again after an orderly close (and then meets its own
# object), but gives up at once after a reset.
Ending = Literal["close", "reset"]


@dataclass(frozen=True)
class Delay:
    """Hold the request back before it is forwarded."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Hold the request back until the event is set, and forward it then: a network that delivers late."""

    until: threading.Event


@dataclass(frozen=True)
class Cut:
    """Break the connection: `before` anything is forwarded, `while` the body is, or `after` the whole request.

    `after` does not wait for the server, which may act or not; `DropAnswer` does wait. With `while` the server gets
    the head and `body_bytes` of the body.
    """

    when: Literal["before", "while", "after"]
    body_bytes: int = 1
    ending: Ending = "close"


@dataclass(frozen=True)
class Answer:
    """Answer at the server's place; the request is read and never forwarded."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DropAnswer:
    """Forward, wait until the server has acted and answered, then break the connection without a word.

    With `body_bytes` the head of the answer and so many bytes of its body get through: a torn download.
    """

    body_bytes: int | None = None
    ending: Ending = "close"


@dataclass(frozen=True)
class Throttle:
    """Pass the bodies of the request and of the answer at no more than so many bytes per second."""

    bytes_per_s: int


Fault = Delay | Hold | Cut | Answer | DropAnswer | Throttle
OutageKind = Literal["refuse", "reset", "hang"]


@dataclass
class Request:
    """What is known of one request; `status` stays None when no answer came through."""

    method: str
    path: str
    headers: dict[str, str]
    started: float
    status: int | None = None
    server_status: int | None = None
    forwarded: bool = False
    sent_bytes: int = 0
    received_bytes: int = 0
    ended: float | None = None
    faults: tuple[Fault, ...] = ()


@dataclass
class Rule:
    """Which requests a fault meets. `seen` counts the matches, `hits` those that it met."""

    faults: tuple[Fault, ...]
    matches: Callable[[Request], bool]
    nth: frozenset[int] | None
    times: int | None
    seen: int = 0
    hits: int = 0

    def choose(self, request: Request) -> bool:
        """Count this request, and say whether the faults meet it."""
        if not self.matches(request):
            return False
        self.seen += 1
        chosen = (self.nth is None or self.seen in self.nth) and (self.times is None or self.hits < self.times)
        self.hits += chosen
        return chosen
