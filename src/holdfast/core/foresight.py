"""What the next driver would do with each trial, decided by the very functions that decide it then.

Owns the answer to "what would a restore do now?" for those who only look: commands that verify. The caller says what it
finds on disk; the decisions are those of ``decide`` and ``plan``. Changes the state that it is given, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide
from holdfast.core.plan import start
from holdfast.core.policies import Policies, Rules, SchedulerRequest, Verdict
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State, Status, Trial
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


Commits = Callable[[int, int], ob.CommitEnded | None]
"""How the commit of a staged checkpoint would end; None if that cannot be known now."""

Verifies = Callable[[int, int], ob.VerifyEnded | None]
"""How the verification of a committed checkpoint would end; None if that cannot be known now."""


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
