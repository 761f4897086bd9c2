"""What all trials reported, in few bytes: one array per metric over all reports, and which of them survive.

A report is a row of some arrays: its trial, its step, when it was accepted, the trial's row before it, and one number
per metric. A trial that starts again from a checkpoint loses the rows after it (I6): its chain of rows is cut, which
costs what is cut. So a million reports of three metrics are 45 MB, whatever the number of trials.

Numbers only, NaN where a report has none; nested metrics are called ``a/b``; booleans are 0 and 1. At most
`MAX_METRICS` names: ``skipped`` has those that came later. Owns the fold of rows. Must never read a file.

    curves = follower.curves                   # complete once ``follower.load()`` has returned None
    curves.metrics                             # names
    curves.of(n, "loss")                       # (steps, values) of one trial: two arrays
    curves.times(n)                            # when its rows were accepted
    curves.best(n, "loss", "min")              # NaN if it has no number
    curves.table("loss", max_points=200_000)   # CurveTable(trial, step, value, thinned), by trial, then step
    curves.pack("loss", record, max_points=200_000, trials=None)   # bytes as ``packing`` says
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence, Set
from operator import length_hint
from typing import Any, NamedTuple, Protocol

from holdfast.core import events as ev
from holdfast.errors import IllegalTransitionError
from holdfast.results.packing import PackedColumn, pack

MAX_METRICS = 200
MAX_POINTS = 200_000
NAN = float("nan")

_STEP = "training_iteration"
_NOT_METRICS = frozenset({_STEP, "done", "timestamp"})
_INDEX_BITS = 32
_MAX_STEP = 0x7FFFFFFF


class CurveTable(NamedTuple):
    """Points of one metric.

    Attributes:
        trial: Numbers of the trials.
        step: Training iterations.
        value: What was reported.
        thinned: Whether points were left out; the first and the last of a trial stay while its trial does.
    """

    trial: array[int]
    step: array[int]
    value: array[float]
    thinned: bool


class Beside(Protocol):
    """Another fold of the same events."""

    @property
    def awaited(self) -> Set[int]:
        """The trials whose next report it wants to see."""
        ...

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one event."""
        ...


