"""One experiment as the server reads it: opened once, then brought up to date at the price of what is new.

Owns the way from the page to the readers in `results`. Used by one thread only. Must never write.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.opening import Progress
from holdfast.controller.user_requests import find_live
from holdfast.core.state import Trial
from holdfast.display.words import failure_title
from holdfast.errors import DamageError, TuneError
from holdfast.results.chronicle import Chronicle
from holdfast.results.follow import Follower
from holdfast.results.full_pass import Loading
from holdfast.results.history import History
from holdfast.results.packing import MISSING, PackedColumn, pack
from holdfast.results.report_data import trial_facts
from holdfast.results.shipped import is_driven_locally
from holdfast.results.story import StoryLine

"""Is told how many bytes of the journal were read, and how many there are."""

FULL_PASS = ("best/", "min/", "max/")
"""How columns begin that need all reports."""


STORE_PATIENCE_S = 2.0
"""How long a question waits for news from a store; then it is answered from what is known."""


class SourceChange(NamedTuple):
    """What is new: numbers of trials, and sentences for people. ``whole`` says that anything may have changed."""

    record: int
    trials: tuple[int, ...] = ()
    sentences: tuple[StoryLine, ...] = ()
    whole: bool = False


class Source:
    """An experiment that is followed.

    A journal that has lost records is read as far as it can be; ``history.known_damage`` says so.

    Args:
        path: Where it is.
        follower: Reads it.
    """

    def __init__(self, path: str, follower: Follower) -> None:
        self.path = path
        self.follower = follower
        self._state = ""

    @classmethod
    def open(cls, path: str, progress: Progress | None = None) -> Source:
        """Open the experiment at ``path``; raises as `open_history` does. ``progress`` is told how far it was read."""
        return cls(path, Follower.open(path, tolerant=True, patience_s=STORE_PATIENCE_S, progress=progress))

    @property
    def history(self) -> History:
        """The experiment; another object after a change of the ``whole``."""
        return self.follower.history

    @property
    def record(self) -> int:
        """The number of the newest record."""
        return self.follower.record

    def advance(self) -> SourceChange | None:
        """Take in what happened since the last time; None if nothing did."""
        before, state = self.record, self._state
        change = self.follower.advance()
        self._state = change.state
        if change.reread:
            return SourceChange(change.record, whole=True)
        if not change.trials and change.record == before and change.state == state:
            return None
        return SourceChange(change.record, change.trials, change.sentences)

    @property
    def is_near(self) -> bool:
        """Whether news are on this machine's disk: looking for them costs no request to a store."""
        return self.history.restored is None or is_driven_locally(self.history)

    def load(self) -> Loading | None:
        """Read one slice of all reports; None once nothing is missing that curves and charts need."""
        return self.follower.load()

    def read_all(self) -> int:
        """Read every record that was not read yet; returns how many reports count.

        Raises:
            JournalDamagedError: One of them is damaged.
        """
        return len(self.follower.curves)

    @property
    def damage(self) -> str:
        """What is wrong with the journal, in words; "" if nothing is known to be."""
        found = self.follower.damage
        return "" if found is None else str(found)

    @property
    def unreachable(self) -> str:
        """That the store does not answer, and from when what is known is, in one sentence; "" if it does."""
        return self.follower.unreachable

    # --- facts

    def facts(self) -> dict[str, Any]:
        """As ``holdfast status --json``, without the trials."""
        return self.follower.facts()

    def best(self, facts: dict[str, Any]) -> dict[str, Any] | None:
        """The best trial as a row, with the value that makes it so."""
        if facts["best"] is None:
            return None
        history, name = self.history, facts["best"]["trial"]
        state = history.state
        known = state.by_id.get(name.removeprefix(f"{history.info.trainable_name}_"))
        if known is None:  # it has a name of its own
            known = next(trial.n for trial in state.trials if history.name(trial) == name)
        return {**facts["best"], **trial_facts(history, state.trials[known])}

    def failures(self) -> list[dict[str, Any]]:
        """Kinds of failures that ended trials, and the first trials of each."""
        return self.follower.failures()

    def space(self) -> Any:
        """The search space as plain data; None if it is not stored."""
        return getattr(self.history.spec, "space", None)

    def can_act(self) -> bool:
        """Whether requests reach a driver."""
        owner = self.history.owner
        if owner is None or not owner.alive:
            return False
        try:
            find_live(self.path)
        except (TuneError, OSError):
            return False
        return True

    def trial(self, trial: Trial) -> dict[str, Any]:
        """As ``holdfast show PATH TRIAL --json``."""
        facts = self.follower.trial(trial.n)
        for error in {id(each): each for each in (facts["error"], facts["last_failure"]) if each is not None}.values():
            error["title"] = failure_title(error["cause"], error["type"])
        for checkpoint in facts["checkpoints"]:
            checkpoint["step"] = checkpoint["iteration"]
        more = {"attempt_list": self._attempts(trial), "lineage": self._lineage(trial), "notes": timed(facts["notes"])}
        return {**facts, "metrics": facts["last_result"], **more}

    def _attempts(self, trial: Trial) -> list[dict[str, Any]]:
        """Its executions, in order: when, where, and how they ended."""
        chronicle = self._chronicle()
        if chronicle is None:
            return [{"attempt": number} for number in range(1, trial.attempt + 1)]
        found = []
        for attempt in chronicle.attempts_of(trial.n):
            worker = chronicle.workers.get(attempt.worker)
            found.append(
                {
                    "attempt": attempt.attempt,
                    "started": attempt.start,
                    "ended": attempt.end,
                    "outcome": attempt.outcome,
                    "cause": attempt.cause,
                    "worker": None if worker is None else f"{worker.host}:{worker.pid}",
                }
            )
        return found

    def _lineage(self, trial: Trial) -> list[dict[str, Any]]:
        """Which trials it continued as a copy of, in order."""
        trials, chronicle = self.history.state.trials, self._chronicle()
        return [
            {
                "time": copy.at,
                "from": trials[copy.parent].id,
                "checkpoint": checkpoint_name(copy.checkpoint),
                "checkpoint_of": trials[copy.donor].id,
                "iteration": copy.iteration,
            }
            for copy in (() if chronicle is None else chronicle.copies)
            if copy.n == trial.n
        ]

    def _chronicle(self) -> Chronicle | None:
        """What only a pass over all records tells; None if they are damaged, of which the state is what is left."""
        try:
            return self.follower.chronicle
        except DamageError:
            return None

    def rows(self, trial: Trial) -> list[dict[str, Any]]:
        """Its reports that count."""
        return self.follower.rows(trial.n)

    def story(self, trial: Trial) -> list[StoryLine]:
        """What happened to a trial."""
        return self.follower.story(trial.n)

    # --- arrays

    def resolve(self, name: str) -> str | None:
        """The column that is meant by a name: ``metric/`` and ``config/`` may be left out. None if there is none."""
        columns = self.follower.columns
        known = set(columns.names)
        return next((each for each in (name, f"metric/{name}", f"config/{name}") if each in known), None)

    def pack_columns(self, names: list[str], numbers: list[int] | None) -> bytes:
        """Columns of the trial table in the binary format; all rows, or those of some trials."""
        columns = self.follower.columns
        known = dict.fromkeys(columns.names)
        if not names:
            without = ("min/", "max/") if self._chronicle() is not None else FULL_PASS
            names = [name for name in known if not name.startswith(without)]
        found = [columns.column(name) for name in names if name in known]
        rows = len(self.history.state.trials)
        if numbers is not None:
            found, rows = [_some(column, numbers) for column in found], len(numbers)
        return pack(found, rows, record=self.record)

    def pack_curves(self, metric: str, most: int, numbers: list[int] | None) -> bytes:
        """Learning curves in the binary format: trial, step and value."""
        return self.follower.curves.pack(metric, self.record, max_points=most, trials=numbers)


def timed(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Notes with the key for moments that all answers have."""
    return [{"time": note["at"], **note} for note in notes]


def needs_full_pass(names: Iterable[str]) -> bool:
    """Whether one of these columns is made from all reports."""
    return any(name.startswith(FULL_PASS) for name in names)


def _some(column: PackedColumn, numbers: list[int]) -> PackedColumn:
    """The rows of these trials; of a category only the values that they have."""
    data = array(column.data.typecode, [column.data[n] for n in numbers])
    if column.values is None:
        return PackedColumn(column.name, data)
    used = {code: place for place, code in enumerate(dict.fromkeys(code for code in data if code != MISSING))}
    codes = array("I", [used.get(code, MISSING) for code in data])
    return PackedColumn(column.name, codes, [column.values[code] for code in used])
