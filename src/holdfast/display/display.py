"""What the user sees during ``fit()``: chooses the display that suits the place the output goes to.

    terminal                         LiveDisplay       one frame, repainted in place
    file, pipe, dumb terminal        PlainDisplay      at most 40 lines
    notebook                         NotebookDisplay   one output cell
    verbose=0                        SilentDisplay     nothing but the call to resume after an interruption
    a reporter with its own report() ReporterDisplay   whatever the user wrote

Must never: import rich or IPython before they are needed.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from holdfast.display.base import Display, PlainDisplay, SilentDisplay, logger
from holdfast.display.experiment_facts import DisplayOptions, Ending, ExperimentFacts, ProgressView, RunSummary
from holdfast.display.live import LiveDisplay, NotebookDisplay, in_notebook
from holdfast.display.reporters import JupyterNotebookReporter, ProgressReporter, ReporterDisplay, TableReporter
from holdfast.display.tracker import ProgressTracker
from holdfast.errors import InvalidTypeError

__all__ = [
    "Display",
    "DisplayOptions",
    "ExperimentFacts",
    "Ending",
    "ProgressTracker",
    "ProgressView",
    "RunSummary",
    "make_display",
]


def make_display(
    verbose: int | None = None,
    stream: TextIO | None = None,
    notebook: bool | None = None,
    reporter: Any = None,
) -> Display:
    """The display that suits this terminal or notebook and these settings.

    Args:
        verbose: 0 shows nothing, 1 (also None) the progress, 2 also each trial that ends, 3 also each result.
        stream: Where text goes; None is the present ``sys.stdout``.
        notebook: Whether to show HTML in a notebook; None finds out.
        reporter: ``RunConfig.progress_reporter``. One of the built-in reporters sets columns and limits; a subclass
            with its own ``report`` or ``should_report``, or any object that has both, takes over.

    Raises:
        InvalidTypeError: ``reporter`` is no reporter.
    """
    level = 1 if verbose is None else verbose
    if reporter is not None and not _is_reporter(reporter):
        raise InvalidTypeError(
            f"RunConfig.progress_reporter must have the methods should_report(trials, done) and "
            f"report(trials, done, *sys_info), got {reporter!r}. Give a CLIReporter(...) or a subclass of "
            "ProgressReporter."
        )
    if level <= 0:
        return SilentDisplay()
    stream = sys.stdout if stream is None else stream
    notebook = in_notebook() if notebook is None else notebook
    if isinstance(reporter, JupyterNotebookReporter) and not notebook:
        logger.warning("JupyterNotebookReporter needs a notebook and there is none; showing progress as text instead.")
    if reporter is not None and not _only_configures(reporter):
        return ReporterDisplay(reporter, stream)
    options = reporter.options() if isinstance(reporter, TableReporter) else DisplayOptions()
    if notebook:
        return NotebookDisplay(options, level)
    if _can_repaint(stream):
        return LiveDisplay(stream, options, level)
    return PlainDisplay(stream, options, level)


def _is_reporter(reporter: Any) -> bool:
    has_both = callable(getattr(reporter, "report", None)) and callable(getattr(reporter, "should_report", None))
    return not isinstance(reporter, type) and (isinstance(reporter, ProgressReporter) or has_both)


def _only_configures(reporter: Any) -> bool:
    """Whether the user left the built-in methods as they are."""
    kind: Any = type(reporter)
    return isinstance(reporter, TableReporter) and all(
        getattr(kind, name) is getattr(TableReporter, name) for name in ("report", "should_report")
    )


def _can_repaint(stream: TextIO) -> bool:
    try:
        if not stream.isatty():
            return False
    except (AttributeError, ValueError, OSError):
        return False
    from rich.console import Console

    return not Console(file=stream).is_dumb_terminal
