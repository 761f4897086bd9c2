"""Checkpoint jobs that bring only the newest checkpoint of a trial from its machine, once in a period and at the end.

For ``SyncConfig(sync_on_checkpoint=False)`` on a cluster. A checkpoint that another machine has waits there until its
trial's period is over, the trial does not run any more, or somebody needs it. One that waits is superseded by the next.

Owns which commits wait, and which are skipped. Like the edge that it extends, it decides nothing durable: what it skips
becomes an observation, and only the event that follows is fact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoints import jobs
from holdfast.controller.checkpoint_jobs import CheckpointJobEdge, Workers
from holdfast.controller.clock import Clock
from holdfast.core import commands as cmd
from holdfast.core import observations as ob
from holdfast.core.state import DriverMemory, State, Status


class NewestCheckpointJobEdge(CheckpointJobEdge):
    """As ``CheckpointJobEdge``, for checkpoints that are on other machines."""

    def __init__(
        self,
        workers: Workers,
        state: State,
        memory: DriverMemory,
        clock: Clock,
        *,
        trial_dir: Callable[[int], Path],
        trouble: Callable[[str], None],
        is_elsewhere: Callable[[str, str], bool],
        period_s: float,
    ) -> None:
        """Begin with nothing to do. The arguments are those of ``CheckpointJobEdge``, and three more.

        Args:
            workers: Who does the jobs.
            state: What the commands refer to.
            memory: What the driver knows for now: trials that wait in ``report()``.
            clock: For periods and retries.
            trial_dir: Where a trial's checkpoints are.
            trouble: Told what is being tried again; "" when nothing is any more.
            is_elsewhere: Whether another machine has a stage: trial directory and name.
            period_s: Seconds between two checkpoints of a trial that are brought while it runs.
        """
        super().__init__(workers, state, clock, trial_dir=trial_dir, trouble=trouble)
        self._memory = memory
        self._is_elsewhere = is_elsewhere
        self._period_s = period_s
        self._held: dict[int, int] = {}  # of each trial, the newest checkpoint, if it waits
        self._begun_at: dict[int, float] = {}  # when the last one of each trial was begun to be brought
        self._superseded: list[ob.Observation] = []

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None:
        """Take a command; the commit of a checkpoint that another machine has may wait."""
        if not isinstance(command, cmd.Commit) or not self._may_wait(command):
            super().submit(command)
            return
        older = self._held.pop(command.n, None)
        if older is not None:
            self._superseded.append(ob.CommitEnded(command.n, older, superseded=True))
        self._held[command.n] = command.index
        self._release_due()

    def drain(self) -> list[ob.Observation]:
        """How jobs ended; also begins what is due."""
        self._release_due()
        superseded, self._superseded = self._superseded, []
        return [*superseded, *super().drain()]

    def _may_wait(self, command: cmd.Commit) -> bool:
        record = self._state.trials[command.n].find(command.index)
        return record is not None and self._is_elsewhere(self._trial_dir(command.n).name, record.sealed)

    def _release_due(self) -> None:
        for n, index in list(self._held.items()):
            if self._is_due(n):
                del self._held[n]
                self._begun_at[n] = self._clock.now()
                super().submit(cmd.Commit(n, index))

    def _is_due(self, n: int) -> bool:
        memory = self._memory
        is_running = self._state.trials[n].status == Status.RUNNING
        if not is_running or memory.draining or n in memory.owed:
            return True  # it is at its end, or waits until something is committed
        if any(kind is jobs.CommitJob and trial == n for kind, trial, _ in self._jobs):
            return False  # the one before it is still on its way
        begun_at = self._begun_at.get(n)
        return begun_at is None or self._clock.now() - begun_at >= self._period_s
