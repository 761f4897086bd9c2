"""Tries each suggestion several times, for results that are noisy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from holdfast.core.retention import lookup
from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.search.searcher import Searcher, Suggestion
from holdfast.search.wrapping import WrappedSearcher

TRIAL_INDEX = "__trial_index__"
"""Where in its config a trial finds which repetition it is."""


@dataclass
class Group:
    """The trials of one suggestion; the searcher knows it by the id of the first."""

    config: dict[str, Any]
    members: list[str] = field(default_factory=list)
    ended: dict[str, tuple[dict[str, Any] | None, bool]] = field(default_factory=dict)


class Repeater(WrappedSearcher):
    """Runs each suggestion of a searcher ``repeat`` times, and tells it the mean.

    ``num_samples`` counts all trials. The searcher hears of a suggestion when all its trials have ended: the mean of
    the metric over those that have one, NaN left out. It does not hear of intermediate results, nor of a last group
    that ``num_samples`` cuts short.

    Args:
        searcher: The searcher inside.
        repeat: How often to try each suggestion.
        set_index: Put the number of the repetition into the config, as ``__trial_index__``: for example as a seed.

    Raises:
        InvalidInputError: ``repeat`` is no whole number above 0.
        CannotWrapError: ``searcher`` is no ``Searcher``.

    Example:
        >>> from holdfast.search import SobolSearch
        >>> repeater = Repeater(SobolSearch(), repeat=3)
    """

    _kept = ("_groups", "_current")

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        super().__init__(searcher)
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise InvalidInputError(f"`repeat` must be a whole number above 0, got {repeat!r}.")
        self.repeat = repeat
        self._set_index = bool(set_index)
        self._groups: dict[str, Group] = {}  # by the id of each trial, until the searcher has heard of the group
        self._current: Group | None = None

    @property
    def trials_given(self) -> int:
        return self.repeat * super().trials_given

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        self._groups, self._current = {}, None  # of the experiment that its memory is of
        num_samples = spec.get("num_samples") or 0
        if num_samples > 0 and num_samples % self.repeat:
            warn_user(
                f"num_samples={num_samples} is not a multiple of repeat={self.repeat}: the searcher does not get "
                f"the results of the last {num_samples % self.repeat} trials. Write for example "
                f"num_samples={math.ceil(num_samples / self.repeat) * self.repeat}."
            )
        return super().set_search_properties(metric, mode, config, **spec)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """The searcher inside knows groups, not trials; whoever asks must see to it."""
        return False

    def suggest(self, trial_id: str) -> Suggestion:
        group = self._current
        if group is None or len(group.members) >= self.repeat:
            suggestion = self.searcher.suggest(trial_id)
            if suggestion is None or isinstance(suggestion, str):
                return suggestion
            group = self._current = Group(suggestion)
        index = len(group.members)
        group.members.append(trial_id)
        self._groups[trial_id] = group
        return {**group.config, TRIAL_INDEX: index} if self._set_index else dict(group.config)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        group = self._groups.get(trial_id)
        if group is None:
            return
        group.ended[trial_id] = (result, error)
        if len(group.ended) < self.repeat:
            return
        for member in group.members:
            del self._groups[member]
        self.searcher.on_trial_complete(group.members[0], **self._summary(group))

    def _summary(self, group: Group) -> dict[str, Any]:
        """One result for all: that of the first trial that did not fail, with the means in place of its metrics."""
        ended = [group.ended[member] for member in group.members]
        results = [result for result, error in ended if result is not None and not error]
        if not results:
            return {"result": None, "error": True}
        metric = self.metric
        names = [metric] if isinstance(metric, str) else list(metric or ())
        means = {name: _mean([lookup(result, name) for result in results]) for name in names}
        return {"result": {**results[0], **means}, "error": False}


def _mean(values: list[Any]) -> float:
    numbers = [float(value) for value in values if isinstance(value, Real) and not math.isnan(value)]
    if not numbers:
        return math.nan
    # Not fsum: it refuses infinities of both signs, whose mean is simply not a number.
    return sum(numbers) / len(numbers)
