"""An experiment's backend in a store, without a driver: what it waits for, what it uploads, and when it gives up."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import SyncConfig
from holdfast.controller import remote_backend
from holdfast.controller.remote_backend import RemoteBackend
from holdfast.controller.shipped_journal import ObjectsFirst, ShippedJournal
from holdfast.controller.spec import store_value, write_callback_states
from holdfast.core.state import State
from holdfast.errors import ExperimentLockedError, FencedError, JournalDamagedError, NotShippedError
from holdfast.journal.epoch import claim_epoch
from holdfast.shipping import parts
from holdfast.shipping.shipper import Shipper, ShippingTrouble
from holdfast.storage.address import parse
from holdfast.storage.layout import SPEC, Root
from holdfast.storage.remote_root import Remote
from holdfast.storage.store import Replaced, Replacing
from holdfast.testing.memory_store import Fault, MemoryStore

DEADLINE_S = 20.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Opened:
    """A backend that was claimed, and the journal that its loop would write."""

    def __init__(self, backend: RemoteBackend, root: Root) -> None:
        self.backend = backend
        self.root = root
        self.own = backend.open(backend.claim(takeover=False))
        self.written: set[str] = set()
        self.troubles: list[str] = []

    def start(self) -> None:
        self.journal: ShippedJournal = self.backend.follow(self.own, lambda: None, State())
        self.backend.start(self.troubles.append, self._take)

    def _take(self) -> set[str]:
        taken, self.written = self.written, set()
        return taken

    def close(self) -> None:
        self.own.close()
        self.backend.close()


@pytest.fixture
def open_backend(store: MemoryStore, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """`open_backend(durability="group", **SyncConfig's fields)`, in a store in memory."""
    opened: list[Opened] = []

    def make(durability: Any = "group", **fields: Any) -> Opened:
        remote = Remote(parse("s3://bucket/exp"))
        remote.__dict__["store"] = store
        root = Root(tmp_path / "mirror" / "exp", remote=remote)
        root.objects.mkdir(parents=True, exist_ok=True)
        for before in opened:
            before.close()
        root.spec_file.write_bytes(b"{}")
        store.put(SPEC, b"{}")
        opened.append(Opened(RemoteBackend(root, durability, SyncConfig(**fields)), root))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_what_a_trial_waits_for_is_shipped_when_the_disk_has_it_and_not_at_the_next_look(
    open_backend: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shipper that looks at the journal by itself every few minutes only."""
    monkeypatch.setattr(remote_backend, "Shipper", functools.partial(Shipper, period_s=3600.0))
    opened = open_backend("sync")
    opened.start()
    for _ in range(3):
        seq = opened.journal.append([b"a report"])
        assert opened.journal.accepted_seq == seq


# --- files that records refer to


def ship(opened: Opened, record: bytes) -> None:
    seq = opened.journal.append([record])
    assert opened.journal.wait_synced(seq, DEADLINE_S)


def test_a_file_is_in_the_store_before_the_record_that_refers_to_it(
    open_backend: Callable[..., Opened], store: MemoryStore
) -> None:
    opened = open_backend()
    (opened.root.objects / "left-behind.pkl").write_bytes(b"by a driver that was killed")
    opened = open_backend()
    (opened.root.objects / "settings.pkl").write_bytes(b"replaced before it ships")
    opened.start()
    ship(opened, b"first")
    assert {"left-behind.pkl", "settings.pkl"} <= names_in(store)
    store.fail(Fault("denied", ("replace",), times=1))
    key = store_value(opened.root, {1, 2}, "a/b")
    ship(opened, b"second")
    write_callback_states(opened.root, {"seen": 1})
    ship(opened, b"third")
    write_callback_states(opened.root, {"seen": 2})
    ship(opened, b"fourth")
    assert {f"{key}.pkl", "callback-states.pkl"} <= names_in(store)
    assert store.get(".holdfast/objects/callback-states.pkl") == opened.root.callback_states_file.read_bytes()
    sent = [request.key for request in store.requests if request.verb == "replace" and request.outcome == "ok"]
    assert sent.count(f".holdfast/objects/{key}.pkl") == 1


class Late(MemoryStore):
    """Delivers the first file after a successor has shipped a part and the same file."""

    def __init__(self, claim: int) -> None:
        super().__init__()
        self.claim = claim
        self.late = claim > 0

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        if self.late:
            self.late = False
            self.put(parts.part_key(self.claim), b"of the successor")
            self.put(files[0].key, b"of the successor")
        return super().replace(files)


