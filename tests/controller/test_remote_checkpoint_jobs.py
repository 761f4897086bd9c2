"""The checkpoint jobs of an experiment in a store: which commits are given up for newer ones, which local copies go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints import jobs
from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.checkpoints.remote_job_threads import RemoteJobThreads
from holdfast.checkpoints.remote_jobs import RemoteJobPerformer
from holdfast.checkpoints.stage import Stage
from holdfast.controller.checkpoint_jobs import MAX_RETRY_S
from holdfast.controller.remote_checkpoint_jobs import SCAN_EVERY, RemoteCheckpointJobEdge, most_uncommitted
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import NO_LIMIT
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.testing.memory_store import Fault, MemoryStore

DEADLINE_S = 20.0


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        raise AssertionError


class RemoteTrial:
    """One running trial, whose checkpoints are staged here and go to a store; the journal is the test's."""

    def __init__(self, folder: Path, rule: Retention) -> None:
        self.store = MemoryStore()
        self.root = folder / "mirror"
        (self.root / ".holdfast").mkdir(parents=True)
        self.home = self.root / "t0"
        self.rule = rule
        self.state = State()
        self.memory = DriverMemory()
        self.clock = Clock()
        self.hung: set[int] = set()  # uploads of these do not end
        self.hanging = threading.Event()  # one of them has begun
        self.go_on = threading.Event()
        self.apply(ev.TrialCreated(1.0, 0, "id0", {}, ""), ev.TrialStarted(1.0, 0, 1))
        self.performer = RemoteJobPerformer(self.store, self.root)
        self.threads = RemoteJobThreads(lambda: None, self.perform)
        self.edge = self.make_edge()
        self.seen: list[Any] = []

    def make_edge(self) -> RemoteCheckpointJobEdge:
        return RemoteCheckpointJobEdge(
            self.threads,
            self.state,
            self.memory,
            self.clock,
            trial_dir=lambda n: self.root / f"t{n}",
            trouble=lambda text: None,
            rule=self.rule,
        )

    def perform(self, job: Any) -> Any:
        if isinstance(job, jobs.CommitJob) and job.index in self.hung:
            self.hanging.set()
            assert self.go_on.wait(DEADLINE_S)
        return self.performer.perform(job)

    def apply(self, *events: ev.AnyEvent) -> None:
        for event in events:
            apply(self.state, event, self.rule)

    def stage(self, index: int, score: float = 0.0, *, damage: bool = False) -> None:
        """A report with a checkpoint whose record is durable on this machine, and not in the store."""
        source = self.root.parent / f"source-{index}"
        source.mkdir()
        (source / "w").write_text(f"weights {index}")
        sealed = Stage(self.home, "id0", 1).seal(source)
        if damage:
            (self.home / sealed.name / "w").write_text(f"weights {'?' * len(str(index))}")
        self.apply(ev.Reported(1.0, 0, 1, 1, 0.1, {"score": score}))
        self.apply(ev.CheckpointStaged(1.0, 0, 1, index, sealed.name, 9, 1))
        self.edge.prepare(cmd.Commit(0, index))

    def arrive(self, *indexes: int) -> None:
        """The records of these are in the store."""
        for index in indexes:
            self.edge.submit(cmd.Commit(0, index))

    def commit(self, *indexes: int) -> None:
        self.arrive(*indexes)
        self.until(lambda: all((0, index) not in self.state.staged for index in indexes))

    def until(self, reached: Callable[[], bool]) -> None:
        """Let the loop run."""
        deadline = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline, self.seen
            self.turn()
            time.sleep(0.001)

    def turn(self) -> None:
        """What has ended becomes fact, and what follows from that is asked for."""
        events: list[ev.AnyEvent] = []
        for observation in self.edge.drain():
            self.seen.append(observation)
            events += self.decide(observation)
        self.apply(*events)
        self.edge.note(events)
        for event in events:
            if isinstance(event, ev.CheckpointsDropped):
                self.edge.prepare(cmd.Delete(0, event.indexes[0]))

    def decide(self, observation: ob.Observation) -> list[ev.AnyEvent]:
        match observation:
            case ob.CommitEnded(n, index):
                if observation.damaged:
                    return [ev.CheckpointRejected(1.0, n, index, observation.message)]
                if observation.superseded:
                    return [ev.CheckpointsDropped(1.0, n, (index,))]
                return [ev.CheckpointCommitted(1.0, n, index, observation.digest, observation.bytes)]
            case ob.DeleteEnded(n, index):
                return [ev.CheckpointsDeleted(1.0, n, (index,))]
        return []

    def settle(self) -> None:
        """Until nothing is under way any more."""
        self.until(lambda: not self.threads.pending)
        self.turn()  # what has ended just now may have led to more
        if self.threads.pending:
            self.settle()

    def here(self) -> set[str]:
        return {path.name for path in self.home.iterdir()}

    def superseded(self) -> list[int]:
        return [each.index for each in self.seen if isinstance(each, ob.CommitEnded) and each.superseded]


