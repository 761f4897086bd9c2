"""``holdfast logs``: what trials printed, of all of them with their names or of one; with -f what they print next.

Owns how far each attempt's output was read, through the moves and cuts that a driver makes meanwhile. Must never:
write, follow a link, wait for a pipe, or hold a log in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.cli.log_places import LogPlaces
from holdfast.cli.printing import complain, say
from holdfast.cli.show import find_trial
from holdfast.cli.status import FAR_WATCH_PERIOD_S
from holdfast.core.state import Trial
from holdfast.display.words import one_line
from holdfast.errors import InvalidInputError
from holdfast.messages.visible import visible
from holdfast.results.follow import Follower
from holdfast.results.history import History, open_history
from holdfast.results.report_data import Phase, phase_of
from holdfast.storage import trial_logs
from holdfast.storage.trial_logs import OLDER, LogOwner

LOOK_S = 0.5


def run(arguments: argparse.Namespace) -> int:
    """Show output."""
    if arguments.tail is not None and arguments.tail < 0:
        raise InvalidInputError(f"--tail {arguments.tail}: give the number of lines, 0 or more.")
    history = open_history(arguments.path)
    trial = find_trial(history, arguments.trial) if arguments.trial is not None else None
    with LogPlaces(history) as places:
        places.refresh(history)
        return _Printer(arguments, history, trial, places).run()


class _Printer:
    def __init__(self, arguments: argparse.Namespace, history: History, trial: Trial | None, places: LogPlaces) -> None:
        self._arguments = arguments
        self._follower = Follower(arguments.path, history)
        self._places = places
        self._trial = trial
        self._reader = LogReader(places.folders(), only=None if trial is None else {trial.id})
        self._names: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._complete: set[str] = set()  # trials with files of their own that have ended
        self._said = False

    def run(self) -> int:
        follow = self._arguments.follow
        running = phase_of(self._follower.history) == Phase.RUNNING
        self._find_files()
        self._print(_last(self._reader.read(final=not (follow and running)), self._arguments.tail))
        while follow and running:
            sys.stdout.flush()
            time.sleep(LOOK_S if self._follower.history.restored is None else FAR_WATCH_PERIOD_S)
            self._follower.advance()
            running = phase_of(self._follower.history) == Phase.RUNNING
            self._places.refresh(self._follower.history)
            self._reader.folders = self._places.folders()
            self._find_files()
            self._print(self._reader.read(final=not running))
        if not self._said:
            self._say_nothing()
        return 0

    def _find_files(self) -> None:
        """Files in trials' own directories, if their output goes there."""
        history, known = self._follower.history, self._reader.others
        trials = history.state.trials if self._trial is None else [history.state.trials[self._trial.n]]
        for trial in trials if self._places.streams() else ():
            if trial.attempt and trial.id not in self._complete:
                known[trial.id] = self._places.files_of(history, trial)
                if trial.final:
                    self._complete.add(trial.id)

    def _print(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._said = True
            prefix = "" if self._trial is not None else f"{self._name(line.trial_id)} | "
            if line.attempt > 1 and self._attempts.get(line.trial_id) != line.attempt:
                say(f"{prefix}--- attempt {line.attempt} ---")
            self._attempts[line.trial_id] = line.attempt
            say(prefix + visible(line.text.expandtabs()))

    def _name(self, trial_id: str) -> str:
        """How the trial is shown; files of workers that name no trial are shown by their own names."""
        if trial_id not in self._names:
            history = self._follower.history
            self._names.update(
                (trial_logs.log_name(trial.id).removesuffix(".log"), one_line(history.name(trial), 80))
                for trial in history.state.trials
            )
        return self._names.get(trial_id) or visible(trial_id)

    def _say_nothing(self) -> None:
        history = self._follower.history
        who = f"No trial of {history.shown}" if self._trial is None else history.name(self._trial)
        has = "has printed anything" if self._trial is None else "has printed nothing"
        complain(f"{one_line(who, 400)} {has}{self._places.caveat(history)}.")


def _last(lines: Iterator[LogLine], count: int | None) -> Iterable[LogLine]:
    """The last lines of each trial."""
    if count is None:
        return lines
    kept: dict[str, deque[LogLine]] = {}
    for line in lines:
        kept.setdefault(line.trial_id, deque(maxlen=count)).append(line)
    return [line for each in kept.values() for line in each]


ANCHOR_BYTES = 4096
LEAST_ANCHOR_BYTES = 8
MAX_LINE = 64 * 1024
_HEAD_LINE = b"--- "


class LogLine(NamedTuple):
    """A line, and whose it is; ``attempt`` is 0 if nobody knows."""

    trial_id: str
    attempt: int
    text: str


class _Section(NamedTuple):
    path: str
    begin: int  # behind the head
    end: int


class _Mark(NamedTuple):
    """What a file was like when it was last looked at."""

    inode: int
    size: int
    changed: int


class _Tape:
    """How far the output of one attempt, or of one file without heads, was read."""

    __slots__ = ("anchor", "attempt", "older", "read", "rest", "trial_id")

    def __init__(self, trial_id: str, attempt: int) -> None:
        self.trial_id = trial_id
        self.attempt = attempt
        self.read = 0  # bytes behind the head
        self.older: _Mark | None = None  # of the file with what came before
        self.anchor = b""  # the last bytes that were read
        self.rest = b""  # the beginning of a line


class LogReader:
    """What the trials of one experiment printed.

    Args:
        folders: Directories with logs.
        others: More files, by whoever printed to them: trials whose output goes to their own directories.
        only: Ids of the trials to read; None reads all, and what nobody can be named for.
    """

    def __init__(
        self, folders: Iterable[str], others: Mapping[str, list[str]] | None = None, only: set[str] | None = None
    ) -> None:
        self.folders = list(folders)
        self.others: dict[str, list[str]] = dict(others or {})
        self._only = None if only is None else {trial_logs.log_name(trial_id) for trial_id in only}
        self._marks: dict[str, _Mark] = {}
        self._tapes: dict[LogOwner | str, _Tape] = {}

    def read(self, *, final: bool = False) -> Iterator[LogLine]:
        """Lines that are new since the last time, trial by trial; with ``final`` also those that are not complete."""
        found: dict[LogOwner | str, _Section] = {}
        for path in self._changed():
            for owner, section in _sections(path):
                key = path if owner is None else owner
                if self._is_wanted(owner) and _longer(section, found.get(key)):
                    found[key] = section
        for key in sorted(found, key=_order):
            yield from self._lines(key, found[key], final)
        for trial_id, paths in self.others.items():
            for path in filter(self._has_changed, paths):
                self._tapes.setdefault(path, _Tape(trial_id, 0))
                yield from self._lines(path, _Section(path, 0, self._marks[path].size), final)
        for tape in self._tapes.values() if final else ():
            yield from _flushed(tape)

    def _is_wanted(self, owner: LogOwner | None) -> bool:
        if self._only is None:
            return True
        return owner is not None and f"{owner.trial_id}.log" in self._only

    def _changed(self) -> list[str]:
        """Files with logs that are not as they were the last time."""
        paths = []
        for folder in self.folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                paths += [entry.path for entry in entries if self._may_matter(entry.name)]
        return [path for path in sorted(paths) if self._has_changed(path)]

    def _may_matter(self, name: str) -> bool:
        if not name.endswith(".log") or name == "nanny.log":
            return False
        return self._only is None or name in self._only or trial_logs.is_worker_log(name)

    def _has_changed(self, path: str) -> bool:
        mark = _look(path)
        if mark is None or self._marks.get(path) == mark:
            return False
        self._marks[path] = mark
        return True

    def _lines(self, key: LogOwner | str, section: _Section, final: bool) -> Iterator[LogLine]:
        if isinstance(key, LogOwner):
            tape = self._tapes.setdefault(key, _Tape(key.trial_id, key.attempt))
        else:
            tape = self._tapes.setdefault(key, _Tape(os.path.basename(key).removesuffix(".log"), 0))
        older = _look(section.path + OLDER)
        if older != tape.older and (isinstance(key, str) or _begins_with(section.path + OLDER, key)):
            was_cut, tape.older = tape.read > 0, older
            yield from self._after_a_cut(tape, key, section.path + OLDER, was_cut)
            tape.read = 0
        elif section.begin + tape.read > section.end:
            tape.read = 0
        yield from _as_lines(tape, _raw_lines(tape, section, section.begin + tape.read))
        tape.read = max(tape.read, section.end - section.begin)
        if final:
            yield from _flushed(tape)

    def _after_a_cut(self, tape: _Tape, key: LogOwner | str, path: str, was_cut: bool) -> Iterator[LogLine]:
        """What was moved to the file with what came before: all of it, or what follows the part that is known."""
        for owner, section in _sections(path):
            if owner is None or owner == key:
                begin = section.begin
                if was_cut:
                    begin = _behind(section, tape.anchor)
                yield from _as_lines(tape, _raw_lines(tape, section, begin))


def _order(key: LogOwner | str) -> tuple[str, float, str]:
    return (key.trial_id, key.at, "") if isinstance(key, LogOwner) else (key, 0.0, key)


def _longer(one: _Section, other: _Section | None) -> bool:
    """Of two copies of the same output the longer one counts: a move that was cut short leaves a part behind."""
    return other is None or one.end - one.begin >= other.end - other.begin


def _look(path: str) -> _Mark | None:
    try:
        facts = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return _Mark(facts.st_ino, facts.st_size, facts.st_mtime_ns)


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[mmap.mmap | bytes]:
    """A log's bytes; none if it is empty, gone, or something else than a file."""
    try:
        fd = trial_logs.open_log(path)
    except OSError:
        yield b""
        return
    try:
        if not os.fstat(fd).st_size:
            yield b""
            return
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            yield data
    finally:
        os.close(fd)


def _sections(path: str) -> list[tuple[LogOwner | None, _Section]]:
    """The attempts in a file, and where their output is."""
    found: list[tuple[LogOwner | None, int, int]] = []
    with _mapped(path) as data:
        size, at = len(data), 0
        while 0 <= at < size:
            head = trial_logs.parse_head(data[at : at + trial_logs.MAX_HEAD_BYTES])
            if head is not None:
                found.append((head[0], at, at + head[1]))
            elif at == 0:
                found.append((None, 0, 0))
            at = data.find(b"\n" + _HEAD_LINE, at)
            at = at + 1 if at >= 0 else size
    ends = [begin for _, begin, _ in found[1:]] + [size] * bool(found)
    return [(owner, _Section(path, begin, end)) for (owner, _, begin), end in zip(found, ends, strict=True)]


def _begins_with(path: str, owner: LogOwner) -> bool:
    return any(found == owner for found, _ in _sections(path))


def _behind(section: _Section, anchor: bytes) -> int:
    """Where the part begins that follows the bytes that were read last."""
    with _mapped(section.path) as data:
        while len(anchor) >= LEAST_ANCHOR_BYTES:
            at = data.rfind(anchor, section.begin, section.end)
            if at >= 0:
                return at + len(anchor)
            anchor = anchor[len(anchor) // 2 + 1 :]  # some of it may have been dropped
    return section.begin


def _raw_lines(tape: _Tape, section: _Section, begin: int) -> Iterator[bytes]:
    """The complete lines of a part; the beginning of one that is not is kept for the next time."""
    try:
        fd = trial_logs.open_log(section.path)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        file.seek(begin)
        left = section.end - begin
        while left > 0 and (line := file.readline(min(left, MAX_LINE))):
            left -= len(line)
            tape.anchor = (tape.anchor + line)[-ANCHOR_BYTES:]
            line = tape.rest + line
            if line.endswith(b"\n") or len(line) >= MAX_LINE:
                tape.rest = b""
                yield line
            else:
                tape.rest = line


def _flushed(tape: _Tape) -> Iterator[LogLine]:
    """A last line that was never completed."""
    rest, tape.rest = tape.rest, b""
    yield from _as_lines(tape, [rest] if rest else [])


def _as_lines(tape: _Tape, raw: Iterable[bytes]) -> Iterator[LogLine]:
    for data in raw:
        text = data.decode("utf-8", "replace").rstrip("\r\n")
        text = text.rpartition("\r")[2]  # the last state of a progress bar
        if not trial_logs.is_note(text) or text.startswith(trial_logs.CUT_TEXT):
            yield LogLine(tape.trial_id, tape.attempt, text)
