"""Bugs on purpose in what makes clusters safe: each takes one safeguard away, and the stories of clusters notice.

``PLANTED`` are mistakes that somebody could make, ``FOUND`` those that the stories have found. See ``simulated_bugs``
for those of the local simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
from simulated_bugs import no_attempt_fence

from holdfast.checkpoints import jobs
from holdfast.core import decide
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import DriverMemory
from simulator import cluster_engine
from simulator.checkpoint_store import CheckpointStore, StageDir
from simulator.cluster_engine import FakeClusterEngine
from simulator.cluster_jobs import Bringing
from simulator.cluster_story import ClusterScenario, ClusterSimulation

Patch = pytest.MonkeyPatch


class ClusterBug(NamedTuple):
    """A bug, which invariants notice it, and within how many seeds; all with ``scheduler``, if that is given."""

    plant: Callable[[Patch], None]
    noticed: tuple[str, ...]
    seeds: int
    scheduler: str = ""

    def story(self, seed: int) -> ClusterSimulation:
        """A story in which it may show."""

        def change(scenario: ClusterScenario) -> ClusterScenario:
            if not self.scheduler:
                return scenario
            changed = scenario.with_scheduler(self.scheduler)
            assert isinstance(changed, ClusterScenario)
            return replace(changed, checkpoint_every=1)

        return ClusterSimulation(seed, change=change)


def _commit_without_bringing(patch: Patch) -> None:
    patch.setattr(jobs, "bringing", lambda source, perform: perform)


def _count_lost_nodes(patch: Patch) -> None:
    patch.setattr(ev.Cause, "COUNTED", ev.Cause.COUNTED | {ev.Cause.NODE_LOST})


def _believe_lost_stages(patch: Patch) -> None:
    """A stage that cannot be brought, because its node was lost, counts as committed."""
    original = decide._HANDLERS[ob.CommitEnded]

    def commit_ended(turn: Any, o: ob.CommitEnded) -> None:
        original(turn, msgspec.structs.replace(o, damaged=False, digest="believed") if o.damaged else o)

    patch.setitem(decide._HANDLERS, ob.CommitEnded, commit_ended)


def _bring_into_place(patch: Patch) -> None:
    """A stage has its name while it is being brought: what a cut transfer leaves looks as if it were whole."""

    def steps(self: Any, job: jobs.CommitJob) -> Generator[str, None, None]:
        place = (job.trial_dir, job.sealed_name)
        link = self.engine.link_of(job.trial_dir.rpartition("/")[2], job.sealed_name)
        if link is None or place in self._store.stages:
            return
        self._store.stages[place] = StageDir(self._store.made[job.sealed_name], job.attempt, intact=False)
        yield from self._pieces(link, place)
        self._store.stages[place].intact = link.node.disk[place].intact

    patch.setattr(Bringing, "steps", steps)


def _bring_into_place_and_commit_unread(patch: Patch) -> None:
    """And nobody compares it with its seal."""
    _bring_into_place(patch)
    patch.setattr(CheckpointStore, "_sealed", lambda self, place: self.stages[place])


def _ignore_new_nodes(patch: Patch) -> None:
    """Capacity that was lost does not come back."""
    original = decide._HANDLERS[ob.Capacity]

    def fewer(turn: Any, o: ob.Capacity) -> None:
        known = dict(turn.memory.capacity)
        original(turn, o)
        if turn.state.trials:
            turn.memory.capacity = {name: min(known.get(name, 0), n) for name, n in turn.memory.capacity.items()}

    patch.setitem(decide._HANDLERS, ob.Capacity, fewer)


def _let_cluster_choose(patch: Patch) -> None:
    """The cluster places workers also while it does not know that a node is gone."""
    original = cluster_engine.choose_node

    def choose_node(*arguments: Any) -> str | None:
        return None if original(*arguments) is None else ""

    patch.setattr(cluster_engine, "choose_node", choose_node)


def _forget_attempts_of_lost_nodes(patch: Patch) -> None:
    original = decide._HANDLERS[ob.Died]

    def died(turn: Any, o: ob.Died) -> None:
        if o.cause != ev.Cause.NODE_LOST:
            original(turn, o)

    patch.setitem(decide._HANDLERS, ob.Died, died)


def _count_waiting_as_silence(patch: Patch) -> None:
    """The time in which an attempt waits for a machine counts against ``stall_timeout_s``."""
    patch.setattr(FakeClusterEngine, "is_waiting", lambda self, n, attempt: False)


def _look_at_the_sum_of_machines(patch: Patch) -> None:
    """A trial is given, and started with, more than any machine has alone; so it waits for ever."""
    patch.setattr(DriverMemory, "could_hold", lambda self, wanted: True)


PLANTED = {
    "late word of an old attempt": ClusterBug(no_attempt_fence, ("I6", "I7"), 60),
    "commit without bringing": ClusterBug(_commit_without_bringing, ("I2",), 10),
    "lost node counted as a failure": ClusterBug(_count_lost_nodes, ("I8",), 20),
    "stage believed after its node was lost": ClusterBug(_believe_lost_stages, ("I2",), 40),
    "stage brought under its own name": ClusterBug(_bring_into_place, ("I2",), 40),
    "half a stage committed": ClusterBug(_bring_into_place_and_commit_unread, ("I2",), 40),
    "new nodes ignored": ClusterBug(_ignore_new_nodes, ("liveness",), 40),
    "worker placed on a lost node": ClusterBug(_let_cluster_choose, ("placement",), 40),
    "attempts of lost nodes never end": ClusterBug(_forget_attempts_of_lost_nodes, ("liveness",), 20),
}

FOUND = {
    "waiting for a machine counted as a stall": ClusterBug(_count_waiting_as_silence, ("I8",), 40),
    "more than a machine has": ClusterBug(_look_at_the_sum_of_machines, ("liveness", "I8"), 40, "changing resources"),
}
