"""Results as a notebook shows them: one table, the best trials first.

Everything that comes from the user is escaped by what it is made of.
"""

from __future__ import annotations

from holdfast.core.state import Trial
from holdfast.display.experiment_facts import DisplayOptions, ExperimentFacts
from holdfast.display.table import TableMaker, escape, table_html
from holdfast.display.tracker import existing_counts, make_row, metric_value
from holdfast.display.words import counts_text, plural
from holdfast.results.history import History

MAX_ROWS = 20


def grid_html(history: History) -> str:
    """All results of an experiment in a piece of HTML."""
    state, facts = history.state, display_facts(history)
    ranked = _ranked(history)
    rows = [make_row(state, trial, facts, state.last_at) for trial in ranked[:MAX_ROWS]]
    table = TableMaker(DisplayOptions(max_column_length=32)).make(rows, history.info.metric)
    parts = [
        f'<div><b>{escape(history.info.name)}</b> <span style="opacity:.6">{escape(history.shown)}</span></div>',
        f"<div>{escape(counts_text(existing_counts(state)) or 'no trials')}</div>",
        table_html(table) if rows else "",
    ]
    if len(ranked) > MAX_ROWS:
        parts.append(f"<div>and {plural(len(ranked) - MAX_ROWS, 'more trial')}</div>")
    return f'<div style="font-family:monospace;line-height:1.4">{"".join(parts)}</div>'


def _ranked(history: History) -> list[Trial]:
    """The best first, by the last value of the experiment's metric; without one, in the order of their creation."""
    trials, metric = history.state.trials, history.info.metric
    if metric is None or history.info.mode is None:
        return list(trials)
    sign = -1.0 if history.info.mode == "max" else 1.0

    def place(trial: Trial) -> tuple[bool, float]:
        value = metric_value(trial, metric)
        return value is None, 0.0 if value is None else sign * value

    return sorted(trials, key=place)


def display_facts(history: History) -> ExperimentFacts:
    """The experiment as progress displays know it."""
    info = history.info
    return ExperimentFacts(
        name=info.name,
        root=history.shown,
        metric=info.metric,
        mode=info.mode,
        total=info.total_samples,
        started_at=history.state.epoch_at,
        trainable=info.trainable_name,
        info=info,
    )
