"""Strands: what the background threads of a simulated process do, one slice at a time.

The code of the store floor blocks in requests, so it runs in a real thread; but that thread moves only while the story
waits for it. A request hands control back, and the strand continues when the story says that the answer has come. If
its process is killed meanwhile, it never does: no handler runs, as after ``kill -9``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.testing.virtual_clock import Timeline
from simulator.disk import Killed
from simulator.process import DriverProcess

_local = threading.local()


class Strand:
    """One piece of background work of a process.

    Args:
        process: Whose.
        timeline: The story's time.
        action: What it does, for the story.
        work: The code.
    """

    def __init__(self, process: DriverProcess, timeline: Timeline, action: str, work: Callable[[], None]) -> None:
        self._process = process
        self._timeline = timeline
        self._action = action
        self._work = work
        self._turn = _closed_gate()
        self._back = _closed_gate()
        self._error: BaseException | None = None
        self._story_is_over = False
        self.done = False

    def begin(self) -> None:
        """Run its first slice; returns when it waits or has ended."""
        runner = _idle.pop() if _idle else _Runner()
        runner.take(self)
        self._await()

    def wait(self, seconds: float) -> None:
        """From within: let time pass. Returns if the process still lives then."""
        self._timeline.later(seconds, lambda: self._process.in_background(self._action, self._resume))
        self.park()

    def park(self) -> None:
        """From within: nothing of this strand happens until somebody resumes it, perhaps never."""
        if not self._story_is_over:
            self._back.release()
            self._turn.acquire()
        if self._story_is_over:
            raise Killed

    def end(self) -> None:
        """The story is over: let the thread end, whatever it was at."""
        if not self.done:
            self._story_is_over = True
            self._turn.release()
            self._back.acquire()

    def _resume(self) -> None:
        self._turn.release()
        self._await()

    def _await(self) -> None:
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def run(self, ended: Callable[[], None]) -> None:
        """In a thread: do all of it, with pauses. ``ended`` is called before the last hand-over."""
        _local.strand = self
        try:
            self._work()
        except BaseException as error:
            self._error = None if self._story_is_over else error
        self.done = True
        ended()
        self._back.release()


class _Runner:
    """A thread for one strand after the other: starting one for each would take most of a story's time."""

    def __init__(self) -> None:
        self._next: Strand | None = None
        self._gate = _closed_gate()
        threading.Thread(target=self._loop, daemon=True).start()

    def take(self, strand: Strand) -> None:
        self._next = strand
        self._gate.release()

    def _loop(self) -> None:
        while True:
            self._gate.acquire()
            strand, self._next = self._next, None
            assert strand is not None
            strand.run(lambda: _idle.append(self))


_idle: list[_Runner] = []


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def current_strand() -> Strand | None:
    """The strand that this code runs in; None if it is a driver's main thread."""
    return getattr(_local, "strand", None)
