"""``tune.run``, ``run_experiments`` and ``Experiment``: the older front door. Translates; ``Tuner`` does the work.

Owns the signature, with the arguments of all generations, and what each of them means today.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.compat.running import run_one
from holdfast.compat.together import run_all
from holdfast.config import ResumeConfig
from holdfast.config.arguments import KnownArguments, suggestion
from holdfast.errors import InvalidTypeError, TuneError
from holdfast.messages.warn import warn_user

OLDER = {
    "local_dir": "storage_path=...",
    "upload_dir": "storage_path=...",
    "sync_to_cloud": "sync_config=tune.SyncConfig(syncer=...)",
    "sync_to_driver": "sync_config=tune.SyncConfig(syncer=...)",
    "checkpoint_freq": "checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=...)",
    "keep_checkpoints_num": "checkpoint_config=tune.CheckpointConfig(num_to_keep=...)",
    "checkpoint_score_attr": "checkpoint_config=tune.CheckpointConfig(checkpoint_score_attribute=...)",
    "loggers": "callbacks=[...]",
}
"""Arguments of earlier generations, and how they are written today."""

IGNORED = ("with_server", "server_port", "queue_trials", "trial_executor", "ray_auto_init")
"""Arguments that have no meaning any more."""


class Experiment(KnownArguments):
    """One experiment to run.

    Args:
        name: Its name.
        run: The trainable: a function, a ``Trainable`` subclass or a registered name.
        options: Any other argument of ``tune.run``, by its name there.

    Example:
        >>> def train(config):
        ...     return {"loss": config["x"]}
        >>> Experiment("first", train, config={"x": 1}, num_samples=2)
        Experiment('first')
    """

    def __init__(self, name: str, run: Any, **options: Any) -> None:
        if run is None:
            raise TuneError(f"No trainable specified! Experiment({name!r}, run=...) needs one.")
        for option in options:
            if option not in OPTIONS and option != "env":
                raise InvalidTypeError(f"Experiment() has no argument {option!r}.{suggestion(option, OPTIONS)}")
        self.name = name
        self.run = run
        env = options.pop("env", None)
        if env is not None:
            options["config"] = {**(options.get("config") or {}), "env": env}
        self.options = options

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """An experiment from a dict of arguments, with the trainable as "run".

        Raises:
            TuneError: There is no "run".
        """
        if not isinstance(spec, Mapping):
            raise InvalidTypeError(f"The specification of {name!r} must be a dict of arguments, got {spec!r}.")
        if "run" not in spec:
            raise TuneError(f'No trainable specified! The specification of {name!r} has no "run": it has {list(spec)}.')
        options = {key: value for key, value in spec.items() if key != "run"}
        return cls(name, spec["run"], **options)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r})"


def run(
    run_or_experiment: Any = None,
    name: str | None = None,
    stop: Any = None,
    config: dict[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    local_dir: str | None = None,
    upload_dir: str | None = None,
    trial_name_creator: Any = None,
    loggers: Sequence[type] | None = None,
    sync_to_cloud: Any = None,
    sync_to_driver: Any = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    sync_on_checkpoint: bool = True,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    global_checkpoint_period: float = 10,
    export_formats: Sequence[str] | None = None,
    max_failures: int = 0,
    fail_fast: bool | str = False,
    restore: str | None = None,
    search_alg: Any = None,
    scheduler: Any = None,
    with_server: bool = False,
    server_port: int = 4321,
    verbose: int | None = None,
    progress_reporter: Any = None,
    resume: bool | str | None = False,
    queue_trials: bool = False,
    reuse_actors: bool | None = None,
    trial_executor: Any = None,
    raise_on_failed_trial: bool = True,
    return_trials: bool = False,
    ray_auto_init: bool = True,
    *,
    metric: str | None = None,
    mode: str | None = None,
    time_budget_s: Any = None,
    storage_path: Any = None,
    storage_filesystem: Any = None,
    checkpoint_config: Any = None,
    log_to_file: Any = False,
    trial_dirname_creator: Any = None,
    sync_config: Any = None,
    resume_config: ResumeConfig | None = None,
    callbacks: Sequence[Any] | None = None,
    max_concurrent_trials: int | None = None,
    **unknown: Any,
) -> Any:
    """Run an experiment, or several at once, and return an ``ExperimentAnalysis`` (a list of them).

    The older spelling of ``Tuner(...).fit()``; arguments are those of Ray Tune's ``tune.run`` of all generations, the
    oldest ones also by position. Those that have a modern spelling give a hint.

    Args:
        run_or_experiment: The trainable, an ``Experiment``, or a list of these.
        name: Name of the experiment; with ``resume`` it defaults to the trainable's.
        stop: See ``RunConfig``.
        config: The search space.
        resources_per_trial: Dict or ``PlacementGroupFactory``; see ``with_resources``.
        num_samples: See ``TuneConfig``.
        local_dir: Older spelling of ``storage_path``; with ``upload_dir`` the directory for local copies.
        upload_dir: Older spelling of ``storage_path`` for a URI.
        trial_name_creator: See ``TuneConfig``.
        loggers: Older spelling of ``callbacks``: classes derived from ``holdfast.logger.Logger``.
        sync_to_cloud: Older spelling of ``SyncConfig(syncer=...)``.
        sync_to_driver: Older spelling of ``SyncConfig(syncer=...)``; False turns it off.
        checkpoint_freq: Older spelling of ``CheckpointConfig(checkpoint_frequency=...)``.
        checkpoint_at_end: Whether class trainables save when a trial ends; not by default.
        sync_on_checkpoint: See ``SyncConfig``.
        keep_checkpoints_num: Older spelling of ``CheckpointConfig(num_to_keep=...)``.
        checkpoint_score_attr: Older spelling of ``CheckpointConfig(checkpoint_score_attribute=...)``.
        global_checkpoint_period: Seconds between two snapshots of the experiment's state; 10 adapts itself.
        export_formats: Of "checkpoint", "model", "onnx", "h5": ``export_model`` is called when a trial ends.
        max_failures: See ``FailureConfig``.
        fail_fast: See ``FailureConfig``.
        restore: Path of a checkpoint that every trial starts from.
        search_alg: See ``TuneConfig``.
        scheduler: See ``TuneConfig``.
        with_server: Ignored.
        server_port: Ignored.
        verbose: See ``RunConfig``.
        progress_reporter: See ``RunConfig``.
        resume: False; True or "AUTO" (resume, or begin); "LOCAL"; "REMOTE"; "PROMPT"; "ERRORED_ONLY"; with suffixes
            such as "AUTO+ERRORED".
        queue_trials: Ignored.
        reuse_actors: See ``TuneConfig``.
        trial_executor: Ignored.
        raise_on_failed_trial: Whether a trial that did not complete is an error in the end.
        return_trials: Return a list of trials instead.
        ray_auto_init: Ignored.
        metric: See ``TuneConfig``.
        mode: See ``TuneConfig``.
        time_budget_s: See ``TuneConfig``.
        storage_path: See ``RunConfig``.
        storage_filesystem: See ``RunConfig``.
        checkpoint_config: A ``CheckpointConfig``.
        log_to_file: See ``RunConfig``.
        trial_dirname_creator: See ``TuneConfig``.
        sync_config: A ``SyncConfig``.
        resume_config: What becomes of the trials of a resumed experiment.
        callbacks: See ``RunConfig``.
        max_concurrent_trials: See ``TuneConfig``.
        unknown: Refused, with the nearest known name.

    Raises:
        TuneError: "Trials did not complete", with the trials; unless ``raise_on_failed_trial=False``.
    """
    given = locals()
    for argument in given.pop("unknown"):
        raise InvalidTypeError(f"tune.run() has no argument {argument!r}.{suggestion(argument, OPTIONS)}")
    _warn(given)
    trainable = given.pop("run_or_experiment")
    if isinstance(trainable, list | tuple):
        found = run_all([_of(each, given) for each in trainable])
        return [trial for trials in found for trial in trials] if return_trials else found
    return run_one(*_of(trainable, given))


def run_experiments(
    experiments: Any,
    scheduler: Any = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    concurrent: bool = True,
    callbacks: Sequence[Any] | None = None,
    **older: Any,
) -> list[Any]:
    """Run experiments and return all their trials.

    Args:
        experiments: An ``Experiment``, a list of them, or a dict of names and specifications with a "run" each.
        scheduler: See ``run``, as all that follow.
        verbose: See ``run``.
        progress_reporter: See ``run``.
        resume: See ``run``.
        resume_config: See ``run``.
        reuse_actors: See ``run``.
        raise_on_failed_trial: See ``run``.
        concurrent: Whether they may run at the same time, each with its share of the CPUs. They run one after the
            other all the same if their trials ask for more than such a share.
        callbacks: See ``run``.
        older: Other arguments of ``run``.

    Raises:
        TuneError: "No trainable specified!", or a trial did not complete.
    """
    shared = {
        "scheduler": scheduler,
        "verbose": verbose,
        "progress_reporter": progress_reporter,
        "resume": resume,
        "resume_config": resume_config,
        "reuse_actors": reuse_actors,
        "raise_on_failed_trial": raise_on_failed_trial,
        "callbacks": callbacks,
        **older,
    }
    found, shared["return_trials"] = experiments_from(experiments), True
    if concurrent:
        return run(found, **shared)  # type: ignore[no-any-return]
    return [trial for each in found for trial in run(each, **shared)]


def experiments_from(given: Any) -> list[Experiment]:
    """What ``run_experiments`` was given, as a list.

    Raises:
        InvalidTypeError: It is something else.
    """
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping):
        return [
            each if isinstance(each, Experiment) else Experiment.from_json(name, each) for name, each in given.items()
        ]
    if isinstance(given, list | tuple) and all(isinstance(each, Experiment) for each in given):
        return list(given)
    raise InvalidTypeError(
        f"run_experiments() takes an Experiment, a list of them, or a dict of names and specifications; got {given!r}."
    )


DEFAULTS = {
    parameter.name: parameter.default
    for parameter in inspect.signature(run).parameters.values()
    if parameter.name not in ("run_or_experiment", "unknown")
}
OPTIONS = tuple(DEFAULTS)
"""Names of all arguments but the first."""


def _of(trainable: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The trainable, and all arguments: those of an ``Experiment`` count before those of the call."""
    if trainable is None:
        raise TuneError(
            "You need to provide a trainable: tune.run(train_function) or tune.run(TrainableSubclass). Got None; if a "
            "call stands there, tune.run(train(config)), leave the brackets out: tune.run(train)."
        )
    if isinstance(trainable, Experiment):
        return trainable.run, {**given, **trainable.options, "name": trainable.name}
    return trainable, dict(given)


def _warn(given: Mapping[str, Any]) -> None:
    ignored = [name for name in IGNORED if given[name] != DEFAULTS[name]]
    if ignored:
        warn_user(f"tune.run() ignores {', '.join(f'{name}={given[name]!r}' for name in ignored)}.", UserWarning)
    older = [name for name in OLDER if given[name] != DEFAULTS[name]]
    if older:
        words = "; ".join(f"{name} is now written {OLDER[name]}" for name in older)
        warn_user(f"tune.run() takes older spellings: {words}.", DeprecationWarning)
