"""The surviving rows of single trials, each folded from its own records alone.

Owns what one trial's fold needs of the others: the counters in checkpoints that it continued from, and the workers that
its reports name. Must never keep rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import CheckpointRecord, State, Trial, WorkerFacts, new_trial
from holdfast.core.transitions import apply
from holdfast.errors import IllegalTransitionError
from holdfast.journal.trial_index import TrialIndex
from holdfast.views.results import ResultBuilder, RowFolder

_EMPTY = new_trial(ev.TrialCreated(0.0, 0, "", {}, ""))


class PartialState:
    """A state in which only some trials are folded; an empty one stands for each of the others.

    Args:
        index: Where the records are.
        retention: The user's rule, which is part of the fold.
        trials: What stands for all trials; a list that can be used again, because making it costs a scan.
    """

    def __init__(self, index: TrialIndex, retention: Retention, trials: list[Trial] | None = None) -> None:
        self.state = State()
        self.state.trials = [_EMPTY] * len(index) if trials is None else trials
        self._index = index
        self._retention = retention
        self._known: set[int] = set()

    def prepare(self, seq: int, event: ev.AnyEvent) -> None:
        """Enter the trial or the worker that an event is about. Whoever looks at the state before the event looks now.

        Raises:
            IllegalTransitionError: The event is about a trial that does not exist.
        """
        if type(event) is ev.Reported:  # most are; one for a trial that does not run is refused by ``apply``
            if self.state.trials[event.n].worker != event.worker:
                self._join(event.worker, seq)
        elif isinstance(event, ev.TrialCreated):
            self._create(event)
        elif not self._known.issuperset(_trials_in(event)):
            raise IllegalTransitionError(f"{type(event).__name__} is about a trial that does not exist")

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold an event that was prepared."""
        if not isinstance(event, ev.TrialCreated):
            apply(self.state, event, self._retention)

    def put(self, trial: Trial) -> None:
        """Enter a trial that was folded before."""
        self.state.trials[trial.n] = trial
        self._known.add(trial.n)

    def clear(self) -> None:
        """Take out what was entered, for the next user of the list."""
        for n in self._known:
            self.state.trials[n] = _EMPTY

    def _join(self, worker: int, seq: int) -> None:
        joined = self._index.worker(worker, seq)
        if joined is not None:
            self.state.workers[worker] = WorkerFacts(joined.host, joined.ip, joined.pid)

    def _create(self, event: ev.TrialCreated) -> None:
        if event.n in self._known or event.n >= len(self.state.trials):
            raise IllegalTransitionError(f"trial {event.id} was created as number {event.n}, which cannot be")
        trial = new_trial(event)
        self.put(trial)
        self.state.counts[trial.status] += 1
        self.state.pending.append(trial.n)


def _trials_in(event: ev.AnyEvent) -> Iterable[int]:
    if isinstance(event, ev.TrialStarted):
        return (event.n,) if event.source is None else (event.n, event.source[0])
    if isinstance(event, ev.TrialReconfigured) and event.donor is not None:
        return (event.n, event.donor[0], event.parent) if event.parent >= 0 else (event.n, event.donor[0])
    n: int | None = getattr(event, "n", None)
    return () if n is None else (n,)


class TrialRows:
    """Folds one trial at a time.

    Args:
        index: Where the records are.
        builder: Makes the rows.
        retention: The user's rule.
    """

    def __init__(self, index: TrialIndex, builder: ResultBuilder, retention: Retention) -> None:
        self._index = index
        self._builder = builder
        self._retention = retention
        self._trials = [_EMPTY] * len(index)
        self._donors: dict[int, Trial] = {}  # with all checkpoints that others continued from

    def partial_state(self) -> PartialState:
        """A state for another fold; whoever takes it clears it, before the next fold begins."""
        return PartialState(self._index, self._retention, self._trials)

    def advanced(self) -> None:
        """The index has taken in more: other trials, and other checkpoints to continue from."""
        self._trials += [_EMPTY] * (len(self._index) - len(self._trials))
        self._donors.clear()

    def fold(self, n: int) -> RowFolder:
        """The surviving rows of trial ``n`` and where it continued as a copy.

        Raises:
            JournalDamagedError: A record cannot follow those before it.
        """
        others = self._index.donors.get(n, set())
        if not others <= self._donors.keys():
            self._learn(self._index.kin(n))
        folder = RowFolder(self._builder)
        part = PartialState(self._index, self._retention, self._trials)
        for other in others & self._donors.keys():
            part.put(self._donors[other])
        self._fold(part, [n], folder)
        return folder

    def _learn(self, kin: set[int]) -> None:
        """Fold trials that continued from each other together, and keep the checkpoints that they continued from."""
        part = PartialState(self._index, self._retention, self._trials)
        donors = {other for n in kin for other in self._index.donors.get(n, ())}
        kept: dict[int, tuple[Trial, list[CheckpointRecord]]] = {}

        def keep(event: ev.AnyEvent) -> None:
            if isinstance(event, ev.TrialCreated) and event.n in donors:
                kept[event.n] = (part.state.trials[event.n], [])
            elif isinstance(event, ev.CheckpointStaged) and event.n in donors:
                trial, records = kept[event.n]
                records.append(trial.checkpoints[-1])

        self._fold(part, kin, after=keep)
        for n, (trial, records) in kept.items():
            trial.checkpoints = records
            self._donors[n] = trial

    def _fold(
        self,
        part: PartialState,
        numbers: Iterable[int],
        folder: RowFolder | None = None,
        after: Callable[[ev.AnyEvent], None] | None = None,
    ) -> None:
        events = self._index.events(numbers)
        try:
            with events.folding():
                for event in events:
                    part.prepare(events.seq, event)
                    if folder is not None:
                        folder.feed(part.state, event)
                    part.apply(event)
                    if after is not None:
                        after(event)
        finally:
            part.clear()
