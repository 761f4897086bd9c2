"""An engine whose workers are generators on a simulated clock.

Messages of one attempt arrive in the order in which they were sent; a copy of one (a repetition by a transport that is
not sure) may arrive at any later time, also after the attempt's end and after the next one's start. A reply may get
lost: then the worker sends its report again. Death loses what has not arrived.

Owns processes. Must never decide about a trial, or when something goes wrong: its ``EngineHost`` is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, Union

from holdfast.core.events import Cause
from holdfast.core.observations import (
    Capacity,
    Died,
    Joined,
    Observation,
    Raised,
    Report,
    Returned,
    SealedStage,
    Stopped,
    WorkerMessage,
)
from holdfast.testing.virtual_clock import Timeline
from holdfast.trainable.worker_messages import Decision, Run, Setup

LATENCY_S = 0.001
APART_S = 1e-9  # so that rounding does not let a message overtake another
RESEND_S = 5.0


class Sleep(NamedTuple):
    """The program works for a while."""

    seconds: float


class Ask(NamedTuple):
    """The program reports; it is sent the ``Decision``."""

    metrics: dict[str, Any]
    dt: float = 0.0
    sealed: SealedStage | None = None


class Ahead(NamedTuple):
    """The program reports what it keeps itself, and continues."""

    metrics: dict[str, Any]
    dt: float


class Tell(NamedTuple):
    """The program sends a message and continues."""

    message: WorkerMessage


class Die(NamedTuple):
    """The process ends here, without a word."""

    cause: str
    detail: str


class Hang(NamedTuple):
    """Nothing more happens."""


SchedulerRequest = Union[Sleep, Ask, Ahead, Tell, Die, Hang]
Program = Generator[SchedulerRequest, Any, Union[Returned, Stopped, Raised]]


class EngineHost(Protocol):
    """The driver process of an engine, and the network between it and its workers."""

    def program(self, process: FakeProcess) -> Program:
        """What an attempt does."""

    def step(self, action: str) -> None:
        """The driver is about to do something; it may die here."""

    def uplink(self, message: WorkerMessage) -> tuple[float, list[float]]:
        """Extra delay of a message, and those of its copies."""

    def reply_is_lost(self) -> bool:
        """Does this reply never arrive?"""

    def lost_at_death(self, in_flight: int) -> int:
        """How many of a dead worker's last messages never arrive."""

    def polled(self, observations: Sequence[Observation]) -> None:
        """The driver is given these."""

    def launched(self, process: FakeProcess) -> None:
        """An attempt was launched."""

    def answered(self, process: FakeProcess, decision: Decision) -> None:
        """The driver has answered an attempt."""

    def heard(self, process: FakeProcess, decision: Decision) -> None:
        """The attempt has received the answer to its last report."""

    def keeps(self, process: FakeProcess, report: Report) -> None:
        """The attempt keeps a report that it sends ahead."""

    def arrived_ahead(self, process: FakeProcess) -> None:
        """The attempt has heard that all it has sent ahead has arrived."""

    def ended(self, process: FakeProcess, how: str) -> None:
        """A process is gone, or has said that its attempt is over."""


class FakeProcess:
    """One attempt.

    Attributes:
        run: What it was launched with.
        worker: Number of the worker it runs in.
        alive: It can still do something.
        halting: The driver wants it to end.
        save_soon: The driver said that it will end soon; the program clears this.
        asking: The report whose answer it waits for.
        ahead: How many reports may be unanswered.
        answered: The last report that it has heard an answer to.
        told: An answer to one that it did not wait for, if that says anything but "continue".
        kept: What it has sent ahead.
    """

    def __init__(self, run: Run, worker: int) -> None:
        self.run = run
        self.worker = worker
        self.alive = True
        self.halting = False
        self.save_soon = False
        self.asking: Report | None = None
        self.ordinal = 0
        self.ahead = 0
        self.answered = 0
        self.told: Decision | None = None
        self.kept: list[Report] = []
        self.program: Program | None = None
        self.arrives_at = 0.0
        self.in_flight: list[WorkerMessage] = []
        self.lost: list[WorkerMessage] = []
        self.ended = False

    @property
    def key(self) -> tuple[int, int]:
        return self.run.n, self.run.attempt


