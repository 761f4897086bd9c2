"""The storage agent: the one process of a driver that talks to object stores.

Started by exec with one end of a socket, it executes the requests of `agent_client` concurrently, and answers each when
it is done. Owns the client libraries and the bytes in transit. Must never fork, and runs no user code, with one
exception: a file system object that was passed as ``RunConfig(storage_filesystem=...)`` is unpickled and used here. It
ends when its driver does.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.errors import InternalError, InvalidInputError, TuneError
from holdfast.storage import wire
from holdfast.storage.address import Address, parse
from holdfast.storage.options import StoreOptions
from holdfast.storage.store import Fetching, Replacing, Sending, Store
from holdfast.storage.transfers import Transfers

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SMALL_AT_ONCE = 32
_LONG_AT_ONCE = 32
_LONG = frozenset({"send", "replace", "fetch"})


def _paths(files: list[list[Any]]) -> list[tuple[str, str]]:
    return [(os.fsdecode(first), os.fsdecode(second)) for first, second in files]


_VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda store, arguments: store.put(arguments[0], arguments[1]),
    "create": lambda store, arguments: store.create(arguments[0], arguments[1]),
    "get": lambda store, arguments: store.get(arguments[0]),
    "stat": lambda store, arguments: store.stat(arguments[0]),
    "list": lambda store, arguments: store.list(arguments[0]),
    "delete": lambda store, arguments: store.delete(arguments[0]),
    "send": lambda store, arguments: store.send([Sending(*pair) for pair in _paths(arguments[0])]),
    "replace": lambda store, arguments: store.replace(
        [Replacing(*pair, version) for pair, version in zip(_paths(arguments[0]), arguments[1], strict=True)]
    ),
    "fetch": lambda store, arguments: store.fetch([Fetching(*pair) for pair in _paths(arguments[0])]),
    "abort_stale": lambda store, arguments: store.abort_stale(arguments[0]),
    "create_is_atomic": lambda store, arguments: store.create_is_atomic(),
    "close": lambda store, arguments: store.close(),
}


class _Slot:
    """A store that is opened by the first request that needs it, not by the thread that reads requests."""

    def __init__(self, spec: wire.StoreSpec, transfers: Transfers) -> None:
        self._spec = spec
        self._transfers = transfers
        self._lock = threading.Lock()
        self._store: Store | None = None

    def store(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._spec, self._transfers)
            return self._store


def open_store(spec: wire.StoreSpec, transfers: Transfers) -> Store:
    """Make the store that a driver has asked for.

    Raises:
        InvalidInputError: If its file system object cannot be unpickled here.
    """
    if spec.filesystem:
        from holdfast.storage.filesystems import FilesystemStore

        try:
            filesystem = pickle.loads(spec.filesystem)
        except Exception as error:
            raise InvalidInputError(
                f"The storage_filesystem cannot be rebuilt in the storage agent: {type(error).__name__}: {error} "
                f"Its class has to be importable, not defined in a script or notebook."
            ) from error
        return FilesystemStore(filesystem, spec.address, transfers, spec.options)
    address = parse(spec.address)
    return _open_address(address, spec.options, transfers)


def _open_address(address: Address, options: StoreOptions, transfers: Transfers) -> Store:
    if address.is_local:
        from holdfast.storage.filesystems import FilesystemStore, LocalFiles

        return FilesystemStore(LocalFiles(), address.path, transfers, options)
    from holdfast.storage.object_store import ObjectStore

    return ObjectStore(address, options, transfers)


class Agent:
    """Reads requests from a socket and answers them.

    Args:
        sock: The agent's end of the connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._transfers: Transfers | None = None
        # Apart from each other: a journal part must not wait until checkpoints have gone.
        self._small = ThreadPoolExecutor(_SMALL_AT_ONCE, thread_name_prefix="small")
        self._long = ThreadPoolExecutor(_LONG_AT_ONCE, thread_name_prefix="long")

    def serve(self) -> None:
        """Work until the driver is gone."""
        for body in wire.bodies(self._socket):
            request = wire.read_request(body)
            if request.verb == wire.PING:
                self._answer(wire.AgentReply(request.number))
            elif request.verb == wire.OPEN:
                self._open(request)
            else:
                pool = self._long if request.verb in _LONG else self._small
                pool.submit(self._work, request)

    def _open(self, request: wire.AgentRequest) -> None:
        spec = msgspec.convert(request.arguments, wire.StoreSpec)
        if self._transfers is None:
            # One budget for all: the first store's limits count, as all of one driver have the same.
            limits = spec.options
            self._transfers = Transfers(limits.files_at_once, limits.bytes_in_flight, limits.part_bytes)
        self._slots[request.store] = _Slot(spec, self._transfers)

    def _work(self, request: wire.AgentRequest) -> None:
        try:
            result = _VERBS[request.verb](self._slots[request.store].store(), request.arguments)
            reply = wire.AgentReply(request.number, wire.value(result))
            self._answer(reply)
        except TuneError as error:
            name = wire.error_name(error) or InternalError.__name__
            self._answer(wire.AgentReply(request.number, error=name, message=str(error)))
        except Exception as error:
            story = "".join(traceback.format_exception(error))
            text = f"The storage agent failed at {request.verb!r}; this is a bug in holdfast.\n{story}"
            self._answer(wire.AgentReply(request.number, error=InternalError.__name__, message=text))

    def _answer(self, reply: wire.AgentReply) -> None:
        data = wire.frame(reply)
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                os._exit(0)  # the driver is gone, and with it everybody who would miss the answer


def main(fd: int, driver: int) -> None:
    """Be the storage agent of process ``driver``, on the socket ``fd``."""
    _live_with(driver)
    warnings.simplefilter("default")  # a driver that turns warnings into errors does not mean those of its libraries
    sock = socket.socket(fileno=fd)
    Agent(sock).serve()
    os._exit(0)  # not sys.exit: threads in the middle of an upload must not keep this process


def _live_with(driver: int) -> None:
    """Ignore what is meant for the driver, which decides when this ends; end at once when it has."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def check(*_: object) -> None:
        # The kernel also sends this when only the thread that started the agent has ended.
        if os.getppid() != driver:
            os._exit(1)

    signal.signal(signal.SIGUSR1, check)
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGUSR1), 0, 0, 0)
        libc.prctl(_PR_SET_NAME, b"holdfast-store", 0, 0, 0)
    check()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
