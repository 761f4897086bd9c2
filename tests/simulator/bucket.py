"""An object store in a story: one server, and the network between it and each process.

A request takes time and may come to nothing, be refused, be carried out without an answer, be carried out long after
its sender gave up, or be carried out twice. The server checks at once what must never happen there: a checkpoint
without its files or before the record of its stage (I2), a deletion without a durable intent (I3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import xxhash

from holdfast.core import events as ev
from holdfast.errors import StoreDeniedError, StoreUnreachableError
from holdfast.shipping import parts
from holdfast.space.rng import Rng
from holdfast.storage.store import Fetching, Replaced, Replacing, Sending, Stat
from holdfast.testing.memory_store import MemoryStore, file_content
from holdfast.testing.virtual_clock import Timeline
from simulator.disk import Killed
from simulator.journal_bytes import Entry, read_history
from simulator.ledger import Violation
from simulator.process import DriverProcess
from simulator.scenario import pick
from simulator.strands import current_strand

URL = "s3://bucket/experiment"
MANIFEST = "/_manifest.json"
GIVEN_UP = b'{"given_up":'
USUAL_S = 0.01

T = TypeVar("T")

FAULTS = {
    "outages": 2,
    "denials": 1,
    "slow_times": 2,
    "lost_requests": 4,
    "lost_answers": 5,
    "late_requests": 3,
    "repeated_requests": 3,
    "lagging_lists": 3,
}
"""The most that goes wrong in one story; each story has about half of the kinds."""


class NetworkFaults:
    """What becomes of requests, until a budget is spent."""

    def __init__(self, rng: Rng, now: Callable[[], float]) -> None:
        self.rng = rng
        self._now = now
        self._left = {kind: rng.integers(1, most + 1) if rng.random() < 0.5 else 0 for kind, most in FAULTS.items()}
        self._outage_until = self._denied_until = self._slow_until = 0.0

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._left = dict.fromkeys(self._left, 0)
        self._outage_until = self._denied_until = self._slow_until = 0.0

    def strikes(self, kind: str, chance: float) -> bool:
        if not self._left[kind] or self.rng.random() >= chance:
            return False
        self._left[kind] -= 1
        return True

    def seconds(self) -> float:
        """How long the way there, or back, takes."""
        if self.strikes("slow_times", 0.01):
            self._slow_until = self._now() + self.rng.uniform(0.0, 30.0)
        return self.rng.uniform(0.5, 3.0) if self._now() < self._slow_until else USUAL_S

    def fate(self, writes: bool) -> str:
        """What becomes of a request: "" if it is simply answered."""
        if self._now() < self._outage_until:
            return "unreachable"
        if self._now() < self._denied_until:
            return "denied"
        if self.strikes("outages", 0.02):
            self._outage_until = self._now() + self.rng.uniform(0.0, pick(self.rng, (5.0, 40.0, 100.0)))
            return "unreachable"
        if self.strikes("denials", 0.01):
            self._denied_until = self._now() + self.rng.uniform(0.0, pick(self.rng, (5.0, 40.0)))
            return "denied"
        if self.strikes("lost_requests", 0.05):
            return "unreachable"
        for kind in ("lost_answers", "late_requests", "repeated_requests"):
            if writes and self.strikes(kind, 0.08):
                return kind
        return ""


class Server:
    """What is really in the store."""

    def __init__(self, timeline: Timeline) -> None:
        self.objects = MemoryStore(URL, clock=lambda: timeline.wall)
        self._timeline = timeline
        self._created_at: dict[str, float] = {}
        self._gone: dict[str, tuple[Stat, float]] = {}  # what was deleted, and when
        self.violations: list[Violation] = []
        # A late request, or a driver that slept, can bring a manifest back after its checkpoint was deleted. It costs
        # space until `holdfast gc` and nothing else: the journal says that it is gone.
        self.recreated: set[str] = set()
        self._deleted: set[str] = set()
        self.machines: dict[int, str] = {}  # of each epoch that has a part, where its driver ran
        self._journal: dict[str, bytearray] = {}
        self._entries: list[Entry] | None = []

    def list(self, prefix: str, lag_s: float = 0.0) -> list[Stat]:
        """What is there, or what was there ``lag_s`` seconds ago."""
        then = self._timeline.now - lag_s
        found = {stat.key: stat for stat in self.objects.list(prefix) if self._created_at.get(stat.key, 0.0) <= then}
        gone = {key: stat for key, (stat, at) in self._gone.items() if key.startswith(prefix) and at > then}
        return [stat for _, stat in sorted({**gone, **found}.items())]

    def history(self) -> Sequence[Entry]:
        """The records that are in the store, read by other code than the journal's own."""
        if self._entries is None:
            self._entries = read_history({path: bytes(data) for path, data in self._journal.items()})
        return self._entries

    def events(self) -> Iterable[ev.AnyEvent]:
        return (entry.event for entry in self.history())

    def create(self, key: str, data: bytes) -> bool:
        made = self.objects.create(key, data)
        self._created_at.setdefault(key, self._timeline.now)
        if made and parts.parse_key(key) is not None:
            self._note_parts(key, data)
        elif made and key in self._deleted:
            self.recreated.add(key)
        elif made and key.endswith(MANIFEST) and not data.startswith(GIVEN_UP):
            self._check_complete(key, data)
        return made

    def put(self, key: str, data: bytes) -> None:
        if key.endswith(MANIFEST):
            self._complain("I2", f"{key} is written without a condition")
        if parts.parse_key(key) is not None and self.objects.objects.get(key, data) != data:
            self._complain("I4", f"{key} was another driver's, and is replaced")
        self.objects.put(key, data)
        self._created_at.setdefault(key, self._timeline.now)
        if parts.parse_key(key) is not None:
            self._note_parts(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        there = self.objects.objects
        for key in keys:
            if key.endswith(MANIFEST) and not there.get(key, b"").startswith(GIVEN_UP):
                self._check_intent(key)
                self._deleted.add(key)
            if (stat := self.objects.stat(key)) is not None:
                self._gone[key] = (stat, self._timeline.now)
                self._created_at.pop(key, None)
        self.objects.delete(keys)

    def _note_parts(self, key: str, data: bytes) -> None:
        span = parts.parse_key(key)
        assert span is not None
        if span.first != span.last:
            return  # merged of others, which have been noted
        for part in parts.decode_parts(data, key):
            self.machines[part.header.by.epoch] = part.header.by.machine
            for piece, content in part.contents():
                file = self._journal.setdefault(f"/{piece.file}", bytearray())
                file[piece.offset : piece.offset + piece.size] = content
        self._entries = None

    def _check_complete(self, key: str, data: bytes) -> None:
        """A manifest comes last: after the files that it lists, and after the record of its stage."""
        folder, there = key.removesuffix(MANIFEST), self.objects.objects
        manifest = json.loads(data)
        for entry in manifest["files"]:
            found = there.get(f"{folder}/{entry['path']}")
            if found is None or xxhash.xxh3_128_hexdigest(found) != entry["hash"]:
                self._complain("I2", f"{key} is created, and {entry['path']} is not in the store")
        staged = (event.sealed for event in self.events() if isinstance(event, ev.CheckpointStaged))
        if manifest["stage"] not in staged:
            self._complain("I2", f"{key} is created, and the record of its stage is not in the store")

    def _check_intent(self, key: str) -> None:
        trial, name, _ = key.split("/")
        place = (int(trial[1:]), int(name.removeprefix("checkpoint_")))
        for event in self.events():
            if isinstance(event, ev.CheckpointsDropped) and event.n == place[0] and place[1] in event.indexes:
                return
        self._complain("I3", f"{key} is deleted without a durable intent")

    def _complain(self, invariant: str, text: str) -> None:
        # Whoever sent the request would take an exception for an answer.
        self.violations.append(Violation(invariant, text))


class StoreClient:
    """The store as one process sees it (``storage.store.Store``)."""

    def __init__(self, server: Server, faults: NetworkFaults, process: DriverProcess, timeline: Timeline) -> None:
        self._server = server
        self._faults = faults
        self._process = process
        self._timeline = timeline

    @property
    def url(self) -> str:
        return URL

    def put(self, key: str, data: bytes) -> None:
        self._ask("put", [key], lambda: self._server.put(key, data), writes=True)

    def create(self, key: str, data: bytes) -> bool:
        return self._ask("create", [key], lambda: self._server.create(key, data), writes=True)

    def get(self, key: str) -> bytes:
        return self._ask("get", [key], lambda: self._server.objects.get(key))

    def stat(self, key: str) -> Stat | None:
        return self._ask("stat", [key], lambda: self._server.objects.stat(key))

    def list(self, prefix: str) -> list[Stat]:
        lag_s = self._faults.rng.uniform(0.0, 2.0) if self._faults.strikes("lagging_lists", 0.1) else 0.0
        if lag_s:
            self._process.machine.note(self._process, "list", prefix, "meets", "lagging_lists")
        return self._ask("list", [prefix], lambda: self._server.list(prefix, lag_s))

    def delete(self, keys: Iterable[str]) -> None:
        chosen = [*keys]
        if chosen:
            self._ask("delete", chosen, lambda: self._server.delete(chosen), writes=True)

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        digests = []
        for file in files:  # one request each: a process may die between any two
            data = file_content(file.path)
            self._ask("send", [file.key], partial(self._server.put, file.key, data), writes=True)
            digests.append(xxhash.xxh3_128_hexdigest(data))
        return digests

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        if not files:
            return []
        return self._ask(
            "replace", [file.key for file in files], lambda: self._server.objects.replace(files), writes=True
        )

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        return [self._ask("fetch", [file.key], partial(self._server.objects.fetch, [file]))[0] for file in files]

    def abort_stale(self, prefix: str) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self, verb: str, keys: Sequence[str], act: Callable[[], T], *, writes: bool = False) -> T:
        self._step(f"{verb} {keys[0]}")
        fate = self._faults.fate(writes)
        self._wait(self._faults.seconds())
        if fate:
            self._process.machine.note(self._process, verb, keys[0], "meets", fate)
        if fate == "denied":
            raise StoreDeniedError(f"{URL} refuses to {verb} {keys[0]}.")
        if fate == "unreachable":
            raise StoreUnreachableError(f"{URL} does not answer.")
        if fate == "late_requests":
            self._deliver_later(act)
            raise StoreUnreachableError(f"{URL} does not answer.")
        answer = act()
        if fate == "repeated_requests":
            self._deliver_later(act)
        self._wait(self._faults.seconds())
        self._step(f"{verb} answered")
        if fate == "lost_answers":
            raise StoreUnreachableError(f"{URL} does not answer.")
        return answer

    def _deliver_later(self, act: Callable[[], object]) -> None:
        def deliver() -> None:
            act()

        self._timeline.later(self._faults.rng.uniform(0.05, 3.0), deliver)

    def _step(self, action: str) -> None:
        strand = current_strand()
        try:
            self._process.step(action)
        except Killed:
            if strand is not None:
                strand.park()  # for ever: nothing of a killed process runs on
            raise

    def _wait(self, seconds: float) -> None:
        strand = current_strand()
        if strand is not None:
            strand.wait(seconds)
            return
        self._timeline.pass_time(seconds, lambda: self._process.dead)
        if self._process.dead:
            raise Killed
