"""Trials as users see them: read-only, always up to date, cheap to make.

Owns ``TrialView`` and ``TrialList``, what callbacks get as ``trial`` and ``trials``, and where a trial's directory is.
Must never change the state or hand out a part of it that could be changed.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from holdfast.core.state import State, Status, Stored, Trial
from holdfast.errors import DamageError
from holdfast.space import naming
from holdfast.space.nested import copy_tree
from holdfast.views.results import DATE_FORMAT, ResultBuilder, flatten_result, undamaged_objects

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.config.resources import PlacementGroupFactory

ERROR_FILE = "error.txt"
PICKLED_ERROR_FILE = "error.pkl"


@dataclass(kw_only=True)
class ExperimentInfo:
    """What views, results and loggers need to know about the experiment."""

    root: Path
    """The experiment's directory."""

    name: str
    """The experiment's name."""

    trainable_name: str
    """How the trainable is called in names of trials."""

    is_class: bool = False
    """Whether it is a ``Trainable`` subclass rather than a function."""

    metric: str | None = None
    """What the experiment optimises."""

    mode: str | None = None
    """Whether the metric is better when small ("min") or large ("max")."""

    num_samples: int | None = None
    """How often the space is sampled; -1 without end."""

    total_samples: int | None = None
    """How many trials there will be; None if that is not known."""

    stop: Any = None
    """The user's stop criterion."""

    objects: Mapping[str, Any] | None = None
    """What the markers in configs stand for; None if nobody has loaded them."""

    value_names: Mapping[str, str] = field(default_factory=dict)
    """What the display calls these objects, of those that have a name."""

    may_unpickle: bool = False
    """Whether this process runs or restores the experiment, so that it trusts what is pickled there."""

    load_rows: Callable[[int], Sequence[Mapping[str, Any]]] | None = None
    """The surviving result rows of a trial, read from the journal."""

    max_identifier_len: int = naming.MAX_LEN_IDENTIFIER
    """Where the tag in a directory's name is cut."""

    url: str = ""
    """Where the experiment is if that is a store; ``root`` is its mirror then."""

    filesystem: Any = None
    """The pyarrow or fsspec file system in which ``url`` is a path."""

    utc_offset_s: int = 0
    """Local time where the experiment was created: names of directories must not change with the reader's zone."""


def shown_root(info: ExperimentInfo) -> str:
    """Where the experiment is, for people and for a later restore."""
    return info.url or str(info.root)


def place_of(info: ExperimentInfo, *names: str) -> str:
    """Where something below the root is, for people: in a store, if the experiment is."""
    if not info.url:
        return os.path.join(info.root, *names)
    if info.filesystem is not None:
        return "/".join((info.url, *names))
    from holdfast.storage.address import parse

    return str(parse(info.url) / "/".join(names))


def checkpoint_at(info: ExperimentInfo, dirname: str, index: int, digest: str) -> Checkpoint:
    """A checkpoint of the trial in ``dirname``, wherever it is."""
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.checkpoints.names import checkpoint_name

    name = checkpoint_name(index)
    local = os.path.join(info.root, dirname, name)
    if not info.url:
        return Checkpoint.saved(local, digest=digest)
    place = place_of(info, dirname, name)
    return Checkpoint.mirrored(place, local, info.filesystem, digest=digest)


def trial_name(info: ExperimentInfo, trial: Trial) -> str:
    """How a trial is shown: the user's name for it, or its trainable and its id."""
    return trial.name or naming.trial_name(info.trainable_name, trial.id)


def trial_dirname(info: ExperimentInfo, trial: Trial) -> str:
    """The name of a trial's directory under the experiment's root: always one name, never a way out of it.

    Raises:
        DamageError: The stored facts give none.
    """
    name = trial.dirname
    if not name:
        date = time.strftime(DATE_FORMAT, time.gmtime(trial.created_at + info.utc_offset_s))
        name = naming.trial_dirname(trial_name(info, trial), trial.tag, date, info.max_identifier_len)
    if why := naming.why_no_dirname(name):
        raise DamageError(
            f"Trial {trial.id} of {shown_root(info)} would have the directory {name!r}, which cannot be: {why}. "
            "Nothing was changed. The experiment's journal or spec was changed by something other than holdfast."
        )
    return name


