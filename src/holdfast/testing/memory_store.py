"""A store of objects in memory that fails the way stores fail, and remembers everything it was asked.

It is consistent, as today's object stores are: what was written is what the next reader sees. What goes wrong is the
way there and back: no answer, a refusal, an answer that is lost after the store has acted, slowness.

Owns the objects and the faults. Must never know what is in an object.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import xxhash

from holdfast.errors import ObjectMissingError, StorageError, StoreDeniedError, StoreUnreachableError
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending, Stat

Verb = Literal["put", "create", "get", "stat", "list", "delete", "send", "replace", "fetch", "abort_stale"]
FaultKind = Literal["unreachable", "denied", "lost", "slow"]

_WRITES = frozenset({"put", "create", "delete", "send", "replace"})
_T = TypeVar("_T")


class StoreRequest(NamedTuple):
    """Something that the store was asked, whatever came of it.

    Attributes:
        verb: The method.
        key: The object, or the prefix; the first one of several.
        objects: How many.
        at: When, by the store's clock.
        outcome: "ok", "missing", "taken", or the kind of the fault.
    """

    verb: str
    key: str
    objects: int
    at: float
    outcome: str


@dataclass
class Fault:
    """What goes wrong, and when.

    Attributes:
        kind: "unreachable" and "denied" refuse before anything is done; "lost" does it and then reports no answer
            (reads are not affected); "slow" takes ``delay_s`` longer.
        verbs: Requests that it concerns; all if empty.
        prefix: Keys that it concerns.
        times: How many more requests it hits.
        until: When it ends, by the store's clock.
        chance: How likely it hits a request that it concerns.
        delay_s: For "slow".
    """

    kind: FaultKind
    verbs: tuple[Verb, ...] = ()
    prefix: str = ""
    times: float = math.inf
    until: float = math.inf
    chance: float = 1.0
    delay_s: float = 0.0


class _Object(NamedTuple):
    data: bytes
    modified: float
    version: str


def file_content(path: str) -> bytes:
    """What is to be sent; a file that is not there is a `StorageError`, as with every store."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StorageError(f"{path} cannot be sent: {error}") from error


class MemoryStore:
    """A `holdfast.storage.store.Store` for tests.

    Attributes:
        requests: Everything it was asked, in order.
        faults: What goes wrong at present; add and remove as you like.
        honours_create: False makes `create` and `replace` write over what is there, as some stores do.
    """

    def __init__(
        self,
        url: str = "memory://bucket/experiment",
        *,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        honours_create: bool = True,
    ) -> None:
        """Make an empty store.

        Args:
            url: What it calls itself.
            seed: Of the faults that hit by chance.
            clock: The store's own clock.
            sleep: How slowness passes.
            honours_create: Whether `create` and `replace` keep what others have written.
        """
        self.requests: list[StoreRequest] = []
        self.faults: list[Fault] = []
        self.honours_create = honours_create
        self._url = url
        self._random = random.Random(seed)
        self._clock = clock
        self._sleep = sleep
        self._objects: dict[str, _Object] = {}
        self._writes = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """What keys are relative to."""
        return self._url

    @property
    def objects(self) -> dict[str, bytes]:
        """What is in the store, read without asking it."""
        with self._lock:
            return {key: found.data for key, found in self._objects.items()}

    def fail(self, fault: Fault) -> Fault:
        """Let something go wrong from now on; returns it, for removal from `faults`."""
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self.faults.clear()

    def put(self, key: str, data: bytes) -> None:
        def act() -> None:
            self._write(key, data)

        self._ask("put", [key], act)

    def create(self, key: str, data: bytes) -> bool:
        def act() -> bool:
            if key in self._objects and self.honours_create:
                return False
            self._write(key, data)
            return True

        return self._ask("create", [key], act)

    def get(self, key: str) -> bytes:
        return self._ask("get", [key], lambda: self._read(key))

    def stat(self, key: str) -> Stat | None:
        def act() -> Stat | None:
            found = self._objects.get(key)
            return None if found is None else Stat(key, len(found.data), found.modified, found.version)

        return self._ask("stat", [key], act)

    def list(self, prefix: str) -> list[Stat]:
        def act() -> list[Stat]:
            found = sorted((key, value) for key, value in self._objects.items() if key.startswith(prefix))
            return [Stat(key, len(value.data), value.modified) for key, value in found]

        return self._ask("list", [prefix], act)

    def delete(self, keys: Iterable[str]) -> None:
        chosen = [*keys]

        def act() -> None:
            for key in chosen:
                self._objects.pop(key, None)

        self._ask("delete", chosen, act)

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        def act() -> list[str]:
            digests = []
            for path, key in files:
                data = file_content(path)
                self._write(key, data)
                digests.append(xxhash.xxh3_128_hexdigest(data))
            return digests

        return self._ask("send", [file.key for file in files], act)

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        def act() -> list[Replaced]:
            return [self._replace(*file) for file in files]

        return self._ask("replace", [file.key for file in files], act)

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        def act() -> list[str]:
            digests = []
            for key, path in files:
                data = self._read(key)
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                with open(path, "wb") as file:
                    file.write(data)
                digests.append(xxhash.xxh3_128_hexdigest(data))
            return digests

        return self._ask("fetch", [file.key for file in files], act)

    def abort_stale(self, prefix: str) -> int:
        return self._ask("abort_stale", [prefix], lambda: 0)

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, key: str, data: bytes) -> None:
        self._writes += 1
        self._objects[key] = _Object(bytes(data), self._clock(), f"version {self._writes}")

    def _replace(self, path: str, key: str, version: str) -> Replaced:
        current = self._objects[key].version if key in self._objects else ABSENT
        if self.honours_create and version not in (current, ANY):
            return Replaced(False, current)
        self._write(key, file_content(path))
        return Replaced(True, self._objects[key].version)

    def _read(self, key: str) -> bytes:
        if key not in self._objects:
            raise ObjectMissingError(f"There is no object {key} in {self._url}.")
        return self._objects[key].data

    def _ask(self, verb: Verb, keys: Sequence[str], act: Callable[[], _T]) -> _T:
        hits, delay_s = self._hits(verb, keys)
        if delay_s:
            self._sleep(delay_s)
        outcome = "missing"
        with self._lock:
            at = self._clock()
            try:
                if "denied" in hits:
                    outcome = "denied"
                    raise StoreDeniedError(f"{self._url} refuses to {verb} {keys[0] if keys else 'nothing'}.")
                if "unreachable" in hits:
                    outcome = "unreachable"
                    raise StoreUnreachableError(f"{self._url} does not answer.")
                result = act()
                if "lost" in hits:
                    outcome = "lost"
                    raise StoreUnreachableError(f"{self._url} has not answered.")
                outcome = "taken" if result is False else "ok"
                return result
            finally:
                self.requests.append(StoreRequest(verb, keys[0] if keys else "", len(keys), at, outcome))

    def _hits(self, verb: Verb, keys: Sequence[str]) -> tuple[set[str], float]:
        kinds: set[str] = set()
        delay_s = 0.0
        with self._lock:
            now = self._clock()
            self.faults[:] = [fault for fault in self.faults if fault.times > 0 and now < fault.until]
            for fault in self.faults:
                if (fault.verbs and verb not in fault.verbs) or (fault.kind == "lost" and verb not in _WRITES):
                    continue
                if not any(key.startswith(fault.prefix) for key in keys):
                    continue
                if fault.chance < 1 and self._random.random() >= fault.chance:
                    continue
                fault.times -= 1
                kinds.add(fault.kind)
                delay_s += fault.delay_s if fault.kind == "slow" else 0.0
        return kinds, delay_s