Make = Callable[..., RemoteTrial]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Make]:
    """`remote(num_to_keep=1)`: a trial with this rule."""
    made: list[RemoteTrial] = []

    def make(**rule: Any) -> RemoteTrial:
        made.append(RemoteTrial(tmp_path, Retention(**rule)))
        return made[-1]

    yield make
    for each in made:
        each.go_on.set()
        each.threads.close(wait=False, running_s=DEADLINE_S)


# --- giving up commits


def test_in_an_outage_newer_checkpoints_take_the_place_of_older_ones_without_the_store(
    remote: Make,
) -> None:
    """And what was replaced is gone from the local disk, so that an outage costs no more space than a good day."""
    world = remote(num_to_keep=1)
    world.store.fail(Fault("unreachable"))
    for index in range(5):
        world.stage(index)
        world.until(lambda: len(world.state.staged) <= 1)
    world.until(lambda: not world.state.dropping)
    assert world.superseded() == [0, 1, 2, 3]
    assert world.here() == {"checkpoint_000004"}
    assert not world.store.requests
    world.store.heal()
    world.commit(4)
    assert world.state.trials[0].latest() is not None


def test_an_upload_that_hangs_does_not_keep_those_behind_it_from_being_replaced(
    remote: Make,
) -> None:
    world = remote(num_to_keep=1)
    world.hung = {0}
    world.stage(0)
    world.arrive(0)
    world.until(world.hanging.is_set)
    world.stage(1)
    world.arrive(1)
    world.stage(2)
    world.until(lambda: (0, 1) not in world.state.staged)
    assert world.superseded() == [1]
    world.go_on.set()
    world.commit(2)
    assert {record.index for record in world.state.trials[0].committed()} == {0, 2}


def test_commits_that_only_wait_behind_a_hung_upload_can_take_the_place_of_others(
    remote: Make,
) -> None:
    """Their records are in the store and they are submitted: they must be read back all the same."""
    world = remote(num_to_keep=2)
    world.hung = {0}
    for index in range(3):
        world.stage(index)
        world.arrive(index)
        world.until(world.hanging.is_set)
    world.stage(3)
    world.until(lambda: (0, 1) not in world.state.staged)
    assert world.superseded() == [1]
    world.go_on.set()
    world.commit(2, 3)
    assert [record.index for record in world.state.trials[0].committed()] == [0, 2, 3]


def test_what_a_former_driver_has_dropped_is_deleted_in_the_store_too(remote: Make) -> None:
    world = remote(num_to_keep=1)
    world.stage(0)
    world.apply(ev.CheckpointsDropped(1.0, 0, (0,)))
    world.store.put("t0/checkpoint_000000/w", b"half")
    world.edge = world.make_edge()  # the next driver's
    world.edge.prepare(cmd.Delete(0, 0))
    world.settle()
    assert world.here() == set()
    assert (0, 0) in world.state.dropping
    world.edge.submit(cmd.Delete(0, 0))
    world.until(lambda: not world.state.dropping)
    assert not world.store.objects


def test_a_newer_checkpoint_that_is_damaged_costs_no_older_one(remote: Make) -> None:
    """Its files were changed after the worker had hashed them; its local commit believes the worker."""
    world = remote(num_to_keep=1)
    world.stage(0)
    world.stage(1, damage=True)
    world.settle()
    assert not world.superseded()
    world.commit(0, 1)
    trial = world.state.trials[0]
    assert [record.index for record in trial.committed()] == [0]
    assert world.store.get("t0/checkpoint_000000/w") == b"weights 0"


def test_as_many_stay_as_the_user_wants(remote: Make) -> None:
    world = remote(num_to_keep=3)
    for index in range(6):
        world.stage(index)
    world.until(lambda: len(world.state.staged) == 3)
    world.settle()
    assert sorted(world.superseded()) == [0, 1, 2]


