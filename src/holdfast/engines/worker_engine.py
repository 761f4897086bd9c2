"""An engine of warm worker processes: which attempt is in which worker, and which workers are idle.

Owns: that bookkeeping, and what workers say about attempts. Where workers run, and with what, is for subclasses.
Must never: decide about a trial, or raise because something outside went wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.core.observations import Observation, Raised, Report, Returned, Stopped
from holdfast.engines.nanny_messages import Hello, Unclean, WorkerWord, decode_word
from holdfast.engines.worker_handle import AttemptEnd, WorkerHandle
from holdfast.engines.worker_links import WorkerLinks
from holdfast.trainable.worker_messages import Decision, SaveRequest, Setup, frame

_SAVE_SOON = frame(SaveRequest())

_log = logging.getLogger(__name__)


class WorkerEngine:
    """What engines of worker processes have in common (``engines.base.Engine``)."""

    def __init__(self) -> None:
        self._links: WorkerLinks | None = None
        self._setup: Setup | None = None
        self._attempts: dict[tuple[int, int], WorkerHandle] = {}
        self._idle: list[WorkerHandle] = []
        self._launched: dict[int, int] = {}  # n -> its newest attempt
        self._ready: list[Observation] = []

    # --- the protocol

    def reply(self, n: int, attempt: int, decision: Decision) -> None:
        """One send; what the socket does not take at once is sent by ``poll``."""
        worker = self._attempts.get((n, attempt))
        if worker is not None and self._links is not None:
            self._links.send(worker, frame(decision))

    def save_soon(self, n: int, attempt: int) -> None:
        """See ``reply``."""
        worker = self._attempts.get((n, attempt))
        if worker is not None and self._links is not None:
            worker.run = None
            self._links.send(worker, _SAVE_SOON)

    def halt(self, n: int, attempt: int, grace_s: float) -> None:
        """End the attempt. A worker that unwinds within ``grace_s`` stays warm; one that needs a signal does not."""
        worker = self._attempts.get((n, attempt))
        if worker is None or self._links is None:
            self._give_up_waiting(n, attempt)
        elif worker.held is not None:
            return
        elif grace_s > 0:
            self._links.arm(worker, grace_s, self._links.terminate)
        else:
            self._links.kill(worker)

    def poll(self, timeout_s: float) -> Sequence[Observation]:
        """What happened, in the order in which it did for each worker."""
        if self._links is None:
            return []
        self._links.turn(0.0 if self._ready else timeout_s)
        ready, self._ready = self._ready, []
        return ready

    def is_waiting(self, n: int, attempt: int) -> bool:
        """See ``engines.base.MakesAttemptsWait``."""
        return (n, attempt) not in self._attempts

    def output_files(self) -> dict[tuple[int, int], list[tuple[str, int]]]:
        """Files that attempts print to, by (n, attempt), and where the output of each begins. From any thread."""
        return {key: worker.output_files() for key, worker in list(self._attempts.items())}

    def wake(self) -> None:
        """Make ``poll`` return soon; does nothing once closed."""
        links = self._links
        if links is not None:
            links.wake()

    # --- what workers say

    def hear(self, worker: WorkerHandle, payloads: list[bytes]) -> None:
        """Part of ``PoolListener``."""
        for payload in payloads:
            message: WorkerWord = decode_word(payload)
            if type(message) is Report and worker.held is None:
                worker.run = None
                self._ready.append(message)
            else:
                self._hear_other(worker, message)

    def _hear_other(self, worker: WorkerHandle, message: WorkerWord) -> None:
        if isinstance(message, Returned | Stopped | Raised):
            self._attempt_ended(worker, message)
        elif isinstance(message, Hello):
            self._joined(message)
        elif isinstance(message, Unclean):
            worker.run = None
            worker.unclean = message.what
            _log.debug("Worker %d is replaced: its trial left %s", worker.number, message.what)
        elif worker.held is None:
            worker.run = None
            self._ready.append(message)

    def _attempt_ended(self, worker: WorkerHandle, message: AttemptEnd) -> None:
        if worker.held is not None or worker.key != (message.n, message.attempt):
            return  # an attempt ends once
        worker.trials += 1
        if worker.cut or self._links is None:
            worker.held = message
        elif self._must_retire(worker, message):
            worker.held = message
            self._links.retire(worker)
        else:
            self._links.disarm(worker)
            self._ready.append(message)
            self._release(worker)
            self._idle.append(worker)
            self._launch_waiting()

    def _must_retire(self, worker: WorkerHandle, message: AttemptEnd) -> bool:
        assert self._setup is not None
        return isinstance(message, Raised) or bool(worker.unclean) or worker.halted or self._setup.own_processes

    # --- for subclasses

    def _joined(self, hello: Hello) -> None:
        """A worker has said its first word."""
        raise NotImplementedError

    def _release(self, worker: WorkerHandle) -> None:
        """The worker's attempt has ended, and what it occupied is free."""
        raise NotImplementedError

    def _launch_waiting(self) -> None:
        """Something has become free."""
        raise NotImplementedError

    def _give_up_waiting(self, n: int, attempt: int) -> None:
        """End an attempt that has no worker yet, if there is such a one."""
        raise NotImplementedError
