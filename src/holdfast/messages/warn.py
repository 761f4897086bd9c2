"""Warnings that point to the user's own line, however many frames of holdfast lie between.

Owns the search for that line. Must never decide what is worth a warning, or import another part of holdfast.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType

_BETWEEN = frozenset({"holdfast", "contextlib", "copy", "dataclasses"})
"""Modules whose frames are nobody's own code: holdfast's, and those through which Python calls it."""


_listener: Callable[[str, str, int], None] | None = None


def set_listener(listener: Callable[[str, str, int], None] | None) -> None:
    """Say who gets hints, with the user's file and line: in a trial nobody reads its warnings."""
    global _listener
    _listener = listener


class ExperimentWarning(UserWarning):
    """An experiment works, but hardly as it was meant: nothing is reported, or what cannot be compared."""


_warned: set[str] = set()


def was_warned(message: str) -> bool:
    """Has this process warned of exactly this, as an ``ExperimentWarning``?"""
    return message in _warned


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about the nearest line outside of holdfast; of an older spelling a listener is told too."""
    frame, level = _users_frame()
    if issubclass(category, ExperimentWarning):
        _warned.add(message)
    if issubclass(category, DeprecationWarning):
        _tell_listener(message, frame)
    warnings.warn(message, category, stacklevel=level + 1)


def hint(message: str) -> None:
    """Tell the listener about the nearest line outside of holdfast; warn nobody."""
    _tell_listener(message, _users_frame()[0])


def _tell_listener(message: str, frame: FrameType) -> None:
    if _listener is not None:
        _listener(message, frame.f_code.co_filename, frame.f_lineno)


def _users_frame() -> tuple[FrameType, int]:
    """The nearest frame outside of holdfast, and how far it is from the caller.

    The depth is measured, because one warning can come through a function, a method, a constructor that ``dataclass``
    generated or a generator that ``contextlib`` runs.
    """
    level = 0
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
        level += 1
    return frame, level - 1
