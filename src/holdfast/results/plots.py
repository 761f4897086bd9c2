"""Plots of an experiment with matplotlib, from the same data as the live page.

Every function takes an experiment (its path or URI, a ``ResultGrid`` or a ``Follower``) and an ``ax`` to draw into, and
returns the ``matplotlib.axes.Axes``. Owns how data is drawn; the numbers come from ``charts``. Must never import
matplotlib before something is drawn.

Example::

    from holdfast import plots

    plots.plot_history("~/holdfast_results/digits", metric="loss").figure.savefig("history.png")
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from holdfast.display.words import clip
from holdfast.errors import InvalidInputError
from holdfast.results.charts.distribution import empirical_distribution
from holdfast.results.charts.experiment_charts import chart, numbers, values_of
from holdfast.results.early_stops import was_stopped_early
from holdfast.results.follow import Follower
from holdfast.results.history import History, open_history
from holdfast.space.exact import shown
from holdfast.views.results import flatten_result

MAX_CURVES = 200
"""Trials whose curves are drawn; of more, some are taken evenly."""

MAX_MARKS = 10
"""Whole numbers that are all written beside an axis."""

MAX_LINES = 1000
"""Trials that a plot of parallel coordinates has at most."""

_OUTCOMES = {"finished": "C0", "paused": "C9", "failed": "C1", "errored": "C3", "interrupted": "C8", "running": "C2"}
_KINDS = (
    "killed",
    "takeover",
    "resumed",
    "storage",
    "backlog",
    "rejected",
    "interrupted",
    "retry",
    "rewind",
    "error",
)


def plot_history(experiment: Any, metric: str | None = None, mode: str | None = None, *, ax: Any = None) -> Any:
    """The value of each trial in the order in which they ended, and the best one so far.

    Args:
        experiment: Its path or URI, a ``ResultGrid`` or a ``Follower``.
        metric: What to draw; None takes the metric of the experiment.
        mode: "min" or "max"; None takes that of the experiment.
        ax: Where to draw; None makes a new figure.

    Raises:
        ImportError: matplotlib is not installed.
        InvalidInputError: No trial has reported the metric.
    """
    data = chart(follower_of(experiment), "history", metric=metric, mode=mode)
    ax = _axes(ax)
    order = range(1, len(data["value"]) + 1)
    ax.scatter(order, data["value"], s=9, alpha=0.5, label="trial", rasterized=len(order) > 5000)
    ax.step(order, data["best"], where="post", color="C3", label="best so far")
    return _labelled(ax, "trial, in the order of their ends", data["metric"], legend=True)


def plot_curves(
    experiment: Any,
    metric: str | None = None,
    *,
    trials: Sequence[int] | None = None,
    max_trials: int = MAX_CURVES,
    ax: Any = None,
) -> Any:
    """The learning curves of trials; those that were stopped early end with a cross.

    Args:
        experiment: Its path or URI, a ``ResultGrid`` or a ``Follower``.
        metric: What to draw; None takes the metric of the experiment.
        trials: Numbers of the trials; None takes all, but at most ``max_trials``, evenly.
        max_trials: How many.
        ax: Where to draw; None makes a new figure.
    """
    follower = follower_of(experiment)
    name, _ = numbers(follower, metric)
    state = follower.history.state
    known = state.trials
    chosen = list(range(len(known)) if trials is None else trials)
    if trials is None and len(chosen) > max_trials:
        chosen = [chosen[k * len(chosen) // max_trials] for k in range(max_trials)]
    ax = _axes(ax)
    alpha = 0.9 if len(chosen) <= 20 else 0.4
    marked = False
    for n in chosen:
        steps, values = follower.curves.of(n, name)
        if not steps:
            continue
        (line,) = ax.plot(steps, values, linewidth=1, alpha=alpha, marker="." if len(steps) == 1 else None)
        if was_stopped_early(state, known[n]):
            ax.plot(steps[-1:], values[-1:], marker="x", color=line.get_color(), alpha=alpha)
            marked = True
    if marked:  # one entry for all, in a colour of no trial
        cross = import_module("matplotlib.lines").Line2D([], [], marker="x", color="0.4", linestyle="none")
        ax.legend([cross], ["stopped early"], fontsize="small")
    return _labelled(ax, "training iteration", name)


def plot_importance(experiment: Any, metric: str | None = None, *, ax: Any = None) -> Any:
    """How much each parameter matters for a metric, the most important on top; see ``charts.importance``."""
    data = chart(follower_of(experiment), "importance", metric=metric)
    ax = _axes(ax)
    params = data["params"][::-1]
    ax.barh([each["name"] for each in params], [each["importance"] for each in params])
    return _labelled(ax, f"importance for {data['metric']}", "")


def plot_edf(experiment: Any, metric: str | None = None, *, ax: Any = None) -> Any:
    """The share of trials that are not above each value of a metric. A list of experiments draws one line for each."""
    ax = _axes(ax)
    several = experiment if isinstance(experiment, list | tuple) else [experiment]
    name = metric
    for each in several:
        follower = follower_of(each)
        name, values = numbers(follower, metric)
        data = empirical_distribution(values)
        ax.step(data["x"], data["y"], where="post", label=follower.history.info.name)
    return _labelled(ax, name or "", "share of trials", legend=len(several) > 1)


def plot_slice(experiment: Any, param: str, metric: str | None = None, *, ax: Any = None) -> Any:
    """A metric over one parameter, a point for each trial."""
    follower = follower_of(experiment)
    name, values = numbers(follower, metric)
    column = values_of(follower, param)
    ax = _axes(ax)
    chosen = [n for n in _finite(values) if column[n] is not None]
    places = [column[n] for n in chosen]
    are_numbers = all(type(place) in (int, float) for place in places)
    ax.scatter(places if are_numbers else list(map(str, places)), [values[n] for n in chosen], s=9, alpha=0.6)
    if are_numbers and _is_log(follower, param) and all(place > 0 for place in places) and places:
        ax.set_xscale("log")
    return _labelled(ax, param, name)


def plot_contour(experiment: Any, x: str, y: str, metric: str | None = None, *, ax: Any = None) -> Any:
    """A metric over two parameters: means of cells, and the trials as points."""
    data = chart(follower_of(experiment), "contour", x=x, y=y, metric=metric)
    if not data["trials"]:
        raise InvalidInputError(f"No trial has {x!r}, {y!r} and {data['metric']!r}.")
    ax = _axes(ax)
    rows = [[math.nan if value is None else value for value in row] for row in data["z"]]
    mesh = ax.pcolormesh(data["x"]["ticks"], data["y"]["ticks"], rows, shading="nearest", cmap="viridis_r")
    ax.scatter([point[0] for point in data["points"]], [point[1] for point in data["points"]], s=6, color="black")
    for axis, set_scale, set_ticks in (("x", ax.set_xscale, ax.set_xticks), ("y", ax.set_yscale, ax.set_yticks)):
        if data[axis]["options"] is not None:
            set_ticks(data[axis]["ticks"], list(map(str, data[axis]["options"])))
        elif data[axis]["log"]:
            set_scale("log")
    ax.figure.colorbar(mesh, ax=ax, label=data["metric"])
    return _labelled(ax, x, y)


def plot_pareto(experiment: Any, metrics: Sequence[str], modes: Sequence[str] | None = None, *, ax: Any = None) -> Any:
    """Two metrics of all trials, and the front of those that no other trial beats in both.

    Args:
        experiment: Its path or URI, a ``ResultGrid`` or a ``Follower``.
        metrics: Two names.
        modes: "min" or "max" for each; None takes the experiment's mode for both.
        ax: Where to draw; None makes a new figure.
    """
    if len(metrics) != 2:
        raise InvalidInputError(f"plot_pareto draws two metrics, got {list(metrics)!r}.")
    follower = follower_of(experiment)
    data = chart(follower, "pareto", metrics=metrics, modes=modes)
    ax = _axes(ax)
    columns = [numbers(follower, metric)[1] for metric in metrics]
    ax.scatter(*columns, s=9, alpha=0.4, label="trial")
    front = data["points"]
    ax.plot([a for a, _ in front], [b for _, b in front], color="C3", marker="o", markersize=4, label="front")
    return _labelled(ax, metrics[0], metrics[1], legend=True)


def plot_parallel(
    experiment: Any, metric: str | None = None, *, params: Sequence[str] | None = None, ax: Any = None
) -> Any:
    """Parallel coordinates: a line for each trial through its parameters, coloured by a metric."""
    follower = follower_of(experiment)
    name, values = numbers(follower, metric)
    names = list(params or follower.columns.params)
    columns = [values_of(follower, param) for param in names]
    chosen = [n for n in _finite(values) if all(column[n] is not None for column in columns)]
    if len(chosen) > MAX_LINES:
        chosen = [chosen[k * len(chosen) // MAX_LINES] for k in range(MAX_LINES)]
    ax = _axes(ax)
    axes = [
        _axis([column[n] for n in chosen], _is_log(follower, param))
        for param, column in zip(names, columns, strict=True)
    ]
    axes.append(_axis([values[n] for n in chosen], log=False))
    colours = import_module("matplotlib").colormaps["viridis_r"]
    for k in range(len(chosen)):
        ax.plot([axis.shares[k] for axis in axes], color=colours(axes[-1].shares[k]), linewidth=0.8, alpha=0.6)
    ax.vlines(range(len(axes)), 0, 1, color="0.3", linewidth=0.8)
    for place, axis in enumerate(axes):
        for share, text in axis.ticks:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
            ax.text(place + 0.02, share, text, fontsize="x-small", va="center", bbox=box)
    found = [value for n in chosen if (value := values[n]) is not None]
    norm = import_module("matplotlib.colors").Normalize(min(found, default=0.0), max(found, default=1.0))
    ax.figure.colorbar(import_module("matplotlib.cm").ScalarMappable(norm, colours), ax=ax, label=name)
    ax.set_xticks(range(len(axes)), [*names, name])
    ax.set_xlim(-0.1, len(axes) - 0.7)
    ax.set_yticks([])
    for side in ("left", "right", "top", "bottom"):
        ax.spines[side].set_visible(False)
    return _labelled(ax, "", "")


def plot_workers(experiment: Any, *, ax: Any = None) -> Any:
    """What was run and when, coloured by how the attempt ended, a line for each place of a worker; gaps are idle."""
    data = chart(follower_of(experiment), "workers")
    ax = _axes(ax)
    spans: dict[tuple[str, int], list[tuple[float, float]]] = {}
    names: list[set[str]] = [set() for _ in range(data["lanes"])]
    for worker in data["workers"]:
        for _, _, a, b, how, lane in worker["spans"]:
            spans.setdefault((how, lane), []).append((a - data["start"], b - a))
            names[lane].add(f"{worker['host']}:{worker['pid']}" if worker["worker"] else "unknown")
    for outcome, colour in (*_OUTCOMES.items(), ("several", "C7")):
        label = outcome
        for lane in range(data["lanes"]):
            if bars := spans.get((outcome, lane)):
                style = {"facecolors": colour, "edgecolors": "white", "linewidth": 0.3, "label": label}
                ax.broken_barh(bars, (lane - 0.4, 0.8), **style)
                label = ""
    ax.set_yticks(range(len(names)), [f"{k + 1}" if len(each) > 1 else each.pop() for k, each in enumerate(names)])
    total = data["busy_s"] + data["idle_s"]
    ax.set_title(f"idle for {100 * data['idle_s'] / total if total else 0:.0f} % of the time", fontsize="medium")
    return _labelled(ax, "seconds since the start", "worker", legend=True)


def plot_lineage(experiment: Any, param: str | None = None, *, ax: Any = None) -> Any:
    """A parameter of each trial of a population over time, with an arrow from the trial that was copied.

    Args:
        experiment: Its path or URI, a ``ResultGrid`` or a ``Follower``.
        param: The parameter; None takes the first that was changed.
        ax: Where to draw; None makes a new figure.
    """
    follower = follower_of(experiment)
    data = chart(follower, "lineage")
    if not data["trials"]:
        raise InvalidInputError("No trial of this experiment was given another config.")
    name = param or data["params"][0]
    trials = follower.history.state.trials
    schedules = {each["trial"]: _schedule(each["schedule"], name) for each in data["trials"]}
    for n in map(int, data["ids"]):  # those that were copied and kept their own config
        schedules.setdefault(n, _schedule([{"iteration": 0, "config": flatten_result(shown(trials[n].config))}], name))
    ax = _axes(ax)
    for n, known in sorted(schedules.items()):
        if known:
            steps, values = [step for step, _ in known], [value for _, value in known]
            last = max(trials[n].iteration, steps[-1])
            ax.step([*steps, last], [*values, values[-1]], where="post", marker=".", label=trials[n].id)
    for copy in data["copies"]:
        step = copy["iteration"]
        origin, target = _value_until(schedules[copy["parent"]], step), _value_at(schedules[copy["trial"]], step)
        if origin is not None and target is not None:
            style = {"arrowstyle": "-|>", "color": "0.4", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 2}
            ax.annotate("", (step, target), (step, origin), arrowprops=style)
    if _is_log(follower, name):
        ax.set_yscale("log")
    ax.set_title("arrows point from the trial that was copied to the copy", fontsize="medium")
    return _labelled(ax, "training iteration", name, legend=len(schedules) <= 12)


def plot_recovery(experiment: Any, *, ax: Any = None) -> Any:
    """Every kill, retry, rewind, rejected checkpoint and storage outage on one time axis, with the seconds it cost."""
    data = chart(follower_of(experiment), "recovery")
    ax = _axes(ax)
    start = data["start"]
    for each in data["incidents"]:
        lane = _KINDS.index(each["kind"])
        end = each["until"] if each["until"] is not None else data["end"]
        ax.plot([each["at"] - start, end - start], [lane, lane], color=f"C{lane}", linewidth=4, alpha=0.5)
        ax.plot([each["at"] - start], [lane], marker="o", color=f"C{lane}", markersize=4)
    for driver in data["drivers"]:
        ax.axvspan(driver["at"] - start, driver["until"] - start, color="0.95", zorder=0)
    sums = [data["kinds"].get(kind, {"count": 0, "down_s": 0.0, "repeated_s": 0.0}) for kind in _KINDS]
    texts = [f"{kind}: {each['count']}" for kind, each in zip(_KINDS, sums, strict=True)]
    ax.set_yticks(range(len(_KINDS)), texts)
    ax.set_title(f"{data['down_s']:.0f} s of waiting, {data['repeated_s']:.0f} s of work repeated", fontsize="medium")
    return _labelled(ax, "seconds since the start", "")


# --- helpers


def follower_of(experiment: Any) -> Follower:
    """What knows the experiment."""
    if isinstance(experiment, Follower):
        return experiment
    history = getattr(experiment, "_history", None)
    if isinstance(history, History):
        # A grid that ``fit`` has returned does not know where its journal ends.
        found = history if history.position is not None else open_history(history.shown, None, history.info.filesystem)
        return Follower(history.shown, found)
    return Follower.open(os.path.expanduser(os.fspath(experiment)))


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib, which is not installed: pip install 'holdfast[plots]'. Without it, "
            "holdfast.results.charts has the same numbers."
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def _labelled(ax: Any, x: str, y: str, *, legend: bool = False) -> Any:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if legend and ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small")
    return ax


def _finite(values: Sequence[float | None]) -> list[int]:
    return [n for n, value in enumerate(values) if value is not None and math.isfinite(value)]


def _is_log(follower: Follower, param: str) -> bool:
    return bool((follower.history.spec.space or {}).get(param, {}).get("log"))


class _ParallelAxis(NamedTuple):
    """One axis of parallel coordinates: where each trial stands on it, between 0 and 1, and what is written beside."""

    shares: list[float]
    ticks: list[tuple[float, str]]


def _axis(values: list[Any], log: bool) -> _ParallelAxis:
    """By value for numbers, by option otherwise."""
    if all(type(value) in (int, float) for value in values):
        log = log and all(value > 0 for value in values)
        places = [math.log(value) if log else float(value) for value in values]
        low, high = min(places, default=0.0), max(places, default=1.0)
        marks = [low] if high == low else [low + share * (high - low) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        whole = sorted(set(values)) if all(type(value) is int for value in values) else []
        if 0 < len(whole) <= MAX_MARKS:
            marks = [math.log(value) if log else float(value) for value in whole]
        texts = [f"{math.exp(mark) if log else mark:.4g}" for mark in marks]
    else:
        options = {text: float(k) for k, text in enumerate(dict.fromkeys(map(str, values)))}
        places = [options[str(value)] for value in values]
        low, high = 0.0, float(len(options) - 1)
        marks, texts = list(options.values()), [clip(text, 20) for text in options]
    shares = [(place - low) / (high - low) if high > low else 0.5 for place in [*places, *marks]]
    return _ParallelAxis(shares[: len(places)], list(zip(shares[len(places) :], texts, strict=True)))


def _schedule(parts: list[dict[str, Any]], param: str) -> list[tuple[int, float]]:
    """Since which iteration a parameter had which value, where that was a number."""
    steps = [(part["iteration"], part["config"].get(param)) for part in parts]
    return [(step, value) for step, value in steps if type(value) in (int, float)]


def _value_until(schedule: list[tuple[int, float]], step: int) -> float | None:
    """The value that held before a copy was made at ``step``."""
    known = [value for since, value in schedule if since < step]
    return known[-1] if known else schedule[0][1] if schedule else None


def _value_at(schedule: list[tuple[int, float]], step: int) -> float | None:
    """The value that a copy which was made at ``step`` was given."""
    return next((value for since, value in reversed(schedule) if since == step), None)
