"""What searchers that wrap another one share: they pass on what does not concern them, and keep both memories."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.arguments import accepted
from holdfast.errors import CannotWrapError
from holdfast.search import replayable
from holdfast.search.searcher import Searcher, can_snapshot
from holdfast.storage.local import write_atomic

ATTRIBUTES = "searcher_is_attributes"
"""Where a memory says whether the part of the searcher inside is its attributes, or what it has saved itself."""


class WrappedSearcher(Searcher):
    """A searcher around another one.

    Derived classes list in ``_kept`` the attributes that are their memory.

    Args:
        searcher: The searcher inside, which belongs to this one from now on.

    Raises:
        CannotWrapError: It is no ``Searcher``.
    """

    _kept: tuple[str, ...] = ()

    def __init__(self, searcher: Searcher) -> None:
        if not isinstance(searcher, Searcher):
            raise CannotWrapError(
                f"{type(self).__name__} only works with `Searcher` objects, got {searcher!r} "
                f"({type(searcher).__name__}). Limit BasicVariantGenerator by its own max_concurrent, or by "
                "TuneConfig(max_concurrent_trials=...)."
            )
        super().__init__()
        self.searcher = searcher
        self.scheduler_class = searcher.scheduler_class

    @property
    def metric(self) -> Any:
        """What the searcher inside optimises."""
        return self.searcher.metric

    @property
    def mode(self) -> Any:
        """In which direction."""
        return self.searcher.mode

    @property
    def trials_given(self) -> int:
        return self.searcher.trials_given

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        take = self.searcher.set_search_properties
        return take(metric, mode, config, **accepted(take, spec))

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return self.searcher.set_max_concurrency(max_concurrent)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        self.searcher.add_evaluated_point(parameters, value, error, pruned, intermediate_values)

    def add_evaluated_trials(self, trials_or_analysis: Any, metric: str | Sequence[str]) -> None:
        self.searcher.add_evaluated_trials(trials_or_analysis, metric)

    # --- both memories

    def get_state(self) -> dict[str, Any]:
        """The memories of both; of a searcher inside that cannot save, all of its attributes."""
        kept = {name: getattr(self, name) for name in self._kept}
        if can_snapshot(self.searcher):
            with contextlib.suppress(replayable.CannotSaveError):
                return {"searcher": replayable.dump_memory(self.searcher), ATTRIBUTES: False, **kept}
        import cloudpickle

        return {"searcher": bytes(cloudpickle.dumps(vars(self.searcher))), ATTRIBUTES: True, **kept}

    def set_state(self, state: dict[str, Any]) -> None:
        if state.get(ATTRIBUTES, not can_snapshot(self.searcher)):  # older memories do not say so
            vars(self.searcher).update(pickle.loads(state["searcher"]))
        else:
            replayable.load_memory(self.searcher, state["searcher"])
        for name in self._kept:
            setattr(self, name, state[name])

    def save(self, checkpoint_path: str) -> None:
        """Write both memories to a file.

        Durability: the file is complete and fsynced when this returns, or the old one is still there.
        """
        write_atomic(checkpoint_path, pickle.dumps(self.get_state()))

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            self.set_state(pickle.load(file))
