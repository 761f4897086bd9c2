"""Every journal, real and fake, keeps the promises of ``controller.loop.JournalWriter``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_fakes import SimulatedPlace, history

from holdfast.config import SyncConfig
from holdfast.controller.backends import ExperimentBackend, LocalBackend
from holdfast.controller.loop import JournalWriter
from holdfast.controller.remote_backend import RemoteBackend
from holdfast.controller.synced_backend import SyncedBackend
from holdfast.core.state import State
from holdfast.journal.log import Journal
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.address import parse
from holdfast.storage.layout import SPEC, Root
from holdfast.storage.remote_root import Remote
from holdfast.testing.journal_contract import CHECKS, MakePlace
from holdfast.testing.memory_store import MemoryStore

WAIT_S = 0.005
EVERY_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


class LocalPlace:
    """A directory. Nobody can cut the power."""

    def __init__(self, folder: Path, durability: Any = "group") -> None:
        self.root = Root(folder / "here" / "exp")
        self.folder = folder
        self.durability = durability
        self._drivers: list[tuple[JournalWriter, Journal, ExperimentBackend]] = []
        self.root.private.mkdir(parents=True)
        self.root.spec_file.write_bytes(b"{}")

    def backend(self) -> ExperimentBackend:
        return LocalBackend(self.root, self.durability)

    def open(self) -> JournalWriter:
        backend = self.backend()
        journal = backend.open(backend.claim(takeover=True))
        writer = backend.follow(journal, lambda: None, State())
        backend.start(lambda trouble: None, lambda: ())
        self._drivers.append((writer, journal, backend))
        return writer

    def leave(self, journal: JournalWriter) -> None:
        place = next(n for n, (writer, _, _) in enumerate(self._drivers) if writer is journal)
        _, own, backend = self._drivers.pop(place)
        backend.finish(State(), lambda: "")
        own.close()
        backend.close()

    def wait(self) -> None:
        time.sleep(WAIT_S)

    def records(self) -> list[bytes]:
        return history(self.root.path)

    def survivors(self) -> list[bytes]:
        return self.records()

    def close(self) -> None:
        for _, own, backend in self._drivers:
            own.close()
            backend.close()


class RemotePlace(LocalPlace):
    """An object store, of which this machine has a mirror."""

    def __init__(self, folder: Path, durability: Any = "group") -> None:
        super().__init__(folder, durability)
        self.store = MemoryStore()
        self.store.put(SPEC, b"{}")
        self._looks = 0

    def backend(self) -> ExperimentBackend:
        remote = Remote(parse("s3://bucket/exp"))
        remote.__dict__["store"] = self.store
        root = Root(self.root.path, remote=remote)
        root.objects.mkdir(exist_ok=True)
        return RemoteBackend(root, self.durability, SyncConfig())

    def survivors(self) -> list[bytes]:
        """What a machine that has nothing finds in the store."""
        self._looks += 1
        return history(restore_mirror(self.store, self.folder / f"machine{self._looks}" / "exp", read_only=True).root)


class SyncedPlace(LocalPlace):
    """A directory that a function of the user's copies to another one."""

    def open(self) -> JournalWriter:
        for _, _, backend in self._drivers:
            backend.close()  # a dead driver copies nothing, least of all while the next one looks at the other end
        return super().open()

    def backend(self) -> ExperimentBackend:
        there = self.folder / "there"
        return SyncedBackend(self.root, self.durability, SyncConfig(upload_dir=str(there), syncer=_copy))

    def survivors(self) -> list[bytes]:
        return history(self.folder / "there" / "exp")


def _copy(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


@EVERY_CHECK
@pytest.mark.parametrize("durability", ["group", "sync"])
@pytest.mark.parametrize("kind", [LocalPlace, RemotePlace, SyncedPlace])
def test_a_journal_on_this_machine_in_a_store_or_copied(
    kind: Callable[..., Any], durability: str, check: Callable[[MakePlace], None], tmp_path: Path
) -> None:
    check(lambda: kind(tmp_path, durability))


@EVERY_CHECK
@pytest.mark.parametrize("durability", ["group", "sync"])
def test_the_journal_of_the_simulator(durability: str, check: Callable[[MakePlace], None]) -> None:
    check(lambda: SimulatedPlace(durability))
