"""Warnings that point to the user's own line, however many frames of holdfast lie between.

Owns the search for that line. Must never decide what is worth a warning, or import another part of holdfast.
"""

from __future__ import annotations

import sys
import warnings

_BETWEEN = frozenset({"holdfast", "contextlib", "copy", "dataclasses"})
"""Modules whose frames are nobody's own code: holdfast's, and those through which Python calls it."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about the nearest line outside of holdfast.

    The depth is measured, because one warning can come through a function, a method, a constructor that ``dataclass``
    generated or a generator that ``contextlib`` runs.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