@pytest.mark.parametrize("claim", [0, 4, 5], ids=["no successor", "the next part", "the one after a part of its own"])
def test_what_callbacks_remember_never_replaces_what_a_successor_has_sent(tmp_path: Path, claim: int) -> None:
    store = Late(claim)
    root = Root(tmp_path)
    root.objects.mkdir(parents=True)
    write_callback_states(root, {"seen": 1})
    objects = ObjectsFirst(store, root)
    objects.find_unsent()
    assert objects.send_new(unless=parts.part_key(4)) == (not claim)
    own = root.callback_states_file.read_bytes()
    assert store.get(".holdfast/objects/callback-states.pkl") == (b"of the successor" if claim else own)


def names_in(store: MemoryStore) -> set[str]:
    return {key.rpartition("/")[2] for key in store.objects if key.startswith(".holdfast/objects/")}


def test_a_part_costs_no_look_at_all_the_files_there_are(
    open_backend: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_backend()
    opened.start()
    ship(opened, b"first")
    scanned: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (scanned.append(str(path)), scandir(path))[1])
    for number in range(5):
        store_value(opened.root, {number}, "x")
        ship(opened, b"more")
    assert str(opened.root.objects) not in scanned


def test_a_file_that_somebody_has_removed_keeps_nothing_from_being_shipped(open_backend: Callable[..., Opened]) -> None:
    opened = open_backend()
    opened.start()
    opened.root.object_written(opened.root.objects / "gone.pkl")
    ship(opened, b"first")


# --- leaving


def test_what_callbacks_remember_at_the_end_is_in_the_store_when_it_has_finished(
    open_backend: Callable[..., Opened], store: MemoryStore
) -> None:
    """Not only with the part that lets go, which nobody waits for."""
    opened = open_backend()
    opened.start()
    ship(opened, b"the last record")
    write_callback_states(opened.root, {"seen": 7})
    store.fail(Fault("denied", ("create",)))
    opened.backend.finish(State(), lambda: "")
    store.heal()
    assert store.get(".holdfast/objects/callback-states.pkl") == opened.root.callback_states_file.read_bytes()


class Stuck(MemoryStore):
    """Takes everything but files, for which it needs longer than anybody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        self.opened.wait(DEADLINE_S)
        return super().replace(files)


@pytest.mark.parametrize("store", [Stuck()])
def test_whoever_is_told_to_end_does_not_wait_for_a_file_that_is_being_sent(
    open_backend: Callable[..., Opened], store: Stuck
) -> None:
    opened = open_backend()
    opened.start()
    result = opened.root.path / "t" / "result.json"
    result.parent.mkdir()
    result.write_text("{}")
    opened.written = {str(result)}
    opened.own.append([b"the last record"])
    with pytest.raises(NotShippedError, match=r"result files of s3://bucket/exp are not in the store: told to end"):
        opened.backend.finish(State(), lambda: "told to end" if opened.backend.shipper.shipped_seq else "")
    store.opened.set()
    opened.backend.finish(State(), lambda: "")
    assert store.objects["t/result.json"] == b"{}"


# --- what its messages name


def test_trouble_with_the_mirror_is_told_in_words_of_the_address(open_backend: Callable[..., Opened]) -> None:
    """Its user may not know that there is a mirror, let alone where."""
    opened = open_backend()
    opened.own.append([b"record one", b"record two"])
    opened.own.close()
    (segment,) = (opened.root.private / "journal").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"record one", b"record 0ne"))
    with pytest.raises(JournalDamagedError, match=r"^s3://bucket/exp, in its mirror on this machine: "):
        opened.backend.open(opened.own.claim)


def test_whoever_holds_the_mirror_or_took_it_over_is_told_in_words_of_the_address(
    open_backend: Callable[..., Opened],
) -> None:
    opened = open_backend()
    opened.start()
    with pytest.raises(ExperimentLockedError, match=r"^The experiment s3://bucket/exp is being written by") as locked:
        opened.backend._claim_mirror(takeover=False)
    claim_epoch(opened.root.path, takeover=True)
    with pytest.raises(FencedError, match=r"^The experiment s3://bucket/exp was taken over by .*epoch 2") as fenced:
        opened.journal.append([b"late"])
    for caught in (locked, fenced):
        assert str(opened.root.path) not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(fenced.value))) == str(fenced.value)


@pytest.mark.parametrize(("kind", "word"), [("denied", "is denied"), ("mirror", "its mirror"), ("bug", "a bug")])
def test_trouble_names_the_address_and_what_is_wrong(open_backend: Callable[..., Opened], kind: Any, word: str) -> None:
    opened = open_backend()
    opened.start()
    opened.backend.shipper.on_trouble(ShippingTrouble(kind, 0.0, OSError("the reason")))
    assert opened.troubles[-1].startswith("s3://bucket/exp ")
    assert word in opened.troubles[-1]
    assert opened.troubles[-1].endswith(": the reason")
