"""Text that others wrote, made safe to show: names, metrics, errors and output may hold codes that command a terminal.

A name or a message can clear the screen, rewrite lines above it, change the window's title or run backwards. Whatever
is not printable is shown as an escape, ``\\x1b`` for example, so that one sees it and it does nothing.

Owns this rule, and how the ``repr`` of any value is cut; every edge that shows text uses it. Must never: change text
that is stored.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_SPACES = frozenset("\xa0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
_ZONES = re.compile(r"[^\x20-\x7e]+")


def visible(text: str) -> str:
    """The text with everything that is not printable as an escape. Line breaks and tabs too."""
    return text if text.isprintable() else _ZONES.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The text with its line breaks and tabs, and everything else that is not printable as an escape."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))


def with_colours(text: str) -> str:
    """One line with the colours that it sets; everything else that is not printable as an escape.

    For what a trial prints while its user watches. Nothing but colours: all other codes move the cursor or worse.
    """
    if text.isprintable():
        return text
    return "".join(part if i % 2 else visible(part) for i, part in enumerate(_COLOUR.split(text)))


def without_colours(text: str) -> str:
    """One line without the colours that it sets; everything else that is not printable as an escape."""
    return text if text.isprintable() else visible(_COLOUR.sub("", text))


def _escaped(zone: re.Match[str]) -> str:
    return "".join(map(_character, zone[0]))


def _character(char: str) -> str:
    if char.isprintable() or char in _SPACES:
        return char
    return char.encode("unicode_escape").decode("ascii")
