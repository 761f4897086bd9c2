"""An experiment as the driver holds it: its root, its facts and the user's objects. This module creates it.

Created once; afterwards it is loaded (``loading``).
"""

from __future__ import annotations

import copy
import os
import random
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from holdfast._version import __version__
from holdfast.config import CheckpointConfig, Environment, RunConfig, TuneConfig
from holdfast.config.registry import get_trainable, name_as_written, trainable_name, written_as
from holdfast.controller import start_checkpoint
from holdfast.controller.algorithms import check_algorithms
from holdfast.controller.engine_choice import check_cluster
from holdfast.controller.evidence import was_started_in_store
from holdfast.controller.lost_reports import was_started
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.references import noted_references, places_of, refuse_local, session
from holdfast.controller.remote_experiment import is_unused, mark_mirror, mirror_root
from holdfast.controller.spec import Spec, read_spec, sole_use, write_spec
from holdfast.core import events as ev
from holdfast.core.changed_settings import ChangedSettings
from holdfast.core.retention import Retention
from holdfast.errors import (
    ExperimentExistsError,
    InvalidInputError,
    InvalidTypeError,
    StorageError,
    TuneError,
)
from holdfast.journal.epoch import holder
from holdfast.search.basic_variant import BasicVariantGenerator, planner_of
from holdfast.space import flatten_dict
from holdfast.space.describe import describe_space
from holdfast.space.nested import check_names
from holdfast.space.objects import extract_objects
from holdfast.space.templates import template_of
from holdfast.space.value_names import value_names
from holdfast.space.variants import VariantPlan
from holdfast.stopper import resolve_stopper
from holdfast.storage.address import parse
from holdfast.storage.digest import digest_of
from holdfast.storage.layout import Root
from holdfast.storage.local import write_atomic
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.trainable.pickling import (
    StoredObjects,
    dump_objects,
    dump_settings,
    dump_trainable,
    load_objects,
)
from holdfast.views.trials import ExperimentInfo

MAX_NAME_TRIES = 10_000
"""Names of the searcher whose configurations do not depend on results."""


class Settings:
    """What the user asked for: pickled once, because stop rules, callbacks and spaces may be any object."""

    taken: dict[str, str] = {}
    """Settings that hold corrected code of a value that had been changed before, and the key of that value."""

    def __init__(self, space: dict[str, Any], tune_config: TuneConfig, run_config: RunConfig) -> None:
        self.space = space  # objects replaced by markers
        self.tune_config = tune_config
        self.run_config = run_config


class Experiment:
    """A root that exists, with everything needed to drive it."""

    def __init__(self, root: Root, spec: Spec, settings: Settings, trainable: Any, objects: StoredObjects) -> None:
        self.root = root
        self.spec = spec
        self.settings = settings
        self.trainable = trainable
        self.objects = objects
        self.files = ObjectFiles(root, spec)
        self.replacements: dict[Path, bytes] = {}  # files that a restore was given again; see ``keep_replacements``
        self.begun_samples = spec.num_samples
        self.changed = ChangedSettings()  # settings that were changed since it was begun
        self.change: ev.SettingsChanged | None = None  # one that this restore was given, and that is no fact yet
        self.stream: TextIO | None = None  # where progress is shown; None: on the standard output
        self.has_new_space = False  # this restore was given the space again
        self.has_new_requests = False  # trials that wait ask for what the trainable asks for now
        self.by_name = settings.run_config.if_exists == "resume"  # the script resumes it when it is run again
        self.notes: list[str] = []  # what whoever loaded it should know: the use of stored code, say

    def variants(self) -> VariantPlan:
        """All configurations of this experiment, in order, if they do not depend on results."""
        return plan_of(self.settings, self.spec.num_samples, self.spec.seed, self.objects)

    @property
    def trainable_as_written(self) -> str:
        """The trainable, as a user's code says it."""
        return self.spec.given_as or name_as_written(self.spec.trainable)


