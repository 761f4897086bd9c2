"""Asking and telling a searcher in the order of the journal.

The desk is a machine without a clock: the same items in the same order give the same answers, in a live driver (where
a thread of its own feeds it) and when an experiment is opened again (where its history does). So a searcher continues
exactly where it was.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Union

import msgspec

from holdfast.core import events as ev
from holdfast.core.state import State, Status, Trial
from holdfast.search.searcher import Searcher

ALL_SUGGESTED = "all samples were suggested"
FINISHED = "the searcher has finished"


class Asked(msgspec.Struct, array_like=True, tag="ask", frozen=True):
    count: int


class Result(msgspec.Struct, array_like=True, tag="result", frozen=True):
    trial_id: str
    result: dict[str, Any]


class Completed(msgspec.Struct, array_like=True, tag="end", frozen=True):
    trial_id: str
    result: dict[str, Any] | None
    error: bool


class Paused(msgspec.Struct, array_like=True, tag="pause", frozen=True):
    trial_id: str


class Unpaused(msgspec.Struct, array_like=True, tag="unpause", frozen=True):
    trial_id: str


Item = Union[Asked, Result, Completed, Paused, Unpaused]


class Suggested(msgspec.Struct, array_like=True, frozen=True):
    """A configuration for trial number ``n``: what the searcher chose, without constants of the space."""

    n: int
    values: dict[str, Any]


class NotNow(msgspec.Struct, frozen=True):
    """It owes an answer until it is told more."""


class Ended(msgspec.Struct, frozen=True):
    reason: str


Answer = Union[Suggested, NotNow, Ended]


class Script:
    """Turns events into what the searcher hears of them.

    Args:
        result_of: The full result of a trial's last row.
        with_results: Also intermediate results.
        budget_of: (trial, result) -> what a scheduler has to say about a result that it has just judged.
    """

    def __init__(
        self,
        result_of: Callable[[State, Trial], dict[str, Any]],
        *,
        with_results: bool,
        budget_of: Callable[[int, Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        self._result_of = result_of
        self._with_results = with_results
        self._budget_of = budget_of

    def item(self, state: State, event: ev.AnyEvent) -> Item | None:
        """``event`` has just been applied to ``state``."""
        kind = type(event)
        if kind is ev.Reported:
            trial = state.trials[event.n]  # type: ignore[union-attr]
            if not self._with_results or trial.again:
                return None
            result = self._result(state, trial) or {}
            if self._budget_of is not None:
                told = self._budget_of(trial.n, result)
                result.update({f"hyperband_info/{key}": value for key, value in told.items()})
            return Result(trial.id, result)
        if kind is ev.SearchAsked:
            return Asked(event.count)  # type: ignore[union-attr]
        if kind is ev.TrialTerminated or (kind is ev.TrialErrored and state.came_from != Status.TERMINATED):
            trial = state.trials[event.n]  # type: ignore[union-attr]
            return Completed(trial.id, self._result(state, trial), kind is ev.TrialErrored)
        if kind is ev.TrialPaused:
            return Paused(state.trials[event.n].id)  # type: ignore[union-attr]
        if kind is ev.TrialResumed:
            return Unpaused(state.trials[event.n].id)  # type: ignore[union-attr]
        return None

    def _result(self, state: State, trial: Trial) -> dict[str, Any] | None:
        if trial.metrics is None:
            return None
        from holdfast.callbacks.rows import flatten_result

        result = self._result_of(state, trial)
        result.pop("config", None)
        return {**flatten_result(result), "config": trial.config}


class DeskState(msgspec.Struct, array_like=True):
    """What a desk remembers."""

    searcher: bytes
    owed: int
    suggested: int
    ended: str
    unclaimed: list[Suggested]


class SearcherDesk:
    """One searcher, and what it still owes.

    Args:
        searcher: It belongs to this desk from now on.
        name: Trial number -> trial id.
        limit: How many trials there may be; None for any number.
    """

    def __init__(self, searcher: Searcher, name: Callable[[int], str], limit: int | None) -> None:
        self.searcher = searcher
        self._name = name
        self._limit = limit
        self._owed = 0
        self._suggested = 0
        self._ended = ""
        self._unclaimed: deque[Suggested] = deque()  # suggestions that are perhaps no trials yet

    def hear(self, item: Item) -> list[Answer]:
        """Tell or ask the searcher; what it answers to that, and to older questions."""
        match item:
            case Asked(count):
                self._owed += count
            case Result(trial_id, result):
                self.searcher.on_trial_result(trial_id, result)
            case Completed(trial_id, last, error):
                self.searcher.on_trial_complete(trial_id, result=last, error=error)
            case Paused(trial_id):
                self.searcher.on_pause(trial_id)
            case Unpaused(trial_id):
                self.searcher.on_unpause(trial_id)
        return self._answers()

    def claim(self, created: int) -> Suggested | None:
        """Trial number ``created`` exists now; what had been suggested for it, if anything."""
        self.forget(created)
        if self._unclaimed:
            return self._unclaimed.popleft()
        # The searcher said "not now" this time. What it said then became a trial, and is history.
        self._owed = max(0, self._owed - 1)
        self._suggested = max(self._suggested, created + 1)
        return None

    def unclaimed(self) -> list[Answer]:
        """What it has answered and nobody knows yet, when it is asked for the first time after a restart."""
        last: list[Answer] = []
        if self._ended:
            last.append(Ended(self._ended))
        elif self._owed:
            last.append(NotNow())
        return [*self._unclaimed, *last]

    def forget(self, created: int) -> None:
        """So many trials exist: what was suggested for them is history."""
        while self._unclaimed and self._unclaimed[0].n < created:
            self._unclaimed.popleft()

    def _answers(self) -> list[Answer]:
        answers: list[Answer] = []
        while self._owed and not self._ended:
            if self._limit is not None and self._suggested >= self._limit:
                answers.append(self._end(ALL_SUGGESTED))
                break
            values = self.searcher.suggest(self._name(self._suggested))
            if values is None:
                answers.append(NotNow())
                break
            if isinstance(values, str):
                answers.append(self._end(FINISHED))
                break
            suggested = Suggested(self._suggested, plain(values))
            self._owed -= 1
            self._suggested += 1
            self._unclaimed.append(suggested)
            answers.append(suggested)
        return answers

    def _end(self, reason: str) -> Ended:
        self._ended = reason
        return Ended(reason)

    def get_state(self, created: int) -> bytes:
        """Everything, for ``set_state`` of a desk that was made in the same way.

        Args:
            created: How many trials there are, so that suggestions which became one are not kept.
        """
        self.forget(created)
        state = DeskState(dump_memory(self.searcher), self._owed, self._suggested, self._ended, list(self._unclaimed))
        return msgspec.msgpack.encode(state)

    def set_state(self, state: bytes, created: int, later: list[Item]) -> None:
        """Remember.

        Args:
            state: From ``get_state``.
            created: How many trials there are by now.
            later: What has happened since ``get_state``.
        """
        record = msgspec.msgpack.decode(state, type=DeskState)
        load_memory(self.searcher, record.searcher)
        self._owed, self._suggested, self._ended = record.owed, record.suggested, record.ended
        self._unclaimed = deque(record.unclaimed)
        for item in later:
            self.hear(item)
        self.forget(created)


def plain(value: Any) -> Any:
    """Numbers of NumPy and the like as Python's, tuples as lists: what a config is made of."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return value.item()
    return value


def dump_memory(searcher: Searcher) -> bytes:
    """All that a searcher remembers, by whichever way it has for that."""
    import cloudpickle

    if type(searcher).get_state is not Searcher.get_state:
        return bytes(cloudpickle.dumps(searcher.get_state()))
    with tempfile.TemporaryDirectory(prefix="holdfast-searcher-") as directory:
        path = os.path.join(directory, "searcher")
        searcher.save(path)
        with open(path, "rb") as file:
            return bytes(cloudpickle.dumps(file.read()))


def load_memory(searcher: Searcher, memory: bytes) -> None:
    """Let a searcher remember what ``dump_memory`` returned."""
    content = pickle.loads(memory)
    if type(searcher).get_state is not Searcher.get_state:
        searcher.set_state(content)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-searcher-") as directory:
        path = os.path.join(directory, "searcher")
        with open(path, "wb") as file:
            file.write(content)
        searcher.restore(path)
