"""How the command line writes: JSON for programs, plain lines for people.

Owns the JSON encoding (NaN and infinity become null, what JSON does not know becomes text) and the plain table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.callbacks.progress_words import one_line

GAP = "  "


def to_json(value: Any, *, indent: bool = True) -> bytes:
    """The value as JSON that every parser accepts."""
    try:
        data = msgspec.json.encode(value, enc_hook=repr)
    except (TypeError, ValueError):
        data = msgspec.json.encode(_with_text_keys(value), enc_hook=repr)
    return msgspec.json.format(data, indent=2) if indent else data


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(each) for each in value]
    return value


def print_json(value: Any, *, indent: bool = True) -> None:
    """Write one JSON value and a line break to standard output; indented only for a person's eyes."""
    data = to_json(value, indent=indent and sys.stdout.isatty()).decode()
    sys.stdout.write(data + "\n")
    sys.stdout.flush()


def say(*lines: str) -> None:
    """Write lines to standard output, whatever the terminal can encode."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[str]], *, cut: int = 60) -> list[str]:
    """A plain table; numbers are aligned to the right."""
    cells = [[one_line(cell, cut) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in [list(titles), ["-" * width for width in widths], *cells]:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        lines.append(GAP.join(padded).rstrip())
    return lines


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "") or "0")
    except ValueError:
        return False
    return True


def when(at: float) -> str:
    """A moment in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size_text(count: int) -> str:
    """Bytes in the unit that fits."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
