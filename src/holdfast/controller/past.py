"""The experiment's past, read from the journal when somebody asks: surviving rows, and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.callbacks.rows import ResultBuilder, RowFolder
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.journal.reader import Position, read_journal


class Past:
    """Reads the journal once from its start, and later only what was added since: asking often is cheap."""

    def __init__(self, root: Path, retention: Retention, results: ResultBuilder) -> None:
        self._root = root
        self._retention = retention
        self._state = State()
        self._folder = RowFolder(results)
        self._failures: dict[int, list[tuple[float, ev.ErrorFacts]]] = {}
        self._position: Position | None = None

    def rows(self, n: int) -> list[dict[str, Any]]:
        """The surviving rows of trial ``n``, as of now."""
        self._catch_up()
        return self._folder.rows.get(n, [])

    def failures(self, n: int) -> list[tuple[float, ev.ErrorFacts]]:
        """When and how trial ``n`` failed, each time."""
        self._catch_up()
        return self._failures.get(n, [])

    def _catch_up(self) -> None:
        contents = read_journal(self._root, after=self._position)
        for _, payload in contents:
            event = ev.decode(payload)
            self._folder.feed(self._state, event)
            apply(self._state, event, self._retention)
            if isinstance(event, ev.AttemptFailed | ev.TrialErrored):
                self._failures.setdefault(event.n, []).append((event.at, event.error))
        self._position = contents.position
