"""The checkpoint half of ``holdfast verify``: what is damaged, and what a resume would make of it. Never writes.

Owns looking at every checkpoint that the journal names. What a resume would do is not worked out here: the core
foresees it, with the functions that decide it then.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoints.checkpoint_reader import quick_check, verify
from holdfast.checkpoints.commit import look
from holdfast.checkpoints.manifest import digest
from holdfast.checkpoints.names import checkpoint_name
from holdfast.checkpoints.tree import refuse_links
from holdfast.cli.verify_report import VerifyReport
from holdfast.core import observations as ob
from holdfast.core.foresight import Fate, foresee
from holdfast.core.state import CheckpointRecord, State, Status, Stored, Trial
from holdfast.display.words import plural
from holdfast.errors import CheckpointDamagedError, StorageError
from holdfast.results.history import History
from holdfast.views.trials import trial_dirname


class Checked(NamedTuple):
    """A checkpoint that was looked at: how large it is, or which file of it is damaged and why."""

    bytes: int
    file: str = ""
    reason: str = ""
    unreadable: bool = False  # the reason is the storage's: nothing is known of the checkpoint


class Inspector(Protocol):
    """Looks at checkpoints where they are."""

    def __call__(self, where: str, digest: str, trial_id: str, /) -> Checked:
        """The checkpoint in a directory below the root, given the digest and the trial that it should have."""
        ...

    def staged(self, folder: str, record: CheckpointRecord, trial_id: str) -> str:
        """A checkpoint of the trial in ``folder`` whose commit the next driver takes up.

        Returns:
            Its digest if it exists, "" if it can be made.

        Raises:
            CheckpointDamagedError: It will never be committed.
            StorageError: Nothing is known.
        """
        ...


class LocalCheckpoints:
    """Checkpoints in a directory; ``quick`` compares names and sizes only."""

    def __init__(self, root: Path, *, quick: bool) -> None:
        self._root = root
        self._quick = quick

    def __call__(self, where: str, digest: str, trial_id: str) -> Checked:
        try:
            refuse_links(self._root, where)
            if self._quick:
                manifest = quick_check(self._root / where, expect_digest=digest)
            else:
                manifest = verify(self._root / where, expect_digest=digest, trial_id=trial_id)
        except CheckpointDamagedError as error:
            return Checked(0, where, error.reason)
        except StorageError as error:
            return Checked(0, where, f"cannot be read now: {error}", unreadable=True)
        return Checked(manifest.total)

    def staged(self, folder: str, record: CheckpointRecord, trial_id: str) -> str:
        for name in (record.sealed, checkpoint_name(record.index)):
            refuse_links(self._root, f"{folder}/{name}")
        manifest = look(
            self._root / folder,
            record.sealed,
            record.index,
            trial_id=trial_id,
            attempt=record.attempt,
            read=not self._quick,
        )
        return "" if manifest is None else digest(manifest)


def check_checkpoints(
    history: History,
    inspector: Inspector,
    report: VerifyReport,
    *,
    again: Callable[[], State] | None,
    foretell: bool,
) -> None:
    """Look at every checkpoint and tell what is damaged, lost, and done about it by the next driver.

    Args:
        history: What the journal says.
        inspector: Looks at files.
        report: Takes the findings.
        again: Reads the journal once more, if a driver writes it; None if nobody does.
        foretell: Whether the journal is whole, so that a resume would begin with what it says.
    """
    state = history.state
    checked = _check_committed(history, inspector, report)
    bad = {key: found for key, found in checked.items() if found.reason}
    if bad and again is not None:
        # The driver may have deleted some while we read; the journal says so before a file goes.
        state = again()
        bad = {key: found for key, found in bad.items() if _is_committed(state, *key)}
    for found in bad.values():
        report.damage(found.file, found.reason)
    for trial in state.trials:
        if trial.final and (count := _lost(trial, bad)):
            report.lost(trial_dirname(history.info, trial), _lost_text(history, trial, count))
    if foretell:
        _Foreteller(history, state, inspector, bad, report, alive=again is not None).tell()


def _check_committed(history: History, inspector: Inspector, report: VerifyReport) -> dict[tuple[int, int], Checked]:
    checked: dict[tuple[int, int], Checked] = {}
    for trial in history.state.trials:
        folder = trial_dirname(history.info, trial) if trial.checkpoints else ""
        for record in trial.checkpoints:
            where = f"{folder}/{checkpoint_name(record.index)}"
            if record.stored == Stored.COMMITTED:
                found = checked[trial.n, record.index] = inspector(where, record.digest, trial.id)
                if not found.reason:
                    report.checkpoints += 1
                    report.bytes += found.bytes
            elif record.stored == Stored.BAD:
                report.note(where, f"rejected earlier and not used: {record.reason}")
    return checked


class _Foreteller:
    """Answers the core's questions about files, and tells what it foresees."""

    def __init__(
        self,
        history: History,
        state: State,
        inspector: Inspector,
        bad: dict[tuple[int, int], Checked],
        report: VerifyReport,
        *,
        alive: bool,
    ) -> None:
        self._history = history
        self._state = state
        self._inspector = inspector
        self._bad = bad
        self._report = report
        self._alive = alive
        self._made: set[tuple[int, int]] = set()  # were staged, and exist already

    def tell(self) -> None:
        fates = foresee(self._state, self._history.retention, self._commit, self._verify)
        for n, fate in fates.items():
            trial = self._state.trials[n]
            self._report.resume.append(self._facts(trial, fate))
            if fate.kind == Fate.ERROR:
                count = sum(r.stored == Stored.BAD and r.index >= trial.floor for r in trial.checkpoints)
                self._report.lost(self._folder(trial), _lost_text(self._history, trial, count, on_resume=True))
            elif fate.kind == Fate.RESTARTS and fate.message:
                self._report.note(self._folder(trial), f"{self._history.name(trial)}: {fate.message}")

    def _commit(self, n: int, index: int) -> ob.CommitEnded | None:
        if self._alive:
            return ob.CommitEnded(n, index, digest="?")  # its driver is at it: the files move while one looks
        trial = self._state.trials[n]
        record = trial.find(index)
        assert record is not None
        where = f"{self._folder(trial)}/{checkpoint_name(index)}"
        try:
            found = self._inspector.staged(self._folder(trial), record, trial.id)
        except CheckpointDamagedError as error:
            self._report.note(where, f"written but not committed; the next driver rejects it: {error.reason}")
            return ob.CommitEnded(n, index, damaged=True, message=error.reason)
        except StorageError as error:
            self._report.note(where, f"written but not committed; cannot be read now: {error}")
            return None
        self._report.note(where, "written but not committed; the next driver commits it")
        if found:
            self._made.add((n, index))
        return ob.CommitEnded(n, index, digest=found or "?")

    def _verify(self, n: int, index: int) -> ob.VerifyEnded | None:
        found = self._bad.get((n, index))
        if found is None and (n, index) in self._made:
            found = self._check_made(n, index)
        if found is None or not found.reason:
            return ob.VerifyEnded(n, index, ok=True)
        return None if found.unreadable else ob.VerifyEnded(n, index, ok=False, damaged=True, message=found.reason)

    def _check_made(self, n: int, index: int) -> Checked:
        trial = self._state.trials[n]
        record = trial.find(index)
        assert record is not None
        found = self._inspector(f"{self._folder(trial)}/{checkpoint_name(index)}", record.digest, trial.id)
        if found.reason:
            self._report.damage(found.file, found.reason)
        return found

    def _folder(self, trial: Trial) -> str:
        return trial_dirname(self._history.info, trial)

    def _facts(self, trial: Trial, fate: Fate) -> dict[str, Any]:
        source = None
        if fate.source is not None:
            source = f"{self._folder(self._state.trials[fate.source[0]])}/{checkpoint_name(fate.source[1])}"
        return {"trial_id": trial.id, "then": fate.kind, "checkpoint": source, "message": fate.message}


def _lost(trial: Trial, bad: dict[tuple[int, int], Checked]) -> int:
    """How many checkpoints of an ended trial are bad if it had committed some and has no good one left; else 0."""
    mine = [r for r in trial.checkpoints if r.index >= trial.floor and r.stored != Stored.DROPPED]
    if any(r.stored != Stored.BAD and (trial.n, r.index) not in bad for r in mine):
        return 0
    return len(mine) if any(r.digest for r in mine) else 0


def _lost_text(history: History, trial: Trial, bad: int, *, on_resume: bool = False) -> str:
    restart = f"`holdfast resume {shlex.quote(history.shown)} --restart-errored`"
    if on_resume:
        then = f"repair the files; otherwise the next resume ends the trial in ERROR, and {restart} runs it again"
    elif trial.status == Status.TERMINATED:
        then = "the trial has ended and its results are intact, but it has no checkpoint to load"
    else:
        then = f"repair the files, or restart the trial from scratch with {restart}"
    return f"{history.name(trial)} has no good checkpoint left, {plural(bad, 'bad one')}: {then}"


def _is_committed(state: State, n: int, index: int) -> bool:
    record = state.trials[n].find(index)
    return record is not None and record.stored == Stored.COMMITTED
