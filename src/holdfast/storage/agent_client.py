"""Stores for a driver, each call executed by the storage agent.

Owns the agent process and the connection to it: starts it when it is first needed, restarts it when it has died, and
retries unanswered requests. Must never import a client library of a cloud: their threads do not survive a fork, and
user code forks often.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.msgpack import Decoder

from holdfast.errors import ForkedStorageError, InvalidInputError, StoreDeniedError, StoreUnreachableError
from holdfast.storage import wire
from holdfast.storage.address import Address, parse
from holdfast.storage.agent_link import AgentGoneError, AgentLink
from holdfast.storage.options import StoreOptions
from holdfast.storage.store import Fetching, Replaced, Replacing, Sending, Stat, Store

T = TypeVar("T")

_NOTHING: Decoder[None] = Decoder(None)
_FLAG: Decoder[bool] = Decoder(bool)
_PERHAPS: Decoder[bool | None] = Decoder(bool | None)
_COUNT: Decoder[int] = Decoder(int)
_DATA: Decoder[bytes] = Decoder(bytes)
_STAT: Decoder[Stat | None] = Decoder(Stat | None)
_STATS: Decoder[list[Stat]] = Decoder(list[Stat])
_DIGESTS: Decoder[list[str]] = Decoder(list[str])
_REPLACED: Decoder[list[Replaced]] = Decoder(list[Replaced])

_STARTS_PER_CALL = 4
_GRACE_S = 10.0  # for the way to the agent and back
_DELETE_BATCH = 1000
_WATCHED_THERE = frozenset({"send", "replace", "fetch"})  # the agent gives up when nothing moves
_MANY = frozenset({"list", "abort_stale"})  # page by page
_MANY_REQUESTS = 20
_CREDENTIALS = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_", "GCS_", "STORAGE_EMULATOR_HOST", "IDENTITY_", "MSI_")


class _Agents:
    """The agent of this process, and its successors.

    Attributes:
        pid: The process that owns it.
        deaths: How often an agent has died under the stores that are open now.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._link: AgentLink | None = None
        self._retired: list[AgentLink] = []
        self._users = 0
        self.deaths = 0
        self._numbers = itertools.count(1)

    @property
    def agent_pid(self) -> int | None:
        link = self._link
        return None if link is None or link.gone else link.pid

    def join(self) -> int:
        """Register a store; returns its number."""
        with self._lock:
            self._users += 1
        return next(self._numbers)

    def leave(self) -> None:
        """Let go of a store; the last one takes the agent with it."""
        with self._lock:
            self._users -= 1
            links = self._take_links() if self._users == 0 else []
        for link in links:
            link.stop()

    def stop(self) -> None:
        """End the agent, whoever still uses it."""
        with self._lock:
            links = self._take_links()
        for link in links:
            link.stop()

    def _take_links(self) -> list[AgentLink]:
        links = self._retired + ([self._link] if self._link else [])
        self._link, self._retired, self.deaths = None, [], 0
        return links

    def link(self) -> AgentLink:
        """Return the connection to a living agent; start one if there is none."""
        with self._lock:
            if self._link is not None and self._link.gone:
                self._link.stop()
                self._link = None
                self.deaths += 1
            if self._link is None:
                self._link = AgentLink(_environment(crash=self.deaths == 0))
            return self._link

    def forget(self) -> None:
        """In a fork: let go of the parent's agent without a word to it."""
        for link in self._take_links():
            link.forget()

    def renew(self, refused: AgentLink) -> bool:
        """Start another agent if the environment has other credentials than the one that was refused had.

        What the old one is working at, it may finish.
        """
        if credentials(os.environ) == credentials(refused.environ):
            return False
        with self._lock:
            if self._link is refused:
                self._link = None
                self._retired = [link for link in self._retired if not link.stop_if_idle()]
                if not refused.stop_if_idle():
                    self._retired.append(refused)
        return True


_agents = _Agents()


def _after_fork() -> None:
    # The parent's locks may be held by threads that do not exist here, so its object is left alone, not cleaned up.
    global _agents
    _agents.forget()
    _agents = _Agents()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _agents.stop())


def agent_pid() -> int | None:
    """Return the process id of this process's agent, if one runs."""
    return _agents.agent_pid


def _environment(*, crash: bool) -> dict[str, str]:
    environ = dict(os.environ)
    if not crash:
        environ.pop("HOLDFAST_CRASH", None)  # a crash point kills one agent, not each of its successors
    return environ


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which the clouds' clients take endpoints and credentials."""
    return {name: value for name, value in environ.items() if name.startswith(_CREDENTIALS)}


