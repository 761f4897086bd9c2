"""The records that pass between the experiment and whatever shows it.

Owns their fields. Must never compute, format or print.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.state import DriverMemory, Trial
from holdfast.space import naming

if TYPE_CHECKING:
    from holdfast.views.trials import ExperimentInfo


USUAL_ROWS = 20
"""Rows of a table that nobody has limited."""

NOT_STARTED = "NOT_STARTED"
"""Beside the statuses in counts: trials that ended with the experiment, or will never be made, without having begun."""


class Ending:
    """How a driver's work on an experiment ended."""

    FINISHED = "finished"
    """Every trial ended and everything is durable."""

    INTERRUPTED = "interrupted"
    """A signal or a person ended the driver; unfinished trials continue when the experiment is resumed."""

    FAILED = "failed"
    """An error ended the driver; what was accepted is kept."""

    TAKEN_OVER = "taken over"
    """Another driver has the experiment now, and continues with it."""


class ExperimentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while one driver works on an experiment."""

    name: str
    root: str
    """Directory or URI of the experiment, as ``Tuner.restore`` takes it."""

    metric: str | None = None
    mode: str | None = None
    total: int | None = None
    """Trials that there will be in the end; None if nobody knows."""

    engine: str = "local"
    started_at: float = 0.0
    """When this driver began, on the clock of the events."""

    resumed: bool = False
    trainable: str = ""
    """Name of the trainable; trials that the user did not name are shown as ``<trainable>_<id>``."""

    info: ExperimentInfo | None = None
    """What reporters of the user's and the paths of error files need beyond this."""

    notes: tuple[str, ...] = ()
    """What the user should know from the start: changed settings, the use of stored code."""

    given_as: str = ""
    """How the trainable is written in a call, as the user's script has it."""

    by_name: bool = False
    """Whether the script resumes the experiment when it is run again: ``RunConfig(if_exists="resume")``."""

    memory: DriverMemory = msgspec.field(default_factory=DriverMemory)
    """What the driver knows for now; empty for those who only read."""

    def name_of(self, trial: Trial) -> str:
        """How a trial is shown."""
        return trial.name or (naming.trial_name(self.trainable, trial.id) if self.trainable else trial.id)

    def error_file_of(self, trial: Trial) -> str:
        """Where the full traceback of a failed trial can be read, or "" if nobody said."""
        if self.info is None:
            return ""
        from holdfast.views.trials import ERROR_FILE, trial_dirname

        return os.path.join(self.info.root, trial_dirname(self.info, trial), ERROR_FILE)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended; given to ``Display.end``."""

    at: float
    outcome: str = Ending.FINISHED
    reason: str = ""
    """Why it was interrupted or failed, or who has taken it over, in a few words."""

    change: str = ""
    """A setting without which the same would happen again, as it is written in a restore."""


class DisplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants to see; a reporter given as ``RunConfig.progress_reporter`` fills this in."""

    metric_columns: Mapping[str, str] = {}
    """Metric and the title of its column, beside the inferred ones."""

    infer_metrics: bool = True
    parameter_columns: Mapping[str, str] | None = None
    """Path in the config and the title of its column; None shows what the search chose."""

    max_progress_rows: int | None = None
    """Rows of the table; None shows as many as the terminal has room for, elsewhere ``USUAL_ROWS``."""

    max_error_rows: int = 20
    max_column_length: int = 20
    infer_limit: int = 3
    sort_by_metric: bool = False
    total: int | None = None
    metric: str | None = None
    mode: str | None = None
    print_tables: bool = False
    """Whether tables are printed one below the other where they cannot be repainted in place."""

    table_period_s: float = 5.0
    """Seconds between such tables."""

    overwrite: bool = True
    """Whether a notebook replaces its output, or adds to it."""

    @property
    def row_limit(self) -> int:
        """Rows of the table where no terminal says how many there is room for."""
        return USUAL_ROWS if self.max_progress_rows is None else self.max_progress_rows

    def objective(self, facts: ExperimentFacts) -> tuple[str, str] | None:
        """The metric to be shown as the aim, and "min" or "max"."""
        metric, mode = self.metric or facts.metric, self.mode or facts.mode
        return (metric, mode) if metric and mode else None


class TableRow(msgspec.Struct, frozen=True):
    """One trial in a table."""

    name: str
    status: str
    iteration: int
    time_s: float
    config: Mapping[str, Any]
    params: tuple[str, ...]
    metrics: Mapping[str, Any]
    place: str = ""
    """Where it runs, as ``ip:pid``."""

    ended: str = ""
    """Why it has ended, or ""."""

    rank: int = 0
    """Its place among the best trials, from 1; 0 if it is not among them."""

    trend: tuple[float, ...] = ()
    """Values of the objective so far, thinned, as far as this driver saw them."""

    tags: str = ""
    note: str = ""
    """The latest of what people have noted."""


class Best(msgspec.Struct, frozen=True):
    """The trial whose last report is the best."""

    metric: str
    mode: str
    value: float
    row: TableRow


class FailureGroup(msgspec.Struct):
    """All failures of one kind: the same exception at the same line of the user's code."""

    cause: str
    type: str
    message: str
    location: str
    trial: int
    """Number of the first trial that failed this way."""

    errored: int = 0
    """Trials that ended in ERROR this way and were not started again."""

    retried: int = 0
    """Failures this way after which the trial was tried again, as far as this driver saw."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints that trials have saved and that are not where the experiment lives yet."""

    checkpoints: int
    bytes: int
    oldest_s: float
    """How long the oldest has been waiting."""

    place: str
    """Where they are on their way to."""

    limit: int | None = None
    """How many bytes may wait, if trials wait because there are more."""

    full_s: float = 0.0
    """How long trials that save have had to wait."""


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a display shows at one moment."""

    at: float
    elapsed_s: float
    """Since this driver began."""

    lived_s: float
    """Of all drivers of this experiment."""

    counts: Mapping[str, int]
    """Trials by status, and those that are ``NOT_STARTED``. Trials that are still to be made are PENDING, so that all
    add up to ``total`` where that is known."""

    total: int | None
    finished: int
    reports: int
    trials_per_s: float
    reports_per_s: float
    eta_s: float | None
    best: Best | None
    failures: tuple[FailureGroup, ...]
    """The most frequent kinds first."""

    more_failures: int
    """Kinds that are left out of ``failures``."""

    rows: tuple[TableRow, ...]
    hidden: int
    """Running trials that are left out of ``rows``."""

    resources: tuple[tuple[str, float, float], ...]
    """Name, used, available."""

    storage_trouble: tuple[str, ...]
    draining: str
    """Why this driver is about to end, or ""."""

    stopping: str
    """Which stop rule ended the experiment, or ""."""

    lag_s: float
    """How far the durable copy is behind."""

    backlog: Backlog | None = None
