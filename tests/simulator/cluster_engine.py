"""The simulator's engine for clusters: attempts run on simulated machines, which may be lost at any time.

What ``engines.cluster`` does with sockets, threads and Ray happens here as events of the story: the engine chooses
nodes with the real ``placement``, starts workers that may never dial in, pushes start checkpoints, and tells how each
attempt has ended (for nodes see ``cluster_nodes``). Words of an attempt that it has given up may still arrive later: a
transport is not to be trusted, so the core must refuse them.

Owns which attempt is on which machine, as the driver sees it. Must never decide about a trial, or when something goes
wrong: its host and ``machines`` are asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.core.events import Cause
from holdfast.core.observations import Died, Joined, Raised, Report, Returned, Saved, Stopped, WorkerMessage
from holdfast.engines.cluster.cluster_pool import MAX_STARTS, START
from holdfast.engines.cluster.handshake import LEASE_S
from holdfast.engines.cluster.placement import choose_node, fits, in_the_way, request_of
from holdfast.engines.cluster.remote_worker import Request
from holdfast.trainable.worker_messages import Decision, Run
from simulator.cluster_nodes import ClusterHost, ClusterProcess, Coming, ConnectedNodes, Link, SimWorker
from simulator.engine import LATENCY_S, FakeProcess
from simulator.machines import Machines

START_S = (0.02, 1.5)
"""How long a worker takes to dial in."""

PUSH_S = (0.001, 0.3)
LATE_WORD_S = 30.0
OUT_S = (0.5, 30.0)
"""How long a cluster may be lost; a driver looks for it for longer than that."""

_ENDS = (Returned, Stopped, Raised)


class FakeClusterEngine(ConnectedNodes):
    """See ``engines.base.Engine``; stages are brought by ``cluster_jobs``.

    Attributes:
        stages: Where sealed stages are: (trial directory, name) -> node.
    """

    def __init__(self, machines: Machines, host: ClusterHost) -> None:
        super().__init__(machines, host)
        self.stages: dict[tuple[str, str], str] = {}
        self._waiting: deque[tuple[ClusterProcess, int]] = deque()
        self._taken: dict[int, tuple[str, Request]] = {}

    # --- the protocol

    def launch(self, run: Run) -> None:
        self._host.step("launch")
        if self._closed or run.attempt <= self._launched.get(run.n, -1):
            return
        self._launched[run.n] = run.attempt
        process = ClusterProcess(run, self)
        self.processes[process.key] = process
        self._host.launched(process)
        self._waiting.append((process, 0))
        self._launch_waiting()

    def save_soon(self, n: int, attempt: int) -> None:
        process = self.processes.get((n, attempt))
        if isinstance(process, ClusterProcess) and process.begun:
            super().save_soon(n, attempt)

    def halt(self, n: int, attempt: int, grace_s: float) -> None:
        process = self._live(n, attempt)
        if isinstance(process, ClusterProcess) and not process.begun:
            self._host.step("halt")
            self._give_up_waiting(process)
            return
        super().halt(n, attempt, grace_s)

    def close(self, grace_s: float = 0.0) -> None:
        self._leave()
        for process in list(self.processes.values()):
            assert isinstance(process, ClusterProcess)
            self._dismiss(process, 0.0)

    def abandon(self, delays: Callable[[], float]) -> None:
        self._leave()
        for process in self.processes.values():
            assert isinstance(process, ClusterProcess)
            if process.alive:
                self._dismiss(process, delays())

    def _leave(self) -> None:
        self._closed = True
        self._inbox.clear()
        if self in self.machines.watchers:
            self.machines.watchers.remove(self)

    def _dismiss(self, process: ClusterProcess, delay_s: float) -> None:
        """It ends when it hears that its driver is gone; one that cannot, when its lease is over."""
        if process.begun and process.alive and process.connection.silent_since is not None:
            delay_s = LEASE_S
        if delay_s:
            self._timeline.later(delay_s, lambda: self._vanish(process))
        else:
            self._vanish(process)

    def is_waiting(self, n: int, attempt: int) -> bool:
        """See ``engines.base.MakesAttemptsWait``."""
        process = self.processes.get((n, attempt))
        return isinstance(process, ClusterProcess) and not process.begun

    # --- placing attempts

    def _launch_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            if self._closed:
                return
            process, tries = self._waiting.popleft()
            if process.alive and not self._place(process, tries):
                self._waiting.append((process, tries))

    def _place(self, process: ClusterProcess, tries: int) -> bool:
        if not self._is_joined:
            return False
        request = request_of(process.run)
        warm = self._warm.get(request)
        if warm:
            number, link = warm.popitem()
            self._give(process, number, link)
            return True
        self._make_room(request)
        where = self._choose(request)
        if where is None:
            return False
        number = self._next_worker
        self._next_worker += 1
        known = self._nodes[where]
        self._told.placed(process, where, known.lost)
        self._coming[number] = Coming(process, tries, where, request)
        self._occupy(number, where, request)
        if not self.machines.faults.strikes("silent_starts", 0.05):
            self._timeline.later(self.machines.between(START_S), partial(self._dial_in, number))
        self._timeline.later(START.delay_s(tries + 1), lambda: self._not_started(number, "it did not dial in"))
        return True

    def _choose(self, request: Request) -> str | None:
        where = choose_node(request, self._nodes.values(), self._taken.values())
        return self._let_cluster_choose(request) if where == "" else where

    def _let_cluster_choose(self, request: Request) -> str | None:
        """The cluster takes any node that it lists and that has room; it may not know yet that one is gone."""
        room = {identity: known.facts.resources["CPU"] for identity, known in self._nodes.items()}
        for where, held in self._taken.values():
            if where in room:
                room[where] -= held.total()["CPU"]
        fitting = [identity for identity, free in room.items() if fits(request.total(), {"CPU": free})]
        return fitting[self.machines.faults.rng.integers(0, len(fitting))] if fitting else None

    def _make_room(self, request: Request) -> None:
        """End idle workers that occupy what a request of another kind needs."""
        if not any(self._warm.values()):
            return
        idle: list[Any] = [link.workers[number] for warm in self._warm.values() for number, link in warm.items()]
        for worker in in_the_way(request, self._nodes.values(), self._taken.values(), idle):
            del self._warm[worker.request][worker.number]
            self._retire(worker.number)

    def _retire(self, number: int) -> None:
        where, _ = self._taken[number]
        self._vacate(number)
        self.links[where].workers.pop(number, None)

    def _occupy(self, number: int, where: str, request: Request) -> None:
        self._taken[number] = (where, request)

    def _vacate(self, number: int) -> None:
        self._taken.pop(number, None)

    def _dial_in(self, number: int) -> None:
        coming = self._coming.get(number)
        if coming is None or self._closed:
            return
        link = self.links.get(coming.node)
        if link is None or link.lost or link.silent_since is not None:
            return  # it cannot, and is started elsewhere in a while
        del self._coming[number]
        link.workers[number] = SimWorker(number, link.id, coming.request)
        self._arrived(Joined(number, link.node.name, "10.0.0.1", 100 + number))
        self._give(coming.process, number, link)

    def _not_started(self, number: int, why: str) -> None:
        coming = self._coming.pop(number, None)
        if coming is None or self._closed:
            return
        self._vacate(number)
        if coming.tries + 1 >= MAX_STARTS:
            self._refuse(coming.process, Cause.ENGINE_LOST, f"no worker could be started: {why}")
        else:
            self._waiting.append((coming.process, coming.tries + 1))
            self._launch_waiting()

    def _give_up_waiting(self, process: ClusterProcess) -> None:
        for number in [number for number, coming in self._coming.items() if coming.process is process]:
            del self._coming[number]
            self._vacate(number)
        if process.link is not None:
            process.link.attempts.pop(process.key, None)
            self._retire(process.worker)
        process.halting = True
        self._refuse(process, Cause.SIGNAL, "ended at the driver's request before it had begun")

    def _refuse(self, process: ClusterProcess, cause: str, detail: str) -> None:
        process.alive = False
        self._told.refused(process, cause)
        self._arrived(Died(*process.key, cause, detail, worker=process.worker))

    # --- giving an attempt to a worker

    def _give(self, process: ClusterProcess, number: int, link: Link) -> None:
        """What it starts from is pushed to the node first."""
        process.worker, process.link = number, link
        link.attempts[process.key] = process
        if process.run.checkpoint is None:
            self._begin(process)
        else:
            self._timeline.later(self.machines.between(PUSH_S), partial(self._pushed, process))

    def _pushed(self, process: ClusterProcess) -> None:
        link = process.connection
        if self._closed or process.given_up or not process.alive:
            return
        if link.silent_since is not None:
            link.down.append(partial(self._pushed, process))
        elif self.machines.faults.strikes("failed_pushes", 0.2):
            del link.attempts[process.key]
            self._retire(process.worker)
            self._refuse(process, Cause.STORAGE, "its files could not be sent")
            self._launch_waiting()
        else:
            self._begin(process)

    def _begin(self, process: ClusterProcess) -> None:
        node = process.connection.node
        process.begun = True
        node.processes[process] = None
        process.program = self._host.program(process)
        self._timeline.later(LATENCY_S, lambda: self._go_on(process, None))
        self.machines.trouble(node)
        if self.machines.faults.strikes("lost_clusters", 0.05):
            self._timeline.later(
                self.machines.between((0.0, 3.0)), partial(self.lose_cluster, self.machines.between(OUT_S))
            )

    # --- processes

    def _go_on(self, process: FakeProcess, value: Any) -> None:
        assert isinstance(process, ClusterProcess)
        node = process.connection.node
        if node.frozen:
            node.stalled.append(partial(self._go_on, process, value))
        else:
            super()._go_on(process, value)

    def _hear(self, process: FakeProcess, decision: Decision) -> None:
        assert isinstance(process, ClusterProcess)
        if not self._is_held_back(process, partial(self._hear, process, decision)):
            super()._hear(process, decision)

    def _halted(self, process: FakeProcess) -> None:
        assert isinstance(process, ClusterProcess)
        if not self._is_held_back(process, partial(self._halted, process)):
            super()._halted(process)

    def _say_end(self, process: FakeProcess, end: Returned | Stopped | Raised) -> None:
        assert isinstance(process, ClusterProcess)
        process.ended = True
        self._host.ended(process, type(end).__name__)
        self._send(process, end)
        process.alive = False
        process.connection.node.processes.pop(process, None)

    def end_silently(self, process: ClusterProcess, how: str) -> None:
        """A process is gone with its machine, or by itself because its lease is over."""
        if process.alive:
            self._host.ended(process, how)
            self._vanish(process)

    def _vanish(self, process: FakeProcess) -> None:
        assert isinstance(process, ClusterProcess)
        super()._vanish(process)
        if process.begun:
            process.connection.node.processes.pop(process, None)

    # --- messages

    def _send(self, process: FakeProcess, message: WorkerMessage) -> None:
        assert isinstance(process, ClusterProcess)
        super()._send(process, message)
        self.machines.trouble(process.connection.node)

    def _deliver(self, process: FakeProcess, message: WorkerMessage) -> None:
        assert isinstance(process, ClusterProcess)
        link = process.connection
        if link.silent_since is not None:
            link.up.append(partial(self._deliver, process, message))
            return
        process.in_flight.remove(message)
        if link.lost or process.given_up:
            self._arrive_late(message)
        elif not any(message is lost for lost in process.lost):
            if isinstance(message, Report | Saved) and message.sealed is not None:
                self.stages[process.run.trial_dir, message.sealed.name] = link.id
            self._arrived(message)
            if isinstance(message, _ENDS):
                self._end_attempt(process, reusable=not isinstance(message, Raised))

    def _deliver_copy(self, process: FakeProcess, message: WorkerMessage) -> None:
        assert isinstance(process, ClusterProcess)
        link = process.connection
        if link.silent_since is not None:
            link.up.append(partial(self._deliver_copy, process, message))
        elif link.lost or process.given_up:
            self._arrive_late(message)
        else:
            self._arrived(message)

    def _deliver_death(self, process: FakeProcess, end: Died) -> None:
        assert isinstance(process, ClusterProcess)
        link = process.connection
        if link.silent_since is not None:
            link.up.append(partial(self._deliver_death, process, end))
        elif link.lost or process.given_up:
            self._arrive_late(end)
        else:
            self._arrived(end)
            self._end_attempt(process, reusable=False)

    def _arrive_late(self, message: WorkerMessage | Died) -> None:
        """A word of an attempt that was given up: it is lost, or arrives when nobody waits for it any more."""
        if self.machines.faults.strikes("late_words", 0.9):
            self._timeline.later(self.machines.between((0.0, LATE_WORD_S)), partial(self._arrives_late, message))

    def _arrives_late(self, message: WorkerMessage | Died) -> None:
        if not self._closed:
            self.machines.note("a word arrives late:", message)
            self._arrived(message)

    def _end_attempt(self, process: ClusterProcess, *, reusable: bool) -> None:
        """The driver has heard how an attempt ended: its worker is free, or gone."""
        link = process.connection
        if link.attempts.pop(process.key, None) is None:
            return
        if reusable:
            worker = link.workers[process.worker]
            self._warm.setdefault(worker.request, {})[worker.number] = link
        else:
            self._retire(process.worker)
        self._launch_waiting()

    # --- stages

    def link_of(self, trial_dir: str, sealed: str) -> Link | None:
        """The connection to the node that has a stage, as far as this driver knows; None if it knows of none."""
        where = self.stages.get((trial_dir, sealed))
        return None if where is None else self.links[where]

    def drop(self, trial_dir: str, sealed: str) -> None:
        """A stage is not wanted any more, or has been brought."""
        link = self.link_of(trial_dir, sealed)
        self.stages.pop((trial_dir, sealed), None)
        if link is not None and not link.lost:
            for place in [place for place in link.node.disk if place[1] == sealed]:
                del link.node.disk[place]