class RemoteStore:
    """A `Store` in the agent. Made by `connect`."""

    def __init__(self, url: str, spec: wire.StoreSpec, agents: _Agents) -> None:
        self._url = url
        self._spec = spec
        self._agents = agents
        self._number = agents.join()
        self._closed = False

    @property
    def url(self) -> str:
        return self._url

    def create_is_atomic(self) -> bool | None:
        """Whether `create` keeps two writers apart; None if only a trial can tell."""
        return self._call("create_is_atomic", (), _PERHAPS)

    def put(self, key: str, data: bytes) -> None:
        self._call("put", (key, data), _NOTHING)

    def create(self, key: str, data: bytes) -> bool:
        return self._call("create", (key, data), _FLAG)

    def get(self, key: str) -> bytes:
        return self._call("get", (key,), _DATA)

    def stat(self, key: str) -> Stat | None:
        return self._call("stat", (key,), _STAT)

    def list(self, prefix: str) -> list[Stat]:
        return self._call("list", (prefix,), _STATS)

    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        for start in range(0, len(names), _DELETE_BATCH):
            self._call("delete", (names[start : start + _DELETE_BATCH],), _NOTHING)

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        return self._call("send", (_upwards(files),), _DIGESTS)

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        return self._call("replace", (_upwards(files), [file.version for file in files]), _REPLACED)

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        pairs = [(os.fsencode(file.key), os.fsencode(os.path.abspath(file.path))) for file in files]
        return self._call("fetch", (pairs,), _DIGESTS)

    def abort_stale(self, prefix: str) -> int:
        return self._call("abort_stale", (prefix,), _COUNT)

    def close(self) -> None:
        if not self._closed and self._agents.pid == os.getpid():
            self._closed = True
            self._agents.leave()

    def _call(self, verb: str, arguments: tuple[Any, ...], answer: Decoder[T]) -> T:
        """Ask the agent, and ask its successor if it dies meanwhile.

        That is safe for every verb. A `create` that was carried out before the death finds its own object, which
        `store.create_once` tells from somebody else's.
        """
        self._check_owner()
        timeout_s = None
        if verb not in _WATCHED_THERE:
            timeout_s = self._spec.options.timeout_s * (_MANY_REQUESTS if verb in _MANY else 1) + _GRACE_S
        renewed, story = False, ""
        for _ in range(_STARTS_PER_CALL):
            link = self._agents.link()
            try:
                return answer.decode(link.ask(self._number, self._spec, verb, arguments, timeout_s))
            except AgentGoneError as error:
                story = str(error)
            except StoreDeniedError:
                if renewed or not self._agents.renew(link):
                    raise
                renewed = True
            except TimeoutError:
                raise StoreUnreachableError(
                    f"{self._url}: no answer to {verb!r} within {timeout_s:.0f} s. The store may be overloaded."
                ) from None
        raise StoreUnreachableError(
            f"{self._url}: the storage agent has died {_STARTS_PER_CALL} times during one {verb!r}. {story}".rstrip()
        )

    def _check_owner(self) -> None:
        if os.getpid() != self._agents.pid:
            raise ForkedStorageError(
                f"{self._url} was connected to by process {self._agents.pid}, and this is a fork of it, process "
                f"{os.getpid()}. A connection does not survive a fork; the parent's still works. Connect again in "
                f"this process, or pass the files to the parent."
            )
        if self._closed:
            raise InvalidInputError(f"{self._url}: this store has been closed. Connect again.")


def _upwards(files: Sequence[Sending | Replacing]) -> list[tuple[bytes, bytes]]:
    return [(os.fsencode(os.path.abspath(file.path)), os.fsencode(file.key)) for file in files]


def connect(
    address: Address | str | os.PathLike[str], *, filesystem: Any = None, options: StoreOptions | None = None
) -> Store:
    """Open a store. Nothing is asked of it yet, and the agent is started by the first call.

    Args:
        address: A URL or a local directory; with ``filesystem``, a path inside it.
        filesystem: A pyarrow or fsspec file system. It is pickled, and rebuilt in the agent.
        options: Limits.

    Raises:
        InvalidInputError: If the address is not understood, or the package for it is not installed.
    """
    options = options or StoreOptions()
    if filesystem is not None:
        path = address.path if isinstance(address, Address) else os.fspath(address)
        spec = wire.StoreSpec(path, options, _pickled(filesystem))
        return RemoteStore(f"{type(filesystem).__name__}:{path}", spec, _agents)
    if not isinstance(address, Address):
        address = parse(address)
    if not address.is_local and importlib.util.find_spec("obstore") is None:
        raise InvalidInputError(
            f"{address.url}: object stores need the package obstore, which {sys.executable} does not have. "
            f'Type: pip install "holdfast[cloud]"'
        )
    return RemoteStore(address.url, wire.StoreSpec(str(address), options), _agents)


def _pickled(filesystem: Any) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(filesystem)
    except Exception as error:
        raise InvalidInputError(
            f"storage_filesystem={filesystem!r} cannot be pickled, so it cannot reach the storage agent: {error}"
        ) from error
    return data