def drawn_seed() -> int:
    """A seed for an experiment that was given none: drawn from the generator that the user has seeded, if any.

    Python's own global generator starts with fresh entropy in each process, so it need not be known whether it was
    seeded. NumPy's is used only if it was: many scripts seed that one alone.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and _was_seeded(numpy):
        high, low = (int(part) for part in numpy.random.randint(0, 1 << 31, size=2))
        return high << 31 | low
    return random.getrandbits(63)


def _was_seeded(numpy: Any) -> bool:
    """Whether ``numpy.random.seed(n)`` was called: the global generator then has no sequence of fresh entropy."""
    try:
        return numpy.random.mtrand._rand._bit_generator._seed_seq is None
    except AttributeError:
        return False


def plan_of(settings: Settings, num_samples: int, seed: int, objects: Mapping[str, Any]) -> VariantPlan:
    """All configurations that do not depend on results."""
    planner = planner_of(settings.tune_config.search_alg) or BasicVariantGenerator()
    return planner.plan(settings.space, num_samples, seed, objects)


def is_class_trainable(trainable: Any) -> bool:
    """Is it a ``Trainable`` subclass (else it is a function)?"""
    return isinstance(trainable, type) and getattr(trainable, "_holdfast_trainable", False) is True


def resolve_trainable(trainable: Any) -> Any:
    """The function or class behind what the user gave, checked as far as it can be without running it."""
    if trainable is None:
        raise TuneError(
            "You need to provide a trainable: Tuner(train_function) or Tuner(TrainableSubclass). Got None; if a call "
            "stands there, Tuner(train(config)), leave the brackets out: Tuner(train)."
        )
    if isinstance(trainable, str):
        trainable = get_trainable(trainable)
    if is_class_trainable(trainable):
        if not any(name in vars(kind) for kind in _own_classes(trainable) for name in ("step", "_train", "train")):
            raise InvalidInputError(
                f"{trainable.__name__} does not implement step(), so it cannot train. Add `def step(self): ...`, which "
                "trains for one iteration and returns its metrics as a dict."
            )
        return trainable
    if isinstance(trainable, type):
        raise InvalidTypeError(
            f"{trainable.__name__} is a class but not a subclass of tune.Trainable. Derive it from tune.Trainable "
            "(setup, step, save_checkpoint, load_checkpoint), or pass a function of one argument, config."
        )
    if not callable(trainable):
        kind = type(trainable)
        hint = f" Pass the class itself: Tuner({kind.__name__})." if is_class_trainable(kind) else ""
        raise InvalidTypeError(
            f"A trainable is a function, a tune.Trainable subclass or a registered name; got {trainable!r}.{hint}"
        )
    from holdfast.trainable.function_runner import check_signature

    check_signature(trainable)
    return trainable


def _own_classes(trainable: type) -> list[type]:
    """The classes that a trainable is made of, without holdfast's base of them all."""
    return [kind for kind in trainable.__mro__ if "_holdfast_trainable" not in vars(kind)]


def check_space(param_space: Any) -> dict[str, Any]:
    """The search space as a dict."""
    if param_space is None:
        return {}
    if not isinstance(param_space, dict) and hasattr(param_space, "to_dict"):
        param_space = param_space.to_dict()
    if not isinstance(param_space, dict):
        raise InvalidInputError(
            f"`param_space` must be a dict, got {type(param_space).__name__}: {param_space!r}. "
            'For example {"lr": tune.loguniform(1e-4, 1e-1)}.'
        )
    if "run_config" in param_space:
        raise InvalidInputError(
            "`run_config` cannot be part of `param_space`: it says where and how the whole experiment runs. "
            "Pass it as Tuner(..., run_config=RunConfig(...))."
        )
    return param_space


def check_checkpoint_config(config: CheckpointConfig, is_class: bool, name: str) -> None:
    """Options that only class trainables have."""
    if is_class:
        return
    for option in ("checkpoint_frequency", "checkpoint_at_end"):
        value = getattr(config, option)
        if value:
            raise InvalidInputError(
                f"CheckpointConfig.{option}={value!r} does not apply to a function ({name}): holdfast cannot look "
                "inside it. Save in the function itself with tune.report(metrics, checkpoint=...)."
            )


def space_keys(space: dict[str, Any]) -> list[str]:
    """The keys that identify a search space across restores."""
    return sorted(map(str, flatten_dict(space)))


def retention_of(config: CheckpointConfig) -> Retention:
    return Retention(
        num_to_keep=config.num_to_keep,
        score_attribute=config.checkpoint_score_attribute,
        score_order=config.checkpoint_score_order,
        num_to_keep_overall=config.num_to_keep_overall,
    )


