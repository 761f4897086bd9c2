"""The edge of a searcher that learns: it runs in its own thread, so that the loop never waits for it.

All requests and results reach the searcher through one queue, in the order of the journal. The calls since its state
was last stored are stored with it, so that a restart replays the rest and nothing twice.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.controller.imported import MARK
from holdfast.controller.proposing import Describer, Plan
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.errors import StorageFullError
from holdfast.search.replayable import (
    Answer,
    CannotSaveError,
    Item,
    NoMoreSuggestions,
    NotNow,
    ObjectiveChanged,
    ReplayableSearcher,
    Script,
    Suggested,
    wraps_unsaved,
)
from holdfast.search.searcher import Searcher, can_snapshot, warn_not_deterministic
from holdfast.search.spaces import Filler
from holdfast.space.nested import SCALARS, flatten_dict
from holdfast.space.variants import Variant, leaves_of

logger = logging.getLogger("holdfast")

CLOSE_S = 1.0  # a searcher that thinks longer is left alone: its thread does not keep the process alive


class SearchMemory(msgspec.Struct, array_like=True):
    """The searcher's part of a snapshot: its memory, what it was told after that, and how many trials there are."""

    adapter: bytes
    later: list[Item]
    created: int


_decode_search_memory = msgspec.msgpack.Decoder(SearchMemory).decode


class Save(msgspec.Struct, frozen=True):
    """Asks the thread for the adapter's memory, after ``heard`` items."""

    heard: int
    created: int


class MemorySaved(msgspec.Struct, frozen=True):
    heard: int
    adapter: bytes  # empty if the searcher could not save


class Created(msgspec.Struct, frozen=True):
    """So many trials exist: what was suggested for them is history."""

    count: int


class Said(msgspec.Struct, frozen=True):
    """An answer, and how many items the searcher had heard when it gave it."""

    heard: int
    answer: Answer


