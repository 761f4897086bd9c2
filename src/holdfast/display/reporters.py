"""Reporters: ``ProgressReporter``, ``CLIReporter``, ``JupyterNotebookReporter``, and the display that runs one.

Given as ``RunConfig.progress_reporter``, a built-in reporter says what the display shows. A subclass that overrides
``report`` or ``should_report`` is called instead of the display.

Owns the arguments, their validation, the table that ``report`` prints when a user's subclass calls it, and when a
reporter is called. One that raises is left alone from then on: the experiment continues, and plain lines take over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import replace

from holdfast.config.settings import one_of, real_number, refuse, true_or_false, whole_number
from holdfast.core import events as ev
from holdfast.core.retention import lookup
from holdfast.core.state import UNIT, State, Status
from holdfast.display.base import Display, PlainDisplay, Throttle, logger
from holdfast.display.experiment_facts import DisplayOptions, Ending, ExperimentFacts, RunSummary, TableRow
from holdfast.display.live import Output, in_notebook
from holdfast.display.table import TableMaker, escape
from holdfast.display.trial_output import TrialOutput
from holdfast.display.words import NOUNS, clip_front, duration, next_line, one_line, value_text
from holdfast.messages.visible import visible_lines
from holdfast.views.trials import ExperimentInfo, TrialList

Columns = Sequence[str] | Mapping[str, str]

ASK_S = 0.1
"""Seconds between two questions whether to report."""


class ProgressReporter:
    """Base class for reporters of your own: override ``should_report`` and ``report``.

    Example:
        >>> class EndOnly(ProgressReporter):
        ...     def should_report(self, trials, done=False):
        ...         return done
        ...     def report(self, trials, done, *sys_info):
        ...         print(len(trials), "trials")
    """

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Called once before the first report.

        Args:
            start_time: When the experiment began, in seconds since 1970.
            total_samples: Number of trials that there will be, if known.
            metric: The experiment's metric.
            mode: "min" or "max".
            **kwargs: Room for more.
        """

    def should_report(self, trials: Sequence[Any], done: bool = False) -> bool:
        """Whether ``report`` is to be called now; asked several times a second.

        Args:
            trials: All trials.
            done: Whether the experiment has ended.
        """
        return True

    def report(self, trials: Sequence[Any], done: bool, *sys_info: str) -> None:
        """Show the progress.

        Args:
            trials: All trials.
            done: Whether the experiment has ended.
            *sys_info: Lines about resources.
        """
        raise NotImplementedError(f"{type(self).__name__} must define report(trials, done, *sys_info)")


