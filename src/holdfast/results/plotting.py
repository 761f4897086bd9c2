"""The plots of a ``ResultGrid``, as methods of it. Must never import matplotlib before one is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PlotsOfResults:
    """``plot_*``: each returns the ``matplotlib.axes.Axes``; see ``holdfast.plots`` for the arguments.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def plot_history(self, metric: str | None = None, mode: str | None = None, *, ax: Any = None) -> Any:
        """The value of each trial in the order in which they ended, and the best one so far."""
        from holdfast.results.plots import plot_history

        return plot_history(self, metric, mode, ax=ax)

    def plot_curves(
        self, metric: str | None = None, *, trials: Sequence[int] | None = None, max_trials: int = 200, ax: Any = None
    ) -> Any:
        """The learning curves of trials; those that were stopped early end with a cross."""
        from holdfast.results.plots import plot_curves

        return plot_curves(self, metric, trials=trials, max_trials=max_trials, ax=ax)

    def plot_importance(self, metric: str | None = None, *, ax: Any = None) -> Any:
        """How much each parameter matters for a metric."""
        from holdfast.results.plots import plot_importance

        return plot_importance(self, metric, ax=ax)

    def plot_edf(self, metric: str | None = None, *, ax: Any = None) -> Any:
        """The share of trials that are not above each value of a metric."""
        from holdfast.results.plots import plot_edf

        return plot_edf(self, metric, ax=ax)

    def plot_slice(self, param: str, metric: str | None = None, *, ax: Any = None) -> Any:
        """A metric over one parameter."""
        from holdfast.results.plots import plot_slice

        return plot_slice(self, param, metric, ax=ax)

    def plot_contour(self, x: str, y: str, metric: str | None = None, *, ax: Any = None) -> Any:
        """A metric over two parameters."""
        from holdfast.results.plots import plot_contour

        return plot_contour(self, x, y, metric, ax=ax)

    def plot_pareto(self, metrics: Sequence[str], modes: Sequence[str] | None = None, *, ax: Any = None) -> Any:
        """Two metrics of all trials, and the front of those that no other trial beats in both."""
        from holdfast.results.plots import plot_pareto

        return plot_pareto(self, metrics, modes, ax=ax)

    def plot_parallel(self, metric: str | None = None, *, params: Sequence[str] | None = None, ax: Any = None) -> Any:
        """Parallel coordinates of all trials."""
        from holdfast.results.plots import plot_parallel

        return plot_parallel(self, metric, params=params, ax=ax)

    def plot_workers(self, *, ax: Any = None) -> Any:
        """What each worker ran and when."""
        from holdfast.results.plots import plot_workers

        return plot_workers(self, ax=ax)

    def plot_lineage(self, param: str | None = None, *, ax: Any = None) -> Any:
        """A parameter of each trial of a population over time."""
        from holdfast.results.plots import plot_lineage

        return plot_lineage(self, param, ax=ax)

    def plot_recovery(self, *, ax: Any = None) -> Any:
        """Every kill, retry, rejected checkpoint and storage outage on one time axis."""
        from holdfast.results.plots import plot_recovery

        return plot_recovery(self, ax=ax)