def create_experiment(
    trainable: Any,
    param_space: Any,
    tune_config: TuneConfig,
    run_config: RunConfig,
    environment: Environment,
    *,
    start: str = "",
) -> Experiment:
    """Check everything that can be checked, then write the experiment's root.

    Args:
        trainable: As ``Tuner`` was given it, like those that follow.
        param_space: The search space.
        tune_config: What to search.
        run_config: How to run.
        environment: Settings from outside.
        start: Path of a checkpoint that every trial starts from.

    Durability: when this returns, the experiment can be restored from its root after any crash, on any machine.
    """
    function = resolve_trainable(trainable)
    name, is_class = trainable_name(trainable), is_class_trainable(function)
    space = check_space(param_space)
    _check_run(run_config, environment, name, is_class=is_class)
    if start:
        start_checkpoint.check(start)
    check_names(space)
    plain_space, objects = extract_objects(space)
    assert run_config.checkpoint_config is not None
    seed = tune_config.seed if tune_config.seed is not None else drawn_seed()
    settings = Settings(plain_space, tune_config, run_config)
    check_algorithms(tune_config, plain_space, seed)
    plan = plan_of(settings, tune_config.num_samples, seed, objects)
    pickles, references = _pickled(function, plan.objects, settings)
    root = _choose_root(run_config, name, environment)
    spec = Spec(
        version=__version__,
        uid=uuid.uuid4().hex,
        name=root.path.name,
        trainable=name,
        is_class=is_class,
        created_at=time.time(),
        seed=seed,
        num_samples=tune_config.num_samples,
        metric=tune_config.metric,
        mode=tune_config.mode,
        space_keys=space_keys(space),
        space=describe_space(plain_space),
        template=template_of(plain_space),
        total=plan.total,
        stop=repr(run_config.stop) if isinstance(run_config.stop, dict) else "",
        max_failures=run_config.failure_config.max_failures if run_config.failure_config else 0,
        retention=retention_of(run_config.checkpoint_config),
        max_identifier_len=environment.max_len_identifier,
        utc_offset_s=time.localtime().tm_gmtoff,
        given_as=written_as(trainable),
        value_names=value_names(plan.objects),
        references=references,
        session=session(),
    )
    files = dict(zip((root.trainable_file, root.values_file, root.settings_file), pickles, strict=True))
    spec.objects = {path.name: digest_of(content) for path, content in files.items()}
    _write(root, spec, files, start)
    if root.remote is not None:
        _publish(root, root.remote, run_config)
    return Experiment(root, spec, settings, function, load_objects(root.values_file, stored=pickles[1]))


def _pickled(trainable: Any, objects: Mapping[str, Any], settings: Settings) -> tuple[list[bytes], list[str]]:
    """The contents of the files, and where in them are references to the memory of a cluster."""
    with noted_references() as noted:
        pickles = [dump_trainable(trainable), dump_objects(objects), dump_settings(_without_secrets(settings))]
    references = places_of(noted, trainable, settings)
    refuse_local(settings.run_config.engine, references)
    return pickles, references


def _check_run(run_config: RunConfig, environment: Environment, name: str, *, is_class: bool) -> None:
    """Refuse what cannot be carried out, before anything is written."""
    assert run_config.checkpoint_config is not None
    check_checkpoint_config(run_config.checkpoint_config, is_class, name)
    check_cluster(run_config, environment)
    resolve_stopper(run_config.stop)


def _without_secrets(settings: Settings) -> Settings:
    """As they are stored: a file system object may hold credentials, and a restore is given it again anyway."""
    if settings.run_config.storage_filesystem is None:
        return settings
    run_config = copy.copy(settings.run_config)
    run_config.__dict__["storage_filesystem"] = None
    return Settings(settings.space, settings.tune_config, run_config)


def _write(root: Root, spec: Spec, files: dict[Path, bytes], start: str) -> None:
    try:
        root.objects.mkdir(parents=True, exist_ok=True)
        with sole_use(root):
            if was_started(root):  # by somebody who was faster
                raise _exists(root.path)
            root.spec_file.unlink(missing_ok=True)  # of an experiment that was made here before and never run
            for path, content in files.items():
                write_atomic(str(path), content)
            (root.objects / start_checkpoint.ARCHIVE).unlink(missing_ok=True)
            if start:
                start_checkpoint.keep(root, start)
            write_spec(root, spec)  # last: from here on this is an experiment
    except OSError as error:
        raise _cannot_write(root, error) from error


def _cannot_write(root: Root, error: OSError) -> StorageError:
    if root.remote is None:
        return StorageError(
            f"The experiment cannot be written at {root.path}: {error.strerror or error}. "
            "Choose another directory with RunConfig(storage_path=...). Nothing was started."
        )
    return StorageError(
        f"The experiment {root.shown} cannot be created: its mirror on this machine, {root.path}, cannot be written: "
        f"{error.strerror or error}. Choose another place for mirrors with HOLDFAST_LOCAL_CACHE_DIR. Nothing was "
        "started."
    )


def _publish(root: Root, remote: Remote, run_config: RunConfig) -> None:
    assert run_config.sync_config is not None
    try:
        if not remote.publish(root, unfenced=run_config.sync_config.unfenced_store):
            if was_started_in_store(remote):  # by somebody who was faster
                raise _exists(remote.url)
            remote.replace_unstarted(root)
    except StorageError as error:
        raise type(error)(f"The experiment cannot be written at {remote.url}: {error} Nothing was started.") from error


