"""The routes of the server: finds the experiment, has its thread answer, and turns every failure into one sentence.

Owns what is waited for and for how long. Holds no state of experiments. Must never block the event loop: whatever reads
a file or a store runs in a thread.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.cli.printing import complain
from holdfast.errors import DamageError, NewerFormatError, RequestRefusedError, StorageError, TuneError, UsageError
from holdfast.ui import acting, page_answers
from holdfast.ui.catalogue import Catalogue, ExperimentPlace
from holdfast.ui.event_stream import EventStream, last_event
from holdfast.ui.filters import BadFilter
from holdfast.ui.log_tail import log_tail
from holdfast.ui.pages import StaticFiles
from holdfast.ui.query import Query
from holdfast.ui.responses import BINARY, JSON, accepts_gzip, error_response, is_near, packed, respond
from holdfast.ui.source import Source
from holdfast.ui.watch import Busy, FollowedExperiment, OpeningProgress, answer_question, unreadable_state

MAX_STREAMS = 64
MAX_THREADS = 16
MAX_BODY = 64 * 1024
ANSWER_S = 120.0
"""How long a request waits for an answer."""
LOADING_S = 0.3
"""How long one waits for an experiment that is being read, before it is told how far that is."""

T = TypeVar("T")


class _Leaving(Exception):
    """The server ends while a request waits."""


class Api:
    """The handlers of all routes.

    Args:
        catalogue: The experiments.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.leaving = asyncio.Event()
        self._catalogue = catalogue
        self._streams = 0
        self._threads = 0

    def routes(self) -> list[Route]:
        """What can be asked."""
        one = "/api/experiments/{id}"
        return [
            Route("/api/experiments", self.experiments),
            Route(one, self.experiment),
            Route(f"{one}/events", self.events),
            *(Route(f"{one}/{name}", self._of_experiment(name)) for name in page_answers.OF_EXPERIMENT),
            Route(f"{one}/charts/{{name}}", self.chart),
            Route(f"{one}/trials/{{trial}}/log", self.log),
            *(
                Route(f"{one}/trials/{{trial}}{name and '/'}{name}", self._of_trial(name))
                for name in page_answers.OF_TRIAL
            ),
            *(Route(f"{one}/{name}", self._action(name), methods=["POST"]) for name in acting.ACTIONS),
        ]

    # --- handlers

    async def experiments(self, request: Request) -> Response:
        """All experiments."""
        _query(request).only()
        return await self._respond(request, self._threaded(lambda: self._catalogue.listing(page_answers.summary)))

    async def experiment(self, request: Request) -> Response:
        """One experiment; while it is read, how far that is."""
        _query(request).only()
        place, watched = self._watched(request)
        deadline = time.monotonic() + LOADING_S
        while (loading := watched.loading) is not None and time.monotonic() < deadline:
            await asyncio.sleep(LOADING_S / 10)
        if loading is not None:
            return await self._respond(request, _done(_loading(place, loading)))
        try:
            return await self._ask(
                request,
                lambda source: page_answers.overview(source, place.id, watched.trouble, watched.trouble_state),
            )
        except (TuneError, OSError) as error:
            if error is not watched.failure:
                raise
            return _refusal(error, state=unreadable_state(error), name=place.name, path=place.path)

    async def chart(self, request: Request) -> Response:
        """One chart."""
        name = request.path_params["name"]
        query = _query(request).only(*page_answers.PARAMETERS_OF_CHARTS.get(name, ()))
        return await self._ask(request, lambda source: page_answers.chart(source, name, query), full=True)

    async def log(self, request: Request) -> Response:
        """The end of a trial's output. Read beside the experiment's thread, for a store may take its time."""
        identity, query = request.path_params["trial"], _query(request).only("tail")
        tail = query.number("tail", 200, high=10_000)
        _, watched = self._watched(request)
        found = await self._waited(
            watched.ask(lambda source: (source.history, page_answers.trial_of(source, identity)))
        )
        return await self._respond(request, self._threaded(lambda: log_tail(*found, tail)))

    async def events(self, request: Request) -> Any:
        """Server-sent events."""
        _query(request).only("after")
        after = last_event(request)
        _, watched = self._watched(request)
        if self._streams >= MAX_STREAMS:
            return error_response(503, f"{MAX_STREAMS} pages are open already, which is the limit.")
        self._streams += 1
        return EventStream(watched, after, self.leaving, self._stream_ended)

    def _stream_ended(self) -> None:
        self._streams -= 1

    def _of_experiment(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        answer = page_answers.OF_EXPERIMENT[name]

        async def handler(request: Request) -> Response:
            query = _query(request).only(*page_answers.PARAMETERS[name])
            full = page_answers.needs_all_reports(name, query)
            return await self._ask(request, lambda source: answer(source, query), full=full)

        return handler

    def _of_trial(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        answer = page_answers.OF_TRIAL[name]

        async def handler(request: Request) -> Response:
            query, identity = _query(request).only(*page_answers.PARAMETERS[name]), request.path_params["trial"]
            return await self._ask(request, lambda source: answer(source, identity, query), full=not name)

        return handler

    def _action(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            _query(request).only()
            place, watched = self._watched(request)
            body = await self._unless_leaving(_body(request))
            acting.check_fields(name, body)
            tags = await self._waited(watched.ask(lambda source: page_answers.tags_of(source, body.get("trial"))))
            act = acting.ACTIONS[name].act
            text = await self._waited(self._threaded(lambda: act(place.path, body, tags)))
            return await self._respond(request, _done({"accepted": True, "text": text}), status=202)

        return handler

    # --- asking

    def _watched(self, request: Request) -> tuple[ExperimentPlace, FollowedExperiment]:
        identity = request.path_params["id"]
        place = self._catalogue.find(identity)
        if place is None:
            raise page_answers.NotHere(f"There is no experiment {identity[:80]!r} here.")
        return place, self._catalogue.watch(place)

    async def _ask(self, request: Request, question: Callable[[Source], Any], *, full: bool = False) -> Response:
        _, watched = self._watched(request)
        zipped, near = accepts_gzip(request), is_near(request)

        def answer(source: Source) -> tuple[bytes, bool, str]:
            found = question(source)
            kind = BINARY if isinstance(found, bytes) else JSON
            worthwhile = zipped and not (near and kind == BINARY)
            return (*packed(page_answers.encoded(found), zipped=worthwhile), kind)

        body, is_zipped, kind = await self._waited(watched.ask(answer, full=full))
        return respond(body, is_zipped, media_type=kind)

    async def _respond(self, request: Request, answer: Future[Any], status: int = 200) -> Response:
        body, is_zipped = packed(page_answers.encoded(await self._waited(answer)), zipped=accepts_gzip(request))
        return respond(body, is_zipped, status=status)

    async def _waited(self, answer: Future[T]) -> T:
        return await self._unless_leaving(asyncio.wrap_future(answer), ANSWER_S)

    async def _unless_leaving(self, work: Awaitable[T], timeout_s: float | None = None) -> T:
        """Wait, but not when the server ends: whoever still waits then would be cancelled, which looks like an error.

        Raises:
            Busy: It takes too long.
            _Leaving: The server ends.
        """
        wanted = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.leaving.wait())
        try:
            ends: set[asyncio.Future[Any]] = {wanted, leaving}
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
            raise _Leaving if self.leaving.is_set() else Busy
        finally:
            wanted.cancel()
            leaving.cancel()

    def _threaded(self, work: Callable[[], T]) -> Future[T]:
        """Run something in a thread of its own. Not an executor: those are waited for when a process ends."""
        if self._threads >= MAX_THREADS:
            raise Busy
        self._threads += 1
        answer: Future[T] = Future()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, args=(work, answer, loop), daemon=True).start()
        return answer

    def _work(self, work: Callable[[], T], answer: Future[T], loop: asyncio.AbstractEventLoop) -> None:
        answer_question(work, answer)
        try:
            loop.call_soon_threadsafe(self._thread_ended)
        except RuntimeError:
            pass  # the server has ended

    def _thread_ended(self) -> None:
        self._threads -= 1


def make_app(api: Api, static: StaticFiles) -> ASGIApp:
    """The application, without the guard before it."""
    routes = [*api.routes(), *(Route(path, static.respond) for path in static.paths)]
    handlers: dict[Any, Any] = {
        HTTPException: _http_error,
        Busy: _busy,
        _Leaving: _ending,
        TuneError: _refused,
        OSError: _refused,
        Exception: _bug,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _done(value: Any) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_result(value)
    return answer


def _query(request: Request) -> Query:
    return Query(dict(request.query_params))


def _loading(place: ExperimentPlace, loading: OpeningProgress) -> dict[str, Any]:
    return {
        "id": place.id,
        "name": place.name,
        "path": place.path,
        "state": "loading",
        "loading": loading._asdict(),
        "record": 0,
        "counts": {},
        "damage": None,
        "unreachable": None,
        "live": False,
        "read_only": True,
    }


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HTTPException(400, f"The request must have the content type {JSON}.")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise HTTPException(400, f"The request has more than {MAX_BODY:,} bytes.")
    try:
        body = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not JSON.") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "The request must be a JSON object.")
    return body


async def _http_error(request: Request, error: HTTPException) -> Response:
    sentences = {404: "There is nothing at this address.", 405: f"{request.method} is not possible here."}
    plain = error.detail in ("Not Found", "Method Not Allowed")
    response = error_response(error.status_code, sentences[error.status_code] if plain else error.detail)
    response.headers.update(error.headers or {})
    return response


async def _busy(request: Request, error: Exception) -> Response:
    return error_response(503, "The server has too much to do; try again in a moment.")


async def _ending(request: Request, error: Exception) -> Response:
    return error_response(503, "The server is shutting down. What was asked of the driver may still be done.")


async def _refused(request: Request, error: Exception) -> Response:
    return _refusal(error)


def _refusal(error: Exception, **more: Any) -> Response:
    """What the readers say, with the status that fits: the user's parameters, the experiment, or its storage."""
    if isinstance(error, BadFilter):
        return error_response(400, str(error), place=error.place)
    if isinstance(error, page_answers.NotHere):
        return error_response(404, str(error))
    if isinstance(error, RequestRefusedError):
        return error_response(409, str(error))
    if isinstance(error, DamageError | StorageError | NewerFormatError):  # no parameter is wrong
        return error_response(409, str(error), **more)
    return error_response(400 if isinstance(error, UsageError) else 500, str(error), **more)


async def _bug(request: Request, error: Exception) -> Response:
    complain(f"{request.method} {request.url.path} failed; this is a bug in holdfast:")
    traceback.print_exception(error, file=sys.stderr)
    return error_response(500, "The server failed to answer; its terminal shows why. This is a bug in holdfast.")
