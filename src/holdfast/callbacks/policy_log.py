"""Files about who copied whom: ``pbt_global.txt`` of all copies, ``pbt_policy_<trial id>.txt`` of a trial's ancestors.

Each line is ``[tag, donor's tag, iteration, donor's iteration, donor's config, new config]``; the donor's iteration is
that of the checkpoint that the copy continues from. The file of a copy begins with what the donor's file says.

Owns the lines. They are a projection of the journal, like result files: written after the events that they tell of, and
all anew when an experiment is opened again, so that each is there exactly once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from holdfast.callbacks.file_writer import FileWriter
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply, check_known

GLOBAL_FILE = "pbt_global.txt"
WATCHED = (ev.TrialReconfigured, ev.TrialRequeued)
"""The events that may change these files."""


def policy_file(trial_id: str) -> str:
    """The name of a trial's policy file, in the experiment's directory."""
    return f"pbt_policy_{trial_id}.txt"


class Copies:
    """Folds events into lines, in the order in which trials became copies of others."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ancestry: dict[int, tuple[bytes, ...]] = {}
        """The lines of a trial's file; empty if it had some and has been sent back to the beginning."""

    def feed(self, state: State, event: ev.AnyEvent) -> int | None:
        """Take one event, after it was applied; the number of the trial whose file it changes."""
        if isinstance(event, ev.TrialReconfigured) and event.donor is not None:
            line = _line(state, event, event.donor)
            self.lines.append(line)
            self.ancestry[event.n] = (*self.ancestry.get(event.parent, ()), line)
            return event.n
        if isinstance(event, ev.TrialRequeued) and event.mode == "restart" and self.ancestry.get(event.n):
            self.ancestry[event.n] = ()
            return event.n
        return None


def _line(state: State, event: ev.TrialReconfigured, donor: tuple[int, int]) -> bytes:
    trial, parent = state.trials[event.n], state.trials[event.parent]
    record = state.trials[donor[0]].find(donor[1])
    iteration = parent.iteration if record is None else record.iteration
    row: list[Any] = [trial.tag, parent.tag, trial.iteration, iteration, parent.config, event.config]
    return json.dumps(row, default=str).encode() + b"\n"


class PolicyLog:
    """Keeps the files of one experiment.

    Durability: a line is in its files when ``writer.flush()`` has returned True after ``write``.

    Args:
        root: The experiment's directory.
        writer: What writes the files.
    """

    def __init__(self, root: str | os.PathLike[str], writer: FileWriter) -> None:
        self._root = root
        self._writer = writer
        self._copies = Copies()
        self._changed: dict[str, bytes] = {}  # policy files

    def watch(self, state: State, event: ev.AnyEvent) -> None:
        """Keep what is to be written about an event that was just applied."""
        n = self._copies.feed(state, event)
        if n is not None:
            self._changed[policy_file(state.trials[n].id)] = b"".join(self._copies.ancestry[n])

    def write(self) -> None:
        """Write what was kept: the events are in the journal now."""
        if not self._changed:
            return
        if self._copies.lines:
            self._writer.append(self._path(GLOBAL_FILE), b"".join(self._copies.lines))
            self._copies.lines = []
        for name, content in self._changed.items():
            self._writer.replace(self._path(name), content)
        self._changed = {}

    def is_needed(self, state: State) -> bool:
        """After opening an experiment: may there be anything to write anew? (A scan: for opening only.)"""
        return os.path.exists(self._path(GLOBAL_FILE)) or any(trial.origin for trial in state.trials)

    def repair(self, events: Iterable[ev.AnyEvent]) -> None:
        """Write all files anew.

        Args:
            events: Everything that has happened, from the first event.
        """
        state, self._copies = State(), Copies()
        for event in events:
            # Which checkpoints are kept is told by events of their own, so the user's rule does not matter here.
            check_known(state, event)
            apply(state, event, Retention())
            self._copies.feed(state, event)
        if not self._copies.lines and not os.path.exists(self._path(GLOBAL_FILE)):
            return
        self._writer.replace(self._path(GLOBAL_FILE), b"".join(self._copies.lines))
        self._copies.lines = []
        for trial in state.trials:
            name, lines = policy_file(trial.id), self._copies.ancestry.get(trial.n, ())
            if lines or os.path.exists(self._path(name)):
                self._writer.replace(self._path(name), b"".join(lines))

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)
