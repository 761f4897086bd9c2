"""A driver as a process of the operating system: it can be killed, suspended and interrupted between any two actions.

Owns whether the process lives, and at which action what happens to it. Must never know what the actions mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.testing.virtual_clock import Timeline
from simulator.chaos import Chaos
from simulator.disk import Killed


class Machine(Protocol):
    """Where processes run."""

    chaos: Chaos
    timeline: Timeline

    def kill(self, process: DriverProcess) -> None:
        """The process is dead from now on."""

    def suspend(self, process: DriverProcess) -> None:
        """The process stands still while others continue; returns when it is woken."""

    def note(self, process: DriverProcess, *facts: object) -> None:
        """Something worth a line in the story."""


class DriverProcess:
    """One driver process: a disk hook, and a place for background threads.

    Attributes:
        number: 1 for the story's first driver.
        dead: It has been killed or has left.
        suspended: It stands still (SIGSTOP).
        interrupt_in: Actions until one Ctrl+C too many raises ``KeyboardInterrupt`` in the loop.
    """

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.dead = False
        self.suspended = False
        self.interrupt_in: int | None = None
        self._kill_at = machine.chaos.kill_at()
        self._suspend_at = machine.chaos.suspend_at()
        self._torn = False
        self._in_background = False
        self._deferred: list[tuple[str, Callable[[], None]]] = []

    def step(self, action: str) -> None:
        """The process is about to do something that others can see, or has just done it."""
        if self.dead:
            raise Killed
        self.machine.note(self, action)
        self._maybe_die(action)
        if not self._in_background:
            self._maybe_stand_still(action)
        error = self.machine.chaos.disk_error(action)
        if error is not None:
            self.machine.note(self, action, "fails:", error)
            raise error

    def arriving(self, size: int) -> tuple[int, BaseException | None]:
        """See ``DiskHook``; a process that is killed in the middle of a write leaves a part of it."""
        if self._torn:
            self.machine.kill(self)
            return self.machine.chaos.rng.integers(0, size + 1), Killed()
        part, error = self.machine.chaos.arriving(size)
        if part < size:
            self.machine.note(self, part, "of", size, "bytes are written:", error)
        return part, error

    def in_background(self, action: str, work: Callable[[], None]) -> None:
        """A thread of this process does something. Signals never reach it; death and suspension do."""
        if self.dead:
            return
        if self.suspended:
            self._deferred.append((action, work))
            return
        before, self._in_background = self._in_background, True
        try:
            self.step(action)
            work()
        except Killed:
            if not self.dead:  # it was somebody else who died
                raise
        finally:
            self._in_background = before

    def wake(self) -> None:
        """Threads continue where they stood, as soon as the process waits for something."""
        self.suspended = False
        deferred, self._deferred = self._deferred, []
        for action, work in deferred:
            self.machine.timeline.later(0.0, partial(self.in_background, action, work))

    def _maybe_die(self, action: str) -> None:
        if self._kill_at is None or not self._kill_at.has_come(action):
            return
        if action == "write" and self.machine.chaos.rng.random() < 0.5:
            self._torn = True
            return
        self.machine.kill(self)
        raise Killed

    def _maybe_stand_still(self, action: str) -> None:
        if self._suspend_at is not None and self._suspend_at.has_come(action):
            self.machine.suspend(self)
            if self.dead:
                raise Killed
        if self.interrupt_in is not None:
            self.interrupt_in -= 1
            if self.interrupt_in < 0:
                self.interrupt_in = None
                self.machine.note(self, "KeyboardInterrupt")
                raise KeyboardInterrupt
