"""Plots of an experiment with matplotlib: ``pip install 'holdfast[plots]'``."""

from holdfast.results.plots import (
    plot_contour,
    plot_curves,
    plot_edf,
    plot_history,
    plot_importance,
    plot_lineage,
    plot_parallel,
    plot_pareto,
    plot_recovery,
    plot_slice,
    plot_workers,
)

__all__ = [
    "plot_contour",
    "plot_curves",
    "plot_edf",
    "plot_history",
    "plot_importance",
    "plot_lineage",
    "plot_parallel",
    "plot_pareto",
    "plot_recovery",
    "plot_slice",
    "plot_workers",
]
