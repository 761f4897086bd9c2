"""Likely mistakes that do not fail by themselves: a function that reports nothing, a metric that is not a number.

Each of them is reported once per run: in the display as soon as it is known; if nothing is displayed, as a warning at
the end of the run, with all trials concerned.

Owns these observations and their texts. Must never change anything, and must cost next to nothing per report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.core.ending import RETURNED
from holdfast.core.retention import lookup
from holdfast.core.state import State
from holdfast.display.words import plural
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, trial_name

LARGE_REPORT_BYTES = 1_000_000
MAX_NAMED = 3
MAX_KEYS = 3
MAX_METRICS = 12  # reported metrics that are named when none of them is the one that is wanted


class Advisor:
    """Watches one run.

    Args:
        state: The experiment.
        info: Its plain facts. Whatever a step of a class returns is a report.
        metrics: Names of the metrics that somebody compares.
        say: Shows a text to the user.
    """

    def __init__(self, state: State, info: ExperimentInfo, metrics: Iterable[str], say: Callable[[str], None]) -> None:
        self._state = state
        self._info = info
        self.metrics = tuple(dict.fromkeys(metrics))
        self._say = say
        self._numbers: set[int] = set()  # running trials that have reported a number for every metric
        self._only_nan: dict[int, str] = {}  # running trials that have not, and the metric
        self._silent: list[int] = []
        self._nan: dict[str, list[int]] = {}
        self._no_number: dict[str, tuple[int, str]] = {}
        self._large = ""

    def _name_of(self, n: int) -> str:
        return trial_name(self._info, self._state.trials[n])

    def reported(self, event: ev.Reported) -> None:
        """A report was accepted."""
        metrics = event.metrics
        for name in self.metrics:
            value = metrics.get(name)
            if type(value) is float and value == value:
                self._numbers.add(event.n)
            elif metrics:
                self._look_at(event.n, name, value if value is not None else lookup(metrics, name))

    def _look_at(self, n: int, name: str, value: Any) -> None:
        if isinstance(value, int | float):
            if value == value:
                self._numbers.add(n)
            elif n not in self._numbers:
                self._only_nan[n] = name
        elif value is not None and name not in self._no_number:
            self._no_number[name] = (n, type(value).__name__)
            self._say(self._no_number_text(name))

    def ended(self, event: ev.TrialTerminated | ev.TrialErrored) -> None:
        """A trial will not continue."""
        n = event.n
        name = self._only_nan.pop(n, "")
        if n in self._numbers:
            self._numbers.discard(n)
        elif name:
            trials = self._nan.setdefault(name, [])
            trials.append(n)
            if len(trials) == 1:
                self._say(self._nan_text(name))
        trial = self._state.trials[n]
        if type(event) is ev.TrialTerminated and event.reason == RETURNED and not self._info.is_class:
            if trial.metrics is None and not trial.rows:
                self._silent.append(n)
                if len(self._silent) == 1:
                    self._say(self._silent_text())

    def large(self, event: ev.Reported, size: int) -> None:
        """A report took so many bytes of the journal."""
        if self._large:
            return
        keys = sorted(((len(msgspec.msgpack.encode(value)), key) for key, value in event.metrics.items()), reverse=True)
        biggest = ", ".join(f"{key!r} ({size_text(each)})" for each, key in keys[:MAX_KEYS])
        self._large = (
            f"{self._name_of(event.n)} has reported {size_text(size)} at once; the largest values are {biggest}. Every "
            "report is stored permanently and read whenever results are read. Put such data into a checkpoint, "
            "report(metrics, checkpoint=...), or into a file in the trial's directory, and report numbers."
        )
        self._say(self._large)

    def texts(self) -> list[str]:
        """What there was to point out, with all trials that it concerns."""
        found = [self._no_number_text(name) for name in self._no_number]
        found += [self._nan_text(name) for name in self._nan]
        if self._silent:
            found.append(self._silent_text())
        return [*found, self._large] if self._large else found

    # --- words

    def _no_number_text(self, name: str) -> str:
        n, kind = self._no_number[name]
        return (
            f"The metric {name!r} is a {kind} in {self._name_of(n)}, not a number, so trials cannot be compared by it. "
            f"Report it as a number, for example float({name.rpartition('/')[2]})."
        )

    def _nan_text(self, name: str) -> str:
        return (
            f"The metric {name!r} was NaN in every report of {self._trials(self._nan[name])}: they are not compared "
            "with others. The training may have diverged from the start, or the value is computed from no data."
        )

    def _silent_text(self) -> str:
        who = self._info.trainable_name
        return (
            f"{who} has reported nothing and returned nothing in {self._trials(self._silent)}, so there "
            "are no results to compare. Call tune.report({'loss': loss}) in it, or return a dict of metrics."
        )

    def _trials(self, numbers: list[int]) -> str:
        names = ", ".join(self._name_of(n) for n in sorted(numbers)[:MAX_NAMED])
        if len(numbers) == 1:
            return names
        more = ", .." if len(numbers) > MAX_NAMED else ""
        return f"{len(numbers):,} of {plural(len(self._state.trials), 'trial')} ({names}{more})"


def size_text(size: int) -> str:
    """So many bytes, for people."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def objective_text(metric: str | None, mode: str | None, compared: Iterable[str] = ()) -> str:
    """What is missing of an objective of which one half was given; "" if nothing is.

    Args:
        metric: ``TuneConfig.metric``.
        mode: ``TuneConfig.mode``.
        compared: The metrics that scheduler and searcher compare.
    """
    if metric is not None and mode is None:
        return (
            f"TuneConfig(metric={metric!r}) has no mode, so it is unknown whether a smaller or a larger {metric!r} is "
            "better: no best trial is shown, and get_best_result() needs mode='min' or mode='max'. Set it once: "
            f"TuneConfig(metric={metric!r}, mode='min')."
        )
    if mode is not None and metric is None:
        names = ", ".join(map(repr, compared))
        what = f"it is assumed to be {names}" if names else "nothing is compared"
        return (
            f"TuneConfig(mode={mode!r}) has no metric: {what}, no best trial is shown, and get_best_result() takes "
            "'_metric', which is what a trainable that returns a number reports. Set it once: "
            f"TuneConfig(metric='loss', mode={mode!r})."
        )
    return ""


def unreported_text(state: State, results: ResultBuilder, metric: str) -> str:
    """What to warn of when another metric counts from now on; "" if some trial has it, or none has reported yet."""
    reported = [trial for trial in state.trials if trial.metrics]
    if not reported or any(lookup(results.last(state, trial), metric) is not None for trial in reported):
        return ""
    names = dict.fromkeys(str(name) for trial in reported for name in trial.metrics or ())
    known = ", ".join(map(repr, [*names][:MAX_METRICS])) + (", .." if len(names) > MAX_METRICS else "")
    return f"no trial has reported the new metric {metric!r} so far. Reported were: {known}."
