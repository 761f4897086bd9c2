"""One experiment of ``tune.run``: its arguments as settings of today, what ``resume=`` means, and what is returned."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

import cloudpickle

from holdfast import tuner as modern
from holdfast.compat import ray
from holdfast.compat.reopening import open_again
from holdfast.compat.trainable_util import TrainableUtil
from holdfast.config import (
    CheckpointConfig,
    FailureConfig,
    LocalEngine,
    ResumeConfig,
    RunConfig,
    SyncConfig,
    TuneConfig,
)
from holdfast.config.registry import get_trainable, trainable_name
from holdfast.config.resources import asks_by_config, resources_of, with_exports, with_resources
from holdfast.controller.experiment import Experiment, create_experiment
from holdfast.errors import InvalidInputError, TuneError, UsageError
from holdfast.results import ExperimentAnalysis
from holdfast.storage.address import is_remote, join_address
from holdfast.trainable.trainable import EXPORT_FORMATS

logger = logging.getLogger("holdfast")

CHECKPOINT = ("checkpoint_freq", "checkpoint_at_end", "keep_checkpoints_num", "checkpoint_score_attr")
SYNC = ("upload_dir", "sync_to_cloud", "sync_to_driver")
SNAPSHOT_S = 10  # the default of ``global_checkpoint_period``


def run_one(trainable: Any, given: dict[str, Any]) -> Any:
    """Run it, and return an ``ExperimentAnalysis``, or its trials.

    Raises:
        TuneError: A trial did not complete.
    """
    tuner = prepare(trainable, given)
    tuner.fit()
    return tuner.results()


def prepare(trainable: Any, given: dict[str, Any]) -> RunTuner:
    """Create the experiment, or open the one that is to be resumed."""
    resume = parse_resume(given["resume"], given["resume_config"])
    trainable = equipped(trainable, given)
    run_config, tune_config = _run_config(given), _tune_config(given)
    if run_config.name is None and resume.way:
        run_config._set("name", trainable_name(trainable))
    place = _place(resume, run_config, given["upload_dir"])
    tuner = RunTuner(place, trainable, given, tune_config, run_config)
    if place is not None:
        tuner._resume = resume.trials
    return tuner


class RunTuner(modern.Tuner):
    """A ``Tuner`` of which ``tune.run`` knows whether its experiment exists."""

    def __init__(
        self,
        place: str | None,
        trainable: Any,
        given: dict[str, Any],
        tune_config: TuneConfig,
        run_config: RunConfig,
    ) -> None:
        self._place, self._given = place, given
        super().__init__(trainable, param_space=given["config"], tune_config=tune_config, run_config=run_config)
        period = given["global_checkpoint_period"]
        if period != SNAPSHOT_S and period is not None:
            self._environment = dataclasses.replace(self._environment, snapshot_period_s=float(period))

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody has ended the run before it was finished."""
        return self._outcome is not None and bool(self._outcome.interrupted)

    def share(self, cpus: int, stream: TextIO) -> None:
        """Run beside others: with so many CPUs, and with lines instead of a table that would overwrite theirs."""
        config = self._experiment.settings.run_config
        engine = copy.copy(config.engine) if isinstance(config.engine, LocalEngine) else LocalEngine()
        engine._set("cpus", cpus)
        config._set("engine", engine)
        self._experiment.stream = stream

    def results(self) -> Any:
        """What ``tune.run`` returns.

        Raises:
            TuneError: A trial did not complete.
        """
        given = self._given
        analysis = ExperimentAnalysis(
            self._experiment.root.shown,
            storage_filesystem=given["storage_filesystem"],
            default_metric=given["metric"],
            default_mode=given["mode"],
        )
        trials = analysis.trials
        incomplete = [trial for trial in trials if trial.status != "TERMINATED"]
        if incomplete and given["raise_on_failed_trial"] and not self.is_interrupted:
            raise TuneError("Trials did not complete", incomplete)
        return trials if given["return_trials"] else analysis

    def _find_existing(self, run_config: RunConfig) -> str | None:
        return self._place

    def _load_existing(
        self, place: str, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig
    ) -> Experiment:
        logger.warning("resuming the experiment at %s", place)
        callbacks, run_config = run_config.callbacks, _with_callbacks(run_config, None)
        experiment = open_again(place, trainable, param_space, tune_config, run_config)
        experiment.has_new_requests = self._given["resources_per_trial"] is not None
        if callbacks is not None:  # those that were given now, as they are: none of them need be stored
            experiment.settings.run_config._set("callbacks", callbacks)
        return experiment

    def _create(self, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig) -> Experiment:
        start = _checkpoint_at(self._given["restore"]) if self._given["restore"] else ""
        stored = _with_callbacks(run_config, _storable(run_config.callbacks))
        experiment = create_experiment(trainable, param_space, tune_config, stored, self._environment, start=start)
        experiment.settings.run_config._set("callbacks", run_config.callbacks)
        if run_config.name is not None and experiment.root.name != run_config.name.rpartition("/")[2]:
            logger.warning(
                "an experiment named %r exists already; this new one is %s. To resume that one: resume=True",
                run_config.name,
                experiment.root.shown,
            )
        return experiment