class Curves:
    """The surviving reports of all trials. Feed it with every event, in order.

    Raises:
        IllegalTransitionError: (when fed) An event is about a trial that was never created.
    """

    def __init__(self) -> None:
        self.skipped: set[str] = set()
        self.in_hand = 0
        self._cut_away = 0
        self._row = 0  # the number of the next row
        self._trial = array("I")
        self._step = array("i")
        self._at = array("d")
        self._before = array("i")  # the row of the same trial before it, or -1
        self._dead = bytearray()
        self._values: dict[str, array[float]] = {}
        # Lists, because there are few trials, and a list is read and changed in a third of the time of an array.
        self._head: list[int] = []  # of each trial: its last row, or -1
        self._count: list[int] = []
        self._iteration: list[int] = []
        self._checkpoints: dict[int, int] = {}  # iterations that trials continue from

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order of their appearance."""
        return list(self._values)

    def __len__(self) -> int:
        """How many reports survive."""
        return self._row - self._cut_away

    @property
    def last_at(self) -> float:
        """When the newest report was accepted; 0 before the first."""
        return self._at[self._row - 1] if self._row else 0.0

    # --- folding

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one event."""
        self.fold((event,))

    def fold(self, events: Sequence[ev.AnyEvent], beside: Beside | None = None) -> int:
        """Take events; returns how many. ``beside`` sees each first, but only those reports that it waits for.

        One loop without a call for the usual report, because there are millions of them; what does not depend on the
        order of events is added column by column. Some hundred events at a time are fastest: they stay in the
        processor's cache. If it raises, ``in_hand`` is the place of the event that does not fit, and the rest of the
        curves cannot be used any more.
        """
        reported = ev.Reported
        reports = [event for event in events if type(event) is reported]
        rows = [event.metrics for event in reports]
        values = _by_name(rows)
        has_steps = values is None or _STEP in values
        self._at.fromlist([event.at for event in reports])
        append_step, append_before = self._step.append, self._before.append
        head, counts, iterations = self._head, self._count, self._iteration
        begin = row = self._row
        awaited: Set[int] = frozenset() if beside is None else beside.awaited
        walk = iter(events)
        try:
            for event in walk:
                if type(event) is not reported:
                    self._row = row
                    self._take_other(event, beside)
                    continue
                n = event.n
                if n in awaited:
                    assert beside is not None
                    beside.feed(event)
                step = iterations[n] + 1
                if has_steps:
                    step = _step_in(event.metrics, step)
                iterations[n] = step
                append_step(step)
                append_before(head[n])
                head[n] = row
                counts[n] += 1
                row += 1
        except IndexError:
            self._check(event)
            raise
        finally:
            self.in_hand = len(events) - length_hint(walk) - 1
        self._row = row
        self._trial.fromlist([event.n for event in reports])
        if values is not None:
            self._add_columns(begin, values)
        else:
            self._add_rows(begin, rows)
        self._dead.extend(bytes(row - len(self._dead)))
        return len(events)

    def _take_other(self, event: Any, beside: Beside | None) -> None:
        kind = type(event)
        if getattr(event, "n", -1) >= len(self._head):
            self._check(event)
        if beside is not None:
            beside.feed(event)
        fold = _FOLDS.get(kind)
        if fold is not None:
            fold(self, event)

    def _add_rows(self, begin: int, rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows, begin):
            for name, value in row.items():
                self._put(number, name, value)

    def _add_columns(self, begin: int, values: dict[str, list[Any]]) -> None:
        for name, found in values.items():
            if not self._extend(begin, name, found):
                for number, value in enumerate(found, begin):
                    self._put(number, name, value)

    def _extend(self, begin: int, name: str, values: list[Any]) -> bool:
        """Add values to a column that exists; False, and nothing was done, if they are not just numbers."""
        column = self._values.get(name)
        if column is None or len(column) > begin:
            return False
        column.extend([NAN] * (begin - len(column)))
        try:
            column.fromlist(values)
        except TypeError:
            return False
        return True

    def _put(self, row: int, name: str, value: Any) -> None:
        kind = type(value)
        if kind is dict:
            for key, each in value.items():
                self._put(row, f"{name}/{key}", each)
        elif kind is float or kind is int or kind is bool:
            column = self._values.get(name)
            if column is None:
                column = self._new(name)
            if column is not None and len(column) <= row:  # else it is there: the same name, spelled in two ways
                column.extend([NAN] * (row - len(column)))
                column.append(value)

    def _new(self, name: str) -> array[float] | None:
        if name in _NOT_METRICS:
            return None
        if len(self._values) >= MAX_METRICS:
            self.skipped.add(name)
            return None
        made = self._values[name] = array("d")
        return made

    def _check(self, event: Any) -> None:
        """Refuse a trial that does not exist: a state that was read from a snapshot has not looked at its records."""
        n = getattr(event, "n", -1)
        if n > len(self._head) or (n == len(self._head) and type(event) is not ev.TrialCreated):
            raise IllegalTransitionError(f"{type(event).__name__} is about trial {n}, which does not exist")

    def _created(self, _: ev.TrialCreated) -> None:
        self._head.append(-1)
        self._count.append(0)
        self._iteration.append(0)

    def _started(self, event: ev.TrialStarted) -> None:
        self._cut(event.n, event.rows)
        source = event.source
        found = None if source is None else self._checkpoints.get(source[0] << _INDEX_BITS | source[1])
        self._iteration[event.n] = found or 0

    def _requeued(self, event: ev.TrialRequeued) -> None:
        if event.mode == "restart":
            self._cut(event.n, 0)
            self._iteration[event.n] = 0

    def _cut(self, n: int, rows: int) -> None:
        row, count = self._head[n], self._count[n]
        if count > rows:
            self._dead.extend(bytes(self._row - len(self._dead)))
        while count > rows:
            self._dead[row] = 1
            row = self._before[row]
            count -= 1
            self._cut_away += 1
        self._head[n], self._count[n] = row, count

    def _staged(self, event: ev.CheckpointStaged) -> None:
        self._checkpoints[event.n << _INDEX_BITS | event.index] = self._iteration[event.n]

    def _deleted(self, event: ev.CheckpointsDeleted) -> None:
        for index in event.indexes:
            self._checkpoints.pop(event.n << _INDEX_BITS | index, None)

    # --- one trial

    def _rows_of(self, n: int) -> list[int]:
        """The rows of a trial that survive, the newest first."""
        row = self._head[n] if n < len(self._head) else -1
        found = []
        while row >= 0:
            found.append(row)
            row = self._before[row]
        return found

    def of(self, n: int, metric: str) -> tuple[array[int], array[float]]:
        """The steps and values of one trial; rows without a number are left out."""
        column = self._values.get(metric, ())
        rows = [row for row in reversed(self._rows_of(n)) if row < len(column) and column[row] == column[row]]
        return array("i", [self._step[row] for row in rows]), array("d", [column[row] for row in rows])

    def times(self, n: int) -> array[float]:
        """When the rows of a trial were accepted."""
        return array("d", [self._at[row] for row in reversed(self._rows_of(n))])

    def iteration(self, n: int) -> int:
        """Where a trial stands."""
        return self._iteration[n] if n < len(self._iteration) else 0

    def count(self, n: int) -> int:
        """How many rows of a trial survive."""
        return self._count[n] if n < len(self._count) else 0

    def row_time(self, n: int, rows: int) -> float:
        """When the last of the first ``rows`` rows of a trial was accepted; 0 if there is none."""
        if n >= len(self._head) or not 0 < rows <= self._count[n]:
            return 0.0
        row = self._head[n]
        for _ in range(self._count[n] - rows):
            row = self._before[row]
        return self._at[row]

    def best(self, n: int, metric: str, mode: str) -> float:
        """The best value of one trial; NaN if it has none."""
        values = self.of(n, metric)[1]
        if not values:
            return NAN
        return max(values) if mode == "max" else min(values)

    # --- all trials

    def best_of_all(self, metric: str, mode: str, trials: int) -> array[float]:
        """The best value of each of so many trials; NaN for those that have none."""
        column, dead = self._values.get(metric, ()), self._dead
        sign = -1.0 if mode == "max" else 1.0
        best: dict[int, float] = {}
        for n, value, gone in zip(self._trial, column, dead, strict=False):
            if not gone and value == value:
                cost = sign * value
                if n not in best or cost < best[n]:
                    best[n] = cost
        return array("d", [sign * best[n] if n in best else NAN for n in range(trials)])

    def table(self, metric: str, *, max_points: int = MAX_POINTS, trials: Iterable[int] | None = None) -> CurveTable:
        """The points of one metric, by trial and then step; thinned evenly if there are more than ``max_points``."""
        column = self._values.get(metric, array("d"))
        wanted = list(range(len(self._head)) if trials is None else sorted(set(trials)))
        total = len(column) if trials is None else sum(self._count[n] for n in wanted if n < len(self._count))
        stride = -(-total // max(1, max_points))
        if len(wanted) * 2 > max_points:  # not even two points for each: some trials stand for all
            every = -(-len(wanted) * 2 // max(2, max_points))
            wanted = wanted[::every]
            stride = max(1, -(-(total // every) // max(1, max_points)))
        thinned = False
        points = CurveTable(array("I"), array("i"), array("d"), thinned)
        for n in wanted:
            rows = [row for row in reversed(self._rows_of(n)) if row < len(column) and column[row] == column[row]]
            if stride > 1 and len(rows) > 2:
                thinned = True
                rows = [*rows[:-1:stride], rows[-1]]
            points.trial.extend([n] * len(rows))
            points.step.extend([self._step[row] for row in rows])
            points.value.extend([column[row] for row in rows])
        return points._replace(thinned=thinned or (trials is None and len(wanted) < len(self._head)))

    def pack(
        self,
        metric: str,
        record: int,
        *,
        max_points: int = MAX_POINTS,
        trials: Iterable[int] | None = None,
    ) -> bytes:
        """The same as bytes; the head has ``rows``, ``record`` and ``thinned``."""
        points = self.table(metric, max_points=max_points, trials=trials)
        columns = [
            PackedColumn("trial", array("i", points.trial)),
            PackedColumn("step", points.step),
            PackedColumn("value", points.value),
        ]
        return pack(columns, len(points.step), record=record, thinned=points.thinned)


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]] | None:
    """The values of all rows by name; None if the rows do not all have the same names, as they nearly always do."""
    if not rows:
        return {}
    names = rows[0]
    if set(map(len, rows)) != {len(names)}:
        return None
    try:
        return {name: [row[name] for row in rows] for name in names}
    except KeyError:
        return None


def _step_in(metrics: dict[str, Any], otherwise: int) -> int:
    step = metrics.get(_STEP)
    return step if type(step) is int and -_MAX_STEP <= step <= _MAX_STEP else otherwise


_FOLDS: dict[type, Callable[[Curves, Any], None]] = {
    ev.TrialCreated: Curves._created,
    ev.TrialStarted: Curves._started,
    ev.TrialRequeued: Curves._requeued,
    ev.CheckpointStaged: Curves._staged,
    ev.CheckpointsDeleted: Curves._deleted,
}
