"""The loop: observations in, facts journaled, commands out. The only thread that touches the state.

    observations -> decide -> journal.append -> callbacks -> dispatch    (the last two swapped if no user is told)

Nothing leaves the process before the events that caused it are written (I1); deletions and commits wait until they are
fsynced (I3). An exception that reaches this loop is a bug in holdfast or in a user's callback, stop rule or searcher;
it ends the run with the journal intact.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from holdfast.controller.advice import LARGE_REPORT_BYTES
from holdfast.controller.clock import Clock
from holdfast.controller.hooks import Hooks
from holdfast.controller.storage_lag import StorageLagWatch
from holdfast.controller.watches import Watches
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.plan import drained, finished
from holdfast.core.policies import Policies
from holdfast.core.state import DriverMemory, State
from holdfast.core.turn import Turn
from holdfast.engines.base import Engine
from holdfast.errors import InvalidInputError, MetricMissingError, StorageError
from holdfast.trainable.worker_messages import Decision, Run

logger = logging.getLogger("holdfast")

MAX_REASON = 1000  # characters of an error that are kept as the reason why the driver ended
POLL_S = 0.25  # how long the loop may sleep when nothing happens
JOURNAL_RETRY_S = 0.5


class JournalWriter(Protocol):
    """What the loop needs of a journal (``journal.log.Journal``)."""

    @property
    def blocked(self) -> OSError | None:
        """Why records wait in memory, or None; ``append`` and ``flush`` try again."""

    @property
    def fenced(self) -> bool:
        """Whether a newer driver has taken over; nothing may be written any more."""

    @property
    def written_seq(self) -> int:
        """Last record that survives the death of every process."""

    @property
    def accepted_seq(self) -> int:
        """Last record for which a reply may leave the process."""

    @property
    def local_seq(self) -> int:
        """Last record that survives a power cut of this machine: what it asks for may be begun here."""

    @property
    def synced_seq(self) -> int:
        """Last record that survives what it must: a checkpoint that it tells of may be committed."""

    @property
    def durable_seq(self) -> int:
        """Last record that is where the experiment lives: what it makes obsolete may be deleted."""

    def append(self, payloads: Sequence[bytes]) -> int:
        """Write records and return the number of the last one; what cannot be written waits in memory."""

    def flush(self) -> bool:
        """Try once more to write what waits, and return whether nothing waits any more."""

    def request_sync(self) -> None:
        """Something waits for ``local_seq``."""

    def request_durable(self, seq: int) -> None:
        """Something waits for ``synced_seq`` or ``durable_seq`` to reach this record, which is safe on this machine."""

    def left_behind(self) -> StorageError:
        """The error for a driver that was told to end while its last records wait."""


class JobEdge(Protocol):
    """Carries out Commit, Verify and Delete, and says how they ended. Retries by itself what may still work."""

    def prepare(self, command: cmd.Commit | cmd.Delete) -> None:
        """Begin what needs this machine alone; the command itself follows."""

    def note(self, events: Iterable[ev.AnyEvent]) -> None:
        """See what has become fact."""

    def submit(self, command: cmd.Commit | cmd.Verify | cmd.Delete) -> None: ...

    def drain(self) -> list[ob.Observation]: ...


class ProposerEdge(Protocol):
    """The searcher's edge."""

    def ask(self, count: int) -> None: ...

    def drain(self) -> list[ob.Observation]: ...


class Edges(msgspec.Struct):
    """Everything outside: small, replaceable, holding no truth."""

    engine: Engine
    journal: JournalWriter
    jobs: JobEdge
    proposer: ProposerEdge
    clock: Clock
    run_message: Callable[[int], Run]
    """Trial number -> what its worker needs to run the attempt that the state says it is in."""


Gated = tuple[int, cmd.Commit | cmd.Delete]
"""A command, and the record that must be safe before it is carried out."""


