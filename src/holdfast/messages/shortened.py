"""Values of any kind as text that fits into a message or a line."""

from __future__ import annotations

from typing import Any

MAX_REPR_CHARS = 2_000


def shortened(value: Any) -> str:
    """``repr(value)``, cut to a length that fits into a message, whatever the object does."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} object>"
    return text if len(text) <= MAX_REPR_CHARS else text[:MAX_REPR_CHARS] + "..."
