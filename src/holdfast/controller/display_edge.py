"""What the user sees of a run: notes about events, storage errors, how much durability lags, and the end.

Owns which events are worth a note, and its text. Must never decide how something is shown: the display does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.checkpoints.names import checkpoint_name
from holdfast.controller.advice import objective_text
from holdfast.controller.clock import Clock
from holdfast.controller.loop import JournalWriter
from holdfast.core import events as ev
from holdfast.core.state import State
from holdfast.display.display import Display, ExperimentFacts, RunSummary
from holdfast.display.words import size_text
from holdfast.messages.warn import was_warned

logger = logging.getLogger("holdfast")

FULL_AGAIN_S = 60.0


class DisplayEdge:
    """Shows one run.

    Args:
        display: Where it is shown.
        facts: What does not change while it is.
        state: What it shows.
        clock: For the moments of updates.
        journal: Its lag is shown.
    """

    def __init__(
        self, display: Display, facts: ExperimentFacts, state: State, clock: Clock, journal: JournalWriter
    ) -> None:
        self._display = display
        self._facts = facts
        self._state = state
        self._clock = clock
        self._journal = journal
        self.feed = display.feed
        self.close = display.close
        self.shows_notes = display.shows_notes
        self._trouble = ""
        self._hints: set[str] = set()
        self._lag_since: float | None = None
        self._crowded_at = -FULL_AGAIN_S

    def start(self, compared: Iterable[str]) -> None:
        """The run begins.

        Args:
            compared: The metrics that somebody compares.
        """
        facts = self._facts
        self._display.start(facts)
        half = objective_text(facts.metric, facts.mode, compared)
        if half and not was_warned(half):
            self._display.note(half)
        for note in facts.notes:
            self._display.inform(note)

    def update(self) -> None:
        """A turn has ended."""
        now = self._clock.now()
        self._display.update(self._state, self._facts, now, self._lag(now))

    def end(self, outcome: str, reason: str, change: str = "") -> None:
        """The run has ended.

        Args:
            outcome: One of ``Ending``.
            reason: Why, or who has the experiment now; "" if there is nothing to say.
            change: A setting without which the same would happen again.
        """
        summary = RunSummary(at=self._clock.now(), outcome=outcome, reason=reason, change=change)
        self._display.end(self._state, self._facts, summary)

    def warn(self, text: str) -> None:
        """Something that the user should act on."""
        self._display.note(text)

    def hint(self, text: str) -> None:
        """What a trial points out: shown once, however many trials do."""
        if text not in self._hints:
            self._hints.add(text)
            self._display.note(text)

    def trouble(self, text: str) -> None:
        """Storage trouble; "" when it is over."""
        if text and text != self._trouble:
            self._display.note(text)
            logger.debug("%s", text)
        self._trouble = text

    def _lag(self, now: float) -> float:
        """Seconds since the oldest record that would not survive a power cut was written."""
        if self._journal.synced_seq >= self._journal.written_seq:
            self._lag_since = None
            return 0.0
        if self._lag_since is None:
            self._lag_since = now
        return now - self._lag_since

    # --- events

    def rejected(self, event: ev.CheckpointRejected) -> None:
        """A checkpoint is damaged."""
        name = checkpoint_name(event.index)
        self._note_of(event.n, f"{name} cannot be used ({event.reason}); an older one is used if there is one")

    def interrupted(self, event: ev.AttemptInterrupted) -> None:
        """An attempt was cut short; that is worth a note if storage did it."""
        if event.cause == ev.Cause.STORAGE:
            self._note_of(event.n, f"storage trouble ({event.detail}); it is retried and does not count as a failure")

    def backlog_filled(self, event: ev.BacklogFilled) -> None:
        """Trials that save have to wait."""
        if event.at < self._crowded_at + FULL_AGAIN_S:
            return  # a slow store fills it again and again; the display shows how it stands
        self._crowded_at = event.at
        limit, place = size_text(event.limit), self._facts.root
        self._display.note(
            f"trials that save wait: {size_text(event.bytes)} of checkpoints are not yet in {place}, and the limit is "
            f"{limit}. Nothing is lost; they continue when storage has caught up. SyncConfig(max_backlog_bytes=...) "
            "lets more wait on the local disk"
        )

    def noted(self, event: ev.Noted) -> None:
        """The core has something to say."""
        if event.n < 0:
            self._display.note(event.text)
        else:
            self._note_of(event.n, event.text)

    def user_asked(self, event: ev.UserRequested) -> None:
        """Somebody else may have stopped a trial: whoever watches should know why it ends."""
        if event.action == ev.Action.STOP and event.n >= 0 and not event.refused:
            self._note_of(event.n, f"stopped by the user{f' ({event.by})' if event.by else ''}")

    def settings_changed(self, event: ev.SettingsChanged) -> None:
        """Somebody has asked for more samples."""
        if event.request:
            self._display.inform(f"changed{f' by {event.by}' if event.by else ''}: {'; '.join(event.words)}")

    def _note_of(self, n: int, text: str) -> None:
        self._display.note(f"{self._facts.name_of(self._state.trials[n])}: {text}")
