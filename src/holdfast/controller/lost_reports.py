"""Rows of result files without a report in the journal: proof that the journal has lost records.

A report is in the journal before its row is in a file. After a crash of processes the files therefore never know more.
A power cut may take the newest reports from the journal, and leave their rows: these are no proof.

Reading result files takes time, so it is done only if nobody vouches for the history: if the mark is lost by which its
driver had said how far it reached.

Owns this comparison. Must never write, follow a link, or keep a whole file in memory.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.controller.evidence import TRIAL_ID, Known, trial_folders, unknown_checkpoints
from holdfast.core import events as ev
from holdfast.core.state import State
from holdfast.display.words import plural
from holdfast.errors import DamageError, JournalDamagedError
from holdfast.journal.durable_mark import is_there
from holdfast.journal.identity import uid_of
from holdfast.journal.records import read_events
from holdfast.storage.layout import PRIVATE, RESULT_FILE, SYNC_SEAL, Root
from holdfast.storage.untrusted import open_regular

POWER_CUT_S = 5.0
"""A power cut may take this much from a journal: half a second, and what a sync takes when the disk is busy."""

MAX_LINE_BYTES = 1 << 20
"""A longer row is not read: its file proves nothing."""

_READ_BYTES = 1 << 20


class LostReports(NamedTuple):
    """A result file that has more rows than its trial has reports in the journal.

    Attributes:
        file: Relative to the root.
        trial_id: Whose it is.
        rows: In the file.
        reports: In the journal, those included that no longer count.
    """

    file: str
    trial_id: str
    rows: int
    reports: int

    @property
    def text(self) -> str:
        """What is wrong with it."""
        return f"it has {plural(self.rows, 'row')}, and the journal {plural(self.reports, 'report')} of this trial"


class _Rows(NamedTuple):
    file: str
    trial_id: str
    rows: int
    last_at: float  # when the last of them was reported


def lost_reports(root: Path, state: State, uid: str, *, created_at: float = 0.0) -> list[LostReports]:
    """Compare result files with a history for which nobody vouches.

    Ask before reading the history again, if it may grow: then compare with `still_lost`.

    Args:
        root: The experiment's root.
        state: The folded history.
        uid: The experiment's; ids of its trials begin with it unless the user wanted something else.
        created_at: When the experiment was made.
    """
    if os.path.lexists(root / PRIVATE / SYNC_SEAL):
        return []  # a syncer's copy: result files and checkpoints are copied after the journal, and are ahead of it
    newest = _newest_provable(root, state, created_at)
    prefixes = {uid[:5]} | {trial.id.rpartition("_")[0] for trial in state.trials[:1] + state.trials[-1:]}
    more = [
        rows
        for rows in _result_files(root)
        if rows.trial_id.rpartition("_")[0] in prefixes
        and rows.last_at > newest
        and rows.rows > _surviving(state, rows.trial_id)
    ]
    if not more:
        return []
    # Reports that no longer count may still have their rows: the driver died before it had removed them.
    reports = _reports(root)
    found = [
        LostReports(rows.file, rows.trial_id, rows.rows, reports[state.by_id.get(rows.trial_id, -1)]) for rows in more
    ]
    return [each for each in found if each.rows > each.reports]


def was_started(root: Root) -> bool:
    """Whether a driver has ever claimed the experiment in this directory, even if its history is lost."""
    if root.has_history():
        return True
    uid, nothing = uid_of(root.path), State()
    return bool(uid) and bool(
        unknown_checkpoints(root.path, Known(nothing, uid, finished=True)) or lost_reports(root.path, nothing, uid)
    )


def still_lost(found: list[LostReports], state: State) -> list[LostReports]:
    """Those of ``found`` that a history which was read after them does not have either."""
    return [each for each in found if each.rows > _surviving(state, each.trial_id)]


def reports_lost(shown: str, found: list[LostReports]) -> JournalDamagedError:
    """Return the error for result files that know more than the journal."""
    worst = max(found, key=lambda each: each.rows - each.reports)
    missing = sum(each.rows - each.reports for each in found)
    files = f"{worst.file}: {worst.text}" + (f"; and {plural(len(found) - 1, 'more file')}" if len(found) > 1 else "")
    return JournalDamagedError(
        f"The journal of {shown} has lost records: result files have {plural(missing, 'result')} that it does not know "
        f"({files}). The file in .holdfast/epochs that says how far the journal reached is missing or damaged, too. "
        f"Result files and checkpoints still exist, and nothing was overwritten. Put .holdfast back from a backup if "
        f"there is one. Otherwise `holdfast repair {shown}` keeps a copy of everything and rebuilds what it can.",
        file=".holdfast/journal",
        offset=0,
        seq=0,
        missing=missing,
    )


def _newest_provable(root: Path, state: State, created_at: float) -> float:
    """Rows that were reported before this moment prove nothing."""
    if not state.epoch:
        return 0.0  # nothing is left of a driver that has started trials: its first records were durable long before
    if not is_there(root, state.epoch):
        return 0.0  # file systems keep the order of names: no power cut takes the mark and leaves a younger file
    return max(state.last_at, created_at) + POWER_CUT_S  # it may have left the mark empty, or half new


def _surviving(state: State, trial_id: str) -> int:
    n = state.by_id.get(trial_id)
    return 0 if n is None else state.trials[n].rows


def _reports(root: Path) -> Counter[int]:
    counted: Counter[int] = Counter()
    try:
        for event in read_events(root):
            if isinstance(event, ev.Reported):
                counted[event.n] += 1
    except JournalDamagedError:
        pass  # what is behind the damage is told by the damage
    return counted


def _result_files(root: Path) -> Iterator[_Rows]:
    for folder in trial_folders(root):
        file = f"{folder}/{RESULT_FILE}"
        try:
            fd = open_regular(root / file)
        except (OSError, DamageError):
            continue
        with open(fd, "rb") as opened:
            rows = _rows(opened, file)
        if rows is not None:
            yield rows


def _rows(opened: BinaryIO, file: str) -> _Rows | None:
    """Count the lines of a result file, and read its last one; None if that is no row of ours."""
    count, tail = 0, b""
    while block := opened.read(_READ_BYTES):
        count += block.count(b"\n")
        tail = (tail + block)[-MAX_LINE_BYTES:]
    last = tail[: tail.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2]
    try:
        row = json.loads(last)
        trial_id, at = row["trial_id"], float(row["timestamp"])
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return None
    return _Rows(file, trial_id, count, at) if isinstance(trial_id, str) and TRIAL_ID.fullmatch(trial_id) else None
