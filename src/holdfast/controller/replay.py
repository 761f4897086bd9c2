"""Replay past events to policies, so that after a restart they have the state that they had before (I5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.controller.opening import Opened, open_state
from holdfast.controller.stop_rule import UserStopRule
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.layout import Root
from holdfast.storage.local import REAL_DISK, Disk

ResultOf = Callable[[State, Trial, Mapping[str, Any], float, float, int], dict[str, Any]]


class Memory(Protocol):
    """A policy that remembers. Its memory follows from the events that it was told, in order."""

    @property
    def name(self) -> str:
        """Under which its memory stands in snapshots."""

    def before(self, state: State, event: ev.AnyEvent) -> None:
        """``event`` is about to be applied."""

    def after(self, state: State, event: ev.AnyEvent) -> None:
        """``event`` has been applied."""

    def get_state(self) -> bytes | None:
        """The memory as plain data, or None if it can only be had by telling everything again."""

    def set_state(self, state: bytes) -> bool:
        """Remember that; False if it cannot be read, and then nothing has changed."""


_NOT_ASKED = ("done", STOPPED_BY_USER)
"""Reasons for which a trial is told to stop before its stop rule is asked."""


class StopRuleMemory:
    """What the user's stop rule remembers."""

    name = "stop"

    def __init__(self, rule: UserStopRule, result_of: ResultOf) -> None:
        self._rule = rule
        self._result_of = result_of
        self.get_state = rule.get_state

    def before(self, state: State, e: ev.AnyEvent) -> None:
        # As in ``core.decide``: before the report counts, and not if it was done or was being stopped anyway.
        if isinstance(e, ev.Reported) and e.why not in _NOT_ASKED and not state.stopping:
            trial = state.trials[e.n]
            self._rule.why_stop(trial, lambda: self._result_of(state, trial, e.metrics, e.dt, e.at, e.worker))

    def after(self, state: State, e: ev.AnyEvent) -> None:
        if isinstance(e, ev.TrialStarted):
            self._rule.rewind(state.trials[e.n])

    def set_state(self, state: bytes) -> bool:
        self._rule.set_state(state)
        return True


def open_with_memory(
    root: Root,
    retention: Retention,
    store: SnapshotStore,
    memories: Sequence[Memory],
    retold: int = 0,
    disk: Disk = REAL_DISK,
) -> Opened:
    """Fold the journal and bring the memories to where they were.

    From the snapshot if it holds all of them; otherwise they are told the whole experiment again, in the order in which
    they first heard it. So they are if the user has changed since the snapshot what they are told of or how they judge.

    Args:
        root: The experiment.
        retention: The user's rule for keeping checkpoints.
        store: Where snapshots are.
        memories: The policies, which know nothing yet.
        retold: How often, by now, policies had to be told everything again (``ChangedSettings.retold``).
        disk: Where the root is.
    """
    if not memories:
        return open_state(root.path, retention, store=store, disk=disk)

    return open_state(root.path, retention, store=store, listener=_Memories(memories, retold), disk=disk)


class _Memories:
    """Passes on to each memory what is read, if the snapshot does not hold all of them."""

    def __init__(self, memories: Sequence[Memory], retold: int) -> None:
        self._memories = memories
        self._retold = retold

    def accepts(self, policies: dict[str, bytes], state: State) -> bool:
        # Whatever may fail to remember comes first, so that the others are still as new if everything is told again.
        known = state.settings.retold == self._retold and all(memory.name in policies for memory in self._memories)
        return known and all(
            memory.set_state(policies[memory.name]) for memory in sorted(self._memories, key=_is_sturdy)
        )

    def before(self, state: State, event: ev.AnyEvent) -> None:
        for memory in self._memories:
            memory.before(state, event)

    def after(self, state: State, event: ev.AnyEvent) -> None:
        for memory in self._memories:
            memory.after(state, event)


def _is_sturdy(memory: Memory) -> bool:
    """Is its memory plain data, which can be read for ever? A searcher's is a pickle of its library's objects."""
    return memory.name != "search"


def stored_memories(memories: Sequence[Memory]) -> dict[str, bytes]:
    """What a snapshot holds of the memories."""
    states = ((memory.name, memory.get_state()) for memory in memories)
    return {name: state for name, state in states if state is not None}
