"""Long texts in little room, cut in the middle: the beginning says what happened, the end says what to do.

Owns how much of each stays. Must never: write to a stream.
"""

from __future__ import annotations

import textwrap

from holdfast.messages.visible import visible

CUT = " .. "
ENDING_SHARE = 0.65
"""How much of the room the end gets: advice is longer than the words that name a mistake."""


LONGEST_WORD = 20
"""The end begins with a whole word if one begins within so many characters."""


def clip_middle(text: str, limit: int) -> str:
    """The beginning and the end of a text, marked if it was cut."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(CUT))
    size = int(room * ENDING_SHARE)
    end = text[len(text) - size :]
    word = end.find(" ", 0, LONGEST_WORD)
    return text[: room - size].rstrip() + CUT + (end if word < 0 else end[word:]).lstrip()


def whole_sentences(text: str, limit: int) -> str:
    """As many sentences from the beginning as fit, without the last full stop; cut if not even one does."""
    text = visible(" ".join(text[: 4 * limit].split()))
    if len(text) > limit:
        full = text.rfind(". ", 0, limit)
        text = text[:full] if full > 0 else clip_middle(text, limit)
    return text.removesuffix(".")


def advice_line(text: str, limit: int) -> str:
    """Text as one printable line of at most ``limit`` characters, whose end stays."""
    if len(text) > 8 * limit:
        text = f"{text[: 4 * limit]} {text[-4 * limit :]}"  # it may be a megabyte: what is far inside is cut anyway
    return clip_middle(visible(" ".join(text.split())), limit)


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """A text in at most so many lines; its middle goes if that is not enough."""
    # A line that breaks between words is not full.
    for limit in (len(text), int(lines * width * 0.9), int(lines * width * 0.7)):
        broken = textwrap.wrap(clip_middle(text, limit), width, break_on_hyphens=False)
        if len(broken) <= lines:
            return broken
    return [clip_middle(text, width)]
