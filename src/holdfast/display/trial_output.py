"""What trials print, as lines to show while they run.

The driver reads the files that trials print to, a bounded amount each time somebody wants lines: nothing is sent, and a
trial that prints without end costs no more than a quiet one. What is left out is counted, and stays in the files.

Owns how far each file was read, how many lines a second there are, and how they look: the trial's name before each, in
its colour, and codes in a line as colours on a terminal, as escapes elsewhere. Must never: block, raise, or do anything
for each report.
"""

from __future__ import annotations

import mmap
import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core import events as ev
from holdfast.core.state import State, Trial
from holdfast.display.experiment_facts import ExperimentFacts
from holdfast.display.words import one_line, plural
from holdfast.messages.visible import visible, with_colours, without_colours
from holdfast.storage import trial_logs
from holdfast.views.trials import ExperimentInfo, shown_root, trial_dirname

if TYPE_CHECKING:
    from rich.text import Text

_CUT = trial_logs.CUT_TEXT.encode()

LOOK_S = 0.25
LINES_PER_S = 25.0
MOST_LINES = 100
"""Lines that may come at once after a quiet time."""

BYTES_PER_FILE = 32 * 1024
BYTES_PER_LOOK = 256 * 1024
MAX_LINE = 2000
MAX_ENDED = 10_000
"""Attempts whose end is remembered until the next look; of more, the output is only in the files."""

SUMMARY_S = 2.0
"""Least time between two lines that say how much was left out."""

NOTEBOOK_LINES = 500
"""Lines that a notebook keeps above its table."""

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
_BAR = " | "

Running = Callable[[], Mapping[tuple[int, int], list[tuple[str, int]]]]
"""Files to which attempts print at present, by (n, attempt), and where each attempt's output begins in them.

The last one is the worker's, which holds nothing but what this attempt printed and begins with its head."""


class OutputLine(NamedTuple):
    """A line that a trial printed; ``n`` is -1 for one that says what was left out."""

    n: int
    text: str


class _Tape:
    """How far one file was read."""

    __slots__ = ("attempt", "offset", "rest")

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.rest = b""  # the beginning of a line
        self.attempt = 1  # whose lines were shown last


