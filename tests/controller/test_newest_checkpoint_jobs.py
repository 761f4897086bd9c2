"""Which checkpoints are brought from other machines if not each of them is, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints import jobs
from holdfast.controller.newest_checkpoint_jobs import NewestCheckpointJobEdge
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply

PERIOD_S = 60.0


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        raise AssertionError


class Elsewhere:
    """One running trial on another machine; jobs end when the test says so."""

    def __init__(self) -> None:
        self.state, self.memory, self.clock = State(), DriverMemory(), Clock()
        self.here: set[str] = set()  # stages that are on this machine
        self.jobs: list[jobs.CommitJob] = []  # at work
        self.outcomes: list[Any] = []
        self.apply(ev.TrialCreated(1.0, 0, "id0", {}, ""), ev.TrialStarted(1.0, 0, 1))
        self.edge = NewestCheckpointJobEdge(
            self,
            self.state,
            self.memory,
            self.clock,
            trial_dir=lambda n: Path(f"/experiment/t{n}"),
            trouble=lambda text: None,
            is_elsewhere=lambda trial_dir, sealed: (trial_dir, sealed in self.here) == ("t0", False),
            period_s=PERIOD_S,
        )

    # --- the threads

    def submit(self, job: Any) -> None:
        self.jobs.append(job)

    def drain(self) -> list[Any]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    # --- the loop

    def apply(self, *events: ev.AnyEvent) -> None:
        for event in events:
            apply(self.state, event, Retention())

    def stage(self, *indexes: int, here: bool = False) -> None:
        for index in indexes:
            sealed = f".sealed-1-{index:012x}"
            if here:
                self.here.add(sealed)
            self.apply(ev.Reported(1.0, 0, 1, 1, 0.1, {}))
            self.apply(ev.CheckpointStaged(1.0, 0, 1, index, sealed, 9, 1))
            self.edge.submit(cmd.Commit(0, index))

    def turn(self) -> list[int]:
        """Let the loop run once; returns what was superseded."""
        superseded = []
        for seen in self.edge.drain():
            assert isinstance(seen, ob.CommitEnded)
            if seen.superseded:
                superseded.append(seen.index)
                self.apply(ev.CheckpointsDropped(1.0, 0, (seen.index,), "newer"))
            else:
                self.apply(ev.CheckpointCommitted(1.0, 0, seen.index, "digest", 9))
        return superseded

    def finish(self) -> list[int]:
        """End what is at work; returns what that was."""
        done = [job.index for job in self.jobs]
        self.outcomes += [ob.CommitEnded(0, index, "digest", 9) for index in done]
        self.jobs.clear()
        self.turn()
        return done


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


def test_the_first_checkpoint_is_brought_at_once_and_the_newest_when_the_period_is_over(elsewhere: Elsewhere) -> None:
    elsewhere.stage(0)
    assert elsewhere.finish() == [0]
    elsewhere.stage(1, 2, 3)
    assert elsewhere.turn() == [1, 2]
    elsewhere.clock.at += PERIOD_S - 1
    assert (elsewhere.turn(), elsewhere.jobs) == ([], [])
    elsewhere.clock.at += 1
    elsewhere.turn()
    assert elsewhere.finish() == [3]
    assert not elsewhere.state.staged


def test_a_checkpoint_that_is_on_its_way_is_not_given_up(elsewhere: Elsewhere) -> None:
    elsewhere.stage(0, 1, 2)
    elsewhere.clock.at += 2 * PERIOD_S
    assert elsewhere.turn() == [1]
    assert elsewhere.finish() == [0]
    elsewhere.turn()
    assert elsewhere.finish() == [2]


@pytest.mark.parametrize(
    "end", [ev.AttemptInterrupted(1.0, 0, 1, ev.Cause.NODE_LOST, ""), ev.TrialTerminated(1.0, 0, 1, "done")]
)
def test_the_newest_is_brought_when_the_trial_ends(elsewhere: Elsewhere, end: ev.AnyEvent) -> None:
    elsewhere.stage(0)
    elsewhere.finish()
    elsewhere.stage(1, 2)
    elsewhere.turn()
    elsewhere.apply(end)
    elsewhere.turn()
    assert elsewhere.finish() == [2]


@pytest.mark.parametrize("why", ["driver ends", "trial waits in report()"])
def test_the_newest_is_brought_when_somebody_waits_for_it(elsewhere: Elsewhere, why: str) -> None:
    elsewhere.stage(0)
    elsewhere.finish()
    elsewhere.stage(1)
    assert elsewhere.jobs == []
    if why == "driver ends":
        elsewhere.memory.draining = "SIGTERM"
    else:
        elsewhere.memory.owed[0] = 2
    elsewhere.turn()
    assert elsewhere.finish() == [1]


def test_checkpoints_on_this_machine_are_committed_at_once(elsewhere: Elsewhere) -> None:
    elsewhere.stage(0, 1, 2, here=True)
    assert elsewhere.finish() == [0, 1, 2]
