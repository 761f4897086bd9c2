"""The seam between the controller and whatever runs attempts.

An engine holds no truth: it starts processes, carries messages, and turns everything that happens to them into
observations. It never raises for an outside failure; it reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.core.observations import Observation
from holdfast.trainable.worker_messages import Decision, Run, Setup


class Engine(Protocol):
    """Runs attempts. All methods are called from the controller's thread unless stated."""

    def open(self, setup: Setup) -> None:
        """Start; ``Capacity`` is among the first observations."""

    def launch(self, run: Run) -> None:
        """Run this attempt. Launching the same (n, attempt) again does nothing."""

    def reply(self, n: int, attempt: int, decision: Decision) -> None:
        """Answer a report. For an attempt that is gone this does nothing."""

    def save_soon(self, n: int, attempt: int) -> None:
        """Tell the attempt that this driver will end soon."""

    def halt(self, n: int, attempt: int, grace_s: float) -> None:
        """End the attempt's whole process tree; ``Died`` or ``Stopped``/``Returned`` follows exactly once."""

    def poll(self, timeout_s: float) -> Sequence[Observation]:
        """Wait until something happened, ``wake`` was called or the time is over."""

    def wake(self) -> None:
        """Make ``poll`` return soon. May be called from any thread and from signal handlers."""

    def close(self, grace_s: float = 0.0) -> None:
        """End everything that was started, including what trials started. Returns when all of it is gone."""


@runtime_checkable
class RunsElsewhere(Protocol):
    """An engine whose workers may be on other machines: what they write is not on this one.

    So nothing that only a worker's disk has is accepted (I1), and a stage is brought here before it is committed.
    """

    def bring(self, trial_dir: str, sealed: str, attempt: int) -> None:
        """Bring a sealed stage to the trial's directory here, if another machine has it. From any thread.

        Raises:
            CheckpointDamagedError: The machine that had it was lost.
            StorageError: Not now.
        """

    def drop(self, trial_dir: str, sealed: str) -> None:
        """A stage is not wanted any more. From any thread."""

    def is_elsewhere(self, trial_dir: str, sealed: str) -> bool:
        """Whether another machine has this stage, and it was neither brought nor dropped. From any thread."""

    def check_request(
        self, request: Mapping[str, float], bundles: Sequence[Mapping[str, float]], strategy: str = "PACK"
    ) -> None:
        """Raise ``InvalidInputError`` if the machines can never give this, all bundles at once. Once it is open."""


@runtime_checkable
class MakesAttemptsWait(Protocol):
    """An engine whose attempts may wait for a worker; a trial cannot report before it has one."""

    def is_waiting(self, n: int, attempt: int) -> bool:
        """Whether an attempt that was launched cannot speak: it waits for room, a worker or files, or has ended."""


@runtime_checkable
class NeedsCluster(Protocol):
    """An engine that depends on a cluster, which it joins first, and which may be lost while the driver lives."""

    def join(self) -> None:
        """Join it, and do nothing else; ``open`` does so as well. Raises ``TuneError``."""

    @property
    def lost(self) -> str:
        """Why nothing can be run any more, as the last ``Interrupted`` has said; "" while something can."""


@runtime_checkable
class PrintsHere(Protocol):
    """An engine whose trials print into files that this machine can read."""

    def output_files(self) -> dict[tuple[int, int], list[tuple[str, int]]]:
        """Files that attempts print to, by (n, attempt), and where the output of each begins. From any thread."""
