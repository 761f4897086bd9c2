"""What the driver knows about one worker process.

Owns: the fields. Must never: act; the engine does.
"""

from __future__ import annotations

import os
import socket
from typing import Union

from holdfast.core.observations import Raised, Returned, Stopped
from holdfast.engines.exits import size_of, tail
from holdfast.engines.link import SocketLink
from holdfast.trainable.worker_messages import Run, Setup

AttemptEnd = Union[Returned, Stopped, Raised]


class WorkerHandle:
    """A worker, and the attempt that it runs if ``key`` is set.

    Attributes:
        run: The attempt, kept until the worker has spoken of it or was told more: only then has it surely begun.
        key: (n, attempt) of the attempt.
        gpus: Devices that the process has used, also while it is idle.
        gpu_amount: What the attempt has taken from the pool.
        trials: Attempts it has finished.
        held: The attempt's last message, kept back until the process is gone and its resources are free.
        unclean: What the last attempt left behind.
        halted: The driver had to end it by a signal.
        fault: What made the connection unusable.
        cut: Nothing more is read from it.
    """

    __slots__ = (
        "_outputs",
        "cut",
        "fault",
        "gpu_amount",
        "gpus",
        "halted",
        "held",
        "key",
        "link",
        "log",
        "number",
        "run",
        "trials",
        "unclean",
    )

    def __init__(self, number: int, link: SocketLink, log: str) -> None:
        self.number = number
        self.link = link
        self.log = log
        self.run: Run | None = None
        self.key: tuple[int, int] | None = None
        self.gpus: tuple[str, ...] = ()
        self.gpu_amount = 0.0
        self.trials = 0
        self.held: AttemptEnd | None = None
        self.unclean = ""
        self.halted = False
        self.fault = ""
        self.cut = False
        self._outputs: list[tuple[str, int]] = []

    def begin(self, run: Run, setup: Setup, gpu_amount: float) -> None:
        """Note the attempt, and where its output will begin."""
        self.run = run
        self.key = (run.n, run.attempt)
        self.gpus = run.gpus
        self.gpu_amount = gpu_amount
        self._outputs = [(self.log, 0)]  # it has no more than this attempt's
        if setup.log_to_file is not None:
            out, err = setup.log_to_file
            paths = [os.path.join(setup.root, run.trial_dir, name) for name in dict.fromkeys((err, out))]
            self._outputs[:0] = [(path, size_of(path)) for path in paths]

    def output(self) -> str:
        """The last lines that the attempt has printed."""
        return next(filter(None, (tail(path, offset) for path, offset in self._outputs)), "")

    def output_files(self) -> list[tuple[str, int]]:
        """Files that the attempt prints to, and where its output begins in them; the worker's own is the last."""
        return list(self._outputs)

    def hung_up(self) -> bool:
        """Whether an idle worker has ended and we have not yet been told."""
        try:
            return self.link.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
