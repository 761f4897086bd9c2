"""One pass through the loop: the facts it added and what must be done about them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.policies import Policies
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import CHANGES_ITS_TRIAL, TRANSITIONS, apply

LEAVES = frozenset(kind for (old, kind), new in TRANSITIONS.items() if old != new)
"""Events after which a trial has another status: what it waited for before is of no account."""


class Turn:
    """What one pass through the loop decided."""

    __slots__ = ("at", "commands", "events", "memory", "policies", "state", "watch")

    def __init__(
        self,
        state: State,
        memory: DriverMemory,
        policies: Policies,
        at: float,
        watch: Callable[[ev.AnyEvent], None] | None = None,
    ) -> None:
        self.state = state
        self.memory = memory
        self.policies = policies
        self.at = at
        self.watch = watch  # sees each event right after it was applied; may look, must not act
        self.events: list[ev.AnyEvent] = []
        self.commands: list[cmd.Command] = []

    def add(self, event: ev.AnyEvent) -> None:
        """Make ``event`` a fact."""
        apply(self.state, event, self.policies.rules.retention)
        kind = type(event)
        if kind in CHANGES_ITS_TRIAL and event.n >= 0:  # type: ignore[union-attr]
            self.memory.changed.add(event.n)  # type: ignore[union-attr]
        if kind in LEAVES:
            self.memory.forget(event.n)  # type: ignore[union-attr]
        self.events.append(event)
        self.policies.scheduler.tell(self.state, self.memory, event)
        if self.policies.tell_searcher(self.state, event):
            self.memory.told += 1
            self.memory.search_waits = False  # it may know an answer now
        if self.watch is not None:
            self.watch(event)
