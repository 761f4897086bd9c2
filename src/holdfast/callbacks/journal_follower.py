"""Callbacks that read the journal by themselves, in the background, instead of being told of each result.

Owns what a driver and such a callback say to each other. The loop never waits for one of them, until the end of the
run, and then for a bounded time. Must never be told a result: whatever it shows is a projection of the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.callbacks.callback import Callback

if TYPE_CHECKING:
    from holdfast.views.trials import ExperimentInfo


class JournalFollower(Callback):
    """Base class: the driver calls these methods, in this order."""

    def follow(self, info: ExperimentInfo, warn: Callable[[str], None]) -> None:
        """Begin to read the journal in ``info.root``, in the background.

        Args:
            info: The experiment.
            warn: Shows a sentence to the user; may be called from any thread.
        """

    def complete(self) -> None:
        """The journal is complete: begin to show what is left of it. All are told so before one is waited for."""

    def leave(self, is_hurried: Callable[[], bool]) -> str:
        """Wait a bounded time until everything is shown, and end.

        Args:
            is_hurried: Whether somebody wants the driver to end now.

        Returns:
            What is missing and how to add it; "" if nothing is.
        """
        return ""

    def abandon(self) -> None:
        """End at once, whatever is left. May be called twice, or after ``leave``."""
