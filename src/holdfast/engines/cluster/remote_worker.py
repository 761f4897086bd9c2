"""One worker on another machine, as the driver knows it, and why it has ended.

Owns: the fields, and the reading of the evidence. Must never: act; the pool does.
"""

from __future__ import annotations

import signal

import msgspec

from holdfast.core.events import Cause
from holdfast.core.observations import Died
from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster import handshake
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.actor_worker import CLOSED, LEASE_OVER
from holdfast.engines.exits import explain
from holdfast.engines.link import SocketLink
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle
from holdfast.engines.worker_links import SILENT
from holdfast.trainable.worker_messages import Run, Setup

VERDICT_S = 5.0
"""From the end of a worker's connection until it is killed, if nobody has told how it ended."""

EVIDENCE_S = 1.0
"""How long to wait for the cluster's own reason, once the node has told that a worker is gone."""

AGENT_S = 0.25
"""How long to wait, once both have told, for word that the cluster itself has ended on the node."""


class Request(msgspec.Struct, frozen=True):
    """What a worker occupies."""

    resources: tuple[tuple[str, float], ...]
    bundles: tuple[tuple[tuple[str, float], ...], ...]
    strategy: str

    def total(self) -> dict[str, float]:
        return dict(self.resources)

    @property
    def gpus(self) -> float:
        """What the worker itself has of GPUs: of several bundles it is in the first."""
        return dict(self.bundles[0] if self.bundles else self.resources).get("GPU", 0.0)


class RemoteWorker(WorkerHandle):
    """A worker on a node.

    Attributes:
        node: Where it runs.
        request: What it occupies, as the key by which it is reused.
        told: It was sent its setup.
        sent: It was sent its attempt, after what that needs was on the node.
        status: As the node's porter told it; None before.
        verdict: What the cluster said of its end.
        leaving: It was told to leave.
        ending: How its attempt has ended, while its files are being brought.
        awaited: What is still to come before that end can be told (``collector``).
        brought: The files that its attempt left were brought, or cannot be.
        tries: To bring them, that have failed.
        awaits_space: The user was told that there is no space for them.
        hurried: The driver has asked for the attempt's end.
        over: How the attempt of a worker that is gone has ended; None before.
        trial_dir: Of its attempt, relative to the experiment.
        devices: GPUs that the cluster has given to it; none if it asked for none, whatever its process can see.
    """

    __slots__ = (
        "awaited",
        "awaits_space",
        "brought",
        "devices",
        "ending",
        "host",
        "hurried",
        "ip",
        "leaving",
        "node",
        "over",
        "pid",
        "request",
        "sent",
        "status",
        "told",
        "trial_dir",
        "tries",
        "verdict",
    )

    def __init__(self, number: int, link: SocketLink, log: str, greeting: handshake.Greeting, request: Request) -> None:
        super().__init__(number, link, log)
        self.node = greeting.node
        self.host = greeting.host
        self.ip = greeting.ip
        self.pid = greeting.pid
        # Without a request for GPUs the variable is what the node was started with: under Slurm, all of its GPUs.
        self.devices = greeting.gpus if request.gpus else ()
        self.request = request
        self.told = self.sent = False
        self.status: say.WorkerGone | None = None
        self.verdict: ray.SlotEnded | None = None
        self.leaving = False
        self.ending: AttemptEnd | None = None
        self.over: AttemptEnd | Died | None = None
        self._clear()
        self.trial_dir = ""

    def begin(self, run: Run, setup: Setup, gpu_amount: float) -> None:
        """Note the attempt, and where its files are."""
        super().begin(run, setup, gpu_amount)
        self.trial_dir = run.trial_dir
        self.sent = False
        self._clear()

    @property
    def has_ended(self) -> bool:
        """Whether its attempt can say no more, and only its files are awaited."""
        return self.ending is not None or self.over is not None

    def _clear(self) -> None:
        self.awaited: set[str] = set()
        self.brought = self.awaits_space = self.hurried = False
        self.tries = 0


def patience_with_evidence(worker: RemoteWorker) -> float:
    """How long to wait until it is said why a worker has ended, of whose end its node has told.

    When the driver's own node is lost, the cluster ends all of the driver's workers: most exit with code 1. A worker
    that has ended like that is not judged without the cluster's word, which comes after that of the loss.
    """
    if worker.verdict is not None:
        return AGENT_S
    status = -1 if worker.status is None else worker.status.status
    return VERDICT_S if status < 0 or status in (1 << 8, signal.SIGTERM, signal.SIGKILL) else EVIDENCE_S


def cause_of_end(worker: RemoteWorker) -> tuple[str, str]:
    """Why a worker has ended, from what its node, the cluster and its connection tell."""
    status, verdict = worker.status, worker.verdict
    said = "" if verdict is None else f"{verdict.kind} {verdict.text}"
    left = verdict is not None and verdict.kind == ray.SLOT_RETURNED
    if not worker.halted and (left or (status is not None and status.status == LEASE_OVER << 8)):
        return Cause.NODE_LOST, f"the worker on {worker.host} lost its connection to the driver"
    if status is not None and status.status == CLOSED << 8:
        return Cause.EXIT, f"{SILENT} on {worker.host}"
    if worker.fault and not worker.halted:
        return Cause.EXIT, worker.fault
    memory = "OutOfMemory" in said or (status is not None and status.oom)
    if memory and not worker.halted:
        return Cause.OUT_OF_MEMORY, f"out of memory on {worker.host}: {_first_line(said) or 'killed by SIGKILL'}"
    if status is None or status.status < 0:
        detail = (status.evidence if status else "") or _first_line(said) or "its process is gone"
        return (Cause.SIGNAL, "ended at the driver's request") if worker.halted else (Cause.EXIT, detail)
    cause, detail = explain(status.status, halted=worker.halted, oom=False, peak_kib=0)
    if status.status & 0x7F == signal.SIGTERM and not worker.halted:
        detail = "SIGTERM from another process: the worker was preempted"
    return cause, detail if worker.halted else f"{detail} on {worker.host}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