class TrialPreview:
    """A trial that is about to be created, as name creators see it."""

    def __init__(self, info: ExperimentInfo, n: int, trial_id: str, tag: str, config: Mapping[str, Any]) -> None:
        self.n = n
        self.trial_id = trial_id
        self.experiment_tag = tag
        self.trainable_name = info.trainable_name
        self.config: dict[str, Any] = undamaged_objects(config, info.objects)
        self.status = Status.PENDING

    def __str__(self) -> str:
        return naming.trial_name(self.trainable_name, self.trial_id)

    __repr__ = __str__


class TrialView:
    """One trial, read-only. What it says follows the experiment while it runs.

    Two views are equal if they show trials of the same id.
    """

    PENDING = Status.PENDING
    RUNNING = Status.RUNNING
    PAUSED = Status.PAUSED
    TERMINATED = Status.TERMINATED
    ERROR = Status.ERROR

    __slots__ = ("__weakref__", "_analysis", "_builder", "_directory", "info", "record", "state")

    def __init__(self, state: State, trial: Trial, info: ExperimentInfo, builder: ResultBuilder | None = None) -> None:
        self.state = state
        self.record = trial
        self.info = info
        self._builder = builder or ResultBuilder(info)
        self._directory = ""
        self._analysis: tuple[tuple[int, int], dict[str, dict[str, Any]]] | None = None

    @property
    def n(self) -> int:
        """The trial's number, in the order of creation."""
        return self.record.n

    @property
    def trial_id(self) -> str:
        """The trial's id, unique within the experiment."""
        return self.record.id

    @property
    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""
        return self.record.status

    @property
    def attempt(self) -> int:
        """How often the trial has been started."""
        return self.record.attempt

    @property
    def config(self) -> dict[str, Any]:
        """The trial's parameters. Changing this dict changes nothing about the trial."""
        return self._builder.config_of(self.record)

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The parameters that the search chose, by path."""
        config = self.config
        return {path: _at(config, path) for path in self.record.params}

    @property
    def experiment_tag(self) -> str:
        """The trial's number and its chosen parameters in short, and what a scheduler made of them."""
        return self.record.shown_tag or self.record.tag

    @property
    def last_result(self) -> dict[str, Any]:
        """The full result of the trial's last report that counts."""
        return self._builder.last(self.state, self.record)

    @property
    def metric_analysis(self) -> dict[str, dict[str, Any]]:
        """For each number reported: ``max``, ``min``, ``avg``, ``last``, ``last-5-avg`` and ``last-10-avg``."""
        trial = self.record
        key = (trial.attempt, trial.rows)
        if self._analysis is None or self._analysis[0] != key:
            self._analysis = (key, analyse(self.load_rows()))
        return self._analysis[1]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the trial would continue from, or None."""
        latest = self.record.latest()
        if latest is None:
            return None
        return checkpoint_at(self.info, trial_dirname(self.info, self.record), latest.index, latest.digest)

    @property
    def path(self) -> str:
        """The trial's directory. It exists as soon as something has been written into it."""
        if not self._directory:
            self._directory = os.path.join(self.info.root, trial_dirname(self.info, self.record))
        return self._directory

    local_path = path
    logdir = path

    @property
    def trainable_name(self) -> str:
        """How the trainable is called."""
        return self.info.trainable_name

    @property
    def trial_name(self) -> str:
        """The user's name for the trial, or ``<trainable>_<trial_id>``."""
        return trial_name(self.info, self.record)

    @property
    def custom_trial_name(self) -> str | None:
        """The name that ``trial_name_creator`` gave, if any."""
        return self.record.name or None

    @property
    def custom_dirname(self) -> str | None:
        """The directory's name, if it does not follow the rule."""
        return self.record.dirname or None

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """The resources that the trial asks for."""
        from holdfast.config.resources import PlacementGroupFactory

        return PlacementGroupFactory([self.record.request or {"CPU": 1.0}])

    @property
    def error_file(self) -> str | None:
        """The text of the trial's failures, or None if it had none."""
        return os.path.join(self.path, ERROR_FILE) if self.record.total_failures else None

    @property
    def pickled_error_file(self) -> str | None:
        """The pickled last exception, or None if the trial had none."""
        return os.path.join(self.path, PICKLED_ERROR_FILE) if self.record.total_failures else None

    @property
    def num_failures(self) -> int:
        """How often the trial has failed by its own fault."""
        return self.record.total_failures

    @property
    def start_time(self) -> float | None:
        """When it first began to run, in seconds since 1970."""
        return self.record.started_at or None

    def load_rows(self) -> Sequence[Mapping[str, Any]]:
        """All surviving result rows, from the journal; none if this view was made without access to it."""
        load = self.info.load_rows
        return load(self.record.n) if load is not None else ()

    @property
    def is_saving(self) -> bool:
        """Whether the trial's newest checkpoint is not stored yet, or it saves because it was told to pause."""
        if self.record.status == Status.RUNNING and self.record.verdict == "pause":
            return True
        return any(newest.stored == Stored.STAGED for newest in self.record.checkpoints[-1:])

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint that the trial would continue from."""
        return self.record.latest() is not None

    @property
    def experiment_dir_name(self) -> str:
        """The name of the experiment's directory."""
        return self.info.name

    @property
    def local_experiment_path(self) -> str:
        """The experiment's directory on this machine."""
        return str(self.info.root)

    def is_finished(self) -> bool:
        """Whether the trial is TERMINATED or in ERROR."""
        return self.record.final

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialView) and other.record.id == self.record.id

    def __hash__(self) -> int:
        return hash(self.record.id)

    def __str__(self) -> str:
        return trial_name(self.info, self.record)

    __repr__ = __str__


