"""Comet: an experiment of Comet for each trial.

Owns how a trial becomes one: metrics by flat names with the step ``training_iteration``, parameters, other facts. The
key is derived from experiment and trial. Offline, a trial is written as one zip file when it has ended, and a note
beside it says how far it reaches. Must never import comet_ml into the driver.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration.reporting import load_framework
from holdfast.integration.trackers.callback import WAIT_S, TrackerCallback
from holdfast.integration.trackers.notes import Notes
from holdfast.integration.trackers.runs import (
    FAILED,
    FINISHED,
    Logged,
    Row,
    RunFacts,
    TrackerTarget,
    check_text,
    numbers,
    require_library,
)
from holdfast.views.trials import ExperimentInfo

__all__ = ["CometLoggerCallback"]

DEFAULT_DIRECTORY = ".cometml-runs"

_OTHERS = ("trial_id", "experiment_tag", "date", "hostname", "node_ip")
_QUIET = {
    "log_code": False,
    "log_graph": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "log_env_details": False,  # it would be that of the process that logs, not of the trial
    "auto_metric_logging": False,
    "auto_param_logging": False,
    "auto_output_logging": False,
    "parse_args": False,
    "display_summary_level": 0,
}


class CometLoggerCallback(TrackerCallback):
    """Log every trial as an experiment of Comet.

    Args:
        online: Log to Comet's server. False writes zip files into ``offline_directory``, which ``comet upload`` sends.
        tags: Tags for every trial.
        save_checkpoints: Log the last checkpoint of each trial that has finished as an artifact.
        upload_timeout: Seconds that ``fit()`` waits at its end for rows that are not logged yet.
        **experiment_kwargs: For ``comet_ml.Experiment`` or ``OfflineExperiment``: ``api_key``, ``workspace``,
            ``project_name``, ``offline_directory`` and others.

    Raises:
        ImportError: comet_ml is not installed.
        InvalidInputError: There is no API key, or an argument cannot work.

    Example:
        >>> tune.RunConfig(callbacks=[CometLoggerCallback(online=False, offline_directory="comet")])
    """

    label: ClassVar[str] = "comet"

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        upload_timeout: float = WAIT_S,
        **experiment_kwargs: Any,
    ) -> None:
        super().__init__(upload_timeout)
        self.online = online
        self.tags = tags
        self.save_checkpoints = save_checkpoints
        self.experiment_kwargs = experiment_kwargs
        self.check()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        without = {key: value for key, value in self.experiment_kwargs.items() if key != "api_key"}
        return {**state, "experiment_kwargs": without}

    def check(self) -> None:
        name, given = type(self).__name__, self.experiment_kwargs
        if not isinstance(self.online, bool):
            raise InvalidTypeError(f"{name}(online={self.online!r}): must be True or False.")
        if isinstance(self.tags, str) or not all(isinstance(tag, str) for tag in self.tags or ()):
            raise InvalidTypeError(f"{name}(tags={self.tags!r}): give a list of texts.")
        texts = ("api_key", "workspace", "project_name", "offline_directory")
        check_text(name, **{key: given.get(key) for key in texts})
        for taken in ("experiment_key", "previous_experiment"):
            if taken in given:
                raise InvalidInputError(
                    f"{name}({taken}=...): holdfast chooses it, because each trial has a key of its own. Leave it out."
                )
        require_library("comet_ml", "comet-ml", "comet")
        if self.online and not (given.get("api_key") or os.environ.get("COMET_API_KEY") or _has_config()):
            raise InvalidInputError(
                f"{name}: there is no API key of Comet. Type: comet init; or set COMET_API_KEY, or pass api_key=.... "
                "To log without a server: online=False."
            )

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        return TrackerTarget(
            self.label,
            __name__,
            "CometTracker",
            {
                "online": self.online,
                "tags": list(self.tags or ()),
                "save_checkpoints": self.save_checkpoints,
                "given": dict(self.experiment_kwargs),
            },
        )

    def command_arguments(self) -> dict[str, Any]:
        names = ("workspace", "project_name", "offline_directory")
        return {"online": self.online, **{name: self.experiment_kwargs.get(name) for name in names}}


def _has_config() -> bool:
    path = os.environ.get("COMET_CONFIG", os.path.join("~", ".comet.config"))
    return os.path.isfile(os.path.expanduser(path)) or os.path.isfile(".comet.config")


class CometTracker:
    """Experiments in Comet."""

    counts_timesteps = False

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] = (),
        save_checkpoints: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        os.environ.setdefault("COMET_LOGGING_CONSOLE", "error")
        self._comet = load_framework("comet_ml", "comet-ml", "comet")
        self._online = online
        self._tags = list(tags)
        self._save_checkpoints = save_checkpoints
        self._given = dict(given or {})
        self.live = online
        directory = self._given.get("offline_directory") or os.environ.get("COMET_OFFLINE_DIRECTORY")
        self._directory = os.path.abspath(directory or DEFAULT_DIRECTORY)
        self._notes = Notes(self._directory)
        self._open: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        note = self._notes.read(run.id)
        return not note.writing and (note.rows, note.status) == (rows, run.status)

    def open(self, run: RunFacts) -> Logged:
        note = self._notes.clean(run.id)
        if self._online:
            made, step = self._begin_online(run)
            logged = Logged(0, step)
        else:
            made, logged = self._begin_offline(run, bool(note.parts)), Logged(note.rows, note.step)
            # A zip file appears under this name when the experiment begins, and gets its content at the end.
            note.writing = made._get_offline_archive_file_name()
            self._notes.write(run.id, note)
        self._open[run.id], self._steps[run.id] = made, logged.step
        made.set_name(run.name)
        if self._tags:
            made.add_tags(self._tags)
        made.log_other("Created from", "holdfast")
        made.log_others({"experiment": run.experiment, "trial_id": run.trial_id, "experiment_tag": run.tag})
        made.log_parameters({key: value for key, value in run.flat_config().items() if key != "callbacks"})
        return logged

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        made = self._open[run.id]
        for row in rows:
            made.log_metrics(numbers(row.result, ("pid",)), step=row.step)
        made.log_others({key: rows[-1].result[key] for key in _OTHERS if key in rows[-1].result})
        self._steps[run.id] = rows[-1].step

    def close(self, run: RunFacts, rows: int) -> None:
        made = self._open.pop(run.id)
        if run.status == FINISHED and self._save_checkpoints and run.checkpoint is not None:
            artifact = self._comet.Artifact(name=f"checkpoint_{run.trial_id}", artifact_type="model")
            with run.checkpoint.as_directory() as directory:
                artifact.add(directory)
                made.log_artifact(artifact)
                made.end()
        else:
            if run.status == FAILED:
                made.log_other("error", run.error or "failed")
                made.add_tag("failed")
            made.end()
        note = self._notes.read(run.id)
        if note.writing:
            note.parts, note.writing = [*note.parts, note.writing], ""
        note.rows, note.step, note.status = rows, self._steps.pop(run.id), run.status
        self._notes.write(run.id, note)

    def retire(self, run: RunFacts) -> None:
        """Zip files are removed; an experiment on the server is archived, which can be undone."""
        if not self._online:
            self._notes.drop(run.id)
            return
        api = self._comet.API(api_key=self._given.get("api_key"))
        if api.get_experiment_by_key(_key(run)) is not None:
            api.archive_experiment(_key(run))

    def finish(self) -> None:
        pass

    def _begin_offline(self, run: RunFacts, again: bool) -> Any:
        os.makedirs(self._directory, exist_ok=True)
        given = {**_QUIET, **self._given, "offline_directory": self._directory}
        if again:
            return self._comet.ExistingOfflineExperiment(previous_experiment=_key(run), **given)
        for left in glob.glob(os.path.join(glob.escape(self._directory), f"{_key(run)}*.zip")):
            os.unlink(left)  # begun by a process that was killed before it could note so
        return self._comet.OfflineExperiment(experiment_key=_key(run), **given)

    def _begin_online(self, run: RunFacts) -> tuple[Any, int]:
        """The experiment, and the last step that the server has of it."""
        given = {**_QUIET, **self._given}
        api = self._comet.API(api_key=self._given.get("api_key"))
        known = api.get_experiment_by_key(_key(run))
        if known is None:
            return self._comet.Experiment(experiment_key=_key(run), **given), -1
        steps = [metric.get("step") for metric in known.get_metrics()]
        step = max((int(step) for step in steps if step is not None), default=-1)
        return self._comet.ExistingExperiment(previous_experiment=_key(run), **given), step


def _key(run: RunFacts) -> str:
    """Comet's keys are 32 to 50 letters and digits."""
    return hashlib.sha256(run.id.encode()).hexdigest()[:40]