class TableReporter(ProgressReporter):
    """What the built-in reporters share: the choice of columns, rows and the aim."""

    def __init__(
        self,
        metric_columns: Columns | None = None,
        parameter_columns: Columns | None = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        what = type(self).__name__
        self._infer_metrics = metric_columns is None
        self._metric_columns = _columns(f"{what}.metric_columns", metric_columns) or {}
        self._parameter_columns = _columns(f"{what}.parameter_columns", parameter_columns)
        self._max_progress_rows = whole_number(f"{what}.max_progress_rows", max_progress_rows, 1)
        self._max_error_rows = whole_number(f"{what}.max_error_rows", max_error_rows, 0)
        self._max_column_length = whole_number(f"{what}.max_column_length", max_column_length, 4)
        self._period_s = float(real_number(f"{what}.max_report_frequency", max_report_frequency))
        self._infer_limit = whole_number(f"{what}.infer_limit", infer_limit, 0)
        if total_samples is not None:
            total_samples = whole_number(f"{what}.total_samples", total_samples, 0)
        if print_intermediate_tables is not None:
            true_or_false(f"{what}.print_intermediate_tables", print_intermediate_tables)
        true_or_false(f"{what}.sort_by_metric", sort_by_metric)
        if mode is not None:
            one_of(f"{what}.mode", mode, ("min", "max"))
        if metric is not None and (not isinstance(metric, str) or not metric):
            raise refuse(f"{what}.metric", metric, "the name of one metric")
        self._total_samples = total_samples
        self._print_tables = bool(print_intermediate_tables)
        self._sort_by_metric = sort_by_metric
        self._metric = metric
        self._mode = mode
        self._start_time = time.time()
        self._next_report = 0.0
        self._tables: TableMaker | None = None

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the experiment's facts where the user gave none."""
        self._start_time = time.time() if start_time is None else start_time
        self._total_samples = total_samples if self._total_samples is None else self._total_samples
        self._metric = self._metric or metric
        self._mode = self._mode or mode

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show one more metric.

        Args:
            metric: Its name; ``a/b`` reaches into nested metrics.
            representation: Title of the column; None shows the name.

        Raises:
            ValueError: There is such a column already.
        """
        _add(f"{type(self).__name__}.add_metric_column", self._metric_columns, metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show one more parameter.

        Args:
            parameter: Its path in the config, ``a/b`` if nested.
            representation: Title of the column; None shows the path.

        Raises:
            ValueError: There is such a column already.
        """
        if self._parameter_columns is None:
            self._parameter_columns = {}
        _add(f"{type(self).__name__}.add_parameter_column", self._parameter_columns, parameter, representation)

    def options(self) -> DisplayOptions:
        """The same requests, for a display."""
        return DisplayOptions(
            metric_columns=dict(self._metric_columns),
            infer_metrics=self._infer_metrics,
            parameter_columns=None if self._parameter_columns is None else dict(self._parameter_columns),
            max_progress_rows=self._max_progress_rows,
            max_error_rows=self._max_error_rows,
            max_column_length=self._max_column_length,
            infer_limit=self._infer_limit,
            sort_by_metric=self._sort_by_metric,
            total=self._total_samples,
            metric=self._metric,
            mode=self._mode,
            print_tables=self._print_tables,
            table_period_s=self._period_s,
        )

    def should_report(self, trials: Sequence[Any], done: bool = False) -> bool:
        """Whether ``max_report_frequency`` seconds have passed since the last report."""
        now = time.monotonic()
        if now < self._next_report and not done:
            return False
        self._next_report = now + self._period_s
        return True

    def report(self, trials: Sequence[Any], done: bool, *sys_info: str) -> None:
        """Print counts, the best trial, a table, and what failed."""
        self._emit("\n".join(self.text(trials, done, *sys_info)))

    def _emit(self, text: str) -> None:
        print(visible_lines(text), file=sys.stdout, flush=True)

    def text(self, trials: Sequence[Any], done: bool, *sys_info: str) -> list[str]:
        """What ``report`` prints, as lines."""
        counts = {status: sum(trial.status == status for trial in trials) for status in Status.ALL}
        total = f"/{self._total_samples:,}" if self._total_samples is not None else ""
        shown = ", ".join(f"{counts[status]:,} {noun}" for status, noun in NOUNS.items() if counts.get(status))
        passed = max(0.0, time.time() - self._start_time)
        when = "Final status" if done else "Status"
        lines = [f"== {when} after {duration(passed)}: {len(trials):,}{total} trials ({shown}) =="]
        lines.extend(map(str, sys_info))
        lines.extend(self._best_line(trials))
        lines.extend(self._table_lines(trials))
        lines.extend(self._failure_lines(trials))
        return lines

    def _value(self, trial: Any) -> float | None:
        value = lookup(trial.last_result or {}, self._metric) if self._metric else None
        comparable = isinstance(value, int | float) and value == value and abs(value) != float("inf")
        return value if comparable else None

    def _ranked(self, trials: Sequence[Any]) -> list[Any]:
        known = [trial for trial in trials if self._value(trial) is not None]
        return sorted(known, key=self._value, reverse=self._mode == "max")  # type: ignore[arg-type]

    def _best_line(self, trials: Sequence[Any]) -> list[str]:
        if not self._metric or not self._mode:
            return []
        ranked = self._ranked(trials)[:1]
        return [
            f"Current best trial: {one_line(str(t), 60)} with {self._metric}={value_text(self._value(t))}"
            for t in ranked
        ]

    def _table_lines(self, trials: Sequence[Any]) -> list[str]:
        limit = self._max_progress_rows
        if self._sort_by_metric and self._metric and self._mode:
            chosen = self._ranked(trials)[:limit]
        else:
            order = {status: i for i, status in enumerate(NOUNS)}
            chosen = sorted(trials, key=lambda trial: order.get(trial.status, len(order)))[:limit]
        if not chosen:
            return []
        if self._tables is None:
            self._tables = TableMaker(self.options())
        lines = self._tables.make([_row(trial) for trial in chosen], self._metric).lines()
        rest = len(trials) - len(chosen)
        return [*lines, f"... {rest:,} more trials not shown"] if rest else lines

    def _failure_lines(self, trials: Sequence[Any]) -> list[str]:
        failed = [trial for trial in trials if trial.status == Status.ERROR]
        if not failed or not self._max_error_rows:
            return []
        lines = [f"Number of errored trials: {len(failed):,}"]
        for trial in failed[: self._max_error_rows]:
            file = getattr(trial, "error_file", None)
            where = f", error file: {clip_front(str(file), 200)}" if file else ""
            lines.append(f"  {one_line(str(trial), 60)}: {getattr(trial, 'num_failures', 1)} failures{where}")
        return lines


class CLIReporter(TableReporter):
    """Shows progress as text.

    On a terminal the table is repainted in place; elsewhere a few lines are printed, and whole tables if
    ``print_intermediate_tables`` is True.

    Example:
        >>> reporter = CLIReporter(metric_columns=["loss"], sort_by_metric=True)
        >>> reporter.add_metric_column("accuracy", "acc")

    Args:
        metric_columns: Metrics to show, as a list, or a dict of names and titles; None infers some.
        parameter_columns: Parameters to show, likewise; None shows what the search chose.
        total_samples: Number of trials, if the experiment does not know it.
        max_progress_rows: Rows of the table.
        max_error_rows: Rows about failed trials.
        max_column_length: Characters in a column.
        max_report_frequency: Seconds between two printed tables. What is repainted in place is not bound by it.
        infer_limit: Metrics to infer.
        print_intermediate_tables: Whether to print tables while trials run where nothing can be repainted.
        metric: Metric by which to tell the best trial; default the experiment's.
        mode: "min" or "max"; default the experiment's.
        sort_by_metric: Whether the table shows the best trials instead of the latest.
    """


class JupyterNotebookReporter(TableReporter):
    """Shows progress as a table in a notebook's output cell; the arguments are those of ``CLIReporter``.

    Args:
        overwrite: Whether the table replaces the one before it.
        *args: As of ``CLIReporter``.
        **kwargs: As of ``CLIReporter``.
    """

    def __init__(self, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        true_or_false("JupyterNotebookReporter.overwrite", overwrite)
        self._overwrite = overwrite
        self._output: Output | None = None

    def _emit(self, text: str) -> None:
        if not in_notebook():
            super()._emit(text)
            return
        self._output = self._output or Output()
        self._output.show(f"<pre>{escape(text)}</pre>", self._overwrite)

    def options(self) -> DisplayOptions:
        """The same requests, for a display."""
        return replace(super().options(), overwrite=self._overwrite)


def _columns(what: str, given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    expected = "a list of names or a dict of names and titles"
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping):
        raise refuse(what, given, expected, 'For example ["loss"] or {"loss": "Loss"}.')
    pairs = given.items() if isinstance(given, Mapping) else ((name, name) for name in given)
    columns: dict[str, str] = {}
    for name, title in pairs:
        if not isinstance(name, str) or not isinstance(title, str) or not name:
            raise refuse(what, given, expected)
        columns[name] = title
    return columns


def _add(what: str, columns: dict[str, str], name: str, title: str | None) -> None:
    if not isinstance(name, str) or not name:
        raise refuse(what, name, "a name")
    if name in columns:
        raise refuse(what, name, "a column that is not there yet", f"There are: {', '.join(columns)}.")
    if title is not None and not isinstance(title, str):
        raise refuse(f"{what} representation", title, "a title")
    columns[name] = title or name


def _row(trial: Any) -> TableRow:
    result = trial.last_result or {}
    return TableRow(
        name=str(trial),
        status=trial.status,
        iteration=int(result.get("training_iteration") or 0),
        time_s=float(result.get("time_total_s") or 0.0),
        config=trial.config,
        params=tuple(getattr(trial, "evaluated_params", None) or ()),
        metrics=result,
        place=f"{result['node_ip']}:{result['pid']}" if "node_ip" in result and "pid" in result else "",
    )


class ReporterDisplay(Display):
    """Asks the user's reporter whether to report, and lets it."""

    def __init__(
        self,
        reporter: Any,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(DisplayOptions())
        self._reporter = reporter
        self._plain = PlainDisplay(stream)
        self._throttle = Throttle(ASK_S, clock)
        self._trials: TrialList | None = None
        self._broken = False

    def watch(self, output: TrialOutput) -> None:
        self._plain.watch(output)

    def start(self, facts: ExperimentFacts) -> None:
        setup = getattr(self._reporter, "setup", None)
        if setup is not None:
            self._safely(lambda: setup(facts.started_at, facts.total, facts.metric, facts.mode))

    def feed(self, event: ev.AnyEvent) -> None:
        self._plain.feed(event)

    def note(self, text: str) -> None:
        self._plain.note(text)

    def update(self, state: State, facts: ExperimentFacts, at: float, durable_lag_s: float = 0.0) -> None:
        if self._broken:
            self._plain.update(state, facts, at, durable_lag_s)
            return
        self._plain.show_output(state, facts)
        if self._throttle.ready():
            self._throttle.run(lambda: self._safely(lambda: self._ask(state, facts, done=False)))

    def end(self, state: State, facts: ExperimentFacts, summary: RunSummary) -> None:
        if not self._broken:
            self._plain.show_output(state, facts, final=True)
            self._safely(lambda: self._ask(state, facts, done=True))
        if self._broken:
            self._plain.end(state, facts, summary)
        elif summary.outcome != Ending.FINISHED:
            self._plain.say(next_line(facts, summary))

    def _ask(self, state: State, facts: ExperimentFacts, *, done: bool) -> None:
        if self._trials is None:
            self._trials = TrialList(state, facts.info or _info(facts))
        trials = self._trials
        if self._reporter.should_report(trials, done=done):
            self._reporter.report(trials, done, _resources(state, facts))

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._broken = True
            name = type(self._reporter).__name__
            logger.warning("%s failed and is not called again; the experiment continues.", name, exc_info=True)


def _info(facts: ExperimentFacts) -> ExperimentInfo:
    return ExperimentInfo(
        root=Path(facts.root),
        name=facts.name,
        trainable_name=facts.trainable or "trial",
        metric=facts.metric,
        mode=facts.mode,
        total_samples=facts.total,
    )


def _resources(state: State, facts: ExperimentFacts) -> str:
    used, capacity = state.used, facts.memory.capacity
    shown = (f"{used.get(name, 0) / UNIT:g}/{amount / UNIT:g} {name}" for name, amount in capacity.items() if amount)
    return f"Resources in use: {', '.join(shown) or 'none'}"
