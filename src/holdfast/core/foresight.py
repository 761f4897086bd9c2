"""What the next driver would do with each trial, decided by the very functions that decide it then.

Owns the answer to "what would a restore do now?" for those who only look: commands that verify, and those that only
glance. The caller says what it finds on disk; the decisions are those of ``decide`` and ``plan``. Changes nothing but
the state that ``foresee`` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide
from holdfast.core.plan import is_lost, start
from holdfast.core.policies import Policies, Rules, SchedulerRequest, Verdict
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, DriverMemory, State, Status, Stored, Trial
from holdfast.core.turn import Turn


class Fate(msgspec.Struct, frozen=True):
    """What becomes of an unfinished trial when its experiment is restored."""

    CONTINUES = "continues"
    RESTARTS = "restarts"
    ENDS = "ends"
    ERROR = "error"
    WAITS = "waits"  # for storage that cannot be read now

    kind: str
    source: tuple[int, int] | None = None  # the checkpoint that it continues from
    message: str = ""
    missing: int = 0  # newer checkpoints that are not there any more
    staged: bool = False  # the checkpoint has to be committed first


Commits = Callable[[int, int], ob.CommitEnded | None]
"""How the commit of a staged checkpoint would end; None if that cannot be known now."""

Verifies = Callable[[int, int], ob.VerifyEnded | None]
"""How the verification of a committed checkpoint would end; None if that cannot be known now."""


IsThere = Callable[[int, CheckpointRecord], bool]
"""Whether a checkpoint that the journal knows, of the trial of this number, is there at all."""


def foresee(state: State, retention: Retention, commits: Commits, verifies: Verifies) -> dict[int, Fate]:
    """The fate of each unfinished trial, if the experiment were restored now with the usual settings.

    A scheduler may decide otherwise about trials that wait: what it knows is not asked.

    Args:
        state: What the events add up to. It is changed: afterwards it is what the next driver's would be.
        retention: The user's rule for keeping checkpoints.
        commits: Asked once for each checkpoint whose commit the driver before has left unfinished.
        verifies: Asked for each checkpoint that a trial would start from.
    """
    unfinished = list(state.unfinished())
    policies = Policies(Rules(retention=retention), _NoScheduler(), _NoRule(), _no_result)
    turn = Turn(state, DriverMemory(), policies, state.last_at)
    decide(turn, ob.Resumed())
    for n, index in list(state.staged):
        ended = commits(n, index)
        if ended is not None:
            decide(turn, ended)
    return {trial.n: _fate(turn, trial, verifies) for trial in unfinished}


def _fate(turn: Turn, trial: Trial, verifies: Verifies) -> Fate:
    if trial.status == Status.TERMINATED:
        return Fate(Fate.ENDS, message=trial.reason)
    if trial.staging:
        return Fate(Fate.WAITS)
    if trial.status == Status.PAUSED:
        turn.add(ev.TrialResumed(turn.at, trial.n))
    told = len(turn.events)
    while trial.status == Status.PENDING:
        turn.commands.clear()
        start(turn, trial)
        turn.memory.reserved.pop(trial.n, None)
        for command in turn.commands:
            if isinstance(command, cmd.Verify):
                ended = verifies(command.n, command.index)
                if ended is None:
                    return Fate(Fate.WAITS, (command.n, command.index))
                decide(turn, ended)
    if trial.status == Status.ERROR:
        return Fate(Fate.ERROR, message=trial.error.message if trial.error else "")
    if trial.source is not None:
        return Fate(Fate.CONTINUES, trial.source)
    notes = [event.text for event in turn.events[told:] if isinstance(event, ev.Noted) and event.n == trial.n]
    return Fate(Fate.RESTARTS, message="; ".join(notes))


def glimpse(state: State, trial: Trial, is_there: IsThere) -> Fate:
    """The fate of one unfinished trial if every checkpoint that is there is a good one.

    For those who cannot read all files, as ``foresee`` makes its caller do. Changes nothing. One checkpoint is asked
    for if it is there.
    """
    if trial.user_stop:
        return Fate(Fate.ENDS, message="the user has stopped it")
    missing = 0
    while True:
        record = newest_staged(trial)
        point = None if record is not None else state.start_point(trial)
        if record is not None:
            source = (trial.n, record.index)
        elif point is not None:
            source = point[0]
            record = (trial if source[0] == trial.n else state.trials[source[0]]).find(source[1])
        else:
            kind = Fate.ERROR if is_lost(state, trial) else Fate.RESTARTS
            return Fate(kind, missing=missing)
        assert record is not None
        if is_there(source[0], record):
            return Fate(Fate.CONTINUES, source, missing=missing, staged=point is None)
        missing += 1
        trial = _without(trial, source)


def newest_staged(trial: Trial) -> CheckpointRecord | None:
    """The newest checkpoint whose commit the next driver takes up; None if there is none."""
    staged = (r for r in reversed(trial.checkpoints) if r.stored == Stored.STAGED and r.index >= trial.floor)
    return next(staged, None)


def _without(trial: Trial, source: tuple[int, int]) -> Trial:
    """The trial as it will be when a checkpoint has turned out to be gone."""
    origin = None if trial.origin == source else trial.origin
    if source[0] != trial.n:
        return msgspec.structs.replace(trial, origin=origin)
    records = [
        msgspec.structs.replace(each, stored=Stored.BAD) if each.index == source[1] else each
        for each in trial.checkpoints
    ]
    return msgspec.structs.replace(trial, origin=origin, checkpoints=records)


class _NoScheduler:
    """Knows nothing and requests for nothing."""

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        return Verdict.CONTINUE, ""

    def tell(self, state: State, memory: DriverMemory, event: ev.AnyEvent) -> None:
        pass

    def requests(self, state: State) -> Iterable[SchedulerRequest]:
        return ()

    def wants_save(self, n: int) -> bool:
        return False

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        return None


class _NoRule:
    """Stops nothing."""

    def why_stop(self, trial: Trial, result: Callable[[], dict[str, Any]]) -> str:
        return ""

    def why_stop_all(self, lived_s: float) -> str:
        return ""


def _no_result(
    state: State, trial: Trial, metrics: Mapping[str, Any], dt: float, at: float, worker: int
) -> dict[str, Any]:
    return {}
