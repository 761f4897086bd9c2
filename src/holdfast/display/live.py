"""Progress that is repainted in place: on a terminal with rich, and in a notebook's output cell with IPython.

Owns the frame and the terminal while it lives, and the HTML of the cell. There is no thread: the driver's loop calls
``update`` several times a second. The cursor is never hidden, so that even ``kill -9`` leaves a usable terminal; an
exception or an exit gives the terminal back through ``close``. If painting fails (a terminal that went away, an
encoding that cannot show the user's text) the display continues with plain lines: an experiment never ends because of
what is shown. In HTML everything that comes from the user is escaped, because trial names, parameters and error
messages may hold markup.

Must never: import rich or IPython before they are needed.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.state import State, Status
from holdfast.display.base import Display, PlainDisplay, Throttle, logger
from holdfast.display.clipping import advice_line, clip_middle, wrapped
from holdfast.display.closing import closing_lines
from holdfast.display.experiment_facts import DisplayOptions, ExperimentFacts, ProgressView, RunSummary
from holdfast.display.table import GAP, Table, TableMaker, escape, table_html
from holdfast.display.trial_output import NOTEBOOK_LINES, output_html, plain_line, terminal_text
from holdfast.display.words import (
    best_text,
    clip,
    clip_front,
    counts_text,
    done_text,
    duration,
    failure_count,
    failure_text,
    lag_text,
    one_line,
    plural,
    resources_text,
    speed_text,
    trouble_text,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

REPAINT_S = 0.25
NOTEBOOK_REPAINT_S = 1.0
SHOWN_NOTES = 3
KEPT_NOTES = 10
CLOSING_ROWS = 10
LEAST_ROWS = 3
BAR_WIDTH = 40

STYLES = {
    Status.RUNNING: "cyan",
    Status.PENDING: "dim",
    Status.PAUSED: "yellow",
    Status.TERMINATED: "green",
    Status.ERROR: "bold red",
}


class LiveDisplay(Display):
    """Paints one frame again and again, and leaves a short summary behind."""

    def __init__(
        self,
        stream: TextIO,
        options: DisplayOptions | None = None,
        verbose: int = 1,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, verbose)
        if console is None:
            from rich.console import Console

            console = Console(file=stream, highlight=False)
        self._console = console
        self._throttle = Throttle(REPAINT_S, clock)
        self._frame = Frame(self.options, sparks=console.encoding.lower().startswith("utf"))
        self._live: Live | None = None
        self._pid = 0
        self._plain = PlainDisplay(stream, options, verbose)
        self._broken = False

    def start(self, facts: ExperimentFacts) -> None:
        self._safely(self._begin)

    def feed(self, event: ev.AnyEvent) -> None:
        if self._broken:
            self._plain.feed(event)
        else:
            super().feed(event)

    def note(self, text: str) -> None:
        if self._broken:
            self._plain.note(text)
        elif self._new_note(text):
            self._frame.notes = [*self._frame.notes, advice_line(text, 400)][-SHOWN_NOTES:]

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if self._broken:
            self._plain.update(state, facts, at, durable_lag_s)
        elif self._throttle.ready():
            self._safely(lambda: self._throttle.run(lambda: self._paint(state, facts, at, durable_lag_s)))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        self.close()
        if not self._broken:
            self._safely(lambda: self._close_with(state, facts, summary))
        if self._broken:
            self._plain.end(state, facts, summary)

    def close(self) -> None:
        live, self._live = self._live, None
        # A forked child inherits this object, but the terminal is its parent's.
        if live is not None and self._pid == os.getpid():
            atexit.unregister(self.close)
            self._safely(live.stop)

    def _begin(self) -> None:
        from rich.live import Live
        from rich.text import Text

        before = sys.stdout, sys.stderr
        live = Live(
            Text("starting ..."),
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
        )
        self._live, self._pid = live, os.getpid()
        atexit.register(self.close)
        live.start()
        self._console.show_cursor(True)
        _restore_in_children(before)

    def _paint(self, state: State, facts: ExperimentFacts, at: float, lag_s: float) -> None:
        if self._live is None:
            return
        from rich.text import Text

        lines = self._take_lines(state, facts)
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
        self._print_output(state, facts)
        height = self._console.height
        options = self.options
        if options.max_progress_rows is None:
            options = replace(options, max_progress_rows=max(LEAST_ROWS, height))
        view = self.tracker.view(state, facts, options, at, lag_s)
        self._live.update(self._frame.render(view, facts, self._console.width, height), refresh=True)

    def _print_output(self, state: State, facts: ExperimentFacts, *, final: bool = False) -> None:
        printed = self._take_output(state, final=final)
        if printed:
            self._console.print(terminal_text(printed, state, facts), soft_wrap=True)

    def _close_with(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        from rich.text import Text

        view = self.view(state, facts, summary.at)
        for line in self._take_lines(state, facts):
            self._console.print(Text(line), soft_wrap=True)
        self._print_output(state, facts, final=True)
        # At the end the best trials are worth more than the latest.
        best = replace(self.options, sort_by_metric=True, max_progress_rows=CLOSING_ROWS)
        rows, _ = self.tracker.rows(state, facts, best, view.at)
        table = self._frame.table(replace(view, rows=rows, hidden=0), facts, self._console.width)
        if table is not None:
            self._console.print(table)
        for note in self._frame.notes:
            self._console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
        unshown = len(self._notes) + self._more_notes - len(self._frame.notes)
        for i, line in enumerate(closing_lines(view, state, facts, summary, unshown)):
            # Soft wrapping keeps paths and the call to paste in one piece.
            self._console.print(Text(line, "bold" if i == 0 else ""), soft_wrap=True)

    def _safely(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self.close)
            try:
                live.stop()
            except Exception:
                pass  # the reason why we are here
        self._broken = True
        self._plain.tracker, self._plain.output = self.tracker, self.output
        for note in self._notes:
            self._plain.note(note)
        self._plain.note(f"the live display failed ({type(error).__name__}: {error}); continuing with plain lines.")


class Frame:
    """What is painted; rich is imported by now."""

    def __init__(self, options: DisplayOptions, *, sparks: bool = False) -> None:
        self._options = options
        self._tables = TableMaker(options, sparks=sparks)
        self.notes: list[str] = []

    def render(self, view: ProgressView, facts: ExperimentFacts, width: int, height: int) -> RenderableType:
        """Everything, for a terminal of this size."""
        from rich.console import Group

        head = list(self._head(view, facts, width))
        tail = list(self._tail(view, width, max(2, height // 6)))
        # Three lines: the table's title, its rule and the count of hidden trials; one is left to the cursor.
        room = max(LEAST_ROWS, height - len(head) - len(tail) - 4)
        table = self.table(view, facts, width, room)
        return Group(*head, *([] if table is None else [table]), *tail)

    def _head(self, view: ProgressView, facts: ExperimentFacts, width: int) -> Iterator[RenderableType]:
        from rich.text import Text

        name = one_line(facts.name, max(10, width // 2))
        root = clip_front(one_line(facts.root, 1000), max(10, width - len(name) - 3))
        yield Text.assemble((name, "bold"), "  ", (root, "dim"), no_wrap=True)
        yield self._bar(view, width)
        yield _joined(counts_text(view.counts), speed_text(view), width=width)
        if view.best is not None:
            yield Text.assemble("Best ", (clip(best_text(view.best), width - 5), "bold green"), no_wrap=True)
        resources = resources_text(view)
        facts_line = _joined(f"{resources} in use" if resources else "", lag_text(view), width=width)
        if facts_line.plain:
            yield facts_line
        trouble = trouble_text(view)
        if trouble:
            yield Text(clip(trouble, width), "yellow", no_wrap=True)

    def _bar(self, view: ProgressView, width: int) -> RenderableType:
        from rich.columns import Columns
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        lived = f" ({duration(view.lived_s)} in all)" if view.lived_s - view.elapsed_s >= 1 else ""
        words = f"{done_text(view)}, {duration(view.elapsed_s)}{lived}"
        if not view.total:
            return Text(words)
        share = Text(f"{words} ", no_wrap=True)
        bar = ProgressBar(
            total=view.total, completed=view.finished, width=max(5, min(BAR_WIDTH, width - len(words) - 2))
        )
        return Columns([share, bar], padding=0)

    def table(
        self, view: ProgressView, facts: ExperimentFacts, width: int, room: int = CLOSING_ROWS
    ) -> RenderableType | None:
        """The trials, as many as there is room for."""
        rows = view.rows[:room]
        if not rows:
            return None
        objective = self._options.objective(facts)
        made = self._tables.make(rows, objective[0] if objective else None, width)
        hidden = view.hidden + sum(row.status == Status.RUNNING for row in view.rows[room:])
        return _painted(made, f".. and {hidden:,} more running" if hidden else "")

    def _tail(self, view: ProgressView, width: int, kinds: int) -> Iterator[RenderableType]:
        from rich.text import Text

        limit = min(self._options.max_error_rows, kinds)
        shown = view.failures[:limit]
        for group in shown:
            text = f"{failure_count(group)}: {failure_text(group)}"
            first, *more = wrapped(text, max(20, width - 7), kinds // len(shown))
            yield Text.assemble(("Failed ", "bold red"), (first, "red"), no_wrap=True)
            yield from (Text(f"       {line}", "red", no_wrap=True) for line in more)
        rest = len(view.failures) + view.more_failures - limit
        if limit and rest > 0:
            yield Text(f"Failed .. and {plural(rest, 'other kind')} of errors", "red")
        for note in self.notes:
            yield Text(clip_middle(f"Note: {note}", width), "yellow", no_wrap=True)


def _joined(*parts: str, width: int) -> Text:
    from rich.text import Text

    return Text(clip("  |  ".join(filter(None, parts)), width), no_wrap=True)


def _painted(table: Table, footer: str) -> Text:
    """The table as one text: much faster than laying out the same cells again at every repaint."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    status = table.titles.index("Status") if "Status" in table.titles else -1
    start = sum(table.widths[:status]) + GAP * status if status >= 0 else 0
    head, rule, *rows = table.lines()
    text.append(head, "bold").append("\n").append(rule, "dim")
    for line, cells in zip(rows, table.rows, strict=True):
        begin = len(text) + 1
        text.append("\n" + line)
        if status >= 0:
            word = cells[status]
            text.stylize(STYLES.get(word, ""), begin + start, begin + start + len(word))
    if footer:
        text.append("\n").append(footer, "dim")
    return text