def test_without_a_rule_every_checkpoint_is_waited_for(remote: Make) -> None:
    world = remote()
    for index in range(4):
        world.stage(index)
    world.settle()
    assert not world.superseded()
    assert most_uncommitted(world.rule) == NO_LIMIT, "bytes are counted, and nothing else"


@pytest.mark.parametrize(("wanted", "most"), [(1, 2), (2, 3), (15, 16), (1000, 1001)])
def test_there_is_room_for_what_retention_keeps(wanted: int, most: int) -> None:
    assert most_uncommitted(Retention(num_to_keep=wanted)) == most


@pytest.mark.parametrize(("wanted", "most"), [(1, 3), (2, 4), (14, 16), (1000, 1002)])
def test_by_a_score_there_is_room_for_the_newest_as_well(wanted: int, most: int) -> None:
    assert most_uncommitted(Retention(num_to_keep=wanted, score_attribute="score")) == most


def test_an_upload_that_is_tried_again_is_not_overtaken_by_those_behind_it(
    remote: Make,
) -> None:
    """A backlog is uploaded in order, and in an outage one upload of a trial is tried again, not all of them."""
    world = remote()
    for index in range(4):
        world.stage(index)
    world.store.fail(Fault("unreachable"))
    world.arrive(*range(4))
    world.settle()
    assert {request.key.split("/")[1] for request in world.store.requests} == {"checkpoint_000000"}
    world.store.heal()
    world.clock.at += MAX_RETRY_S
    world.until(lambda: not world.state.staged)
    ended = [each.index for each in world.seen if isinstance(each, ob.CommitEnded)]
    assert ended == [0, 1, 2, 3]


def test_a_large_backlog_that_was_uploaded_leaves_the_mirror(remote: Make) -> None:
    world = remote()
    count = 2 * SCAN_EVERY + 3
    for index in range(count):
        world.stage(index)
    world.commit(*range(count))
    world.settle()
    assert world.here() == {f"checkpoint_{count - 1:06d}"}


def test_a_better_checkpoint_is_not_given_up_for_a_newer_one(remote: Make) -> None:
    world = remote(num_to_keep=1, score_attribute="score")
    for index, score in enumerate([1.0, 9.0, 2.0, 3.0]):
        world.stage(index, score)
    world.until(lambda: len(world.state.staged) == 2)
    world.settle()
    assert sorted(index for _, index in world.state.staged) == [1, 3], "the best one, and the newest"


def test_a_checkpoint_that_another_trial_begins_with_is_not_given_up(remote: Make) -> None:
    world = remote(num_to_keep=1)
    world.state.holds[0, 0] = 1
    for index in range(3):
        world.stage(index)
    world.until(lambda: len(world.state.staged) == 2)
    world.settle()
    assert world.superseded() == [1]


def test_what_a_former_driver_may_have_begun_to_upload_is_deleted_in_the_store_too(
    remote: Make,
) -> None:
    world = remote(num_to_keep=1)
    world.stage(0)
    world.store.put("t0/checkpoint_000000/w", b"half")
    world.edge = world.make_edge()  # the next driver's
    world.stage(1)
    world.until(lambda: (0, 0) in world.state.dropping)
    world.settle()
    assert world.here() == {"checkpoint_000001"}
    assert (0, 0) in world.state.dropping, "its deletion waits for the store"
    world.edge.submit(cmd.Delete(0, 0))
    world.until(lambda: not world.state.dropping)
    assert "t0/checkpoint_000000/w" not in world.store.objects


def test_a_stage_that_is_not_on_this_machine_takes_the_place_of_nothing(
    remote: Make,
) -> None:
    """One checkpoint is whole in the store, a newer one was only staged, and its machine is gone."""
    world = remote(num_to_keep=1)
    for index in range(2):
        world.stage(index)
    world.settle()
    world.commit(1)
    assert world.superseded() == [0]
    world.apply(ev.Reported(1.0, 0, 1, 1, 0.1, {}))
    world.apply(ev.CheckpointStaged(1.0, 0, 1, 2, ".sealed-1-00000002", 9, 1))
    world.edge.prepare(cmd.Commit(0, 2))
    world.stage(3)
    world.apply(ev.Reported(1.0, 0, 1, 1, 0.1, {}))
    world.apply(ev.CheckpointStaged(1.0, 0, 1, 4, ".sealed-1-00000004", 9, 1))
    world.edge.prepare(cmd.Commit(0, 4))
    world.settle()
    assert set(world.superseded()) == {0, 2}
    world.commit(3, 4)
    assert [record.index for record in world.state.trials[0].committed()][-1] == 3


# --- local copies


