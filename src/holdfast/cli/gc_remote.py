"""What ``holdfast gc`` may remove from a store: objects that no record of the journal needs.

Owns the rules for keys. Must never name a key that holdfast has not made, nor one that a driver could still need (I3).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from holdfast.checkpoints import names
from holdfast.checkpoints.remote_checkpoints import delete_remote
from holdfast.core.state import Stored, Trial
from holdfast.results.history import History
from holdfast.shipping.remote_holder import CLOCK
from holdfast.storage.probe import PROBE_PREFIX
from holdfast.storage.store import Stat, Store
from holdfast.views.trials import trial_dirname


class Spent(NamedTuple):
    """Objects that can go."""

    what: str
    key: str
    bytes: int
    is_checkpoint: bool

    def remove(self, store: Store) -> None:
        """Delete them; the manifest of a checkpoint first."""
        if self.is_checkpoint:
            delete_remote(store, self.key)
        else:
            store.delete([self.key])


def find_in_store(store: Store, history: History, young_s: float) -> Iterator[Spent]:
    """What can go, by a listing of the whole experiment.

    Args:
        store: The experiment's address.
        history: What its journal says; nobody may be writing it.
        young_s: What is younger, by the store's newest time stamp, stays if somebody could be just making it.
    """
    listed = store.list("")
    # The newest object's time is the store's clock, or a little before it: things only look younger than they are.
    now = max((stat.modified for stat in listed), default=0.0)
    trials = {trial_dirname(history.info, trial): trial for trial in history.state.trials}
    checkpoints: dict[tuple[str, str], list[Stat]] = {}
    for stat in listed:
        folder, _, rest = stat.key.partition("/")
        name, slash, _ = rest.partition("/")
        if stat.key.startswith((CLOCK, PROBE_PREFIX)):
            if now - stat.modified >= young_s:
                yield Spent("left by a test of the store", stat.key, stat.size, False)
        elif slash and folder in trials and names.index_of(name) is not None:
            checkpoints.setdefault((folder, name), []).append(stat)
    for (folder, name), objects in checkpoints.items():
        what = _why(trials[folder], name, objects, partial(_is_old, now, young_s))
        if what:
            yield Spent(what, f"{folder}/{name}", sum(stat.size for stat in objects), True)


def _is_old(now: float, young_s: float, objects: list[Stat]) -> bool:
    return now - max(stat.modified for stat in objects) >= young_s


def _why(trial: Trial, name: str, objects: list[Stat], is_old: partial[bool]) -> str:
    """Why a checkpoint's objects can go; "" if they cannot."""
    index = names.index_of(name)
    assert index is not None
    record = trial.find(index)
    if record is None and index < trial.next_index:
        return "deleted checkpoint"
    if record is not None and record.stored == Stored.DROPPED:
        return "deleted checkpoint"
    if record is not None and record.stored in (Stored.COMMITTED, Stored.STAGED):
        return ""
    has_manifest = any(stat.key.endswith(f"/{name}/{names.MANIFEST}") for stat in objects)
    return "unfinished checkpoint" if not has_manifest and is_old(objects) else ""
