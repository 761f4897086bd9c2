"""Where the parts of an experiment are, below its root: names of files and directories, the same in a store.

Owns the names that more than one module needs, and `Root`, which joins them to a path. Those that a single module
writes and reads stand in that module. Must never open what it names.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.storage.remote_root import Remote

PRIVATE = ".holdfast"
SPEC = f"{PRIVATE}/spec.json"
OBJECTS = f"{PRIVATE}/objects"
REMOVING = f"{PRIVATE}/removing"  # says in a store that the experiment is being removed
HISTORY = ("epochs", "journal", "snapshots", "parts", "marks")  # what drivers make below it; the last two in a store

# In a trial's directory:
RESULT_FILE = "result.json"
SYNC_SEAL = ".sync-seal.json"  # in the private directory of a syncer's copy
PROGRESS_FILE = "progress.csv"
PARAMS_FILE = "params.json"


class Root:
    """Paths below an experiment's root.

    Attributes:
        path: The local directory; of an experiment in a store, its mirror.
        remote: The store's side of it; None if the directory is all there is.
        uid: The experiment, once its facts were read.
        new_objects: Names of files below ``objects`` that were written by now and are to be sent to the store. May be
            used from several threads.
    """

    def __init__(self, path: str | Path, *, remote: Remote | None = None) -> None:
        self.path = Path(path)
        self.remote = remote
        self.private = self.path / PRIVATE
        self.spec_file = self.private / "spec.json"
        self.objects = self.private / "objects"
        self.trainable_file = self.objects / "trainable.pkl"
        self.values_file = self.objects / "values.pkl"
        self.settings_file = self.objects / "settings.pkl"
        self.callback_states_file = self.objects / "callback-states.pkl"
        self.logs = self.private / "logs"
        self.uid = ""
        self.new_objects: deque[str] = deque()

    @property
    def name(self) -> str:
        """What the experiment is called here."""
        return self.path.name if self.remote is None else self.remote.name

    @property
    def shown(self) -> str:
        """Where the experiment is, for people and for a later restore."""
        return str(self.path) if self.remote is None else self.remote.url

    def object_written(self, path: Path) -> None:
        """A file below ``objects`` is complete: the store needs it before any record that refers to it."""
        if self.remote is not None:
            self.new_objects.append(path.name)

    def exists(self) -> bool:
        """Is there an experiment exactly here, whole or damaged?"""
        return self.private.is_dir() and (os.path.lexists(self.spec_file) or self.has_history())

    def has_spec(self) -> bool:
        """Whether the file is here that makes it an experiment."""
        return self.spec_file.is_file()

    def has_history(self) -> bool:
        """Whether anything is there that only a driver makes."""
        return any(_holds_files(self.private / name) for name in HISTORY)


def _holds_files(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False
