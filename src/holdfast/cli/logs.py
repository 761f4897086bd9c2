"""``holdfast logs``: what trials printed, of all of them with their names or of one; with -f what they print next."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator

from holdfast.cli.log_places import LogPlaces
from holdfast.cli.log_reader import LogLine, LogReader
from holdfast.cli.printing import complain, say
from holdfast.cli.report_data import Phase, phase_of
from holdfast.cli.show import find_trial
from holdfast.cli.status import FAR_WATCH_PERIOD_S, Follower
from holdfast.core.state import Trial
from holdfast.display.words import one_line
from holdfast.errors import InvalidInputError
from holdfast.messages.visible import visible
from holdfast.results.history import History, open_history
from holdfast.storage import trial_logs

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
