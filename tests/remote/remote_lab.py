"""A laboratory for one experiment in a store: machines with mirrors of their own, and checks of what the store holds.

A machine is a cache directory: a driver on another machine knows nothing that the store does not. Owns the comparison
of the store with the ground truth, which reads the store by itself and not through the drivers' network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from experiments import Plan
from lab import MARK, SIDE, Acknowledged, Driver, Lab, Process, surviving_rows, until
from remote_experiments import RemotePlan

from holdfast.checkpoints.manifest import decode
from holdfast.checkpoints.remote_checkpoints import fetch
from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.core.state import Stored
from holdfast.journal.reader import read_journal
from holdfast.shipping import parts
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.agent_client import connect
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import remote_of
from holdfast.storage.store import Store

SCRIPT = str(Path(__file__).with_name("remote_experiments.py"))
MANIFEST = "/_manifest.json"
AGENT_NAME = "holdfast-store"


class Timed(Acknowledged, array_like=True, frozen=True):
    """One line of the side file, with the time at which ``report()`` had returned."""

    at: float = 0.0


class RemoteLab(Lab):
    """One experiment at ``url``, and every process that was started for it on whichever machine."""

    def __init__(self, folder: Path, url: str, environment: dict[str, str]) -> None:
        super().__init__(folder)
        self.url = url
        self.name = url.rpartition("/")[2]
        self.environment = environment
        self._store: Store | None = None
        self._copies = 0

    # --- machines

    def cache(self, machine: str = "a") -> Path:
        """Where a machine keeps its mirrors."""
        return self.folder / f"machine-{machine}"

    def mirror(self, machine: str = "a") -> Path:
        """The mirror of the experiment on a machine; it need not exist."""
        remote = remote_of(self.url)
        assert remote is not None
        return self.cache(machine) / hashlib.sha256(remote.identity.encode()).hexdigest()[:12] / self.name

    def lose(self, machine: str = "a") -> None:
        """The machine is gone with all its disks."""
        shutil.rmtree(self.cache(machine), ignore_errors=True)

    def on(self, machine: str) -> None:
        """Let the inherited checks look at this machine's mirror."""
        self.root = self.mirror(machine)

    def trial_dirs(self) -> list[Path]:
        """A mirror may hold histories that were set aside; they are no trials."""
        return [path for path in super().trial_dirs() if not path.name.startswith(".")]

    # --- drivers

    def start(self, plan: Plan, machine: str = "a", **environment: str) -> Driver:
        """Start a driver on a machine; it begins the experiment, or continues it."""
        assert isinstance(plan, RemotePlan)
        self.on(machine)
        output = self.folder / f"driver-{len(self.drivers)}.log"
        variables = {
            **os.environ,
            **self.environment,
            MARK: self.mark,
            SIDE: str(self.side),
            "TMPDIR": str(self.temp),
            "PYTHONFAULTHANDLER": "1",
            "HOLDFAST_LOCAL_CACHE_DIR": str(self.cache(machine)),
            **environment,
        }
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, self.url, msgspec.json.encode(plan).decode()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        self.drivers.append(process)
        return Driver(self, process, output)

    def run(self, plan: Plan, machine: str = "a", **environment: str) -> Driver:
        """Start a driver and wait until it has ended, however it does."""
        driver = self.start(plan, machine, **environment)
        driver.wait()
        return driver

    def started(self, driver: Driver, reports: int = 1, saved: int = 0) -> None:
        """Wait until so many more reports, and so many with a checkpoint, were acknowledged."""
        before = self.acknowledged()
        goal, saved_goal = len(before) + reports, sum(line.saved for line in before) + saved

        def reached() -> bool:
            lines = self.acknowledged()
            return len(lines) >= goal and sum(line.saved for line in lines) >= saved_goal

        until(lambda: driver.ended or reached(), lambda: driver.output)
        assert not driver.ended, driver.output

    def agents(self) -> list[Process]:
        """The storage agents that run."""
        return [process for process in self.processes() if f" {AGENT_NAME}:" in process.text]

    def close(self) -> None:
        super().close()
        if self._store is not None:
            self._store.close()

    # --- what is in the store

    @property
    def store(self) -> Store:
        """The experiment's place in the store, without the drivers' network."""
        if self._store is None:
            self._store = connect(self.url)
        return self._store

    def keys(self, prefix: str = "") -> list[str]:
        """Everything that the store lists."""
        return [stat.key for stat in self.store.list(prefix)]

    def committed_keys(self) -> list[str]:
        """The checkpoints that exist in the store: those with a manifest."""
        return [key.removesuffix(MANIFEST) for key in self.keys() if key.endswith(MANIFEST) and not self._refused(key)]

    def _refused(self, key: str) -> bool:
        """Whether a driver has said that this checkpoint will never be."""
        try:
            return self.store.get(key).startswith(b'{"given_up":')
        except FileNotFoundError:
            return True  # deleted since it was listed

    def stored_history(self) -> list[ev.AnyEvent]:
        """The facts that the loss of every machine would leave."""
        self._copies += 1
        root = self.folder / f"copy-{self._copies}"
        restore_mirror(self.store, root)
        return [ev.decode(payload) for _, payload in read_journal(root)]

    def shipped_seq(self) -> int:
        """Up to which record the store has the journal."""
        found = [key for key in self.keys(parts.PREFIX) if parts.parse_key(key)]
        return parts.decode_parts(self.store.get(found[-1]), found[-1])[-1].header.seq if found else 0

    def last_epoch(self) -> int:
        """The epoch of the driver that made the newest part."""
        found = [key for key in self.keys(parts.PREFIX) if parts.parse_key(key)]
        return parts.decode_parts(self.store.get(found[-1]), found[-1])[-1].header.by.epoch if found else 0

    def timed(self) -> list[Timed]:
        """The side file, with the times."""
        data = self.side.read_bytes() if self.side.exists() else b""
        return [msgspec.json.decode(line, type=Timed) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    # --- the invariants

    def check_stored(self, *, late_uploads: bool = False) -> None:
        """The store has everything that the finished experiment claims, whole, and nothing that it does not know.

        With ``late_uploads`` there may be files of checkpoints that were given up: a driver that was asleep had sent
        them, and may not have had the time to remove them when it found out that it was fenced.
        """
        self._copies += 1
        root = self.folder / f"copy-{self._copies}"
        restore_mirror(self.store, root)
        stored = open_state(root, read_spec(Root(root)).retention).state
        history = [ev.decode(payload) for _, payload in read_journal(root)]
        assert history == self.history(), "the store's history is another than the mirror's"
        expected = set()
        for trial in stored.trials:
            folder = self.dir_of(trial.id).name
            for record in trial.checkpoints:
                if record.stored == Stored.COMMITTED:
                    key = f"{folder}/checkpoint_{record.index:06d}"
                    expected.add(key)
                    fetch(self.store, key, root / key, expect_digest=record.digest)
            self.check_stored_rows(folder, surviving_rows(history)[trial.n])
        extra = set(self.committed_keys()) ^ expected
        assert not extra, f"{sorted(extra)}\n" + "\n".join(story_of(history, t.n) for t in stored.trials)
        checkpoint_files = [key for key in self.keys() if "/checkpoint_" in key and not key.endswith(MANIFEST)]
        alone = [key for key in checkpoint_files if not key.startswith(tuple(f"{name}/" for name in expected))]
        if late_uploads:
            given_up = [key.removesuffix(MANIFEST) for key in self.keys() if key.endswith(MANIFEST)]
            alone = [key for key in alone if not key.startswith(tuple(given_up))]
        assert not alone, f"files of no checkpoint: {alone}"

    def check_stored_rows(self, folder: str, rows: list[dict[str, Any]]) -> None:
        """I6 in the store: each step once."""
        lines = self.store.get(f"{folder}/result.json").decode().splitlines()
        assert [msgspec.json.decode(line)["token"] for line in lines] == [row["token"] for row in rows]
        table = self.store.get(f"{folder}/progress.csv").decode().splitlines()
        assert len(table) == len(rows) + 1

    def last_part_at(self) -> float:
        """When the newest part was made, by its driver's clock."""
        found = [key for key in self.keys(parts.PREFIX) if parts.parse_key(key)]
        return parts.decode_parts(self.store.get(found[-1]), found[-1])[-1].header.at

    def check_lost_little(self, killed_at: float, history: Iterable[ev.AnyEvent], window_s: float) -> int:
        """Of what was acknowledged only the last moments may be missing; returns how many reports are."""
        tokens = {event.metrics["token"] for event in history if isinstance(event, ev.Reported)}
        lost = [line for line in self.timed() if line.token not in tokens]
        old = [line for line in lost if line.at < killed_at - window_s]
        assert not old, f"acknowledged {killed_at - old[0].at:.1f} s before the machine was lost, and lost: {old[0]}"
        return len(lost)

    def saved_rows(self, history: Iterable[ev.AnyEvent]) -> dict[int, int]:
        """For each trial, the row of its newest checkpoint that is in the store, by its own listing."""
        there = set(self.committed_keys())
        rows: dict[int, int] = {}
        saved: dict[int, int] = {}
        names: dict[int, str] = {}
        for event in history:
            match event:
                case ev.TrialCreated():
                    names[event.n] = event.id
                case ev.TrialStarted():
                    rows[event.n] = event.rows
                case ev.Reported():
                    rows[event.n] += 1
                case ev.CheckpointStaged():
                    ending = f"/checkpoint_{event.index:06d}"
                    if any(f"_{names[event.n]}_" in key and key.endswith(ending) for key in there):
                        saved[event.n] = rows[event.n]
        return saved

    def check_continued(self, saved: dict[int, int], past: int, history: list[ev.AnyEvent]) -> None:
        """The first attempts after record ``past`` continue from the newest checkpoint, not from before it."""
        for n, row in saved.items():
            first = next((e for e in history[past:] if isinstance(e, ev.TrialStarted) and e.n == n), None)
            assert first is None or first.rows >= row, f"{first} goes back before row {row}"

    def check_manifests_are_whole(self) -> None:
        """I2 at any moment: a manifest in the store means that all its files are there, with these sizes."""
        for key in self.committed_keys():
            try:
                manifest = decode(self.store.get(key + MANIFEST))
            except FileNotFoundError:
                continue  # deleted since it was listed
            sizes = {stat.key: stat.size for stat in self.store.list(f"{key}/")}
            for entry in manifest.files:
                whole = sizes.get(f"{key}/{entry.path}") == entry.size
                assert whole or self.store.stat(key + MANIFEST) is None, f"{key} has a manifest, but not {entry.path}"


def now() -> float:
    """The wall clock, which the trials use too."""
    return time.time()


def story_of(history: Iterable[ev.AnyEvent], n: int) -> str:
    """What happened to the checkpoints of a trial, for messages."""
    kinds = (ev.CheckpointStaged, ev.CheckpointCommitted, ev.CheckpointRejected, ev.CheckpointsDropped)
    kinds += (ev.CheckpointsDeleted, ev.EpochStarted, ev.TrialStarted, ev.Noted)
    return "\n".join(str(e) for e in history if isinstance(e, kinds) and getattr(e, "n", n) == n)


def mostly_slow_pairs(values: Iterable[tuple[Any, ...]], *fast: tuple[Any, ...]) -> list[Any]:
    """As ``lab.mostly_slow``, for tests with several parameters."""
    return [value if value in fast else pytest.param(*value, marks=pytest.mark.slow) for value in values]