class FakeEngine:
    """See ``engines.base.Engine``.

    Args:
        timeline: Whose time passes in ``poll``.
        host: What programs run and what goes wrong.
        cpus: Capacity.
    """

    def __init__(self, timeline: Timeline, host: EngineHost, cpus: float) -> None:
        self._timeline = timeline
        self._host = host
        self._cpus = cpus
        self._inbox: list[Observation] = []
        self._woken = False
        self._closed = False
        self._launched: dict[int, int] = {}
        self._idle: list[int] = []
        self._next_worker = 0
        self.processes: dict[tuple[int, int], FakeProcess] = {}

    # --- the protocol

    def open(self, setup: Setup) -> None:
        self._host.step("engine open")
        self._next_worker = setup.worker
        self._inbox.append(Capacity({"CPU": self._cpus}))

    def launch(self, run: Run) -> None:
        self._host.step("launch")
        if self._closed or run.attempt <= self._launched.get(run.n, -1):
            return
        self._launched[run.n] = run.attempt
        process = FakeProcess(run, self._take_worker())
        self.processes[process.key] = process
        self._host.launched(process)
        process.program = self._host.program(process)
        self._timeline.later(LATENCY_S, lambda: self._go_on(process, None))

    def reply(self, n: int, attempt: int, decision: Decision) -> None:
        self._host.step("reply")
        process = self._live(n, attempt)
        if process is None:
            return
        self._host.answered(process, decision)
        if not self._host.reply_is_lost():
            self._timeline.later(LATENCY_S, lambda: self._hear(process, decision))

    def save_soon(self, n: int, attempt: int) -> None:
        self._host.step("save_soon")
        process = self._live(n, attempt)
        if process is not None:
            process.save_soon = True

    def halt(self, n: int, attempt: int, grace_s: float) -> None:
        self._host.step("halt")
        process = self._live(n, attempt)
        if process is None:
            return
        process.halting = True
        self._timeline.later(max(LATENCY_S, grace_s), lambda: self._halted(process))

    def poll(self, timeout_s: float) -> Sequence[Observation]:
        self._timeline.pass_time(timeout_s, self._is_awake)
        self._woken = False
        self._host.step("poll")
        inbox, self._inbox = self._inbox, []
        self._host.polled(inbox)
        return inbox

    def wake(self) -> None:
        self._woken = True

    def close(self, grace_s: float = 0.0) -> None:
        self._closed = True
        self._inbox.clear()
        for process in self.processes.values():
            self._vanish(process)

    def abandon(self, delays: Callable[[], float]) -> None:
        """The driver is dead: nobody listens any more, and each process is gone after its delay."""
        self._closed = True
        self._inbox.clear()
        for process in self.processes.values():
            if process.alive:
                self._timeline.later(delays(), lambda process=process: self._vanish(process))  # type: ignore[misc]

    def lose_processes(self) -> None:
        """Somebody else has killed all processes; whoever listens here hears of it."""
        for process in list(self.processes.values()):
            if process.alive:
                self._die(process, Cause.SIGNAL, "killed by SIGKILL from outside")

    def newest(self, n: int) -> int:
        """The newest attempt of a trial that was launched here."""
        return self._launched.get(n, -1)

    # --- processes

    def _is_awake(self) -> bool:
        return bool(self._inbox) or self._woken

    def _live(self, n: int, attempt: int) -> FakeProcess | None:
        process = self.processes.get((n, attempt))
        return process if process is not None and process.alive else None

    def _take_worker(self) -> int:
        if self._idle:
            return self._idle.pop()
        worker = self._next_worker
        self._next_worker += 1
        self._timeline.later(0.0, lambda: self._arrived(Joined(worker, "host", "10.0.0.1", 100 + worker)))
        return worker

    def _go_on(self, process: FakeProcess, value: Any) -> None:
        """Run the program until it has to wait."""
        while process.alive and process.program is not None:
            try:
                wanted = process.program.send(value)
            except StopIteration as end:
                self._say_end(process, end.value)
                return
            value = None
            match wanted:
                case Tell(message):
                    self._send(process, message)
                case Sleep(seconds):
                    self._timeline.later(seconds, lambda: self._go_on(process, None))
                    return
                case Ask(metrics, dt, sealed):
                    process.ordinal += 1
                    who = (*process.key, process.worker)
                    process.asking = Report(*who, process.ordinal, dt, metrics, sealed)
                    self._ask(process, process.asking)
                    if process.told is not None:
                        self._hear(process, process.told)
                    return
                case Ahead(metrics, dt):
                    process.ordinal += 1
                    report = Report(*process.key, process.worker, process.ordinal, dt, metrics)
                    process.kept.append(report)
                    self._host.keeps(process, report)
                    self._send(process, report)
                case Die(cause, detail):
                    self._die(process, cause, detail)
                    return
                case Hang():
                    return

    def _ask(self, process: FakeProcess, report: Report) -> None:
        if process.alive and process.asking is report:
            self._send(process, report)
            self._timeline.later(RESEND_S, lambda: self._ask(process, report))

    def _hear(self, process: FakeProcess, decision: Decision) -> None:
        if not process.alive:
            return
        asked = process.asking
        process.ahead = decision.ahead
        process.answered = max(process.answered, decision.ordinal)
        if process.answered >= process.ordinal:
            self._host.arrived_ahead(process)
        if asked is None:
            process.told = decision if decision.go != "go" else process.told
            return
        if decision.ordinal != asked.ordinal and decision.go == "go":
            return
        process.asking = None
        if decision.ordinal == asked.ordinal:
            self._host.heard(process, decision)
        self._go_on(process, decision)

    def _say_end(self, process: FakeProcess, end: Returned | Stopped | Raised) -> None:
        process.ended = True
        self._host.ended(process, type(end).__name__)
        self._send(process, end)
        process.alive = False
        self._idle.append(process.worker)

    def _halted(self, process: FakeProcess) -> None:
        if process.alive:
            self._die(process, Cause.SIGNAL, "ended at the driver's request")

    def _die(self, process: FakeProcess, cause: str, detail: str) -> None:
        self._host.ended(process, "halted" if process.halting else cause)
        self._vanish(process)
        lost = self._host.lost_at_death(len(_unsafe(process)))
        if lost:
            process.lost = process.in_flight[-lost:]
        end = Died(*process.key, cause, detail, worker=process.worker)
        delay = max(process.arrives_at - self._timeline.now, 0.0) + LATENCY_S
        self._timeline.later(delay, lambda: self._deliver_death(process, end))

    def _vanish(self, process: FakeProcess) -> None:
        if process.alive:
            process.alive = False
            if process.program is not None:
                process.program.close()

    # --- messages

    def _send(self, process: FakeProcess, message: WorkerMessage) -> None:
        now = self._timeline.now
        extra, copies = self._host.uplink(message)
        process.arrives_at = max(process.arrives_at + APART_S, now + LATENCY_S + extra)
        process.in_flight.append(message)
        delay = process.arrives_at - now
        self._timeline.later(delay, lambda: self._deliver(process, message))
        for more in copies:
            self._timeline.later(delay + more, lambda: self._deliver_copy(process, message))

    def _deliver(self, process: FakeProcess, message: WorkerMessage) -> None:
        process.in_flight.remove(message)
        if not any(message is lost for lost in process.lost):
            self._arrived(message)

    def _deliver_copy(self, process: FakeProcess, message: WorkerMessage) -> None:
        self._arrived(message)

    def _deliver_death(self, process: FakeProcess, end: Died) -> None:
        self._arrived(end)

    def _arrived(self, observation: Observation) -> None:
        if not self._closed:
            self._inbox.append(observation)


def _unsafe(process: FakeProcess) -> list[WorkerMessage]:
    """The last messages of a process, none of which it keeps itself: those may be lost when it dies."""
    messages = process.in_flight
    kept = [place for place, message in enumerate(messages, 1) if any(message is each for each in process.kept)]
    return messages[kept[-1] if kept else 0 :]
