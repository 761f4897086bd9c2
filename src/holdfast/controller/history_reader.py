"""The experiment's history, read from the journal on demand: surviving rows, and failures.

Owns which rows a driver keeps in memory: those of unfinished trials, and of finished ones that were asked for. Never
keeps the rows of all trials, and never writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply, check_known
from holdfast.errors import FencedError
from holdfast.journal.reader import Position
from holdfast.journal.records import read_events
from holdfast.journal.trial_index import TrialIndex
from holdfast.views.results import ResultBuilder, RowFolder
from holdfast.views.trial_rows import TrialRows

Rows = list[dict[str, Any]]
Failures = list[tuple[float, ev.ErrorFacts]]


class HistoryReader:
    """Answers from the journal of an experiment that this process may be writing.

    To repair files of many trials, find out which are behind and ask for these together: ``rows_of`` and
    ``failures_of`` read the journal once and keep nothing. To follow single trials, use ``rows``.
    """

    def __init__(self, root: Path, retention: Retention, results: ResultBuilder) -> None:
        self._root = root
        self._retention = retention
        self._results = results
        self._asked: set[int] = set()
        self._start_anew()

    def rows_of(self, numbers: set[int]) -> dict[int, Rows]:
        """The surviving rows of each of these trials, as of now: one pass over the journal, and nothing is kept."""
        reader = TrialRows(TrialIndex(self._root), self._results, self._retention)
        return {n: reader.fold(n).rows.get(n, []) for n in numbers}

    def failures_of(self, numbers: set[int]) -> dict[int, Failures]:
        """When and how each of these trials failed, each time: one pass over the journal, and nothing is kept."""
        failures: dict[int, Failures] = {n: [] for n in numbers}
        for event in read_events(self._root):
            if isinstance(event, ev.AttemptFailed | ev.TrialErrored) and event.n in numbers:
                failures[event.n].append((event.at, event.error))
        return failures

    def rows(self, n: int) -> Rows:
        """The surviving rows of trial ``n``, as of now.

        The first call reads the whole journal, later ones only what was added. Asking for a finished trial for the
        first time costs the whole journal again, unless it has finished since the last call.
        """
        self._asked.add(n)
        if n in self._dropped:
            self._start_anew()
        try:
            self._catch_up()
        except FencedError:
            # After a failed sync this process itself writes its last records again, into a segment that begins before
            # the place where we stopped.
            self._start_anew()
            self._catch_up()
        return self._folder.rows.get(n, [])

    def failures(self, n: int) -> Failures:
        """When and how trial ``n`` failed, each time. Costs as much as ``failures_of``."""
        return self.failures_of({n})[n]

    def _start_anew(self) -> None:
        self._state = State()
        self._folder = RowFolder(self._results)
        self._dropped: set[int] = set()
        self._position: Position | None = None

    def _catch_up(self) -> None:
        events = read_events(self._root, after=self._position)
        try:
            with events.folding():
                for event in events:
                    self._take(event)
        except BaseException:
            self._start_anew()  # what was taken of this segment would be taken twice
            raise
        self._position = events.contents.position

    def _take(self, event: ev.AnyEvent) -> None:
        check_known(self._state, event)
        self._folder.feed(self._state, event)
        apply(self._state, event, self._retention)
        if isinstance(event, ev.TrialTerminated | ev.TrialErrored):
            if event.n not in self._asked and self._folder.rows.pop(event.n, None) is not None:
                self._dropped.add(event.n)
        elif isinstance(event, ev.TrialRequeued) and event.mode == "restart":
            self._dropped.discard(event.n)  # its rows begin anew