class TrialOutput:
    """Reads what trials print.

    Args:
        info: The experiment.
        running: The files to which attempts print at present.
        files: Names of the files in a trial's directory, if output goes there (``RunConfig.log_to_file``).
        clock: Seconds.
    """

    def __init__(
        self,
        info: ExperimentInfo,
        running: Running,
        files: tuple[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info = info
        self._running = running
        self._files = () if files is None else tuple(dict.fromkeys(files))
        self._folder = os.path.join(info.root, trial_logs.FOLDER)
        self._clock = clock
        self._tapes: dict[tuple[int, str], _Tape] = {}  # by trial and file
        self._ended: deque[tuple[int, int]] = deque(maxlen=MAX_ENDED)
        self._begun: set[tuple[int, int]] = set()  # attempts that were started while we listened, and have not ended
        self._waiting: dict[int, deque[str]] = {}
        self._tokens, self._filled_at = float(MOST_LINES), clock()
        self._lines_out = self._bytes_out = 0
        self._was_cut = False
        self._trials_out: dict[int, None] = {}
        self._summed_at = clock() - SUMMARY_S
        self._budget = 0

    def feed(self, event: ev.AnyEvent) -> None:
        """Take one journaled event.

        An attempt that a former driver has started ends when its experiment is opened, or later still if the trial
        cannot be continued. What it printed is not news: that driver has shown it, and ``holdfast logs`` has it.
        """
        if type(event) is ev.TrialStarted:
            self._begun.add((event.n, event.attempt))
        elif type(event) in _ENDS:
            key = (event.n, event.attempt)  # type: ignore[union-attr]
            if key in self._begun:
                self._begun.remove(key)
                self._ended.append(key)

    def take(self, state: State, *, final: bool = False) -> list[OutputLine]:
        """Complete lines that were printed since the last call, as many as may be shown; all trials in turns.

        Args:
            state: The experiment's.
            final: Nothing more will be printed, and everything that is left out is told now.
        """
        self._budget = BYTES_PER_LOOK
        running = self._running()
        ended, self._ended = self._ended, deque(maxlen=MAX_ENDED)
        for key in ended:
            if key in running and not final:
                self._ended.append(key)  # its process is still at it
            else:
                self._read_ended(state.trials[key[0]], key[1])
        for (n, attempt), places in running.items():
            trial = state.trial(n)
            if trial is not None and self._budget > 0:
                self._read_running(trial, attempt, places)
        lines = self._in_turns()
        now = self._clock()
        if self._trials_out and (final or now - self._summed_at >= SUMMARY_S):
            self._summed_at = now
            lines.append(OutputLine(-1, self._summary(state)))
        return lines

    # --- reading

    def _read_running(self, trial: Trial, attempt: int, places: list[tuple[str, int]]) -> None:
        for path, begin in places[:-1] if self._files else places[-1:]:
            tape = self._tapes.get((trial.n, path))
            try:
                if os.stat(path).st_size == (begin if tape is None else tape.offset):
                    continue
                fd = trial_logs.open_log(path)
            except OSError:
                continue
            try:
                if not self._files:
                    begin = _own_head(fd, trial, attempt)
                    if not begin:
                        continue  # the worker has not begun this attempt, or has ended it meanwhile
                tape = self._tapes.setdefault((trial.n, path), _Tape(begin))
                self._read_from(trial.n, attempt, tape, fd, begin)
            finally:
                os.close(fd)

    def _read_ended(self, trial: Trial, attempt: int) -> None:
        if self._files:
            folder = os.path.join(self._info.root, trial_dirname(self._info, trial))
            for name in self._files:
                self._read_last(trial, attempt, os.path.join(folder, name))
        else:
            self._read_settled(trial, attempt)

    def _read_last(self, trial: Trial, attempt: int, path: str) -> None:
        """The rest of a file that all attempts of a trial share."""
        tape = self._tapes.get((trial.n, path))
        if tape is None and attempt > 1:
            return  # nobody knows where it begins
        tape = tape or _Tape()
        self._finish(trial, attempt, tape, path, (0, None))
        self._tapes[trial.n, path] = tape
        if trial.final:
            del self._tapes[trial.n, path]

    def _read_settled(self, trial: Trial, attempt: int) -> None:
        """The output of an attempt that has ended, in its trial's file; what was read before is not read again."""
        mine = [key for key in self._tapes if key[0] == trial.n]
        tape = next((self._tapes.pop(key) for key in mine), None)
        path = os.path.join(self._folder, trial_logs.log_name(trial.id))
        try:
            begin, head, end = _section(path, trial.id, attempt)
        except OSError:
            return  # it printed nothing
        tape = tape or _Tape(head)
        tape.offset += begin
        self._finish(trial, attempt, tape, path, (begin + head, end))

    def _finish(self, trial: Trial, attempt: int, tape: _Tape, path: str, span: tuple[int, int | None]) -> None:
        try:
            fd = trial_logs.open_log(path)
        except OSError:
            return
        try:
            self._read_from(trial.n, attempt, tape, fd, *span)
        finally:
            os.close(fd)
        rest, tape.rest = tape.rest, b""
        if rest.strip(b"\r"):
            self._say(trial.n, attempt, tape, rest)

    def _read_from(self, n: int, attempt: int, tape: _Tape, fd: int, begin: int, end: int | None = None) -> None:
        size = os.fstat(fd).st_size if end is None else end
        if tape.offset > size:
            tape.offset, tape.rest = begin, b""  # it was cut: what came before is in another file, or dropped
            self._leave_out(n, lines=0, size=0, cut=True)
        elif tape.offset <= begin and os.pread(fd, len(_CUT), begin) == _CUT:
            self._leave_out(n, lines=0, size=0, cut=True)
        tape.offset = max(tape.offset, begin)
        if size - tape.offset > BYTES_PER_FILE:
            skipped = size - BYTES_PER_FILE // 2 - tape.offset
            self._leave_out(n, lines=0, size=skipped)
            tape.offset, tape.rest = tape.offset + skipped, b""
        data = os.pread(fd, max(0, min(BYTES_PER_FILE, self._budget, size - tape.offset)), tape.offset)
        self._budget -= len(data)
        tape.offset += len(data)
        text, found, rest = (tape.rest + data).rpartition(b"\n")
        tape.rest = _last_state(rest, ended=False)[-MAX_LINE:]
        if found:
            self._say(n, attempt, tape, text)

    def _say(self, n: int, attempt: int, tape: _Tape, data: bytes) -> None:
        waiting = self._waiting.setdefault(n, deque())
        for raw in data.split(b"\n"):
            line = _last_state(raw).decode("utf-8", "replace").rstrip()
            if not line or trial_logs.is_note(line):
                continue
            if attempt != tape.attempt:
                tape.attempt = attempt
                waiting.append(f"--- attempt {attempt} ---")
            waiting.append(line if len(line) <= MAX_LINE else line[:MAX_LINE] + "..")

    # --- thinning

    def _in_turns(self) -> list[OutputLine]:
        now = self._clock()
        self._tokens = min(float(MOST_LINES), self._tokens + (now - self._filled_at) * LINES_PER_S)
        self._filled_at = now
        waiting, self._waiting = self._waiting, {}
        room = int(self._tokens)
        share = dict.fromkeys(waiting, 0)
        while room and any(len(waiting[n]) > share[n] for n in share):
            for n, count in share.items():
                if room and len(waiting[n]) > count:
                    share[n] += 1
                    room -= 1
        lines = []
        for n, texts in waiting.items():
            lines += [OutputLine(n, text) for text in list(texts)[: share[n]]]
            if len(texts) > share[n]:
                self._leave_out(n, lines=len(texts) - share[n], size=0)
        self._tokens -= len(lines)
        return lines

    def _leave_out(self, n: int, *, lines: int, size: int, cut: bool = False) -> None:
        self._lines_out += lines
        self._bytes_out += size
        self._was_cut = self._was_cut or cut  # nobody knows how much that was
        if len(self._trials_out) < 1000:
            self._trials_out[n] = None

    def _summary(self, state: State) -> str:
        parts = [plural(self._lines_out, "more line")] if self._lines_out else []
        if self._bytes_out:
            parts.append(f"{max(0.1, self._bytes_out / 1e6):,.1f} MB more")
        if self._was_cut:
            parts.append("older output that was cut (RunConfig.max_output_bytes)")
        trials = list(self._trials_out)
        whose = f" {shlex.quote(state.trials[trials[0]].id)}" if len(trials) == 1 else ""
        command = visible(f"holdfast logs {shlex.quote(shown_root(self._info))}{whose}")
        self._lines_out = self._bytes_out = 0
        self._was_cut, self._trials_out = False, {}
        said = " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])
        return f"... {said} of {plural(len(trials), 'trial')}: {command}"


_ENDS = frozenset(
    {ev.TrialTerminated, ev.TrialErrored, ev.AttemptFailed, ev.AttemptInterrupted, ev.TrialPaused},
)


def _last_state(line: bytes, *, ended: bool = True) -> bytes:
    """What a progress bar that returns to the beginning of its line has left there."""
    whole = line.rstrip(b"\r")
    last = whole.rpartition(b"\r")[2]
    return last if ended or len(whole) == len(line) else last + b"\r"


def _own_head(fd: int, trial: Trial, attempt: int) -> int:
    """Length of the head if the file is this attempt's; 0 if it is another's."""
    found = trial_logs.parse_head(os.pread(fd, trial_logs.MAX_HEAD_BYTES, 0))
    if found is None or found[0].attempt != attempt or f"{found[0].trial_id}.log" != trial_logs.log_name(trial.id):
        return 0
    return found[1]


def _section(path: str, trial_id: str, attempt: int) -> tuple[int, int, int]:
    """Where the output of an attempt begins in its trial's file, the length of its head, and where it ends.

    Raises:
        OSError: It has printed nothing, or that is not there any more.
    """
    fd = trial_logs.open_log(path)
    try:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            any_head = f"--- {trial_logs.log_name(trial_id).removesuffix('.log')} attempt ".encode()
            begin = data.rfind(any_head + f"{attempt} at ".encode())
            end = data.find(b"\n" + any_head, max(begin, 0))
            end = len(data) if end < 0 else end + 1
            found = trial_logs.parse_head(data[begin : begin + trial_logs.MAX_HEAD_BYTES]) if begin >= 0 else None
    except ValueError:
        found = None  # an empty file
    finally:
        os.close(fd)
    if found is None:
        raise FileNotFoundError(path)
    return begin, found[1], end


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
