"""``progress.csv``: flattened results without the config, one line per result.

Owns the format. A key that first appears in a later row gets a column at the end: the file is rewritten with the longer
header, so that no value is dropped.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.loggers import FileLogger, TrialLog
from holdfast.storage.layout import PROGRESS_FILE
from holdfast.views.results import flatten_result

if TYPE_CHECKING:
    from holdfast.views.trials import TrialView

MAX_SHAPES = 256


class _Echo:
    """A file that hands back what is written to it: ``writerow`` returns what ``write`` does."""

    @staticmethod
    def write(text: str) -> str:
        return text


# The terminator decides what is quoted: with both characters in it, no row has a bare one inside.
_to_text: Callable[[Any], str] = csv.writer(_Echo(), lineterminator="\r\n").writerow

_special = re.compile('["\r\n\0]').search


def _line(values: Collection[Any]) -> bytes:
    # Most rows have nothing to be quoted, and then this is twice as fast as the writer.
    text = ",".join(["" if value is None else str(value) for value in values])
    if text.count(",") == len(values) - 1 and len(values) > 1 and not _special(text):
        return (text + "\n").encode("utf-8", "backslashreplace")
    text = _to_text(values)
    if "\0" in text:  # no reader likes it, and where it is found in a file it is damage
        text = text.replace("\0", "\\0")
    return (text[:-2] + "\n").encode("utf-8", "backslashreplace")


class _Shape:
    """The columns of a file. Trials that report the same keys share one."""

    __slots__ = ("columns", "header", "known", "pick", "size")

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.header = _line(columns)
        self.known = frozenset(columns)
        self.size = len(columns) + 1  # with the config
        self.pick: Callable[[Any], Any] | None = itemgetter(*columns) if len(columns) > 1 else None


class CSVLoggerCallback(FileLogger):
    """Writes each result as a line of ``progress.csv``."""

    def _reset(self) -> None:
        super()._reset()
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._recent: _Shape | None = None  # that of the last row with new keys: the next trial's may be the same

    def filename(self, trial: TrialView) -> str:
        return PROGRESS_FILE

    def encode(self, log: TrialLog, trial: TrialView, result: Mapping[str, Any]) -> bytes:
        shape: _Shape | None = log.extra or self._recent
        if shape is not None and len(result) == shape.size and shape.pick is not None and "config" in result:
            try:
                values = shape.pick(result)
            except KeyError:
                return self._encode_new(log, result)
            if dict not in map(type, values):
                if log.extra is None:
                    log.extra = shape
                    return shape.header + _line(values)
                return _line(values)
        return self._encode_new(log, result)

    def _encode_new(self, log: TrialLog, result: Mapping[str, Any]) -> bytes:
        """A row whose keys may not be the columns: nested, fewer, or more."""
        flat = flatten_result({key: value for key, value in result.items() if key != "config"})
        shape: _Shape | None = log.extra
        if shape is None:
            shape = log.extra = self._shape(tuple(flat))
            return shape.header + _line(flat.values())
        new = [key for key in flat if key not in shape.known]
        if new:
            shape = log.extra = self._shape((*shape.columns, *new))
            self.writer.edit(log.path, functools.partial(_widened, shape.header, len(new)))
        return _line([flat.get(column, "") for column in shape.columns])

    def _shape(self, columns: tuple[str, ...]) -> _Shape:
        shape = self._shapes.get(columns)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[columns] = _Shape(columns)
        self._recent = shape
        return shape

    def row_ends(self, data: bytes) -> list[int]:
        return _line_ends(data)[1:]

    def decode(self, data: bytes, start: int, end: int) -> dict[str, Any]:
        head = _line_ends(data)[0]
        columns, values = _cells(data[:head]), _cells(data[max(start, head) : end])
        return dict(zip(columns, values, strict=True)) if len(columns) == len(values) else {}

    def cell(self, value: Any) -> Any:
        return str(value).replace("\0", "\\0")

    def learn(self, log: TrialLog, data: bytes) -> None:
        if log.rows:
            log.extra = self._shape(tuple(_cells(data[: _line_ends(data)[0]])))


def _line_ends(data: bytes) -> list[int]:
    """Where each line ends that is whole: line breaks in quotes do not count, and zeros are what a crash may leave."""
    ends: list[int] = []
    start = quotes = 0
    while True:
        end = data.find(b"\n", start) + 1
        if not end or b"\0" in data[start:end]:
            return ends
        quotes += data.count(b'"', start, end)
        if not quotes % 2:
            ends.append(end)
        start = end


def _cells(line: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(line.decode("utf-8", "replace"), newline="")), [])


def _widened(header: bytes, added: int, data: bytes) -> bytes:
    """The file with a longer header, and as many empty cells at the end of each row."""
    ends = _line_ends(data)
    padding = b"," * added + b"\n"
    rows = [data[start : end - 1] + padding for start, end in itertools.pairwise(ends)]
    return header + b"".join(rows)
