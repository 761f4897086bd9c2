"""Which experiments there are at or below the address that the user gave, and which of them are open.

Owns the ids of experiments in addresses: derived from the experiment's own id, so that a link survives a restart of the
server and a move of the experiment. An address from a browser is only ever looked up here, never made into a path. Must
never open an experiment that nobody asked for, except to say in one line how it stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.cli.listing import experiments_below, unreadable_facts
from holdfast.controller.remote_experiment import can_open
from holdfast.errors import ExperimentNotFoundError, TuneError
from holdfast.journal.epoch import holder
from holdfast.journal.identity import uid_in, uid_of
from holdfast.journal.liveness import is_same_place
from holdfast.results.history import open_history
from holdfast.results.report_data import Phase, experiment_facts
from holdfast.storage.address import parse
from holdfast.storage.layout import SPEC
from holdfast.storage.remote_root import remote_of
from holdfast.ui.source import Source
from holdfast.ui.watch import Busy, FollowedExperiment, unreadable_state

MAX_OPEN = 8
"""Experiments that are kept open at the same time; one that is streamed is never closed."""
RESCAN_S = 5.0
"""How often new experiments are looked for while somebody looks at the list; below a prefix of a store, where all keys
are listed, REMOTE_RESCAN_S. A large directory takes a twentieth of the time at most."""
REMOTE_RESCAN_S = 60.0
RESCAN_SHARE = 20.0
RETRY_S = 2.0
REMOTE_FACTS_S = 30.0
PATIENCE_S = 1.0
"""How long a list waits for experiments that have not been read yet."""


class ExperimentPlace(NamedTuple):
    """An experiment: its id in addresses, its name for people, and where it is."""

    id: str
    name: str
    path: str


class Catalogue:
    """The experiments at or below one address. May be used from several threads.

    Args:
        root: The address of an experiment, or of a directory or a prefix of a store with several.

    Raises:
        ExperimentNotFoundError: There is none.
        TuneError: The store does not answer.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        remote = remote_of(root)
        if remote is not None:
            remote.check_server()
        self.is_single = can_open(root)
        self._lock = threading.Lock()
        self._scan_lock = threading.Lock()
        self._places: dict[str, ExperimentPlace] = {}
        self._rescan_at = 0.0
        self._open: dict[str, FollowedExperiment] = {}
        self._facts: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._refreshing: threading.Thread | None = None
        self._scanning: threading.Thread | None = None
        self._scan()
        if not self._places:
            raise ExperimentNotFoundError(
                f"There is no experiment at {_shown(root)} or below it. `holdfast list` lists those in the current "
                "directory and in the default results directory."
            )

    def places(self) -> list[ExperimentPlace]:
        """All experiments, by name; those that were added meanwhile are found after a while."""
        if not self.is_single and time.monotonic() > self._rescan_at:
            self._scan()
        return list(self._places.values())

    def find(self, identity: str) -> ExperimentPlace | None:
        """The experiment of this id; None if there is none. If it is not where it was, it is soon found elsewhere."""
        place, watched = self._places.get(identity), self._open.get(identity)
        if place is None or (watched is not None and watched.is_gone):
            self._scan_soon()
        return place

    def watch(self, place: ExperimentPlace) -> FollowedExperiment:
        """The experiment, opened if it is not."""
        with self._lock:
            known = self._open.pop(place.id, None)
            if known is not None and known.path != place.path:  # it was moved
                known.close()
                known = None
            if known is None or (known.is_over and time.monotonic() - known.failed_at > RETRY_S):
                known = FollowedExperiment(place.path, Source.open)
            self._open[place.id] = known  # the latest stands last
            self._close_some()
            return known

    def _close_some(self) -> None:
        surplus = len(self._open) - MAX_OPEN
        for identity, watched in list(self._open.items())[:-1]:
            if surplus > 0 and not watched.streams and watched.opened.is_set():
                del self._open[identity]
                watched.close()
                surplus -= 1

    # --- finding

    def _scan(self) -> None:
        with self._scan_lock:
            began = time.monotonic()
            found = [(".", self.root)] if self.is_single else list(experiments_below(self.root))
            before = {place.path: place for place in self._places.values()}
            known = {path: before[path] for _, path in found if path in before}
            known |= _with_own_ids([_identified(name, path) for name, path in found if path not in before], known)
            places = {known[path].id: known[path] for _, path in found}
            now = time.monotonic()
            least = RESCAN_S if remote_of(self.root) is None else REMOTE_RESCAN_S
            self._places, self._rescan_at = places, now + max(least, (now - began) * RESCAN_SHARE)

    def _scan_soon(self) -> None:
        """Have somebody look for new experiments, if that was not done just now."""
        with self._lock:
            is_due = not self.is_single and time.monotonic() > self._rescan_at
            if is_due and not (self._scanning is not None and self._scanning.is_alive()):
                self._scanning = threading.Thread(target=self.places, name="holdfast-scan", daemon=True)
                self._scanning.start()

    # --- one line about each

    def listing(self, summary: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
        """One line about each experiment; one that has not been read yet says ``loading``."""
        places = self.places()
        with self._lock:
            thread = self._refreshing
            if thread is None or not thread.is_alive():
                thread = threading.Thread(target=self._refresh, args=(places,), name="holdfast-list", daemon=True)
                self._refreshing = thread
                thread.start()
        thread.join(PATIENCE_S)
        lines = []
        for place in places:
            _, facts = self._facts.get(place.id, (None, None))
            line = {"id": place.id, "name": place.name, "path": place.path, "state": "loading"}
            lines.append(line if facts is None else {**line, **summary(facts), "id": place.id, "name": place.name})
        return lines

    def _refresh(self, places: list[ExperimentPlace]) -> None:
        for place in places:
            watched = self.watch(place) if self.is_single else self._open.get(place.id)
            if watched is not None and not watched.is_over and watched.path == place.path:
                self._ask(place, watched)
                continue
            mark = (place.path, _fingerprint(place.path))
            known = self._facts.get(place.id)
            if known is not None and known[0] == mark:
                continue
            # What runs will change again: from now on only what is new is read.
            is_running = known is not None and known[1]["state"] == Phase.RUNNING
            watched = self.watch(place) if is_running and self._has_room() else None
            if watched is not None and watched.failure is None:
                self._ask(place, watched)
            else:
                self._facts[place.id] = (mark, _facts_of(place.path))
        for gone in self._facts.keys() - self._places.keys():
            del self._facts[gone]

    def _has_room(self) -> bool:
        """Whether one more can be open without closing one that a page may want."""
        return sum(not watched.is_over for watched in list(self._open.values())) < MAX_OPEN

    def _ask(self, place: ExperimentPlace, watched: FollowedExperiment) -> None:
        """What the thread of an open experiment knows; one that is being read is not read twice."""
        if watched.loading is None:
            with contextlib.suppress(Busy, TimeoutError, TuneError, OSError):
                facts = watched.ask(lambda source: source.facts()).result(PATIENCE_S)
                if watched.trouble_state:
                    facts = {**facts, "state": watched.trouble_state, "why": watched.trouble}
                self._facts[place.id] = (None, facts)


def _facts_of(path: str) -> dict[str, Any]:
    try:
        return experiment_facts(open_history(path, tolerant=True))
    except Exception as error:  # whatever is wrong with one of them, the others are shown
        return {**unreadable_facts(path, error), "state": unreadable_state(error)}


def _identified(name: str, path: str) -> ExperimentPlace:
    return ExperimentPlace(experiment_id(_uid(path), path), _last_name(path) if name == "." else name, path)


def _with_own_ids(places: list[ExperimentPlace], known: dict[str, ExperimentPlace]) -> dict[str, ExperimentPlace]:
    """New places by their paths. A copy, which has the id of what it was copied from, gets another one.

    An address that somebody has keeps leading to the same place: to the one that has the id already, or to the one in
    which the last driver worked.
    """
    taken = {place.id for place in known.values()}
    wanted = Counter(place.id for place in places)
    found = {}
    for place in sorted(places, key=lambda place: wanted[place.id] > 1 and not _is_original(place.path)):
        if place.id in taken:
            place = place._replace(id=experiment_id("", f"{place.id} {place.path}"))
        taken.add(place.id)
        found[place.path] = place
    return found


def _is_original(path: str) -> bool:
    """Whether the last driver worked in this very directory."""
    if remote_of(path) is not None:
        return False
    root = parse(path).path
    try:
        owner = holder(root)
    except (OSError, TuneError):
        return False
    return owner is not None and is_same_place(os.path.join(root, ".holdfast", "epochs"), owner.claim.lock)


def _fingerprint(path: str) -> Any:
    """Changes whenever what a list says about the experiment may have changed."""
    if remote_of(path) is not None:
        return int(time.monotonic() / REMOTE_FACTS_S)
    try:
        with os.scandir(Path(parse(path).path, ".holdfast", "journal")) as entries:
            files = sorted((entry.name, entry.stat().st_size) for entry in entries)
        owner = holder(Path(parse(path).path))
    except (OSError, TuneError):
        return None
    return (files, owner is not None and (owner.claim.epoch, owner.alive))


def _uid(path: str) -> str:
    remote = remote_of(path)
    if remote is None:
        return uid_of(parse(path).path)
    try:
        return uid_in(remote.store.get(SPEC))
    except (TuneError, OSError):
        return ""


def experiment_id(uid: str, path: str) -> str:
    """The id of an experiment in addresses: from its own id, or from its place if that cannot be read."""
    return hashlib.blake2b((uid or path).encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def _shown(path: str) -> str:
    remote = remote_of(path)
    return parse(path).path if remote is None else remote.url


def _last_name(path: str) -> str:
    remote = remote_of(path)
    return os.path.basename(parse(path).path) if remote is None else remote.name
