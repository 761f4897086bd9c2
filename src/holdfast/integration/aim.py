"""Aim: a run for each trial in an Aim repository.

Owns how a trial becomes a run: metrics by flat names with the step ``timesteps_total`` or ``training_iteration``, the
config as ``hparams``. In a repository on this machine the run's hash is derived from experiment and trial; a server
chooses hashes itself, so there a run is found again by its attribute ``holdfast``. Aim replaces a value that is tracked
again at the same step, so what is logged twice is there once. Must never import aim into the driver.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration.reporting import load_framework
from holdfast.integration.trackers.callback import WAIT_S, TrackerCallback
from holdfast.integration.trackers.runs import (
    FAILED,
    Logged,
    Row,
    RunFacts,
    TrackerTarget,
    check_text,
    numbers,
    require_library,
)
from holdfast.views.trials import ExperimentInfo

__all__ = ["AimLoggerCallback"]

HASH_LENGTH = 24

_NO_METRICS = ("pid", "timestamp", "time_total_s", "training_iteration", "epoch", "context")
_PLAIN = (str, bool, int, float, list, type(None))
_QUIET: dict[str, Any] = {
    "system_tracking_interval": None,  # it would be that of the process that logs, not of the trial
    "log_system_params": False,
    "capture_terminal_logs": False,
}


class AimLoggerCallback(TrackerCallback):
    """Log every trial as a run of Aim.

    Args:
        repo: The directory of the Aim repository, which is created if need be, or ``aim://host:port``. None takes the
            experiment's directory, or the working directory if the experiment is in a store.
        experiment_name: Aim's experiment; None takes the experiment's name.
        metrics: Names of the metrics to track; None takes all numbers.
        upload_timeout: Seconds that ``fit()`` waits at its end for rows that are not logged yet.
        **aim_run_kwargs: For ``aim.Run``.

    Raises:
        ImportError: aim is not installed.
        InvalidInputError: An argument cannot work.

    Example:
        >>> tune.RunConfig(callbacks=[AimLoggerCallback(repo="runs", metrics=["loss"])])
    """

    label: ClassVar[str] = "aim"

    def __init__(
        self,
        repo: str | os.PathLike[str] | None = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        upload_timeout: float = WAIT_S,
        **aim_run_kwargs: Any,
    ) -> None:
        super().__init__(upload_timeout)
        self.repo = repo
        self.experiment_name = experiment_name
        self.metrics = metrics
        self.aim_run_kwargs = aim_run_kwargs
        self.check()

    def check(self) -> None:
        name = type(self).__name__
        check_text(name, experiment_name=self.experiment_name)
        if self.repo is not None and not isinstance(self.repo, str | os.PathLike):
            raise InvalidTypeError(f"{name}(repo={self.repo!r}): give a directory or aim://host:port, or None.")
        if isinstance(self.metrics, str) or not all(isinstance(metric, str) for metric in self.metrics or ()):
            raise InvalidTypeError(f"{name}(metrics={self.metrics!r}): give a list of names, or None for all.")
        for taken in ("run_hash", "read_only", "experiment"):
            if taken in self.aim_run_kwargs:
                raise InvalidInputError(
                    f"{name}({taken}=...): holdfast chooses it, because each trial has a run of its own. Leave it out."
                )
        require_library("aim", "aim", "aim")

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        repo = os.fspath(self.repo) if self.repo is not None else None
        if repo is None:
            repo = os.getcwd() if info.url else str(info.root)
        return TrackerTarget(
            self.label,
            __name__,
            "AimTracker",
            {
                "repo": repo if "://" in repo else os.path.abspath(os.path.expanduser(repo)),
                "experiment_name": self.experiment_name,
                "metrics": None if self.metrics is None else list(self.metrics),
                "given": dict(self.aim_run_kwargs),
            },
        )

    def command_arguments(self) -> dict[str, Any]:
        repo = None if self.repo is None else os.fspath(self.repo)
        return {"repo": repo, "experiment_name": self.experiment_name}


class AimTracker:
    """Runs in an Aim repository."""

    live = True
    counts_timesteps = True

    def __init__(
        self,
        repo: str,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        logging.getLogger("aim").setLevel(logging.ERROR)  # a lock of a process that was killed is worth no warning
        self._aim = load_framework("aim", "aim", "aim")
        self._experiment_name = experiment_name
        self._metrics = metrics
        self._given = dict(given or {})
        self._remote = "://" in repo
        if not self._remote:
            os.makedirs(repo, exist_ok=True)
        self._repo: Any = self._aim.Repo.from_path(repo, init=not self._remote)
        self._open: dict[str, Any] = {}

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        return False  # looking costs as much as opening

    def open(self, run: RunFacts) -> Logged:
        found = self._find(run)
        made = self._aim.Run(
            run_hash=found,
            repo=self._repo,
            experiment=self._experiment_name or run.experiment,
            **{"force_resume": True, **_QUIET, **self._given},
        )
        self._open[run.id] = made
        known = made.get("holdfast")
        if not isinstance(known, Mapping):
            known = {"run": run.id, "experiment": run.experiment_uid, "rows": 0}
            made["holdfast"] = known
            made.name = run.name
            made["trial_id"] = run.trial_id
            made["trial_path"] = run.place
            self._set_config(made, run)
        return Logged(int(known["rows"]))

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        made = self._open[run.id]
        for row in rows:
            epoch, context = row.result.get("epoch"), row.result.get("context")
            for key, value in self._chosen(row).items():
                made.track(
                    value,
                    name=key,
                    step=row.step,
                    epoch=epoch if isinstance(epoch, int) else None,
                    context=context if isinstance(context, dict) else None,
                )
        made["holdfast"] = {"run": run.id, "experiment": run.experiment_uid, "rows": rows[-1].number + 1}

    def close(self, run: RunFacts, rows: int) -> None:
        made = self._open.pop(run.id)
        self._set_config(made, run)
        if run.status == FAILED:
            made["error"] = run.error or "failed"
        made.close()

    def retire(self, run: RunFacts) -> None:
        """The run is deleted: the journal has its rows, and nothing else was in it."""
        found = self._find(run, create=False)
        if found is not None:
            self._repo.delete_run(found)

    def finish(self) -> None:
        pass

    def _chosen(self, row: Row) -> dict[str, float]:
        flat = numbers(row.result, () if self._metrics is not None else _NO_METRICS)
        if self._metrics is not None:
            flat = {key: flat[key] for key in self._metrics if key in flat}
        return {key: value for key, value in flat.items() if math.isfinite(value)}

    @staticmethod
    def _set_config(made: Any, run: RunFacts) -> None:
        flat = run.flat_config()
        made["hparams"] = {key: value if isinstance(value, _PLAIN) else str(value) for key, value in flat.items()}

    def _find(self, run: RunFacts, *, create: bool = True) -> str | None:
        """The hash of the run; None if there is none and the library is to choose one."""
        if self._remote:
            found = self._repo.query_runs(f"run.holdfast.run == {run.id!r}", report_mode=0).iter_runs()
            return next((each.run.hash for each in found), None)
        name = hashlib.sha256(run.id.encode()).hexdigest()[:HASH_LENGTH]
        place = os.path.join(self._repo.path, "meta", "chunks", name)
        if create:
            # A run exists for Aim if it has this directory, and only one that exists may be given by its hash.
            os.makedirs(place, exist_ok=True)
            self._repo._all_run_hashes.cache_clear()
        return name if os.path.isdir(place) else None