def _checkpoint_at(restore: str | os.PathLike[str]) -> str:
    """The checkpoint that was given, or that the given file lies in: older ``_save`` methods return such a path."""
    path = os.path.expanduser(restore)
    if is_remote(path) or os.path.isdir(path):
        return path
    with contextlib.suppress(FileNotFoundError):  # then whoever creates the experiment refuses the path
        return TrainableUtil.find_checkpoint_dir(path)
    return path


def _with_callbacks(run_config: RunConfig, callbacks: list[Any] | None) -> RunConfig:
    changed = copy.copy(run_config)
    changed._set("callbacks", callbacks)
    return changed


def _storable(callbacks: Sequence[Any] | None) -> list[Any] | None:
    """Those that can be pickled. The others are used by this run, and by another that is given them again."""
    return None if callbacks is None else [callback for callback in callbacks if _pickles(callback)]


def _pickles(callback: Any) -> bool:
    try:
        cloudpickle.dumps(callback)
    except Exception:  # whatever the callback's own methods raise
        return False
    return True


# --- settings


def equipped(trainable: Any, given: dict[str, Any]) -> Any:
    """The trainable with the resources and export formats that it was given here."""
    formats, resources = given["export_formats"], given["resources_per_trial"]
    if not formats and resources is None:
        return trainable
    name = trainable if isinstance(trainable, str) else None
    found = get_trainable(name) if name is not None else trainable
    if resources is not None:
        if asks_by_config(found):
            raise UsageError(
                f"{trainable_name(found)} asks for its resources itself, and resources_per_trial={resources!r} was "
                "given too. Please clear the `resources_per_trial` option."
            )
        resources_of(found, {}, resources_per_trial=resources)  # refuses two requests
        found = with_resources(found, resources)
    if formats:
        found = with_exports(found, _checked_formats(formats))
    if name is not None:
        found._name = name
    return found


def _checked_formats(formats: Any) -> list[str]:
    names = [formats] if isinstance(formats, str) else list(formats)
    for name in names:
        if not isinstance(name, str) or name.strip().lower() not in EXPORT_FORMATS:
            raise TuneError(f"Unsupported import/export format {name!r}: expected one of {', '.join(EXPORT_FORMATS)}.")
    return [name.strip().lower() for name in names]


def _tune_config(given: dict[str, Any]) -> TuneConfig:
    same = (
        "metric",
        "mode",
        "search_alg",
        "scheduler",
        "num_samples",
        "max_concurrent_trials",
        "time_budget_s",
        "reuse_actors",
        "trial_name_creator",
        "trial_dirname_creator",
    )
    return TuneConfig(**{name: given[name] for name in same})


