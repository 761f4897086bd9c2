"""Keeps a searcher from suggesting more before it has learned from what it suggested.

Counts trials by what it is told alone: a trial is live from its suggestion until its end, and everything ends, trials
that are given up while they wait or when an experiment is resumed included. So it never waits for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.search.searcher import Searcher, Suggestion, hears_results
from holdfast.search.wrapping import WrappedSearcher


class ConcurrencyLimiter(WrappedSearcher):
    """Lets a searcher have at most so many trials at once.

    Args:
        searcher: The searcher inside.
        max_concurrent: How many trials may be live: suggested, and not ended.
        batch: Fill up to ``max_concurrent`` trials, wait until all of them have ended, and only then tell the searcher
            about any of them.

    Raises:
        InvalidInputError: ``max_concurrent`` is no whole number above 0.
        CannotWrapError: ``searcher`` is no ``Searcher``.

    Example:
        >>> from holdfast.search import SobolSearch
        >>> limiter = ConcurrencyLimiter(SobolSearch(), max_concurrent=4)
    """

    _kept = ("_live", "_ended", "_full", "_finished", "_given")

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        super().__init__(searcher)
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 1:
            raise InvalidInputError(f"`max_concurrent` must be a whole number above 0, got {max_concurrent!r}.")
        self.max_concurrent = max_concurrent
        self.batch = bool(batch)
        self._limits = self.batch or not searcher.set_max_concurrency(max_concurrent)
        self._live: list[str] = []  # suggested, and the searcher does not know of an end; in the order of suggestion
        self._ended: list[tuple[str, dict[str, Any] | None, bool]] = []  # of the batch, in the order in which they did
        self._full = False  # no more suggestions until the batch has ended
        self._finished = False
        self._given = 0  # suggestions of this experiment
        self._total = -1  # that there may be; -1: any number

    @property
    def uses_intermediate_results(self) -> bool:
        """Only to pass them on."""
        return hears_results(self.searcher)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        # Trials of the experiment that its memory is of, which may have been left unfinished, end in no other one.
        self._live, self._ended, self._full, self._finished = [], [], False, False
        self._given, self._total = 0, spec.get("num_samples") or -1
        return super().set_search_properties(metric, mode, config, **spec)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """It was told once, when it was made."""
        return True

    def suggest(self, trial_id: str) -> Suggestion:
        if self._finished:
            return self.FINISHED
        if self._full or (self._limits and len(self._live) >= self.max_concurrent):
            return None
        suggestion = self.searcher.suggest(trial_id)
        if suggestion is None and self._ended:
            # It wants to know more first: then this batch is as full as it gets.
            self._full = True
            if not self._end_batch():
                return None
            suggestion = self.searcher.suggest(trial_id)
        if isinstance(suggestion, str):
            self._finished = self._full = True
            self._end_batch()
        elif suggestion is not None:
            self._live.append(trial_id)
            self._given += 1
            # The last batch may be smaller than the others: nobody asks for the rest of it.
            self._full = self.batch and (len(self._live) >= self.max_concurrent or self._given == self._total)
        return suggestion

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if not self.batch or trial_id not in self._live:
            # One that had ended before, and was resumed, counts no more but may have something to say.
            if trial_id in self._live:
                self._live.remove(trial_id)
            self.searcher.on_trial_complete(trial_id, result=result, error=error)
            return
        self._ended = [each for each in self._ended if each[0] != trial_id]
        self._ended.append((trial_id, result, error))
        self._end_batch()

    def _end_batch(self) -> bool:
        """Tell the searcher about the batch if it is over."""
        if not self._full or len(self._ended) < len(self._live):
            return False
        ended, self._ended, self._live = self._ended, [], []
        self._full = False
        for trial_id, result, error in ended:
            self.searcher.on_trial_complete(trial_id, result=result, error=error)
        return True

    def on_pause(self, trial_id: str) -> None:
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.searcher.on_unpause(trial_id)