def test_of_a_trial_that_lives_the_mirror_keeps_the_latest_checkpoint(remote: Make) -> None:
    world = remote()
    for index in range(3):
        world.stage(index)
        world.commit(index)
    world.settle()
    assert world.here() == {"checkpoint_000002"}
    assert {key.split("/")[1] for key in world.store.objects} == {f"checkpoint_{index:06d}" for index in range(3)}


@pytest.mark.parametrize("last", ["committed before it ended", "committed after it ended"])
def test_of_a_trial_that_has_ended_the_mirror_keeps_nothing(remote: Make, last: str) -> None:
    world = remote()
    end = ev.TrialTerminated(2.0, 0, 1, "returned")
    world.stage(0)
    world.commit(0)
    world.stage(1)
    if last == "committed before it ended":
        world.commit(1)
    world.apply(end)
    world.edge.note([end])
    if last == "committed after it ended":
        world.settle()
        assert "checkpoint_000001" not in world.store.objects
        world.commit(1)
    world.settle()
    assert world.here() == set()
    assert len([key for key in world.store.objects if key.endswith("_manifest.json")]) == 2


def test_what_a_driver_that_was_killed_has_left_in_the_mirror_goes_with_the_next_one(
    remote: Make,
) -> None:
    world = remote()
    world.edge.note = lambda events: None  # type: ignore[method-assign]
    for index in range(3):
        world.stage(index)
        world.commit(index)
    assert len(world.here()) == 3
    world.edge = world.make_edge()
    world.edge.note([])
    world.settle()
    assert world.here() == {"checkpoint_000002"}


def test_what_an_attempt_started_from_stays_until_it_ends(remote: Make) -> None:
    """Also if it is another trial's: get_checkpoint() may be called at any time."""
    world = remote()
    world.stage(0)
    world.commit(0)
    world.apply(ev.TrialCreated(1.0, 1, "id1", {}, ""))
    world.memory.awaited[0, 0] = {1}  # verified for a trial that is about to start
    world.stage(1)
    world.commit(1)
    world.settle()
    assert world.here() == {"checkpoint_000000", "checkpoint_000001"}
    del world.memory.awaited[0, 0]
    world.apply(ev.TrialStarted(1.0, 1, 1, 0, (0, 0)))
    world.stage(2)
    world.commit(2)
    world.settle()
    assert world.here() == {"checkpoint_000000", "checkpoint_000002"}
    end = ev.TrialTerminated(2.0, 1, 1, "returned")
    world.apply(end)
    world.edge.note([end])
    world.settle()
    assert world.here() == {"checkpoint_000002"}


def test_what_somebody_reads_is_not_removed_under_them(remote: Make) -> None:
    world = remote()
    world.stage(0)
    world.commit(0)
    checkpoint = Checkpoint.mirrored("s3://bucket/t0/checkpoint_000000", str(world.home / "checkpoint_000000"))
    with checkpoint.as_directory() as directory:
        world.stage(1)
        world.commit(1)
        world.settle()
        assert Path(directory, "w").read_text() == "weights 0"
        assert Path(directory) == world.home / "checkpoint_000000"
    world.clock.at += MAX_RETRY_S
    world.until(lambda: world.here() == {"checkpoint_000001"})


def test_a_copy_that_was_removed_a_moment_ago_is_fetched_for_a_trial_that_needs_it(
    remote: Make,
) -> None:
    """The removal is under way when the trial is to be started: one follows the other."""
    world = remote()
    world.stage(0)
    world.commit(0)
    world.settle()
    digest = world.state.trials[0].checkpoints[0].digest
    directory = str(world.home / "checkpoint_000000")
    world.threads.submit(jobs.PruneJob(0, 0, directory))
    world.threads.submit(jobs.VerifyJob(0, 0, directory, digest))
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < 2 and time.monotonic() < deadline:
        found += world.threads.drain()
    assert found == [jobs.MirrorDone(0, 0, jobs.PruneJob), ob.VerifyEnded(0, 0, ok=True)]
    assert Path(directory, "w").read_text() == "weights 0"


def test_a_local_copy_that_cannot_be_removed_stays_and_stops_nothing(remote: Make) -> None:
    world = remote()
    world.stage(0)
    world.commit(0)
    (world.home / "checkpoint_000000" / "_manifest.json").write_bytes(b"")  # as a power cut may leave it
    world.stage(1)
    world.commit(1)
    world.settle()
    assert world.here() == {"checkpoint_000000", "checkpoint_000001"}