class LearningProposer:
    """Proposes what a searcher suggests.

    Until ``start`` it is told the experiment's past, in the caller's thread; from then on it is told what happens, and
    a thread of its own passes that on.

    Attributes:
        error: What the searcher raised. The driver then shuts down gracefully.
    """

    name = "search"

    def __init__(self, make_adapter: Callable[[], ReplayableSearcher], script: Script, filler: Filler) -> None:
        self._make_adapter = make_adapter
        self._adapter = make_adapter()
        self._script = script
        self._filler = filler
        self._keeps_memory = False
        self._warned = False
        self._created = 0
        self._memory = b""
        self._later: deque[Item] = deque()  # what was told since ``_memory``
        self._heard = 0
        self._reopened = 0  # what ended the search before it had heard so much does not count
        self._saving = False
        self._ready: deque[Said | Exception] = deque()
        self._inbox: queue.SimpleQueue[Item | Save | Created | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Said | MemorySaved | Exception] = queue.SimpleQueue()
        self._passed_on = 0  # of what was heard, by the thread
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    @property
    def searcher(self) -> Searcher:
        """The searcher that has heard everything so far."""
        return self._adapter.searcher

    # --- the past

    def before(self, state: State, event: ev.AnyEvent) -> None:
        """Nothing is asked before an event."""

    def after(self, state: State, event: ev.AnyEvent) -> None:
        """Ask and tell what was asked and told then."""
        if isinstance(event, ev.TrialCreated):
            self._created += 1
            if event.mark == MARK:
                self._adapter.adopt(event.n)
            else:
                self._compare(event, self._adapter.claim(event.n))
            return
        item = self._script.item(state, event)
        if item is not None:
            self._adapter.hear(item)

    def _compare(self, event: ev.TrialCreated, suggested: Suggested | None) -> None:
        """What was recorded stands, whatever the searcher says now; but the user should know."""
        if self._warned or (suggested is not None and _agree(suggested.values, event.config)):
            return
        if not self._adapter.is_to_compare(event.n):
            return
        self._warned = True
        warn_not_deterministic(type(self._adapter.searcher).__name__)

    def set_state(self, state: bytes) -> bool:
        """Remember; False if that memory cannot be read here (another version of the searcher's library, say)."""
        memory = _decode_search_memory(state)
        adapter = self._make_adapter()
        try:
            adapter.set_state(memory.adapter, memory.created, memory.later)
        except Exception as error:
            name = type(adapter.searcher).__name__
            logger.info("the stored state of %s cannot be read (%s); all events are replayed to it", name, error)
            return False
        self._adapter, self._created = adapter, memory.created
        return True

    # --- the present

    def start(self, describe: Describer, wake: Callable[[], None], *, threaded: bool = True) -> None:
        """From now on a thread feeds the searcher, and ``drain`` says what it answered.

        Args:
            describe: Makes proposals of configurations.
            wake: Called when there is something to drain.
            threaded: False if the caller calls ``pass_on`` in the place of a thread.
        """
        self._describe = describe
        self._wake = wake
        self._ready.extend(Said(0, answer) for answer in self._adapter.unclaimed())
        searcher = self._adapter.searcher
        if can_snapshot(searcher) and not wraps_unsaved(searcher):
            self._memory = self._saved(self._created)
        self._keeps_memory = bool(self._memory)
        if threaded:
            self._thread = threading.Thread(target=self._work, name="holdfast-searcher", daemon=True)
            self._thread.start()

    def tell(self, state: State, event: ev.AnyEvent) -> bool:
        """``event`` has become a fact; whether the searcher hears of it."""
        if isinstance(event, ev.TrialCreated):
            self._created += 1
            self._inbox.put(Created(self._created))
            return False
        item = self._script.item(state, event)
        if item is None:
            return False
        self._heard += 1
        if isinstance(item, ObjectiveChanged):  # whatever had ended the search until now: it is asked again
            self._ready = deque(said for said in self._ready if not _is_end(said))
            self._reopened = self._heard
        if self._keeps_memory:
            self._later.append(item)
        self._inbox.put(item)
        return True

    def ask(self, count: int) -> None:
        """The question was an event, and has reached the searcher as such."""

    def drain(self) -> list[ob.Observation]:
        """What the searcher has answered by now."""
        self._take_in()
        told: list[ob.Observation] = []
        while self._ready:
            said = self._ready[0]
            try:
                if isinstance(said, Exception):
                    raise said
                told.append(self._observation(said))
            except StorageFullError:
                break  # the objects in it cannot be stored now
            except Exception as error:
                self.error = error
                told.append(ob.Interrupted(f"the search failed: {type(error).__name__}: {error}"))
                self._ready.clear()
                break
            self._ready.popleft()
        return told

    def get_state(self) -> bytes | None:
        """The last memory and what came after it. Also asks for a newer one, which the next call will use."""
        if not self._memory:
            return None
        self._take_in()
        if not self._saving:
            self._saving = True
            self._inbox.put(Save(self._heard, self._created))
        return msgspec.msgpack.encode(SearchMemory(self._memory, list(self._later), self._created))

    def replan(self, make_plan: Callable[[], Plan]) -> None:
        """Nothing: the searcher was told, like any other event, that there are to be more samples."""

    def close(self) -> None:
        """Stop asking; a question that is being thought about is not waited for."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(CLOSE_S)

    def _take_in(self) -> None:
        while not self._answers.empty():
            message = self._answers.get_nowait()
            if isinstance(message, MemorySaved):
                self._saving = False
                if not message.adapter:
                    continue  # what it saved before, and was told since, serves as well
                self._memory = message.adapter
                while len(self._later) > self._heard - message.heard:
                    self._later.popleft()
            elif not (_is_end(message) and isinstance(message, Said) and message.heard < self._reopened):
                self._ready.append(message)

    def _observation(self, said: Said) -> ob.Observation:
        match said.answer:
            case Suggested(_, values):
                return self._describe(Variant(self._filler.config(values), leaves_of(values), None))
            case NoMoreSuggestions(reason):
                return ob.Exhausted(reason)
            case NotNow():
                return ob.NotYet(said.heard)

    # --- the thread

    def _work(self) -> None:
        while self.pass_on():
            pass

    @property
    def is_behind(self) -> bool:
        """Is there something that was not passed on yet?"""
        return not self._inbox.empty()

    def pass_on(self) -> bool:
        """Wait for something that the searcher must hear, and let it hear that; False when this must not continue."""
        item = self._inbox.get()
        if item is None:
            return False
        try:
            match item:
                case Created(count):
                    self._adapter.forget(count)
                case Save(heard, created):
                    self._answers.put(MemorySaved(heard, self._saved(created)))
                case _:
                    self._passed_on += 1
                    for answer in self._adapter.hear(item):
                        self._answers.put(Said(self._passed_on, answer))
        except Exception as error:
            self._answers.put(error)
            return False
        finally:
            self._wake()
        return True

    def _saved(self, created: int) -> bytes:
        """The adapter's memory; empty if the searcher cannot save it now."""
        try:
            return self._adapter.get_state(created)
        except CannotSaveError:
            return b""


def _is_end(said: Said | Exception) -> bool:
    return isinstance(said, Said) and isinstance(said.answer, NoMoreSuggestions)


def _agree(values: dict[str, Any], config: dict[str, Any]) -> bool:
    """Are these the values of that config, as far as they are plain?"""
    chosen, recorded = flatten_dict(values), flatten_dict(config)
    return all(
        recorded.get(path, value) == value or value != value for path, value in chosen.items() if type(value) in SCALARS
    )
