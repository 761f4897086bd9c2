"""Weights & Biases: a run for each trial, and W&B's own interface inside a trial.

Owns how a trial becomes a run: metrics by flat names with the step ``training_iteration``, the config, a group for the
experiment. W&B refuses a step that is lower than the last one, so only rows that no retry will repeat are logged.

Online, a run is resumed at the step that the server has. Offline there is nobody to ask: the rows of a trial are
written when it has ended, as one directory, and a note says how far that reaches. One of an unfinished trial is
replaced later, or continued if it was uploaded. Must never import wandb into the driver.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration.reporting import load_framework
from holdfast.integration.trackers.callback import WAIT_S, TrackerCallback
from holdfast.integration.trackers.current_trial import trial_here
from holdfast.integration.trackers.notes import Notes
from holdfast.integration.trackers.runs import (
    FAILED,
    FINISHED,
    LEFT_OUT,
    Logged,
    Row,
    RunFacts,
    TrackerTarget,
    check_text,
    is_number,
    read_key_file,
    require_library,
)
from holdfast.views.results import flatten_result
from holdfast.views.trials import ExperimentInfo

__all__ = ["WandbLoggerCallback", "setup_wandb"]

OFFLINE = frozenset({"offline", "dryrun"})
MODES = OFFLINE | {"online", "run", "disabled"}
KEY_LENGTH = 40

_IN_CONFIG = ("trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date")
_NOT_IN_PROJECT = re.compile(r"[/\\#?%:\r\n]")
_QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,  # they would be those of the process that logs, not of the trial
    "x_disable_meta": True,
    "x_disable_machine_info": True,
}


class WandbLoggerCallback(TrackerCallback):
    """Log every trial as a run of Weights & Biases.

    Args:
        project: W&B's project. None takes ``WANDB_PROJECT_NAME`` or ``WANDB_PROJECT``.
        group: Groups the runs. None takes ``WANDB_GROUP_NAME`` or ``WANDB_RUN_GROUP``, or the experiment's name.
        api_key_file: A file whose first line is the API key.
        api_key: The API key. It is not stored with the experiment: set ``WANDB_API_KEY``, use ``api_key_file`` or
            ``wandb login`` if the experiment may be resumed by another process.
        excludes: Names of metrics and config entries to leave out; a name of a dict leaves out all of it.
        log_config: Also log the config with every row, as ``config/<name>``.
        upload_checkpoints: Log the last checkpoint of each trial that has finished as an artifact.
        upload_timeout: Seconds that ``fit()`` waits at its end for rows that are not logged yet.
        **kwargs: For ``wandb.init``: ``entity``, ``tags``, ``notes``, ``dir``, ``mode="offline"`` and others.

    Raises:
        ImportError: wandb is not installed.
        InvalidInputError: There is no project or no API key, or an argument cannot work.

    Example:
        >>> tune.RunConfig(callbacks=[WandbLoggerCallback(project="digits", mode="offline")])
    """

    label: ClassVar[str] = "wandb"

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        upload_timeout: float = WAIT_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(upload_timeout)
        self.project = project
        self.group = group
        self.api_key_file = api_key_file
        self.api_key = api_key
        self.excludes = [] if excludes is None else excludes
        self.log_config = log_config
        self.upload_checkpoints = upload_checkpoints or bool(kwargs.pop("save_checkpoints", False))
        self.kwargs = kwargs
        self.check()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "api_key": None}

    def check(self) -> None:
        name = type(self).__name__
        check_text(name, project=self.project, group=self.group, api_key=self.api_key, api_key_file=self.api_key_file)
        check_project(name, self._project())
        if isinstance(self.excludes, str) or not all(isinstance(each, str) for each in self.excludes):
            raise InvalidTypeError(f"{name}(excludes={self.excludes!r}): give a list of names.")
        for taken in ("id", "name", "resume", "reinit"):
            if taken in self.kwargs:
                raise InvalidInputError(
                    f"{name}({taken}=...): holdfast chooses it, because each trial has a run of its own. Leave it out."
                )
        mode = _mode(name, self.kwargs)
        require_library("wandb", "wandb", "wandb")
        if mode not in OFFLINE | {"disabled"}:
            check_key(name, self.api_key, self.api_key_file)

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        key = self.api_key
        if self.api_key_file:
            key = read_key_file(type(self).__name__, self.api_key_file)
        return TrackerTarget(
            self.label,
            __name__,
            "WandbTracker",
            {
                "project": self._project(),
                "group": self.group or _from_environment("WANDB_GROUP_NAME", "WANDB_RUN_GROUP"),
                "api_key": key,
                "excludes": list(self.excludes),
                "log_config": self.log_config,
                "upload_checkpoints": self.upload_checkpoints,
                "init": dict(self.kwargs),
            },
        )

    def command_arguments(self) -> dict[str, Any]:
        plain = {key: value for key, value in self.kwargs.items() if isinstance(value, str)}
        return {"project": self._project(), "group": self.group, "api_key_file": self.api_key_file, **plain}

    def _project(self) -> str | None:
        return self.project or _from_environment("WANDB_PROJECT_NAME", "WANDB_PROJECT")


def _from_environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _mode(owner: str, kwargs: Mapping[str, Any]) -> str:
    mode = kwargs.get("mode") or os.environ.get("WANDB_MODE") or "online"
    if mode not in MODES:
        raise InvalidInputError(f"{owner}(mode={mode!r}): use one of {', '.join(sorted(MODES))}.")
    return str(mode)


def check_project(owner: str, project: str | None) -> None:
    """Refuse a project that W&B would refuse."""
    if not project:
        raise InvalidInputError(
            f"{owner} needs the name of a W&B project: pass project=..., or set WANDB_PROJECT_NAME."
        )
    if _NOT_IN_PROJECT.search(project) or len(project) > 128:
        raise InvalidInputError(
            f"{owner}(project={project!r}): a W&B project has at most 128 characters and none of / \\ # ? % :"
        )


def check_key(owner: str, api_key: str | None, api_key_file: str | None) -> None:
    """Refuse to begin without an API key, or with one that cannot be right."""
    if api_key and api_key_file:
        raise InvalidInputError(f"{owner}: both api_key and api_key_file are given; give one of them.")
    key = read_key_file(owner, api_key_file) if api_key_file else api_key or os.environ.get("WANDB_API_KEY")
    if not key:
        if _has_netrc() or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
            return
        raise InvalidInputError(
            f"{owner}: there is no API key of W&B. Type: wandb login; or set WANDB_API_KEY, or pass api_key_file=.... "
            'To log without a server: mode="offline".'
        )
    if len(key) < KEY_LENGTH:
        raise InvalidInputError(
            f"{owner}: the API key of W&B has at least {KEY_LENGTH} characters, and this one has {len(key)}. "
            "Copy it from https://wandb.ai/authorize."
        )


def _has_netrc() -> bool:
    import netrc

    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbTracker:
    """Runs in Weights & Biases."""

    counts_timesteps = False

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] = (),
        log_config: bool = False,
        upload_checkpoints: bool = False,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        if api_key:
            os.environ["WANDB_API_KEY"] = api_key
        self._wandb = load_framework("wandb", "wandb", "wandb")
        self._init = dict(init or {})
        self._project = project
        self._group = group
        self._excludes = frozenset(excludes)
        self._left_out = frozenset(LEFT_OUT - {"config"} if log_config else LEFT_OUT)
        self._upload_checkpoints = upload_checkpoints
        self._offline = _mode("wandb", self._init) in OFFLINE
        self.live = not self._offline
        directory = self._init.get("dir") or os.environ.get("WANDB_DIR") or os.getcwd()
        self._notes = Notes(os.path.join(directory, "wandb"))
        self._runs: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        note = self._notes.read(run.id)
        return not note.writing and (note.rows, note.status) == (rows, run.status)

    def open(self, run: RunFacts) -> Logged:
        note = self._notes.clean(run.id)
        made = self._begin(run)
        self._runs[run.id] = made
        if not self._offline:
            self._steps[run.id] = made.starting_step - 1
            return Logged(0, made.starting_step - 1)
        logged = Logged(note.rows, note.step) if self._was_synced(note.parts) else Logged()
        self._steps[run.id] = logged.step
        note.writing = os.path.basename(made.settings.sync_dir)
        self._notes.write(run.id, note)
        return logged

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        made = self._runs[run.id]
        for row in rows:
            made.log(self._metrics(row.result), step=row.step)
        known = {key: rows[-1].result[key] for key in _IN_CONFIG if key in rows[-1].result}
        made.config.update(self._included(known), allow_val_change=True)
        self._steps[run.id] = rows[-1].step

    def close(self, run: RunFacts, rows: int) -> None:
        made = self._runs.pop(run.id)
        made.config.update(self._included(run.config), allow_val_change=True)
        if run.status == FINISHED and self._upload_checkpoints and run.checkpoint is not None:
            artifact = self._wandb.Artifact(name=f"checkpoint_{run.trial_id}", type="model")
            with run.checkpoint.as_directory() as directory:
                artifact.add_dir(directory)
                made.log_artifact(artifact)
                made.finish(exit_code=0)
        else:
            made.finish(exit_code=1 if run.status == FAILED else 0)
        note = self._notes.read(run.id)
        if note.writing:
            # One part for each run is simplest to upload. A part that was uploaded is continued by another.
            kept = note.parts if self._was_synced(note.parts) else []
            note.stale = [part for part in note.parts if part not in kept]
            note.parts, note.writing = [*kept, note.writing], ""
        note.rows, note.step, note.status = rows, self._steps.pop(run.id), run.status
        self._notes.write(run.id, note)
        self._notes.clean(run.id)

    def retire(self, run: RunFacts) -> None:
        """Offline parts are removed; a run on the server is renamed and tagged, for deleting it could not be undone."""
        if self._offline:
            self._notes.drop(run.id)
            return
        api = self._wandb.Api()
        entity = self._init.get("entity") or api.default_entity
        try:
            found = api.run(f"{entity}/{self._project}/{run.id}")
        except (ValueError, self._wandb.errors.CommError):
            return  # it was never logged
        found.tags = sorted({*found.tags, "superseded"})
        found.name = f"{run.name} (superseded)"
        found.update()

    def finish(self) -> None:
        pass

    def _was_synced(self, parts: Sequence[str]) -> bool:
        """Whether ``wandb sync`` has uploaded a part, which leaves a file beside it."""
        folders = (glob.escape(os.path.join(self._notes.directory, part)) for part in parts)
        return any(glob.glob(os.path.join(folder, "*.synced")) for folder in folders)

    def _begin(self, run: RunFacts) -> Any:
        given = dict(self._init)
        settings = given.pop("settings", None)
        if settings is None or isinstance(settings, Mapping):
            settings = self._wandb.Settings(**{**_QUIET, **_part_name(self._wandb), **(settings or {})})
        config = {**run.config, "trial_id": run.trial_id, "experiment_tag": run.tag, **given.pop("config", {})}
        return self._wandb.init(
            **{
                "project": self._project,
                "group": self._group or run.experiment,
                "id": run.id,
                "name": run.name,
                "resume": "allow",
                "reinit": "create_new",
                "config": self._included(config),
                "settings": settings,
                **given,
            }
        )

    def _included(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if key not in self._excludes and key != "callbacks"}

    def _metrics(self, result: Mapping[str, Any]) -> dict[str, Any]:
        without = self._left_out.union(_IN_CONFIG)
        flat = flatten_result({key: value for key, value in result.items() if key not in without})
        return {str(key): value for key, value in flat.items() if is_number(value) and not self._is_excluded(str(key))}

    def _is_excluded(self, key: str) -> bool:
        return any(key == name or key.startswith(f"{name}/") for name in self._excludes)


def _part_name(wandb: Any) -> dict[str, Any]:
    """Names the directory: wandb's own name has the time to the second, which two parts of one run may share."""
    known = getattr(wandb.Settings, "model_fields", {})
    return {"x_sync_dir_suffix": f"{time.time_ns() % 10**9}"} if "x_sync_dir_suffix" in known else {}


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Begin the W&B run of this trial, inside the trainable, and return it.

    A retry of the trial resumes the same run. What is logged here goes to W&B directly, which drops steps that it has:
    those that a retry repeats keep the values of the first attempt. ``WandbLoggerCallback`` logs what is reported, each
    surviving step once; both may be used, with runs of their own.

    Args:
        config: The trial's config.
        api_key: The API key; or set ``WANDB_API_KEY``, or type ``wandb login``.
        api_key_file: A file whose first line is the key.
        rank_zero_only: Accepted for Ray's sake: a trial here is one process.
        **kwargs: For ``wandb.init``; ``project`` is taken from ``WANDB_PROJECT_NAME`` or ``WANDB_PROJECT`` if it is
            not given.

    Raises:
        ImportError: wandb is not installed.
        InvalidInputError: There is no project or no API key.
    """
    name = "setup_wandb"
    project = kwargs.pop("project", None) or _from_environment("WANDB_PROJECT_NAME", "WANDB_PROJECT")
    check_project(name, project)
    wandb = load_framework("wandb", "wandb", "wandb")
    if _mode(name, kwargs) not in OFFLINE | {"disabled"}:
        check_key(name, api_key, api_key_file)
    key = read_key_file(name, api_key_file) if api_key_file else api_key
    if key:
        os.environ["WANDB_API_KEY"] = key
    trial = trial_here()
    given = {
        "project": project,
        "group": _from_environment("WANDB_GROUP_NAME", "WANDB_RUN_GROUP") or trial.experiment,
        "id": trial.id,
        "name": trial.name,
        "resume": "allow",
        "reinit": "finish_previous",
        "config": dict(config or {}),
        "dir": trial.directory,
        "settings": wandb.Settings(**_part_name(wandb)),
    }
    return wandb.init(**{**given, **kwargs})
