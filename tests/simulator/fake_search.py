"""Searchers for stories: what they suggest depends on everything that they were asked and told, in order.

So one that was told something twice, or not at all, or in another order, is seen by its next suggestion (I5).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.search.concurrency_limiter import ConcurrencyLimiter
from holdfast.search.dehb import DEHBSearch
from holdfast.search.replayable import ReplayableSearcher, Script
from holdfast.search.searcher import Searcher, Suggestion, hears_results
from holdfast.search.spaces import Filler
from holdfast.space.naming import trial_id
from holdfast.views.results import ResultBuilder

PREFIX = "5eed5"
WIDTHS = (16, 32, 64)


class TellTale(Searcher):
    """Suggests by a checksum of all that it has heard; now and then it says "not now", rarely even if that is the end.

    Args:
        seed: Where the checksum begins.
        last: How many configurations it has; then it has finished.
    """

    def __init__(self, seed: int, last: int) -> None:
        super().__init__()
        self._sum = seed
        self._left = last
        self._live: list[str] = []

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        return True

    def suggest(self, trial_id: str) -> Suggestion:
        luck = self._take_in(trial_id)
        if not self._left:
            return self.FINISHED
        if luck % 4 == 0 and (self._live or luck % 16 == 0):
            return None
        self._left -= 1
        self._live.append(trial_id)
        return {"lr": luck / 2**32, "width": WIDTHS[luck % 3]}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._take_in(trial_id, result.get("link"), result["training_iteration"], result["config"]["lr"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._take_in(trial_id, None if result is None else result.get("link"), error)
        if trial_id in self._live:
            self._live.remove(trial_id)

    def on_pause(self, trial_id: str) -> None:
        self._take_in(trial_id, "pause")

    def on_unpause(self, trial_id: str) -> None:
        self._take_in(trial_id, "unpause")

    def _take_in(self, *facts: Any) -> int:
        self._sum = zlib.crc32(repr(facts).encode(), self._sum)
        return self._sum


class StoredTellTale(TellTale):
    """The same, with a memory that snapshots can hold."""

    def get_state(self) -> dict[str, Any]:
        return {"sum": self._sum, "left": self._left, "live": list(self._live)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._sum, self._left, self._live = state["sum"], state["left"], list(state["live"])


SEARCHERS: dict[str, Callable[[int, int], Searcher]] = {
    "learning": StoredTellTale,
    "learning, told again": TellTale,
    "learning, two at once": lambda seed, last: ConcurrencyLimiter(StoredTellTale(seed, last), 2),
    "learning, in batches": lambda seed, last: ConcurrencyLimiter(TellTale(seed, last), 3, batch=True),
    "dehb": lambda seed, last: DEHBSearch(max_t=9, reduction_factor=3),
}
"""(seed, how many configurations it has) -> a searcher. To put one into the simulator, add a line here."""


class FakeSearch:
    """One searcher that knows nothing yet, and all that stands between it and the journal."""

    def __init__(self, name: str, seed: int, samples: int, space: Mapping[str, Any], results: ResultBuilder) -> None:
        # It has enough of its own in most stories; in some it has finished before.
        searcher = SEARCHERS[name](seed, samples - 1 if seed % 3 == 0 else samples + 1)
        searcher.set_search_properties("score", "max", space, seed=seed, num_samples=samples)
        self.hears_results = hears_results(searcher)
        self.adapter = ReplayableSearcher(searcher, lambda n: trial_id(PREFIX, n), samples)
        self.script = Script(results.last, with_results=self.hears_results)
        self.filler = Filler(space, name)