class Controller:
    """Drives one experiment until it is finished or interrupted."""

    def __init__(
        self,
        state: State,
        memory: DriverMemory,
        policies: Policies,
        edges: Edges,
        hooks: Hooks,
        watches: Watches,
    ) -> None:
        self.state = state
        self.memory = memory
        self.policies = policies
        self.edges = edges
        self.hooks = hooks
        self.watches = watches
        self._prepared: deque[Gated] = deque()
        self._commits: deque[Gated] = deque()
        self._deletions: deque[Gated] = deque()
        self._inbox: list[ob.Observation] = []
        self._hurry = False
        self._lag = StorageLagWatch(edges.journal)

    def tell(self, *observations: ob.Observation) -> None:
        """Put observations before those of the edges in the next turn."""
        self._inbox.extend(observations)

    def done(self) -> bool:
        """Is there nothing left that this driver should do?"""
        if self._inbox:
            return False
        if self.memory.draining:
            return drained(self.state, self.memory)
        return finished(self.state, self.memory)

    def step(self, timeout_s: float = POLL_S) -> None:
        """Wait for something to happen, at most ``timeout_s``, and deal with all of it."""
        edges = self.edges
        if edges.journal.fenced:
            edges.journal.flush()  # raises, and says who took over
        if self._inbox or self._hurry:
            timeout_s = 0.0
        self._hurry = False
        arrived = edges.engine.poll(timeout_s)
        self.hooks.see(arrived)
        batch: list[ob.Observation] = [*self._inbox, *arrived]
        self._inbox.clear()
        batch += edges.jobs.drain()
        batch += edges.proposer.drain()
        now = edges.clock.now()
        batch += self.watches.look(self.state, self.memory, now)
        batch += self._lag.look(now)
        self.turn(batch)

    def turn(self, observations: Iterable[ob.Observation]) -> None:
        """One pass: decide, make durable, tell, act."""
        hooks = self.hooks
        hooks.before_turn()
        turn = Turn(self.state, self.memory, self.policies, self.edges.clock.now(), hooks.watch)
        try:
            decide_all(turn, observations)
        finally:
            # Even if a policy raised, what was decided before it did is fact and must reach the journal.
            self._write(turn.events)
        if not hooks.answers_wait:
            self._dispatch(turn.commands)  # trials train on while result files are being told
        hooks.after_turn(turn.events)
        self._inbox += hooks.take_complaints()
        if hooks.answers_wait:
            self._dispatch(turn.commands)
        self.edges.jobs.note(turn.events)
        self._open_gates()

    def record(self, *events: ev.AnyEvent) -> None:
        """Journal facts that no observation led to (the driver's own coming and going)."""
        turn = Turn(self.state, self.memory, self.policies, self.edges.clock.now(), self.hooks.watch)
        for event in events:
            turn.add(event)
        self._write(turn.events)

    def record_failure(self, error: BaseException) -> None:
        """Journal that an error ends the driver, if that can still be written. Waits for nothing, raises nothing.

        The attempts stay running: what they have sent ahead is in their spools, which the next driver reads.
        """
        journal = self.edges.journal
        if self.state.stopped or journal.fenced or journal.blocked is not None:
            return
        turn = Turn(self.state, self.memory, self.policies, self.edges.clock.now(), self.hooks.watch)
        try:
            why = f"{type(error).__name__}: {getattr(error, 'fact', '') or error}".removesuffix(": ")
            turn.add(ev.DriverStopped(turn.at, why[:MAX_REASON], change_of(error)))
            journal.append([ev.encode(event) for event in turn.events])
        except Exception:
            logger.exception("why the driver ends could not be recorded")

    def _write(self, events: list[ev.AnyEvent]) -> None:
        if not events:
            return
        encode = ev.encode
        journal = self.edges.journal
        payloads = [encode(event) for event in events]
        seq = journal.append(payloads)
        if max(map(len, payloads)) > LARGE_REPORT_BYTES:
            for event, payload in zip(events, payloads, strict=True):
                if type(event) is ev.Reported and len(payload) > LARGE_REPORT_BYTES:
                    self.hooks.large(event, len(payload))
        if journal.accepted_seq < seq:
            self._wait_for_space(seq)

    def _wait_for_space(self, seq: int) -> None:
        """The journal cannot be written: nothing may be answered or started until it can (I1)."""
        journal, clock = self.edges.journal, self.edges.clock
        since, blocked = clock.now(), journal.blocked
        self.hooks.trouble(f"the journal cannot be written ({blocked}); waiting for space")
        while not journal.flush() or journal.accepted_seq < seq:
            if self.watches.give_up(clock.now()):
                raise journal.left_behind()
            clock.sleep(JOURNAL_RETRY_S)
        self.hooks.trouble("")
        self._lag.was_blocked(since, clock.now(), blocked)

    def _dispatch(self, commands: list[cmd.Command]) -> None:
        last = len(commands) - 1
        for place, command in enumerate(commands):
            if place < last and type(command) is cmd.Reply and _says_the_same(commands[place + 1], command):
                continue
            if isinstance(command, cmd.GATED):
                gated = (self.edges.journal.written_seq, command)
                self._prepared.append(gated)
                (self._commits if isinstance(command, cmd.Commit) else self._deletions).append(gated)
            else:
                self._carry_out(command)

    def _open_gates(self) -> None:
        if not self._prepared and not self._commits and not self._deletions:
            return
        jobs, journal = self.edges.jobs, self.edges.journal
        _let_through(self._prepared, journal.local_seq, jobs.prepare)
        _let_through(self._commits, journal.synced_seq, jobs.submit)
        _let_through(self._deletions, journal.durable_seq, jobs.submit)
        if self._prepared:
            journal.request_sync()
        else:
            waiting = [gate[-1][0] for gate in (self._commits, self._deletions) if gate]
            if waiting:
                journal.request_durable(max(waiting))

    def _carry_out(self, command: cmd.Command) -> None:
        engine = self.edges.engine
        if type(command) is cmd.Reply:  # by far the most frequent, and a match takes its time
            n, save = command.n, self.hooks.wants_save(command.n) or command.save
            self.watches.heard(n, self.edges.clock.now())
            engine.reply(n, command.attempt, Decision(command.ordinal, command.go, save, command.ahead))
            return
        match command:
            case cmd.Launch(n, _):
                self.watches.heard(n, self.edges.clock.now())
                engine.launch(self.edges.run_message(n))
            case cmd.Halt(n, attempt, grace_s):
                engine.halt(n, attempt, grace_s)
            case cmd.SaveSoon(n, attempt):
                engine.save_soon(n, attempt)
            case cmd.Verify():
                self.edges.jobs.submit(command)
            case cmd.Propose(count):
                self.edges.proposer.ask(count)
                self._hurry = True


def change_of(error: BaseException | None) -> str:
    """The setting without which the next driver would meet this error too, as a restore takes it; "" if unknown."""
    return error.change if isinstance(error, InvalidInputError | MetricMissingError) else ""


def _says_the_same(later: cmd.Command, reply: cmd.Reply) -> bool:
    """Is this the answer to a later report of the same attempt, which holds for the earlier one too?"""
    if type(later) is not cmd.Reply or reply.save:
        return False
    return (later.n, later.attempt, later.go) == (reply.n, reply.attempt, reply.go)


def _let_through(gate: deque[Gated], seq: int, go: Callable[[cmd.Commit | cmd.Delete], None]) -> None:
    while gate and gate[0][0] <= seq:
        go(gate.popleft()[1])