_streams: tuple[TextIO, TextIO] | None = None
_hooked = False


def _restore_in_children(streams: tuple[TextIO, TextIO]) -> None:
    """Make sure that a forked worker's prints do not repaint the parent's terminal.

    While a frame is alive, ``sys.stdout`` is a proxy that paints it again below each printed line. A child that
    inherits the proxy would write whole frames into its trial's log.
    """
    global _hooked, _streams
    _streams = streams
    if not _hooked and hasattr(os, "register_at_fork"):
        _hooked = True
        os.register_at_fork(after_in_child=_use_real_streams)


def _use_real_streams() -> None:
    for name, stream in zip(("stdout", "stderr"), _streams or (), strict=False):
        if type(getattr(sys, name)).__name__ == "FileProxy":
            setattr(sys, name, stream)


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
        self._throttle = Throttle(NOTEBOOK_REPAINT_S if self.options.overwrite else self.options.table_period_s, clock)
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
        _html_bar(view),
        _html_lines(_html_head(view)),
        table_html(table) if table.rows else "",
    ]
    if closing:
        parts.append(_html_lines([*(f"Note: {note}" for note in notes), *closing]))
    else:
        parts.append(
            _html_lines([f"Failed {failure_count(group)}: {failure_text(group)}" for group in view.failures], "#c00")
        )
        parts.append(_html_lines([f"Note: {note}" for note in notes], "#a60"))
    return f'<div style="font-family:monospace;line-height:1.4">{"".join(parts)}</div>'


def _html_head(view: ProgressView) -> list[str]:
    lines = [f"{done_text(view)} in {duration(view.elapsed_s)}: {counts_text(view.counts)}"]
    lines.append(", ".join(filter(None, (speed_text(view), resources_text(view), lag_text(view)))))
    if view.best is not None:
        lines.append(f"Best {best_text(view.best)}")
    lines.append(trouble_text(view))
    return [line for line in lines if line]


def _html_bar(view: ProgressView) -> str:
    if not view.total:
        return ""
    return f'<progress value="{view.finished}" max="{view.total}" style="width:30em"></progress>'


def _html_lines(lines: list[str], colour: str = "") -> str:
    style = f' style="color:{colour}"' if colour else ""
    return "".join(f"<div{style}>{escape(line)}</div>" for line in lines)
