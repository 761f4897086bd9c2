"""Result rows: what a trial reported, with the keys that are filled in by us.

Owns the full result dict and the fold that says which rows of a trial survive (I6: each step once). Must never hand out
anything that the state shares: callbacks may do with a result what they like.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Status, Trial, WorkerFacts
from holdfast.core.transitions import apply, check_known, running_total
from holdfast.errors import ObjectDamagedError
from holdfast.space.nested import copy_tree
from holdfast.space.objects import known_objects

if TYPE_CHECKING:
    from holdfast.views.trials import ExperimentInfo

logger = logging.getLogger("holdfast")

DATE_FORMAT = "%Y-%m-%d_%H-%M-%S"
MAX_CACHED_CONFIGS = 1024

OURS = frozenset(
    {
        "time_total_s",
        "date",
        "trial_id",
        "hostname",
        "node_ip",
        "pid",
        "config",
        "time_since_restore",
        "iterations_since_restore",
        "timesteps_since_restore",
        "experiment_tag",
        "checkpoint_dir_name",
        "should_checkpoint",
        "done",
    }
)
"""Keys whose value in a row need not be the one that the user reported."""

_NOBODY = WorkerFacts("", "", 0)


def date_text(at: float) -> str:
    """A moment in local time, spelled as in results and directory names."""
    return time.strftime(DATE_FORMAT, time.localtime(at))


class ResultBuilder:
    """Makes full result dicts.

    The user's keys come first, then ours. Where both have a value the user's wins for ``training_iteration``,
    ``timesteps_total``, ``episodes_total``, ``time_this_iter_s``, ``timestamp`` and ``done``; ours wins elsewhere.

    Args:
        info: The experiment; without it, trainables count as functions and objects in configs stay markers.
    """

    def __init__(self, info: ExperimentInfo | None = None) -> None:
        self._is_class = info is not None and info.is_class
        self._objects = info.objects if info is not None else None
        self._date = (-1, "")  # the last second and its text, in one piece because several threads may ask
        self._configs: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def __call__(
        self,
        state: State,
        trial: Trial,
        metrics: Mapping[str, Any],
        dt: float,
        at: float,
        worker: int | None = None,
        index: int | None = None,
        done: bool = False,
    ) -> dict[str, Any]:
        """The result of a report that is about to be applied to ``trial``.

        Args:
            state: The state before the report.
            trial: The trial before the report.
            metrics: What was reported.
            dt: Seconds that the iteration took.
            at: When the report was accepted.
            worker: Who reported; None means whoever did last.
            index: Number of the checkpoint that came along.
            done: The trial was told to stop because of this report.
        """
        iteration = metrics.get("training_iteration")
        timesteps, episodes = trial.timesteps_total, trial.episodes_total
        if "timesteps_this_iter" in metrics or "timesteps_total" in metrics:
            timesteps = running_total(metrics, "timesteps", timesteps)
        if "episodes_this_iter" in metrics or "episodes_total" in metrics:
            episodes = running_total(metrics, "episodes", episodes)
        counters = (
            trial.iteration + 1 if iteration is None else iteration,
            trial.time_total + dt,
            timesteps,
            episodes,
            trial.ordinal + 1,
        )
        facts = state.workers.get(trial.worker if worker is None else worker, _NOBODY)
        result = self._filled(trial, metrics, counters, dt, at, facts)
        if done:
            result["done"] = True
        if index is not None:
            self.add_checkpoint(result, index)
        return result

    def of(self, state: State, trial: Trial, event: ev.Reported) -> dict[str, Any]:
        """The result of an event that is about to be folded into ``state``."""
        stop = event.verdict == "stop"
        return self(state, trial, event.metrics, event.dt, event.at, event.worker, done=stop)

    def add_checkpoint(self, result: dict[str, Any], index: int) -> None:
        """Note in a result that checkpoint ``index`` came with it."""
        if not self._is_class:
            result["checkpoint_dir_name"] = f"checkpoint_{index:06d}"
            result["should_checkpoint"] = True

    def last(self, state: State, trial: Trial) -> dict[str, Any]:
        """The result of the trial's last surviving row, from the state alone.

        Before the first row, only what is known about the trial itself. After a restart and until the next report it
        is the row of the checkpoint, without ``time_this_iter_s``, which checkpoints do not remember.
        """
        facts = state.workers.get(trial.worker, _NOBODY)
        if trial.metrics is None:
            return self._before_first(trial, facts)
        at, index = trial.last_at, trial.next_index - 1
        rewound = not trial.ordinal and trial.source is not None
        if rewound:
            assert trial.source is not None
            donor, index = trial.source
            record = state.trials[donor].find(index)
            at = record.at if record is not None else at
        iteration = trial.metrics.get("training_iteration")
        counters = (
            trial.iteration if iteration is None else iteration,
            trial.time_total,
            trial.timesteps_total,
            trial.episodes_total,
            trial.ordinal,
        )
        result = self._filled(trial, trial.metrics, counters, trial.dt, at, facts)
        if rewound and "time_this_iter_s" not in trial.metrics:
            del result["time_this_iter_s"]
        if trial.verdict == "stop" or trial.status == Status.TERMINATED:
            result["done"] = True
        if trial.checkpointed:
            self.add_checkpoint(result, index)
        return result

    def config_of(self, trial: Trial) -> dict[str, Any]:
        """The trial's config for users: a copy, with the values of the space, objects where they are known."""
        cached = self._configs.get(trial.n)
        if cached is not None and cached[0] is trial.config:
            return cached[1]
        config: dict[str, Any] = undamaged_objects(trial.config, self._objects)
        if len(self._configs) >= MAX_CACHED_CONFIGS:
            self._configs.clear()
        self._configs[trial.n] = (trial.config, config)
        return config

    def _filled(
        self,
        trial: Trial,
        metrics: Mapping[str, Any],
        counters: tuple[Any, float, int, int, int],
        dt: float,
        at: float,
        worker: WorkerFacts,
    ) -> dict[str, Any]:
        second, date = self._date
        if second != int(at):
            second, date = self._date = (int(at), date_text(at))
        iteration, time_total, timesteps, episodes, ordinal = counters
        result = {
            **metrics,
            "training_iteration": iteration,
            "time_this_iter_s": metrics.get("time_this_iter_s", dt),
            "time_total_s": time_total,
            "timestamp": metrics.get("timestamp", second),
            "date": date,
            "trial_id": trial.id,
            "hostname": worker.host,
            "node_ip": worker.ip,
            "pid": worker.pid,
            "config": self.config_of(trial),
            "done": metrics.get("done", False),
            "time_since_restore": time_total - trial.base_time,
            "iterations_since_restore": ordinal,
            "experiment_tag": trial.shown_tag or trial.tag,
        }
        if not self._is_class:
            result["checkpoint_dir_name"] = None
        if timesteps or "timesteps_this_iter" in metrics:
            result["timesteps_total"] = metrics.get("timesteps_total", timesteps)
            if timesteps > trial.base_timesteps:
                result["timesteps_since_restore"] = timesteps - trial.base_timesteps
        if episodes or "episodes_this_iter" in metrics:
            result["episodes_total"] = metrics.get("episodes_total", episodes)
        for key, value in metrics.items():
            if (type(value) is dict or type(value) is list) and result[key] is value:
                result[key] = copy_tree(value)
        return result

    def _before_first(self, trial: Trial, worker: WorkerFacts) -> dict[str, Any]:
        at = trial.attempt_at or trial.created_at
        return {
            "trial_id": trial.id,
            "done": trial.status == Status.TERMINATED,
            "timestamp": int(at),
            "date": date_text(at),
            "hostname": worker.host,
            "node_ip": worker.ip,
            "pid": worker.pid,
            "config": self.config_of(trial),
            "experiment_tag": trial.shown_tag or trial.tag,
        }


