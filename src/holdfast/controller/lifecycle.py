"""The life of a driver, step by step: the real driver and the simulated one follow the same lists.

The order is the safety argument, so each step says what it relies on. Owns the order, and the steps that are the same
wherever an experiment lives and whatever runs its trials. Must never know what an edge is made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from holdfast.controller.loop import Controller
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.observations import Report
from holdfast.core.state import State
from holdfast.journal.log import Journal
from holdfast.trainable.spool_writer import SpoolOwner


class LifeStep(NamedTuple):
    """One step of a driver's life.

    Attributes:
        name: The method of `DriverLife` that takes it.
        relies_on: What earlier steps have made sure of.
    """

    name: str
    relies_on: str


OPENING = (
    LifeStep("claim", "nothing: a driver that is refused has changed nothing"),
    LifeStep(
        "open_journal", "the claim: its holder alone may append, and seals what a killed writer left half written"
    ),
    LifeStep("fold_journal", "the sealed journal: what is read now is what will be continued"),
    LifeStep("compare_storage", "the folded state: checkpoints that it does not know prove that records were lost"),
    LifeStep("make_edges", "the compared state; edges ask the journal what is durable. Nothing runs or is written yet"),
    LifeStep(
        "record_epoch", "the edges, and nothing done by them: a driver that was taken over meanwhile is fenced here"
    ),
    LifeStep("sweep_stages", "the record of the epoch: what a dead driver's trials were writing has no owner any more"),
    LifeStep("announce_resume", "the record of the epoch: how the former driver ended was read before it"),
)
"""From nothing to a driver that owns the experiment. Whatever raises here has started no trial."""

STARTING = (
    LifeStep("start_hooks", "the state as it was opened: result files are repaired before anything is added to them"),
    LifeStep(
        "open_engine", "a flush that was not refused: opening ends the workers of the driver before, not a successor's"
    ),
    LifeStep("read_spools", "the open engine: whoever could still add to a spool has ended"),
)
"""Before the first turn of the loop."""

LEAVING = (
    LifeStep("close_engine", "the end of the loop: no command is left to carry out"),
    LifeStep("read_spools", "the closed engine: no worker can report any more"),
    LifeStep(
        "record_end", "the spools: every report that returned is in the journal before the record that ends the epoch"
    ),
    LifeStep("make_durable", "the last record: nothing follows it, so what is durable now is everything (I9)"),
    LifeStep("sweep_leftovers", "durable ends of all attempts: nobody will ask for what they were writing"),
    LifeStep("take_last_snapshot", "the last record: the next driver need not read what the snapshot has"),
)
"""From the last turn to a driver that may claim something. The claim is released after these, whatever happens."""


class Spools(Protocol):
    """Where attempts leave what they have reported ahead."""

    def owners(self) -> list[SpoolOwner]:
        """Those that have left something."""

    def read(self, owner: SpoolOwner, after: int) -> list[Report]:
        """What one has reported after the report of this number."""

    def forget(self, owners: Iterable[SpoolOwner]) -> None:
        """What they have left is not needed any more."""


class DriverLife(ABC):
    """One driver of one experiment.

    Attributes:
        controller: From ``make_edges`` on.
        journal: The local journal, from ``open_journal`` on.
        spools: Where attempts leave reports that run ahead.
        stop: The user's stop rule.
    """

    controller: Controller
    journal: Journal
    spools: Spools
    stop: UserStopRule

    def take(self, steps: Iterable[LifeStep]) -> None:
        """Take steps, one after the other."""
        for step in steps:
            getattr(self, step.name)()

    # --- opening

    @abstractmethod
    def claim(self) -> None:
        """Become the one writer."""

    @abstractmethod
    def open_journal(self) -> None:
        """Open the local journal for writing."""

    @abstractmethod
    def fold_journal(self) -> None:
        """Read what happened so far; scheduler, searcher and stop rule hear of it."""

    @abstractmethod
    def compare_storage(self) -> None:
        """Refuse to continue what has lost records."""

    @abstractmethod
    def make_edges(self) -> None:
        """Make everything that the loop needs, and the loop."""

    def record_epoch(self) -> None:
        """Write the first records: who writes from now on, and with what."""
        state = self.controller.state
        self._is_resume = bool(state.trials)
        self._former_end = state.stopped or "the driver that ran it was lost"
        self._inherited = set(state.running)  # a driver that we took over from may still have workers at these
        self.controller.record(*self.first_records())
        self.epoch_recorded()

    @abstractmethod
    def first_records(self) -> list[ev.AnyEvent]:
        """What is recorded before anything else."""

    @abstractmethod
    def epoch_recorded(self) -> None:
        """The experiment is this driver's: do what depends on that."""

    def sweep_stages(self) -> None:
        """Remove what attempts had begun to stage when they were killed."""
        state = self.controller.state
        self.sweep({*self.controller.memory.changed, *(trial.n for trial in state.unfinished())})

    def announce_resume(self) -> None:
        """Tell the core what becomes of the trials of earlier runs, before it hears anything else."""
        if self._is_resume:
            state = self.controller.state
            now = self.controller.edges.clock.now()
            spent = self.stop.why_stop_all(state.lived(now)) if state.stopping or state.reopened else ""
            self.controller.tell(self.resumed(self._former_end, spent))

    @abstractmethod
    def resumed(self, former: str, spent: str) -> ob.Resumed:
        """What becomes of the trials.

        Args:
            former: How the driver before ended.
            spent: Why the experiment stays stopped; "" if it is continued.
        """

    # --- starting

    @abstractmethod
    def start_hooks(self) -> None:
        """Let callbacks begin, and repair result files."""

    @abstractmethod
    def open_engine(self) -> None:
        """Make it possible to start trials."""

    def read_spools(self) -> None:
        """Journal what trials had reported ahead of a driver that did not read it."""
        hear_spools(self.controller, self.journal, self.spools)

    # --- leaving

    def close_engine(self) -> None:
        """End every worker."""
        self.controller.edges.engine.close()

    def record_end(self) -> None:
        """Write the last records."""
        state, now = self.controller.state, self.controller.edges.clock.now()
        self._interrupted = list(state.running)
        ends = [
            ev.AttemptInterrupted(now, n, state.trials[n].attempt, ev.Cause.DRIVER_STOPPED) for n in self._interrupted
        ]
        why = self.controller.memory.draining or "finished"
        self.controller.record(*ends, ev.DriverStopped(now, why, self.needed_change()))

    def needed_change(self) -> str:
        """The setting without which the next driver would end with the same error; "" if there is none."""
        return ""

    @abstractmethod
    def make_durable(self) -> None:
        """Wait until everything that was written survives what it must; raise if it does not."""

    def sweep_leftovers(self) -> None:
        """Remove what interrupted attempts had begun to stage."""
        self.sweep({*self.controller.memory.untidy, *self._inherited, *self._interrupted})

    @abstractmethod
    def take_last_snapshot(self) -> None:
        """Let the next driver open quickly."""

    @abstractmethod
    def sweep(self, trials: set[int]) -> None:
        """Remove half-made stages of these trials that nobody needs."""


def hear_spools(controller: Controller, journal: Journal, spools: Spools) -> None:
    """Journal what is in the spools and not yet there, and forget them when it is durable.

    Whoever could still add to them must have ended, and nothing that a later driver may need is touched.
    """
    state = controller.state
    owners = [owner for owner in spools.owners() if owner.epoch <= state.epoch]  # later ones are a successor's
    if not owners:
        return
    journal.flush()  # raises if somebody has taken over, who may not have read them yet
    needed = [owner for owner in owners if owner.epoch == state.epoch or _is_running(state, owner)]
    # At once, before there is an attempt of the same number: the journal does not know theirs, or knows its end.
    spools.forget(set(owners).difference(needed))
    for owner in needed:
        if _is_running(state, owner):
            controller.turn(spools.read(owner, state.trials[owner.n].ordinal))
    if needed and journal.sync():
        journal.flush()
        spools.forget(needed)


def _is_running(state: State, owner: SpoolOwner) -> bool:
    return owner.n in state.running and state.trials[owner.n].attempt == owner.attempt
