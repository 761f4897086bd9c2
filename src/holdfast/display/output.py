"""Lines that trials printed, as the displays show them: with the trial's name before each.

Owns the prefix, its colour, and what becomes of codes in the line: a terminal gets colours, everything else as an
escape (``holdfast.messages.visible``). Must never: read a file or write to a stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.state import State
from holdfast.display.experiment_facts import ExperimentFacts
from holdfast.display.trial_output import OutputLine
from holdfast.display.words import one_line
from holdfast.messages.visible import with_colours, without_colours

if TYPE_CHECKING:
    from rich.text import Text

LOOK_S = 0.25
NOTEBOOK_LINES = 500
"""Lines that a notebook keeps above its table."""

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
_BAR = " | "


def prefix(line: OutputLine, state: State, facts: ExperimentFacts) -> str:
    """Whose line it is."""
    return one_line(facts.name_of(state.trials[line.n]), 60) + _BAR if line.n >= 0 else ""


def plain_line(line: OutputLine, state: State, facts: ExperimentFacts) -> str:
    """The line for a file, a pipe or a notebook."""
    return prefix(line, state, facts) + without_colours(line.text.expandtabs())


def terminal_text(lines: Iterable[OutputLine], state: State, facts: ExperimentFacts) -> Text:
    """The lines for a terminal, each trial in a colour of its own."""
    from rich.text import Text

    text = Text()
    for i, line in enumerate(lines):
        if i:
            text.append("\n")
        text.append(prefix(line, state, facts), _COLOURS[line.n % len(_COLOURS)])
        if line.n < 0:
            text.append(line.text, "dim")
        else:
            text.append_text(Text.from_ansi(with_colours(line.text.expandtabs())))
    return text


def output_html(lines: Iterable[str]) -> str:
    """The last lines in a box above a notebook's table."""
    from html import escape

    text = escape("\n".join(lines))
    return f'<pre style="max-height:20em;overflow:auto;margin:0">{text}</pre>' if text else ""