def last_result(state: State, trial: Trial, info: ExperimentInfo | None = None) -> dict[str, Any]:
    """The full result of the trial's last surviving row; ``done`` is True if the trial has TERMINATED."""
    return ResultBuilder(info).last(state, trial)


def undamaged_objects(config: Any, objects: Mapping[str, Any] | None) -> Any:
    """As ``known_objects``, for those who must continue: the markers of a config with a damaged value stay."""
    try:
        return known_objects(config, objects)
    except ObjectDamagedError as error:
        logger.warning("a config is shown without its objects: %s is damaged: %s", error.path, error.reason)
        return known_objects(config, None)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is an int or float; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def flatten_result(result: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """A result with nested dicts joined into one level; empty dicts vanish, lists stay.

    Example:
        >>> flatten_result({"a": {"b": 1, "c": {}}, "d": [1]})
        {'a/b': 1, 'd': [1]}
    """
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            _flatten_into(flat, f"{key}{delimiter}", value, delimiter)
        else:
            flat[key] = value
    return flat


def _flatten_into(flat: dict[str, Any], prefix: str, node: Mapping[Any, Any], delimiter: str) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _flatten_into(flat, f"{prefix}{key}{delimiter}", value, delimiter)
        else:
            flat[f"{prefix}{key}"] = value


class RowFolder:
    """Folds events into the rows that survive: a restarted trial loses those after its checkpoint.

    Args:
        builder: Makes the rows.
        wanted: Numbers of the trials to keep rows of; None means all.
    """

    def __init__(self, builder: ResultBuilder, wanted: set[int] | None = None) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.copies: dict[int, list[tuple[int, str]]] = {}
        """For trials that continued as copies of others: before which row, and of which trial."""
        self._builder = builder
        self._wanted = wanted

    def feed(self, state: State, event: ev.AnyEvent) -> None:
        """Take one event, before it is applied to ``state``."""
        kind = type(event)
        if kind is ev.Reported:
            self._reported(state, event)  # type: ignore[arg-type]
        elif kind is ev.TrialStarted:
            self._cut(event.n, event.rows)  # type: ignore[union-attr]
        elif kind is ev.CheckpointStaged:
            self._staged(state, event)  # type: ignore[arg-type]
        elif kind is ev.TrialReconfigured:
            self._copied(state, event)  # type: ignore[arg-type]
        elif kind is ev.TrialRequeued and event.mode == "restart":  # type: ignore[union-attr]
            self._cut(event.n, 0)  # type: ignore[union-attr]
            self.copies.pop(event.n, None)  # type: ignore[union-attr]

    def _reported(self, state: State, event: ev.Reported) -> None:
        if self._wanted is None or event.n in self._wanted:
            row = self._builder.of(state, state.trials[event.n], event)
            self.rows.setdefault(event.n, []).append(row)

    def _cut(self, n: int, rows: int) -> None:
        kept = self.rows.get(n)
        if kept is not None:
            del kept[rows:]
        if n in self.copies:
            self.copies[n] = [copy for copy in self.copies[n] if copy[0] <= rows]

    def _copied(self, state: State, event: ev.TrialReconfigured) -> None:
        if event.donor is not None:
            parent = state.trials[event.parent if event.parent >= 0 else event.donor[0]]
            self.copies.setdefault(event.n, []).append((len(self.rows.get(event.n, ())), parent.id))

    def _staged(self, state: State, event: ev.CheckpointStaged) -> None:
        rows = self.rows.get(event.n)
        if rows and state.trials[event.n].ordinal:
            self._builder.add_checkpoint(rows[-1], event.index)


def rows_from_events(
    events: Iterable[ev.AnyEvent], wanted: set[int] | None, builder: ResultBuilder, retention: Retention
) -> dict[int, list[dict[str, Any]]]:
    """The surviving rows of every wanted trial, in order; see ``fold_rows``."""
    return fold_rows(events, wanted, builder, retention).rows


def fold_rows(
    events: Iterable[ev.AnyEvent], wanted: set[int] | None, builder: ResultBuilder, retention: Retention
) -> RowFolder:
    """The surviving rows of every wanted trial, in order, from the experiment's whole history.

    Args:
        events: All events, from the first.
        wanted: Numbers of the trials; None means all.
        builder: Makes the rows.
        retention: The user's rule, which is part of the fold.
    """
    state, folder = State(), RowFolder(builder, wanted)
    for event in events:
        check_known(state, event)
        folder.feed(state, event)
        apply(state, event, retention)
    return folder
