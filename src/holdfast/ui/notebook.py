"""The page of an experiment inside a notebook: the report, in a frame of its own.

The frame has no access to the notebook: its scripts run without an origin. Must never fail a cell that only shows
results: whoever cannot be shown the page sees the table.
"""

from __future__ import annotations

import html
import logging
from typing import Any

from holdfast.errors import NotRunError, TuneError
from holdfast.messages.visible import visible
from holdfast.results.follow import Follower
from holdfast.results.history import History, open_history
from holdfast.ui.report import MAX_BYTES, make_report
from holdfast.ui.source import Source

MAX_CELL_BYTES = 2_000_000
"""What a cell that ends with results may add to the file of its notebook."""
MAX_CELL_TRIALS = 1000
HEIGHT_PX = 720
_log = logging.getLogger("holdfast.ui")


def frame(history: History, max_bytes: int = MAX_BYTES) -> str:
    """The page as HTML that can stand in any other page.

    Raises:
        TuneError: The experiment cannot be read.
    """
    opened = open_history(history.shown, filesystem=history.info.filesystem, tolerant=True)
    path = history.shown
    page = make_report(Source(path, Follower(path, opened, tolerant=True)), max_bytes).html.decode()
    title = html.escape(visible(history.info.name))
    return (
        f'<div><iframe sandbox="allow-scripts allow-popups" srcdoc="{html.escape(page)}" loading="lazy" '
        f'title="{title}" style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe></div>'
    )


def folded_frame(history: History) -> str:
    """The page below a line that opens it, for a cell that ends with results; "" if it is too large or unreadable."""
    if len(history.state.trials) > MAX_CELL_TRIALS:
        return ""
    try:
        return f"<details><summary>charts, trials and their stories</summary>{frame(history, MAX_CELL_BYTES)}</details>"
    except (TuneError, OSError) as error:
        _log.debug("no page for %s: %s", history.shown, error)
        return ""


def show(history: History) -> None:
    """Show the page in the notebook's cell.

    Raises:
        NotRunError: This is no notebook.
    """
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None:
        raise NotRunError(
            "show() is for notebooks. Elsewhere, `holdfast ui` opens the page in a browser, and `holdfast report PATH "
            "out.html` writes it to a file."
        )
    shown: Any = HTML(frame(history))
    display(shown)
