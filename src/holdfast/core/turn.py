"""One pass through the loop: the facts it added and what must be done about them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.policies import Policies
from holdfast.core.state import State
from holdfast.core.transitions import apply


class Turn:
    """What one pass through the loop decided."""

    __slots__ = ("at", "commands", "events", "policies", "state", "watch")

    def __init__(
        self, state: State, policies: Policies, at: float, watch: Callable[[ev.AnyEvent], None] | None = None
    ) -> None:
        self.state = state
        self.policies = policies
        self.at = at
        self.watch = watch  # sees each event right after it was applied; may look, must not act
        self.events: list[ev.AnyEvent] = []
        self.commands: list[cmd.Command] = []

    def add(self, event: ev.AnyEvent) -> None:
        """Make ``event`` a fact."""
        apply(self.state, event, self.policies.rules.retention)
        self.events.append(event)
        self.policies.scheduler.tell(self.state, event)
        if self.policies.tell_searcher(self.state, event):
            self.state.driver.told += 1
            self.state.driver.search_waits = False  # it may know an answer now
        if self.watch is not None:
            self.watch(event)
