"""Asking and telling a searcher in the order of the journal.

It is a machine without a clock: the same items in the same order give the same answers, in a live driver (where a
thread of its own feeds it) and when an experiment is opened again (where its history does). So a searcher continues
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
from holdfast.core.retention import lookup
from holdfast.core.state import State, Status, Trial
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search.searcher import Searcher
from holdfast.space.exact import pack, unpack

ALL_SUGGESTED = "all samples were suggested"
FINISHED = "the searcher has finished"


class Asked(msgspec.Struct, array_like=True, tag="ask", frozen=True):
    count: int


class ResultTold(msgspec.Struct, array_like=True, tag="result", frozen=True):
    trial_id: str
    result: dict[str, Any]
    n: int = -1  # the trial's number; -1: of an older snapshot


class Completed(msgspec.Struct, array_like=True, tag="end", frozen=True):
    trial_id: str
    result: dict[str, Any] | None
    error: bool
    n: int = -1


class Paused(msgspec.Struct, array_like=True, tag="pause", frozen=True):
    trial_id: str
    n: int = -1


class Unpaused(msgspec.Struct, array_like=True, tag="unpause", frozen=True):
    trial_id: str
    n: int = -1


class ObjectiveChanged(msgspec.Struct, array_like=True, tag="settings", frozen=True):
    """The user has changed how many trials there may be (None: not that), or which metric counts."""

    num_samples: int | None = None
    relearned: bool = False


Item = Union[Asked, ResultTold, Completed, Paused, Unpaused, ObjectiveChanged]


class Suggested(msgspec.Struct, array_like=True, frozen=True):
    """A configuration for trial number ``n``: what the searcher chose, without constants of the space."""

    n: int
    values: dict[str, Any]


class NotNow(msgspec.Struct, frozen=True):
    """It owes an answer until it is told more."""


class NoMoreSuggestions(msgspec.Struct, frozen=True):
    reason: str


Answer = Union[Suggested, NotNow, NoMoreSuggestions]


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
            return ResultTold(trial.id, result, trial.n)
        if kind is ev.SearchAsked:
            return Asked(event.count)  # type: ignore[union-attr]
        if kind is ev.TrialTerminated or (kind is ev.TrialErrored and state.came_from != Status.TERMINATED):
            trial = state.trials[event.n]  # type: ignore[union-attr]
            return Completed(trial.id, self._result(state, trial), kind is ev.TrialErrored, trial.n)
        if kind is ev.TrialPaused:
            return Paused(state.trials[event.n].id, event.n)  # type: ignore[union-attr]
        if kind is ev.TrialResumed:
            return Unpaused(state.trials[event.n].id, event.n)  # type: ignore[union-attr]
        if kind is ev.SettingsChanged:
            return ObjectiveChanged(event.num_samples, event.relearned)  # type: ignore[union-attr]
        return None

    def _result(self, state: State, trial: Trial) -> dict[str, Any] | None:
        if trial.metrics is None:
            return None
        from holdfast.views.results import flatten_result

        result = self._result_of(state, trial)
        result.pop("config", None)
        return {**flatten_result(result), "config": trial.config}


class SearcherMemory(msgspec.Struct, array_like=True):
    """What a adapter remembers."""

    searcher: bytes
    owed: int
    suggested: int
    ended: str
    unclaimed: list[Suggested]
    pickled: bytes = b""  # ``unclaimed``, if there are objects in it
    limit: int | None = None  # -1: any number; None: as it was at the beginning
    foreign: tuple[int, int] = (0, 0)
    before: int = 0
    has_learned: bool = False
    imported: int = 0


_decode_searcher_memory = msgspec.msgpack.Decoder(SearcherMemory).decode


class ReplayableSearcher:
    """One searcher, and what it still owes.

    A searcher that is to learn from another metric than before is a new one, which has not suggested what the former
    one did with what it had learned by then. These trials are *foreign* to it: it hears how they did as one hears of
    points that were evaluated elsewhere.

    Args:
        searcher: It belongs to this adapter from now on.
        name: Trial number -> trial id.
        limit: How many trials there may be at the beginning; None for any number.
        relearned: How often, by now, another metric came to count. The searcher suggests nothing that depends on
            results before it has heard of the last time.
    """

    def __init__(self, searcher: Searcher, name: Callable[[int], str], limit: int | None, relearned: int = 0) -> None:
        self.searcher = searcher
        self._name = name
        self._limit = limit
        self._before = relearned  # changes of the metric that are still to come
        self._has_learned = False
        self._foreign = (0, 0)  # numbers of the first such trial, and of the one behind the last
        self._imported = 0  # how many trials of another tool there are; they are foreign, too
        self._owed = 0
        self._suggested = 0
        self._ended = ""
        self._unclaimed: deque[Suggested] = deque()  # suggestions that are perhaps no trials yet

    def hear(self, item: Item) -> list[Answer]:
        """Tell or ask the searcher; what it answers to that, and to older questions."""
        match item:
            case Asked(count):
                self._owed += count
            case ObjectiveChanged(num_samples, relearned):
                self._change(num_samples, relearned)
            case Completed(_, last, error, n) if self._is_foreign(n):
                self._learn(n, last, error)
            case _ if self._is_foreign(item.n):
                pass  # it does not know that trial
            case ResultTold(trial_id, result):
                self._has_learned = True
                self.searcher.on_trial_result(trial_id, _with_values(result))
            case Completed(trial_id, last, error):
                self._has_learned = True
                self.searcher.on_trial_complete(trial_id, result=_with_values(last), error=error)
            case Paused(trial_id):
                self.searcher.on_pause(trial_id)
            case Unpaused(trial_id):
                self.searcher.on_unpause(trial_id)
        return self._answers()

    def _change(self, num_samples: int | None, relearned: bool) -> None:
        self._before -= relearned
        self._ended = ""  # it is asked again: if it still has nothing to say, it says so
        if num_samples is not None:
            self._limit = None if num_samples == -1 else num_samples

    def _is_foreign(self, n: int) -> bool:
        return self._foreign[0] <= n < self._foreign[1]

    def adopt(self, n: int) -> None:
        """Trial ``n`` was imported: the searcher has not suggested it, and hears how it did."""
        self._foreign, self._imported = (0, n + 1), n + 1
        self._suggested = max(self._suggested, n + 1)

    def _learn(self, n: int, last: dict[str, Any] | None, error: bool) -> None:
        value = None if last is None else lookup(last, str(self.searcher.metric))
        if last is None or not isinstance(value, int | float):
            return
        try:
            self.searcher.add_evaluated_point(_with_values(last)["config"], value, error)
        except NotImplementedError:
            if n < self._imported:
                return  # it begins as if there were none
            raise InvalidInputError(
                f"The metric of this experiment cannot be changed any more: {type(self.searcher).__name__} has "
                "suggested trials with what it had learned from the other metric, and cannot learn from configurations "
                "that it would not suggest now (it has no add_evaluated_point). The reports are unchanged. Resume with "
                "the metric that it had, or start another experiment, with a new RunConfig(name=...)."
            ) from None

    @property
    def _may_suggest(self) -> bool:
        """Would it suggest what it suggested then? Until it learns, only its seed decides."""
        return not self._before or not self._has_learned

    def is_to_compare(self, n: int) -> bool:
        """Should it have suggested trial ``n``?"""
        return not self._is_foreign(n)

    def claim(self, created: int) -> Suggested | None:
        """Trial number ``created`` exists now; what had been suggested for it, if anything."""
        self.forget(created)
        if self._unclaimed:
            return self._unclaimed.popleft()
        if self._before:
            self._foreign = (self._foreign[0] if self._foreign[1] else created, created + 1)
        # The searcher said "not now" this time. What it said then became a trial, and is history.
        self._owed = max(0, self._owed - 1)
        self._suggested = max(self._suggested, created + 1)
        return None

    def unclaimed(self) -> list[Answer]:
        """What it has answered and nobody knows yet, when it is asked for the first time after a restart."""
        last: list[Answer] = []
        if self._ended:
            last.append(NoMoreSuggestions(self._ended))
        elif self._owed:
            last.append(NotNow())
        return [*self._unclaimed, *last]

    def forget(self, created: int) -> None:
        """So many trials exist: what was suggested for them is history."""
        while self._unclaimed and self._unclaimed[0].n < created:
            self._unclaimed.popleft()

    def _answers(self) -> list[Answer]:
        answers: list[Answer] = []
        while self._owed and not self._ended and self._may_suggest:
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
            if not isinstance(values, dict):
                raise InvalidTypeError(
                    f"{type(self.searcher).__name__}.suggest() must return a dict, None or Searcher.FINISHED, got "
                    f"{values!r} ({type(values).__name__})."
                )
            suggested = Suggested(self._suggested, pack(values, lambda value, _: value))
            self._owed -= 1
            self._suggested += 1
            self._unclaimed.append(suggested)
            answers.append(suggested)
        return answers

    def _end(self, reason: str) -> NoMoreSuggestions:
        self._ended = reason
        return NoMoreSuggestions(reason)

    def get_state(self, created: int) -> bytes:
        """Everything, for ``set_state`` of a adapter that was made in the same way.

        Args:
            created: How many trials there are, so that suggestions which became one are not kept.

        Raises:
            CannotSaveError: The searcher cannot.
        """
        self.forget(created)
        unclaimed, pickled = list(self._unclaimed), b""
        if any(map(_has_objects, unclaimed)):
            import cloudpickle

            unclaimed, pickled = [], cloudpickle.dumps([(each.n, each.values) for each in unclaimed])
        state = SearcherMemory(
            dump_memory(self.searcher),
            self._owed,
            self._suggested,
            self._ended,
            unclaimed,
            pickled,
            -1 if self._limit is None else self._limit,
            self._foreign,
            self._before,
            self._has_learned,
            self._imported,
        )
        return msgspec.msgpack.encode(state)

    def set_state(self, state: bytes, created: int, later: list[Item]) -> None:
        """Remember.

        Args:
            state: From ``get_state``.
            created: How many trials there are by now.
            later: What has happened since ``get_state``.
        """
        record = _decode_searcher_memory(state)
        load_memory(self.searcher, record.searcher)
        self._owed, self._suggested, self._ended = record.owed, record.suggested, record.ended
        self._unclaimed = deque(record.unclaimed)
        if record.pickled:
            self._unclaimed.extend(Suggested(n, values) for n, values in pickle.loads(record.pickled))
        if record.limit is not None:
            self._limit = None if record.limit == -1 else record.limit
        self._foreign, self._before, self._has_learned = record.foreign, record.before, record.has_learned
        self._imported = record.imported
        for item in later:
            self.hear(item)
        self.forget(created)


def plain(value: Any) -> Any:
    """Numbers of NumPy and the like as Python's, tuples as lists: what libraries for optimisation give for numbers."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return value.item()
    return value