def _run_config(given: dict[str, Any]) -> RunConfig:
    sync_config, storage_path = _sync_config(given)
    local_dir = given["local_dir"]
    remote = (
        given["storage_filesystem"] is not None
        or (storage_path is not None and "://" in os.fspath(storage_path))
        or (isinstance(sync_config, SyncConfig) and bool(sync_config.upload_dir) and not sync_config.has_own_syncer)
    )
    is_uploaded = storage_path is not None and storage_path == given["upload_dir"]  # local_dir is for its copies
    if local_dir is not None and not remote and not is_uploaded:
        if storage_path is not None and _absolute(storage_path) != _absolute(local_dir):
            raise InvalidInputError(
                f"tune.run() has two roots: storage_path={storage_path!r} and local_dir={local_dir!r}, its older "
                "spelling. Leave local_dir out."
            )
        storage_path = local_dir
    same = ("name", "storage_filesystem", "verbose", "stop", "progress_reporter", "log_to_file")
    config = RunConfig(
        **{name: given[name] for name in same},
        storage_path=storage_path,
        sync_config=sync_config,
        callbacks=_callbacks(given),
        checkpoint_config=_checkpoint_config(given),
        failure_config=FailureConfig(max_failures=given["max_failures"], fail_fast=given["fail_fast"]),
        engine=ray.engine(),
        if_exists="new",
    )
    if local_dir is not None and remote:
        config._set("local_dir", os.fspath(local_dir))
    return config


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _checkpoint_config(given: dict[str, Any]) -> CheckpointConfig:
    config = given["checkpoint_config"]
    older = [name for name in CHECKPOINT if given[name]]
    if config is not None:
        if older:
            raise InvalidInputError(
                f"tune.run() got checkpoint_config={config!r} and {older[0]}={given[older[0]]!r}, which is an older "
                "spelling of a part of it. Put it into checkpoint_config."
            )
        if isinstance(config, CheckpointConfig) and config.checkpoint_at_end is None:
            config = copy.copy(config)
            config._set("checkpoint_at_end", False)
        return config  # type: ignore[no-any-return]
    return CheckpointConfig(
        num_to_keep=given["keep_checkpoints_num"],
        checkpoint_score_attribute=given["checkpoint_score_attr"],
        checkpoint_frequency=given["checkpoint_freq"],
        checkpoint_at_end=bool(given["checkpoint_at_end"]),
    )


def _sync_config(given: dict[str, Any]) -> tuple[SyncConfig | None, Any]:
    """The settings of syncing, and the storage path."""
    config, storage_path, upload_dir = given["sync_config"], given["storage_path"], given["upload_dir"]
    older = [name for name in SYNC if given[name] is not None]
    if config is not None:
        if older:
            raise InvalidInputError(
                f"tune.run() got sync_config={config!r} and {older[0]}={given[older[0]]!r}: the same is meant by "
                f"sync_config.{'upload_dir' if older[0] == 'upload_dir' else 'syncer'}. Leave {older[0]} out."
            )
        return config, storage_path
    fields: dict[str, Any] = {"sync_on_checkpoint": given["sync_on_checkpoint"]}
    driver = given["sync_to_driver"]
    if given["sync_to_cloud"] is not None:
        fields["syncer"] = given["sync_to_cloud"]
    elif upload_dir is None and driver is not None and driver is not True:
        fields["syncer"] = None if driver is False else driver
    if upload_dir is not None:
        if storage_path is not None and os.fspath(storage_path) != upload_dir:
            raise InvalidInputError(
                f"tune.run() has two roots: storage_path={storage_path!r} and upload_dir={upload_dir!r}. Leave "
                "upload_dir out."
            )
        if is_remote(upload_dir) or "syncer" not in fields:
            storage_path = upload_dir
        else:
            fields["upload_dir"] = upload_dir
    return SyncConfig(**fields), storage_path


def _callbacks(given: dict[str, Any]) -> list[Any] | None:
    callbacks, loggers = given["callbacks"], given["loggers"]
    if not loggers:
        return callbacks  # type: ignore[no-any-return]
    from holdfast.callbacks.old_loggers import OldLoggers

    return [*(callbacks or ()), OldLoggers(loggers)]


# --- resuming


