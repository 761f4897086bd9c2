"""The server process: binds its port, says where, and ends when it is told to.

Owns the socket, the signals and the order of starting: whatever can fail fails before the port is open, and the address
is printed when a browser can be answered. Imports starlette and uvicorn. Must never write to disk.
"""

from __future__ import annotations

import gc
import socket
import threading
import webbrowser
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from holdfast.errors import UsageError
from holdfast.journal.reader import bytes_behind
from holdfast.results.early_records import CHECKED_BYTES
from holdfast.storage.address import is_remote, parse
from holdfast.ui.app import Api, make_app
from holdfast.ui.catalogue import Catalogue
from holdfast.ui.pages import StaticFiles
from holdfast.ui.security import Guard
from holdfast.ui.source import Source
from holdfast.ui.stop_signals import StopSignals

GRACE_S = 1.0
"""How long the port stays closed while a journal of more than CHECKED_BYTES is opened. What takes longer is shown on
the page, with its progress, and so is damage that is found then. A smaller one is read whole before the port is open,
so that damage anywhere in it is an error of the command."""
REMOTE_GRACE_S = 10.0
SHUTDOWN_S = 1
BACKLOG = 128
MAX_CONNECTIONS = 256


def serve(path: str, *, host: str, port: int, token: str, browser: bool, signals: StopSignals) -> int:
    """Serve the experiments at or below ``path`` until a signal comes; returns the exit code.

    Raises:
        TuneError: It cannot be done; the port was never open.
        StoppedEarly: A signal came before the port was open.
    """
    static = StaticFiles()
    assert static.paths
    listening = _bind(host, port)
    catalogue = Catalogue(path)
    _check_single(catalogue)
    signals.interrupts = False
    address = _Address(host, listening.getsockname()[1], token)
    api = Api(catalogue)
    server = _Server(_configured(make_app(api, static), address), api, signals)
    listening.listen(BACKLOG)  # whoever reads the address may connect at once
    print(address.text, flush=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address.text,), daemon=True).start()
    server.run([listening])
    # A process that ends looks for cycles among everything that was read, which takes longer than the reading.
    gc.freeze()
    return 0


class _Address(NamedTuple):
    """Where the server listens, and the secret."""

    host: str
    port: int
    token: str

    @property
    def text(self) -> str:
        """What to open in a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"


def _check_single(catalogue: Catalogue) -> None:
    """Open the experiment if there is only one, and raise what is wrong with it."""
    if not catalogue.is_single:
        return
    watched = catalogue.watch(catalogue.places()[0])
    watched.opened.wait(_patience(catalogue.root))
    if watched.failure is not None:
        raise watched.failure
    if watched.opened.is_set():
        watched.ask(_check_records).result()


def _patience(root: str) -> float | None:
    """How long to wait until the experiment is opened; None: as long as it takes."""
    if is_remote(root):
        return REMOTE_GRACE_S
    return None if bytes_behind(parse(root).path) <= CHECKED_BYTES else GRACE_S


def _check_records(source: Source) -> None:
    if source.history.damage is not None:
        raise source.history.damage
    if bytes_behind(source.history.root) <= CHECKED_BYTES:
        source.read_all()  # what stands before a snapshot has not been looked at yet


def _bind(host: str, port: int) -> socket.socket:
    """A socket with the address, not listening yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        way_out = "Choose another with --port, or 0 for a free one." if port else "Choose another with --host."
        reason = error.strerror or str(error)
        raise UsageError(f"Port {port} of {host} cannot be used: {reason}. {way_out}") from None
    return bound


class _Server(uvicorn.Server):
    """Ends event streams when a signal comes, instead of waiting for their browsers."""

    def __init__(self, config: uvicorn.Config, api: Api, signals: StopSignals) -> None:
        super().__init__(config)
        self._api = api
        self._signals = signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._signals.came:  # after the address was printed, before uvicorn listened to signals
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.leaving.set()
        await super().shutdown(sockets)


def _configured(app: ASGIApp, address: _Address) -> uvicorn.Config:
    return uvicorn.Config(
        Guard(app, address.token, address.host, address.port),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
