"""What the loop passes to its observers when facts are made: after journaling, never before.

``watch`` sees each event right after it was applied and keeps what a callback will need of the state at that moment
(the full result of a report); ``after_turn`` calls the callbacks once the events are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.core import events as ev
from holdfast.core import observations as ob


class Hooks(Protocol):
    """What the loop tells the outside."""

    @property
    def answers_wait(self) -> bool:
        """Whether trials are answered only after everybody was told: a user's callback may want a say in the answer."""

    def before_turn(self) -> None: ...

    def see(self, observations: Iterable[ob.Observation]) -> None: ...

    def watch(self, event: ev.AnyEvent) -> None: ...

    def after_turn(self, events: list[ev.AnyEvent]) -> None: ...

    def take_complaints(self) -> list[ob.Observation]:
        """What went wrong outside and must become fact in the next turn."""
        ...

    def wants_save(self, n: int) -> bool:
        """Did a callback ask for a checkpoint after the trial's last result? Asked once per answer."""
        ...

    def trouble(self, text: str) -> None:
        """Storage trouble to show; empty when it is over."""
        ...

    def large(self, event: ev.Reported, size: int) -> None:
        """A report is larger than reports should be."""
        ...
