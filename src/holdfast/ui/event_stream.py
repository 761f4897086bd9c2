"""Server-sent events: a browser is told which trials have changed, and continues where it was cut off.

Owns one stream. What happens while a browser does not read is merged into one event; a browser that does not read at
all for long is dropped. Must never hold more for a stream than its place in the log of changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from holdfast.errors import InvalidInputError
from holdfast.ui.encoding import json_bytes
from holdfast.ui.watch import FollowedExperiment, News

HEARTBEAT_S = 15.0
SEND_S = 30.0
"""How long a client may take to accept an event."""
GAP_S = 0.1
"""The least time between two events."""
RETRY_MS = 1000
_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def last_event(request: Request) -> int | None:
    """The number of the last record that the client knows; None if it has just come.

    Raises:
        InvalidInputError: It is not a number.
    """
    text = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidInputError(f"Last-Event-ID {text[:40]!r} is not the number of a record.")
    return int(text)


class EventStream:
    """The response to one client.

    Args:
        watched: The experiment.
        after: The record that the client knows; None sends what happens from now on.
        leaving: Set when the server ends.
        closed: Called when the stream has ended.
    """

    def __init__(
        self, watched: FollowedExperiment, after: int | None, leaving: asyncio.Event, closed: Callable[[], None]
    ) -> None:
        self._watched = watched
        self._after = after
        self._leaving = leaving
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:  # in the thread of the experiment, which may outlive the loop
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:
                pass

        leave = self._watched.listen(wake)
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
        leaving: asyncio.Future[Any] = asyncio.ensure_future(self._leaving.wait())
        try:
            await self._stream(send, changed, {gone, leaving})
        except (TimeoutError, OSError):
            pass  # the client does not read, or is gone
        finally:
            leave()
            gone.cancel()
            leaving.cancel()
            self._closed()

    async def _stream(self, send: Send, changed: asyncio.Event, ends: set[asyncio.Future[Any]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
        await _write(send, f"retry: {RETRY_MS}\n\n".encode())
        cursor: int | None = None
        while True:
            changed.clear()
            if self._watched.opened.is_set():
                if cursor is None:
                    cursor = self._watched.changes.cursor(self._after)
                cursor, news = self._watched.changes.since(cursor)
                if news is not None:
                    await _write(send, _event(news))
                if self._watched.is_over:
                    break  # the client comes again, and the experiment is opened again
            waiting: asyncio.Future[Any] = asyncio.ensure_future(changed.wait())
            done, _ = await asyncio.wait({waiting, *ends}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if done & ends:
                break
            if done:
                await asyncio.sleep(GAP_S)
            else:
                await _write(send, b": nothing new\n\n")
        await _write(send, b"", more=False)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": more}), SEND_S)


def _event(news: News) -> bytes:
    return b"event: change\nid: %d\ndata: %s\n\n" % (news.record, json_bytes(news._asdict()))
