"""Progress in a notebook: one output cell, replaced in place.

Owns the HTML. Everything that comes from the user is escaped, because trial names, parameters and error messages may
hold markup. IPython is imported only when a notebook is there.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.core.state import State
from holdfast.display.base import Display, Throttle, logger
from holdfast.display.experiment_facts import DisplayOptions, ExperimentFacts, ProgressView, RunSummary
from holdfast.display.table import Table, TableMaker, escape, table_html
from holdfast.display.trial_output import NOTEBOOK_LINES, output_html, plain_line
from holdfast.display.words import (
    best_text,
    closing_lines,
    counts_text,
    done_text,
    duration,
    failure_count,
    failure_text,
    lag_text,
    resources_text,
    speed_text,
    trouble_text,
)

REPAINT_S = 1.0
KEPT_NOTES = 10


def in_notebook() -> bool:
    """Whether this code runs in a notebook's kernel. Never imports IPython: a kernel has done that already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(Display):
    """Shows one table in the output cell and keeps it up to date."""

    def __init__(
        self,
        options: DisplayOptions | None = None,
        verbose: int = 1,
        *,
        publish: Callable[[str, bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, min(verbose, 1))
        self._publish = publish or Output().show
        self._throttle = Throttle(REPAINT_S if self.options.overwrite else self.options.table_period_s, clock)
        self._tables = TableMaker(self.options, sparks=True)
        self._printed: deque[str] = deque(maxlen=NOTEBOOK_LINES)
        self._broken = False

    def note(self, text: str) -> None:
        self._new_note(text)

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if not self._broken and self._throttle.ready():
            self._throttle.run(lambda: self._look(state, facts, at, durable_lag_s))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        view = self.view(state, facts, summary.at)
        self._hear(state, facts, final=True)
        self._show(view, facts, closing_lines(view, state, facts, summary, self._more_notes))

    def _look(self, state: State, facts: ExperimentFacts, at: float, lag_s: float) -> None:
        self._hear(state, facts)
        self._show(self.view(state, facts, at, lag_s), facts, [])

    def _hear(self, state: State, facts: ExperimentFacts, *, final: bool = False) -> None:
        if not self.options.overwrite:
            self._printed.clear()  # they stand above the table that was shown before
        self._printed.extend(plain_line(line, state, facts) for line in self._take_output(state, final=final))

    def _show(self, view: ProgressView, facts: ExperimentFacts, closing: list[str]) -> None:
        objective = self.options.objective(facts)
        table = self._tables.make(view.rows, objective[0] if objective else None)
        html = render_html(view, facts, table, list(self._notes)[-KEPT_NOTES:], closing)
        try:
            self._publish(output_html(self._printed) + html, self.options.overwrite)
        except Exception as error:
            # The front end is an edge: without it the experiment continues, and its end is told in the log.
            if not self._broken:
                logger.warning("The notebook display failed (%s: %s).", type(error).__name__, error)
            self._broken = True
            if closing:
                logger.warning("%s", "\n".join(closing))


class Output:
    """The output cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, overwrite: bool) -> None:
        """Show ``html``, in place of what was shown before if ``overwrite``."""
        from IPython.display import HTML, display

        if self._handle is None or not overwrite:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


def render_html(view: ProgressView, facts: ExperimentFacts, table: Table, notes: list[str], closing: list[str]) -> str:
    """Everything as one piece of HTML without scripts, links or outside resources."""
    parts = [
        f'<div><b>{escape(facts.name)}</b> <span style="opacity:.6">{escape(facts.root)}</span></div>',
        _bar(view),
        _lines(_head(view)),
        table_html(table) if table.rows else "",
    ]
    if closing:
        parts.append(_lines([*(f"Note: {note}" for note in notes), *closing]))
    else:
        parts.append(
            _lines([f"Failed {failure_count(group)}: {failure_text(group)}" for group in view.failures], "#c00")
        )
        parts.append(_lines([f"Note: {note}" for note in notes], "#a60"))
    return f'<div style="font-family:monospace;line-height:1.4">{"".join(parts)}</div>'


def _head(view: ProgressView) -> list[str]:
    lines = [f"{done_text(view)} in {duration(view.elapsed_s)}: {counts_text(view.counts)}"]
    lines.append(", ".join(filter(None, (speed_text(view), resources_text(view), lag_text(view)))))
    if view.best is not None:
        lines.append(f"Best {best_text(view.best)}")
    lines.append(trouble_text(view))
    return [line for line in lines if line]


def _bar(view: ProgressView) -> str:
    if not view.total:
        return ""
    return f'<progress value="{view.finished}" max="{view.total}" style="width:30em"></progress>'


def _lines(lines: list[str], colour: str = "") -> str:
    style = f' style="color:{colour}"' if colour else ""
    return "".join(f"<div{style}>{escape(line)}</div>" for line in lines)