def _choose_root(run_config: RunConfig, name: str, environment: Environment) -> Root:
    storage = os.fspath(run_config.storage_path or "")
    stem = run_config.name
    if stem is None:
        stem = name if environment.disable_dated_subdir else f"{name}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    remote = remote_of(storage, run_config.storage_filesystem)
    if remote is not None:
        return _choose_remote(remote, stem, run_config)
    base = Path(parse(storage).path)
    return _free_root(base / stem) if run_config.name is None else _named_root(base / stem, run_config.if_exists)


def _choose_remote(base: Remote, stem: str, run_config: RunConfig) -> Root:
    """The mirror of an experiment that is not yet in the store; an old mirror of another one is set aside."""
    remote = base.below(stem)
    for number in range(2, MAX_NAME_TRIES):
        if not remote.exists() or not was_started_in_store(remote):
            break
        if run_config.name is not None and run_config.if_exists != "new":
            raise _exists(remote.url)
        remote = base.below(f"{stem}_{number}")
    staging = None if run_config.local_dir is None else os.fspath(run_config.local_dir)
    root = mirror_root(remote, staging)
    if not is_unused(root.path):
        owner = holder(root.path)
        if owner is not None and owner.alive:
            raise _exists(str(root.path))
        root.path.rename(root.path.with_name(f"{root.path.name}.superseded-{uuid.uuid4().hex[:8]}"))
    if staging is not None:
        mark_mirror(root)
    return root


def _named_root(path: Path, if_exists: str) -> Root:
    root = Root(path)
    if not root.exists() or not was_started(root):
        return root
    if if_exists == "new":
        return _free_root(path)
    raise _exists(path)


def _exists(path: Path | str) -> ExperimentExistsError:
    name = str(path).partition("?")[0].rpartition("/")[2]
    return ExperimentExistsError(
        f"An experiment named {name!r} exists already at {path}. To resume it: "
        f'Tuner.restore("{path}"). To start another one: a new RunConfig(name=...), or RunConfig(if_exists="new") to '
        'number it. RunConfig(if_exists="resume") resumes it whenever it exists. Nothing was changed.'
    )


def _free_root(path: Path) -> Root:
    for number in range(1, MAX_NAME_TRIES):
        root = Root(path if number == 1 else path.with_name(f"{path.name}_{number}"))
        if not root.exists():
            return root
    raise InvalidInputError(f"There are {MAX_NAME_TRIES} experiments named {path.name!r} in {path.parent} already.")


def check_unchanged(experiment: Experiment) -> None:
    """Refuse to run if the root has gone, or belongs to a Tuner that was made for it later."""
    root = experiment.root
    if read_spec(root).uid != experiment.spec.uid:
        raise ExperimentExistsError(
            f"Another Tuner was created for {root.shown} after this one, so this experiment no longer belongs to this "
            "Tuner. Run that one, or create this one again with another RunConfig(name=...). Nothing was changed."
        )


def check_settings(experiment: Experiment, found: ChangedSettings) -> None:
    """Refuse to run with settings that do not hold any more, before anything is written."""
    if found != experiment.changed:
        raise ExperimentExistsError(
            f"The settings of {experiment.root.shown} were changed by another driver after this Tuner was created. "
            "Create the Tuner again to continue with those. Nothing was changed."
        )


def keep_replacements(experiment: Experiment, epoch: int) -> None:
    """Store what was given again, so that workers and later restores use it. Only its one driver may do that (I4)."""
    for path, content in experiment.replacements.items():
        experiment.files.replace(path, content, epoch)
    if experiment.replacements and experiment.root.remote is not None:
        experiment.root.remote.send_objects(experiment.root)
    experiment.replacements.clear()


def make_info(experiment: Experiment) -> ExperimentInfo:
    """What callbacks, results and displays need to know about the experiment."""
    spec = experiment.spec
    return ExperimentInfo(
        root=experiment.root.path,
        url="" if experiment.root.remote is None else experiment.root.remote.url,
        filesystem=None if experiment.root.remote is None else experiment.root.remote.filesystem,
        name=spec.name,
        trainable_name=spec.trainable,
        is_class=spec.is_class,
        metric=spec.metric,
        mode=spec.mode,
        num_samples=spec.num_samples,
        total_samples=spec.total,
        stop=experiment.settings.run_config.stop,
        objects=experiment.objects,
        may_unpickle=True,
        max_identifier_len=spec.max_identifier_len,
        utc_offset_s=spec.utc_offset_s,
        value_names=spec.value_names,
    )
