"""What the search for configurations promises to the rest of the system.

Owns the interface between whoever proposes configurations and whoever runs them. Must never hold a searcher.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from holdfast.space.variants import Mark, Variant

Proposal: TypeAlias = Variant
"""A configuration to try: ``config``, ``evaluated``, ``mark`` and ``raw``."""


class Proposer(Protocol):
    """Proposes configurations in a fixed order.

    What callers may rely on after a crash: the order is decided by the proposer's arguments alone. A proposer that
    is built again from the same arguments, in another process or on another machine, answers ``next(mark)`` with
    the very proposal that followed that mark before, whatever was or was not asked in between. So the mark of the
    last proposal that became a trial is all that has to be stored, and none is skipped or repeated.
    """

    @property
    def total(self) -> int | None:
        """How many proposals there are; None if that is not known before the last one."""
        ...

    def next(self, after: Mark | None, /) -> Proposal | None:
        """The proposal after the one with this mark; with None, the first. None if there is no further one."""
        ...