class TrialList(Sequence[TrialView]):
    """All trials in the order of their creation; views are made when they are looked at."""

    def __init__(self, state: State, info: ExperimentInfo, builder: ResultBuilder | None = None) -> None:
        self._state = state
        self._info = info
        self._builder = builder or ResultBuilder(info)
        self._views: weakref.WeakValueDictionary[int, TrialView] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._state.trials)

    @overload
    def __getitem__(self, index: int) -> TrialView: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrialView]: ...

    def __getitem__(self, index: int | slice) -> TrialView | list[TrialView]:
        if isinstance(index, slice):
            return [self._view(trial) for trial in self._state.trials[index]]
        return self._view(self._state.trials[index])

    def __iter__(self) -> Iterator[TrialView]:
        return map(self._view, self._state.trials)

    def __contains__(self, item: object) -> bool:
        return isinstance(item, TrialView) and item.trial_id in self._state.by_id

    def __repr__(self) -> str:
        return f"<{len(self)} trials of {self._info.name}>"

    def _view(self, trial: Trial) -> TrialView:
        view = self._views.get(trial.n)
        if view is None or view.record is not trial:
            view = self._views[trial.n] = TrialView(self._state, trial, self._info, self._builder)
        return view


def analyse(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summaries of every number in the rows. NaN is neither the largest nor the smallest value of anything."""
    series: dict[str, list[float]] = {}
    for row in rows:
        for key, value in flatten_result({k: v for k, v in row.items() if k != "config"}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                series.setdefault(key, []).append(value)
    return {key: _summary(values) for key, values in series.items()}


def _summary(values: list[float]) -> dict[str, Any]:
    comparable = [value for value in values if not math.isnan(value)] or values[:1]
    last5, last10 = values[-5:], values[-10:]
    return {
        "max": max(comparable),
        "min": min(comparable),
        "avg": sum(values) / len(values),
        "last": values[-1],
        "last-5-avg": sum(last5) / len(last5),
        "last-10-avg": sum(last10) / len(last10),
    }


def _at(config: Any, path: str) -> Any:
    """The value at ``a/b``: literal keys win, parts may be indexes of lists; None if there is no such value."""
    if isinstance(config, dict):
        for key in config:
            if str(key) == path:
                return copy_tree(config[key])
        for key in config:
            if path.startswith(f"{key}/"):
                found = _at(config[key], path[len(f"{key}/") :])
                if found is not None:
                    return found
    elif isinstance(config, list | tuple):
        head, _, rest = path.partition("/")
        if head.isdecimal() and int(head) < len(config):
            return _at(config[int(head)], rest) if rest else copy_tree(config[int(head)])
    return None
