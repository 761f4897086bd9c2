"""What a resume will do with the trials of an experiment, as far as a glance at its directory can tell.

Owns that glance: whether the checkpoints from which trials would continue are there at all. Whether their files are
intact is what ``holdfast verify`` finds out. Must never read a checkpoint, or ask a store.
"""

from __future__ import annotations

import os

from holdfast.checkpoints.names import MANIFEST, RESYNC, checkpoint_name
from holdfast.controller.remote_experiment import mirrored_in
from holdfast.core.foresight import Fate, IsThere, glimpse
from holdfast.core.state import CheckpointRecord, Stored, Trial
from holdfast.results.history import History
from holdfast.views.trials import trial_dirname


def glance(history: History) -> IsThere:
    """What tells whether a checkpoint is there.

    The journal is believed while a driver is alive, which deletes and commits while one looks, and for experiments in a
    store, where asking for each trial takes long.
    """
    alive = history.owner is not None and history.owner.alive

    def is_there(n: int, record: CheckpointRecord) -> bool:
        if alive or history.restored is not None or mirrored_in(history.root):
            return True
        folder = os.path.join(history.root, trial_dirname(history.info, history.state.trials[n]))
        committed = os.path.join(folder, checkpoint_name(record.index))
        if record.stored == Stored.COMMITTED:
            return not _is_missing(os.path.join(committed, MANIFEST))
        sealed = os.path.join(folder, record.sealed)
        return not all(map(_is_missing, (committed, sealed, sealed + RESYNC)))

    return is_there


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # the storage's trouble: a resume waits until it is over
    return False


def on_resume(history: History, trial: Trial) -> str | None:
    """What the next driver does with the trial; None if it has ended."""
    if trial.final:
        return None
    state = history.state
    fate = glimpse(state, trial, glance(history))
    if fate.kind == Fate.ENDS:
        return f"ends as TERMINATED: {fate.message}"
    if fate.kind == Fate.ERROR:
        return f"ends in ERROR: all its checkpoints are damaged{' or missing' if fate.missing else ''}"
    if fate.source is None:
        return "starts from the beginning" + (", because its checkpoint is missing" if fate.missing else "")
    donor, index = fate.source
    record = state.trials[donor].find(index)
    assert record is not None
    whose = "" if donor == trial.n else f" of trial {state.trials[donor].id}"
    text = f"continues from {checkpoint_name(index)}{whose} (iteration {record.iteration})"
    if fate.staged:
        text += ", once it is committed"
    if fate.missing:
        text += "; a newer one is missing" if fate.missing == 1 else f"; {fate.missing} newer ones are missing"
    return text
