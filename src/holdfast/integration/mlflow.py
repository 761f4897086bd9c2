"""MLflow: a run for each trial in an MLflow experiment, and MLflow's own interface inside a trial.

Owns how a trial becomes a run: metrics by flat names with the step ``timesteps_total`` or ``training_iteration``,
parameters from the config, tags that name experiment and trial. MLflow chooses the ids of runs itself, so a run is
found again by the tag ``holdfast.run``. It ignores a metric that is logged again with the same time, step and value, so
what is logged twice is there once. Must never import MLflow into the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from holdfast.config.secrets import hidden, refuse_secrets
from holdfast.errors import InvalidInputError, InvalidTypeError, StorageError
from holdfast.integration.reporting import load_framework
from holdfast.integration.trackers.callback import WAIT_S, TrackerCallback
from holdfast.integration.trackers.current_trial import TrialHere, trial_here
from holdfast.integration.trackers.runs import (
    FAILED,
    FINISHED,
    UNFINISHED,
    Logged,
    Row,
    RunFacts,
    TrackerTarget,
    check_text,
    numbers,
    require_library,
)
from holdfast.views.trials import ExperimentInfo

__all__ = ["MLflowLoggerCallback", "setup_mlflow"]

RUN_TAG = "holdfast.run"
ROWS_TAG = "holdfast.rows"
EXPERIMENT_TAG = "holdfast.experiment"

_HALF_MADE = re.compile(r"table \S+ already exists")

MAX_METRICS = 1000  # in one request
MAX_PARAMS = 100
MAX_VALUE = 6000
MAX_NAME = 250

_SCHEMES = frozenset(
    {"databricks", "databricks-uc", "uc", "http", "https", "mssql", "mysql", "postgresql", "sqlite", "file", ""}
)
_STRANGE = re.compile(r"[^\w\-. :/]")
_STATUSES = {FINISHED: "FINISHED", FAILED: "FAILED", UNFINISHED: "RUNNING"}


class MLflowLoggerCallback(TrackerCallback):
    """Log every trial as an MLflow run.

    Args:
        tracking_uri: Where runs are kept: a server, or a database such as ``sqlite:///mlflow.db``. None takes
            ``MLFLOW_TRACKING_URI``, or MLflow's default.
        registry_uri: MLflow's model registry, if it is elsewhere.
        experiment_name: MLflow's experiment, which is created if need be. None takes ``MLFLOW_EXPERIMENT_NAME``, or the
            name of the holdfast experiment.
        tags: Further tags for every run.
        tracking_token: Passed to MLflow as ``MLFLOW_TRACKING_TOKEN``. It is not stored with the experiment: set that
            variable if the experiment may be resumed by another process.
        save_artifact: Log the trial's directory, with result files and checkpoints, as artifacts when it has ended.
        log_params_on_trial_end: Log parameters when the trial ends, not when its run is created: those of population
            based training change, and MLflow keeps the first.
        upload_timeout: Seconds that ``fit()`` waits at its end for rows that are not logged yet.

    Raises:
        ImportError: MLflow is not installed.
        InvalidInputError: An argument cannot work.

    Example:
        >>> tune.RunConfig(callbacks=[MLflowLoggerCallback("sqlite:///mlflow.db", experiment_name="digits")])
    """

    label: ClassVar[str] = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
        upload_timeout: float = WAIT_S,
    ) -> None:
        super().__init__(upload_timeout)
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self.experiment_name = experiment_name
        self.tags = tags
        self.tracking_token = tracking_token
        self.save_artifact = save_artifact
        self.log_params_on_trial_end = log_params_on_trial_end
        self.check()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "tracking_token": None}

    def check(self) -> None:
        name = type(self).__name__
        check_text(
            name,
            tracking_uri=self.tracking_uri,
            registry_uri=self.registry_uri,
            experiment_name=self.experiment_name,
            tracking_token=self.tracking_token,
        )
        if self.tags is not None and not isinstance(self.tags, Mapping):
            raise InvalidTypeError(f"{name}(tags={self.tags!r}): tags must be a dict of names and texts, or None.")
        for argument in ("tracking_uri", "registry_uri"):
            check_uri(name, argument, getattr(self, argument))
            _refuse_password(name, argument, getattr(self, argument))
        require_library("mlflow", "mlflow", "mlflow")

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        return TrackerTarget(
            self.label,
            __name__,
            "MLflowTracker",
            {
                "tracking_uri": self.tracking_uri,
                "registry_uri": self.registry_uri,
                "experiment_name": self.experiment_name,
                "tags": {str(key): str(value) for key, value in (self.tags or {}).items()},
                "tracking_token": self.tracking_token,
                "save_artifact": self.save_artifact,
                "log_params_on_trial_end": self.log_params_on_trial_end,
            },
        )

    def command_arguments(self) -> dict[str, Any]:
        return {"tracking_uri": self.tracking_uri, "experiment_name": self.experiment_name}


def check_uri(owner: str, argument: str, uri: str | None) -> None:
    """Refuse an address that MLflow cannot open."""
    if uri is None:
        return
    scheme = urlsplit(uri).scheme.partition("+")[0]
    if scheme not in _SCHEMES:
        raise InvalidInputError(
            f"{owner}({argument}={uri!r}): MLflow does not know the scheme {scheme!r}. Give a server "
            "(http://host:5000) or a database (sqlite:///mlflow.db)."
        )


def _refuse_password(owner: str, argument: str, uri: str | None) -> None:
    """Arguments of a callback are stored with the experiment, and shown in messages."""
    try:
        refuse_secrets(argument, uri or "")
    except InvalidInputError:
        raise InvalidInputError(
            f"{owner}({argument}={hidden(str(uri))!r}): the address holds a password, and would be stored with the "
            "experiment. Set MLFLOW_TRACKING_URI to it instead, or leave the password to MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD."
        ) from None


class MLflowTracker:
    """Runs in MLflow."""

    live = True
    counts_timesteps = True

    def __init__(
        self,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        # What MLflow would do by itself takes many minutes; we retry for as long as the experiment runs.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        if tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
        self._entities = load_framework("mlflow.entities", "mlflow", "mlflow")
        client = load_framework("mlflow.tracking", "mlflow", "mlflow").MlflowClient
        with _explained(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")):
            self._client: Any = client(tracking_uri=tracking_uri, registry_uri=registry_uri)
        self._experiment_name = experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        self._tags = dict(tags or {})
        self._save_artifact = save_artifact
        self._params_at_end = log_params_on_trial_end
        self._experiment_id = ""
        self._known: dict[str, Any] | None = None  # MLflow's runs, by our ids

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        found = self._runs(run).get(run.id)
        if found is None or found.data.tags.get(ROWS_TAG) != str(rows):
            return False
        return bool(found.info.status == _STATUSES.get(run.status))

    def open(self, run: RunFacts) -> Logged:
        found = self._runs(run).get(run.id)
        if found is None:
            tags = {**self._tags, "trial_name": run.name, RUN_TAG: run.id, EXPERIMENT_TAG: run.experiment_uid}
            tags |= {"experiment_tag": run.tag, "trial_id": run.trial_id}
            created = int(run.created_at * 1000)
            found = self._client.create_run(self._experiment_id, start_time=created, tags=tags, run_name=run.name)
            self._runs(run)[run.id] = found
        elif found.info.status != "RUNNING":
            self._client.update_run(found.info.run_id, status="RUNNING")
        if not self._params_at_end:
            self._log_params(found, run)
        rows = str(found.data.tags.get(ROWS_TAG, ""))
        return Logged(int(rows) if rows.isdecimal() else 0)

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        found = self._runs(run)[run.id]
        metric = self._entities.Metric
        metrics = [
            metric(_name(key), float(value), row.at_ms, row.step)
            for row in rows
            for key, value in numbers(row.result, ("pid", "timestamp")).items()
        ]
        for at in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(found.info.run_id, metrics=metrics[at : at + MAX_METRICS])
        # After the metrics: a crash between lets them be logged again, which changes nothing.
        self._client.set_tag(found.info.run_id, ROWS_TAG, str(rows[-1].number + 1))

    def close(self, run: RunFacts, rows: int) -> None:
        found = self._runs(run)[run.id]
        number = found.info.run_id
        if run.status and self._params_at_end:
            self._log_params(found, run)
        if run.status and self._save_artifact and os.path.isdir(run.directory):
            self._client.log_artifacts(number, run.directory)
        if run.error:
            self._client.set_tag(number, "error", run.error[:MAX_VALUE])
        if run.status:
            self._client.set_tag(number, ROWS_TAG, str(rows))
            self._client.set_terminated(number, status=_STATUSES[run.status])
        self._runs(run)[run.id] = self._client.get_run(number)

    def retire(self, run: RunFacts) -> None:
        """MLflow keeps deleted runs until ``mlflow gc``, so nothing is lost by this."""
        found = self._runs(run).get(run.id)
        if found is not None:
            self._client.delete_run(found.info.run_id)
            del self._runs(run)[run.id]

    def finish(self) -> None:
        pass

    def _log_params(self, found: Any, run: RunFacts) -> None:
        """Those that MLflow does not have: it refuses another value for one that it has."""
        param, known = self._entities.Param, found.data.params
        flat = {_name(key): str(value)[:MAX_VALUE] for key, value in run.flat_config().items()}
        missing = [param(key, value) for key, value in flat.items() if key not in known]
        for at in range(0, len(missing), MAX_PARAMS):
            self._client.log_batch(found.info.run_id, params=missing[at : at + MAX_PARAMS])

    def _runs(self, run: RunFacts) -> dict[str, Any]:
        """MLflow's runs of this experiment; asked for once, all together."""
        if self._known is None:
            self._find_experiment(run.experiment)
            found = self._search(f"tags.`{EXPERIMENT_TAG}` = '{run.experiment_uid}'")
            self._known = {each.data.tags[RUN_TAG]: each for each in found}
        return self._known

    def _find_experiment(self, default: str) -> None:
        name = self._experiment_name or default
        found = self._client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage == "deleted":
            raise InvalidInputError(
                f"The MLflow experiment {name!r} was deleted. Restore it (mlflow experiments restore), or give "
                "another experiment_name."
            )
        self._experiment_id = self._client.create_experiment(name) if found is None else found.experiment_id

    def _search(self, condition: str) -> list[Any]:
        if not self._experiment_id:
            return []
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs([self._experiment_id], condition, max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Say what to do about a database that MLflow cannot open ever again: it was killed while it made the tables."""
    try:
        yield
    except Exception as error:
        found = _HALF_MADE.search(str(error))
        if found is None or urlsplit(uri).scheme.partition("+")[0] != "sqlite":
            raise
        raise StorageError(
            f"{hidden(uri)} is half made ({found[0]}): a process was killed while MLflow made its tables. Move the "
            "file away, and MLflow makes a new one"
        ) from error


def _name(key: str) -> str:
    """A name that MLflow takes."""
    return _STRANGE.sub("_", key)[:MAX_NAME]


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Begin MLflow's run of this trial, inside the trainable, and return the module ``mlflow``.

    A retry of the trial continues the same run. What is logged here goes to MLflow directly: steps that a retry repeats
    are logged again. ``MLflowLoggerCallback`` logs what is reported, each surviving step once; both may be used, with
    runs of their own.

    Args:
        config: The trial's config; logged as parameters.
        tracking_uri: Where runs are kept; None takes ``MLFLOW_TRACKING_URI``.
        registry_uri: MLflow's model registry, if it is elsewhere.
        experiment_id: MLflow's experiment, by id.
        experiment_name: Or by name. With neither, ``MLFLOW_EXPERIMENT_NAME`` or the name of the holdfast experiment.
        tracking_token: Passed to MLflow as ``MLFLOW_TRACKING_TOKEN``.
        artifact_location: Of a new experiment.
        run_name: None takes the trial's.
        create_experiment_if_not_exists: Otherwise an ``experiment_name`` that does not exist is refused.
        tags: Further tags.
        rank_zero_only: Accepted for Ray's sake: a trial here is one process.

    Raises:
        ImportError: MLflow is not installed.
        InvalidInputError: The experiment does not exist.
    """
    check_uri("setup_mlflow", "tracking_uri", tracking_uri)
    mlflow = load_framework("mlflow", "mlflow", "mlflow")
    if tracking_token:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri:
        mlflow.set_registry_uri(registry_uri)
    trial = trial_here()
    if experiment_id is None:
        experiment_id = _experiment_id(
            mlflow, trial, experiment_name, artifact_location, create_experiment_if_not_exists
        )
    known = mlflow.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{trial.id}'", output_format="list")
    while mlflow.active_run() is not None:  # of a trial that ran in this process before
        mlflow.end_run()
    mine = {**{str(key): str(value) for key, value in (tags or {}).items()}, RUN_TAG: trial.id}
    if known:
        mlflow.start_run(run_id=known[0].info.run_id)
    else:
        mlflow.start_run(experiment_id=experiment_id, run_name=run_name or trial.name, tags=mine)
    logged = mlflow.active_run().data.params if known else {}
    missing = {
        _name(key): str(value)[:MAX_VALUE] for key, value in trial.flat(config).items() if _name(key) not in logged
    }
    if missing:
        mlflow.log_params(missing)
    return mlflow


def _experiment_id(mlflow: Any, trial: TrialHere, name: str | None, location: str | None, create: bool) -> str:
    asked = name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    name = asked or trial.experiment
    found = mlflow.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    if name is asked and not create:
        raise InvalidInputError(
            f"There is no MLflow experiment {name!r}: pass create_experiment_if_not_exists=True, or create it first."
        )
    try:
        return str(mlflow.create_experiment(name, artifact_location=location))
    except Exception:  # another trial was faster
        found = mlflow.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)
