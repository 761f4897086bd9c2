"""How the command line writes: JSON for programs, plain lines for people.

Owns the JSON encoding (NaN and infinity become null, what JSON does not know becomes text) and the plain table.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.display.words import one_line
from holdfast.display.words import size_text as size_text
from holdfast.errors import UsageError
from holdfast.messages.visible import visible_lines

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
    sys.stdout.write("\n".join(map(_visible_json, data.split("\n"))) + "\n")
    sys.stdout.flush()


def _visible_json(line: str) -> str:
    """The same JSON with what is not printable as an escape; JSON itself only asks for that below U+0020."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1].replace("\x7f", "\\u007f") for char in line)


def say(*lines: str) -> None:
    """Write lines to standard output, whatever the terminal can encode; codes that command it are shown as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        sys.stdout.write(visible_lines(line).encode(encoding, "replace").decode(encoding) + "\n")


def complain(text: str) -> None:
    """Write something that is not the answer to standard error."""
    encoding = sys.stderr.encoding or "utf-8"
    print(f"holdfast: {visible_lines(text)}".encode(encoding, "replace").decode(encoding), file=sys.stderr)


class _Complaints(logging.Handler):
    """Shows what the library logs as the command line shows its own complaints."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


@contextlib.contextmanager
def complaints() -> Iterator[None]:
    """Show warnings about a journal and its snapshots with the name of the command, unless logging was set up."""
    logger = logging.getLogger("holdfast.journal")
    if logger.hasHandlers():
        yield
        return
    handler = _Complaints(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def confirmed(question: str, command: str) -> bool:
    """Ask somebody at the terminal; anything but yes is no.

    Args:
        question: What to ask.
        command: The command that asks, for the error if there is nobody to answer.

    Raises:
        UsageError: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks for confirmation, and standard input is not a terminal: add --yes.")
    return input(visible_lines(question)).strip().lower() in ("y", "yes")


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[str]], *, cut: int = 60) -> list[str]:
    """A plain table; numbers are aligned to the right."""
    titles = [one_line(title, cut) for title in titles]
    cells = [[one_line(cell, cut) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in [titles, ["-" * width for width in widths], *cells]:
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