def _place(resume: Resume, run_config: RunConfig, upload_dir: str | None) -> str | None:
    """Where the experiment is that is to be resumed; None begins a new one."""
    if not resume.way:
        return None
    remote = _upload_dir(run_config) if upload_dir is None else upload_dir
    if resume.way == "REMOTE" and remote is None:
        raise InvalidInputError(
            'resume="REMOTE" downloads the experiment from upload_dir, and no upload_dir (nor a storage_path that is a '
            'URI) was given. Give one, or resume="LOCAL".'
        )
    if resume.way == "PROMPT" and not sys.stdin.isatty():
        raise InvalidInputError(
            'resume="PROMPT" asks at a terminal, but standard input is not one. Write resume="AUTO" to resume it if it '
            "exists, or resume=False for a new experiment."
        )
    wanted = copy.copy(run_config)
    wanted._set("if_exists", "resume")
    if resume.way == "PROMPT":
        return _ask(wanted, remote)
    found = modern.find_existing(wanted)
    if found is None and resume.way != "AUTO":
        base = remote if resume.way == "REMOTE" and remote is not None else os.fspath(run_config.storage_path or "")
        raise InvalidInputError(
            f'resume="{resume.way}": there is no experiment at {join_address(base, str(run_config.name))}. Check the '
            'name and the directory, or write resume="AUTO", which starts one if there is none.'
        )
    return found


def _upload_dir(run_config: RunConfig) -> str | None:
    """Where the experiment is stored beside this machine, or instead of it."""
    sync = run_config.sync_config
    if sync is not None and sync.upload_dir is not None:
        return sync.upload_dir
    storage = os.fspath(run_config.storage_path or "")
    return storage if "://" in storage or run_config.storage_filesystem is not None else None


def _ask(run_config: RunConfig, remote: str | None) -> str | None:
    """Ask where to resume from: first about the local directory, then about the remote one."""
    found = modern.find_existing(run_config)
    if found is None:
        return None
    local = run_config.local_dir if remote is not None else run_config.storage_path
    if _agrees(f"Resume from local directory? ({local or 'the copy on this machine'}, {run_config.name})"):
        return found
    if remote is not None and _agrees(f"Try downloading from remote directory? ({remote}, {run_config.name})"):
        return found
    return None


def _agrees(question: str) -> bool:
    return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")


WAYS = ("AUTO", "LOCAL", "REMOTE", "PROMPT")
SUFFIXES = {
    "ERRORED": {"errored": "resume"},
    "RESTART_ERRORED": {"errored": "restart"},
    "ERRORED_ONLY": {"errored": "resume", "unfinished": "skip"},
    "RESTART_ERRORED_ONLY": {"errored": "restart", "unfinished": "skip"},
}


class Resume(NamedTuple):
    """Where to resume from, "" begins a new experiment; and what becomes of trials."""

    way: str
    trials: ResumeConfig


def parse_resume(value: Any, config: ResumeConfig | None = None) -> Resume:
    """Read a value of ``resume``.

    Args:
        value: False, None, True or a string.
        config: ``resume_config``, which wins over suffixes.

    Raises:
        InvalidInputError: There is no such value.
    """
    if value is None or value is False:
        return Resume("", config or ResumeConfig())
    if value is True:
        return Resume("AUTO", config or ResumeConfig())
    if not isinstance(value, str):
        raise _invalid(value)
    text = "LOCAL+RESTART_ERRORED_ONLY" if value.upper() == "ERRORED_ONLY" else value.upper()
    way, *suffixes = text.split("+")
    trials: dict[str, Any] = {}
    if way in SUFFIXES:
        way, suffixes = "AUTO", [way, *suffixes]
    if way not in WAYS or any(suffix not in SUFFIXES for suffix in suffixes):
        raise _invalid(value)
    for suffix in suffixes:
        trials.update(SUFFIXES[suffix])
    return Resume(way, config or ResumeConfig(**trials))


def _invalid(value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid resume setting: {value!r}. It must be False, True, one of {', '.join(WAYS)}, ERRORED_ONLY, or one of "
        f"those with suffixes, such as AUTO+ERRORED: {', '.join('+' + name for name in SUFFIXES)}."
    )
