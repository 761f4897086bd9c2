"""How a run begins and ends for those who are told of it: callbacks, result files, error files, the display.

Owns the order at the beginning and at the end, whether that is a good one or not. Must never tell of events: that is
the notifier's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from holdfast.controller.notify import Audience
from holdfast.core.state import State
from holdfast.display.display import Ending
from holdfast.errors import FencedError
from holdfast.journal.epoch import holder
from holdfast.storage.layout import Root

logger = logging.getLogger("holdfast")


class RunNotices:
    """Tells one run's beginning and end.

    Args:
        state: The experiment.
        root: Where it is.
        audience: Who is told.
    """

    def __init__(self, state: State, root: Root, audience: Audience) -> None:
        self._state = state
        self._root = root
        self._callbacks, self._files, self._errors, self._display, self._advisor = audience
        self._repair_files = audience.repair_files
        self.warn = self._display.warn
        self._is_ending: Callable[[], bool] = lambda: False

    def be_told_of_end(self, is_ending: Callable[[], bool]) -> None:
        """From now on ask this whether somebody wants the driver to end."""
        self._is_ending = is_ending
        self._files.be_told_of_end(is_ending)

    def start(self, changed: Collection[int]) -> None:
        """Before the first turn: callbacks get their memory back, files the rows that a crash kept from them.

        Args:
            changed: The trials that may lack some: those that changed since the last snapshot.
        """
        text = self._callbacks.load_states(self._root)
        if text:
            self.warn(text)
        self._callbacks.setup()
        self._repair_files(changed)
        self._files.repair_policies(self._state)
        self._display.start(self._advisor.metrics)
        self._callbacks.start_followers(self.warn)

    def keep_states(self) -> None:
        """Store what stateful callbacks remember; with snapshots and at the end."""
        text = self._callbacks.store_states(self._root)
        if text:
            self.warn(text)

    def last_words(self) -> None:
        """After the last fact, and before the backend is asked whether it has all: callbacks may write files now.

        Trials have ended, so what is new in the experiment's directory was written by callbacks.
        """
        began = time.time()
        self._callbacks.tell_experiment_end()
        self.keep_states()
        if self._callbacks.answers_wait:
            self._files.add_written_since(began)
        self._files.flush()

    def finish(self, interrupted: str, *, failed: bool = False, change: str = "") -> None:
        """Everything is where it belongs.

        Args:
            interrupted: Why that is not all; "" if it is.
            failed: Whether that is an error.
            change: A setting without which the same would happen again.
        """
        if not self._files.flush():
            self.warn(
                f"result files could not be written ({self._files.trouble}); the journal has every row, "
                "and the next restore writes them"
            )
        for missing in self._callbacks.finish_followers(self._is_ending):
            self.warn(missing)
        outcome = Ending.INTERRUPTED if interrupted else Ending.FINISHED
        self._display.end(Ending.FAILED if failed else outcome, interrupted, change)

    def failed(self, error: BaseException) -> None:
        """The run ends with an exception: say what is safe and how to continue."""
        outcome, reason = Ending.FAILED, f"{type(error).__name__}: {error}"
        if isinstance(error, FencedError):
            outcome, reason = Ending.TAKEN_OVER, self._successor()
        try:
            self._callbacks.tell_experiment_end()
            if not isinstance(error, FencedError):  # the newer driver's states are there now
                self.keep_states()
        except Exception:
            logger.exception("a callback failed while the run was being ended, after that had failed already")
        self._display.end(outcome, reason, getattr(error, "change", ""))

    @property
    def failure(self) -> tuple[int, bytes] | None:
        """The first trial that ended in ERROR, and its pickled exception."""
        return self._errors.failure

    def advice(self) -> list[str]:
        """What to warn of when the run has ended; nothing if notes have said it."""
        return [] if self._display.shows_notes else self._advisor.texts()

    def _successor(self) -> str:
        """Who has the experiment now."""
        try:
            now = holder(self._root.path)
        except Exception:  # storage in trouble must not hide why this driver ends
            now = None
        return "another driver" if now is None else now.who

    def close(self) -> None:
        """Whatever happened: give the terminal back and stop the writing."""
        self._callbacks.end_followers()
        self._display.close()
        self._files.close()