def _with_values(result: dict[str, Any] | None) -> Any:
    """A result as the searcher sees it: its config has the values of the space."""
    return {**result, "config": unpack(result["config"])} if result and "config" in result else result


def _has_objects(suggested: Suggested) -> bool:
    found: list[Any] = []
    pack(suggested.values, lambda value, _: found.append(value))
    return bool(found)


class CannotSaveError(Exception):
    """The searcher has ``save``, but it raises NotImplementedError or writes nothing: an interface, not filled in."""


def dump_memory(searcher: Searcher) -> bytes:
    """All that a searcher remembers, by whichever way it has for that.

    Raises:
        CannotSaveError: It has no way.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(_memory_of(searcher)))
    except NotImplementedError as error:
        raise CannotSaveError(f"{type(searcher).__name__} cannot save its memory") from error


def _memory_of(searcher: Searcher) -> Any:
    if type(searcher).get_state is not Searcher.get_state:
        return searcher.get_state()
    with tempfile.TemporaryDirectory(prefix="holdfast-searcher-") as directory:
        path = os.path.join(directory, "searcher")
        searcher.save(path)
        if not os.path.isfile(path):
            raise NotImplementedError
        with open(path, "rb") as file:
            return file.read()


def wraps_unsaved(searcher: Searcher) -> bool:
    """Does it wrap a searcher that cannot save its memory?"""
    inner = getattr(searcher, "searcher", None)
    if not isinstance(inner, Searcher):
        return False
    try:
        dump_memory(inner)
    except CannotSaveError:
        return True
    return wraps_unsaved(inner)


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
