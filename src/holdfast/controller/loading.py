"""Load an experiment to resume it: its current settings, and the user's objects as stored or as passed again.

Changes nothing: objects that are passed again are stored by the driver that has claimed the experiment
(``keep_replacements``), and a change of settings becomes a fact with its first records.
"""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.config import RunConfig, SyncConfig, TuneConfig
from holdfast.config.registry import name_as_written, trainable_name
from holdfast.controller import imported
from holdfast.controller.algorithms import check_algorithms
from holdfast.controller.changes import (
    OBJECTS,
    RUN,
    as_begun,
    changed_values,
    dump_changed,
    put_over,
    read_changed,
    stored_form,
)
from holdfast.controller.experiment import (
    Experiment,
    Settings,
    check_space,
    is_class_trainable,
    plan_of,
    resolve_trainable,
    space_keys,
)
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.overrides import BEGIN_FROM, OBJECTIVE, Taken, change_of, take_again
from holdfast.controller.references import check_references, noted_references, places_of, refuse_local
from holdfast.controller.remote_experiment import open_root
from holdfast.controller.spec import Spec, read_spec, sole_use
from holdfast.errors import InvalidInputError, ObjectDamagedError
from holdfast.messages.shortened import shortened
from holdfast.messages.warn import warn_user
from holdfast.space.domains import Categorical, Domain, Function
from holdfast.space.objects import extract_objects, is_marker
from holdfast.stopper import resolve_stopper
from holdfast.storage.layout import Root
from holdfast.trainable.changed_code import difference, is_stored_code
from holdfast.trainable.pickling import (
    dump_objects,
    dump_settings,
    dump_trainable,
    load_objects,
    load_trainable,
    stored_at,
)

MAX_READS = 5
"""How often an experiment is read if others keep making it anew meanwhile."""


def load_experiment(
    path: str | os.PathLike[str],
    trainable: Any = None,
    param_space: Any = None,
    filesystem: Any = None,
    sync_config: SyncConfig | None = None,
    tune_config: TuneConfig | None = None,
    run_config: RunConfig | None = None,
    *,
    by_name: bool = False,
) -> Experiment:
    """The experiment at ``path``, with the user's objects as stored or as given again.

    ``by_name`` says that the user wrote ``if_exists="resume"`` and no call of ``Tuner.restore``, for messages.
    """
    root, sync_config = _open_place(path, filesystem, sync_config)
    given = (trainable, param_space, sync_config, tune_config, run_config, by_name)
    for _ in range(MAX_READS - 1):
        spec = read_spec(root)
        try:
            return _load(root, spec, *given)
        except ObjectDamagedError:
            if not _was_made_anew(root, spec):
                raise
    return _load(root, read_spec(root), *given)


def _was_made_anew(root: Root, spec: Spec) -> bool:
    """Whether another process has replaced an experiment that was never run, while it was being read.

    Its facts are then not those of the files beside them. That is no damage: reading once more helps.
    """
    with sole_use(root):  # until whoever writes has finished
        return read_spec(root).uid != spec.uid


def _load(
    root: Root,
    spec: Spec,
    trainable: Any,
    param_space: Any,
    sync_config: SyncConfig | None,
    tune_config: TuneConfig | None,
    run_config: RunConfig | None,
    by_name: bool,
) -> Experiment:
    files = ObjectFiles(root, spec)
    is_new = imported.is_new(root, spec)
    if is_new and trainable is None:
        raise imported.no_trainable(root, spec)
    engine = getattr(run_config, "engine", None)
    given = {"trainable": trainable, "param_space": param_space, "tune_config": tune_config, "run_config": run_config}
    check_references(spec, root.shown, given, engine)
    asked = _asked(root, by_name)
    again = trainable is not None
    function = _checked_again(spec, trainable, asked) if again else _stored_trainable(root, spec, files)
    if not spec.is_kind_known:
        spec.is_class = is_class_trainable(function)
    try:
        settings, damaged = _stored_settings(root, files), False
    except ObjectDamagedError as error:
        settings, damaged = settings_from_overrides(error, spec, param_space, tune_config, run_config, asked), True
    if is_new:
        imported.take_first(settings.tune_config, settings.run_config, tune_config, run_config)
    changed, begun_samples, begun = read_changed(root.path), spec.num_samples, as_begun(settings)
    put_over(settings, spec, changed, changed_values(root, files, settings, changed))
    if sync_config is not None:  # a syncer of another machine need not work on this one
        settings.run_config._set("sync_config", sync_config)
    taken = take_again((settings.tune_config, tune_config), (settings.run_config, run_config))
    for name in taken.code & begun.keys():
        begun[name] = getattr(settings.run_config if name in RUN else settings.tune_config, name)
        settings.taken = {**settings.taken, name: changed.objects.get(name, "")}
    replacements: dict[Path, bytes] = {}
    notes: list[str] = []
    with noted_references() as noted:
        if param_space is None:
            objects = load_objects(root.values_file, stored=files.read(root.values_file))
        else:
            values, notes = _take_space(settings, spec, param_space, asked)
            newer = dump_objects(values)
            objects = load_objects(root.values_file, newer, files.read_or(root.values_file, newer))
            replacements[root.values_file] = objects.dump()
        if damaged or taken.code or sync_config is not None or param_space is not None:
            replacements[root.settings_file] = dump_settings(stored_form(settings, begun))
        if trainable is not None:
            replacements[root.trainable_file] = dump_trainable(function)
    refuse_local(engine, places_of(noted, function, settings))
    spec.name = root.path.name
    experiment = Experiment(root, spec, settings, function, objects)
    experiment.files, experiment.replacements, experiment.notes = files, replacements, notes
    experiment.begun_samples, experiment.changed = begun_samples, changed
    experiment.by_name |= by_name
    experiment.has_new_space = param_space is not None
    if trainable is None:
        notes += _tell_of_stored_code(root, spec, function, files)
    _change(experiment, taken)
    if taken.code or taken.changes:
        check_again(settings, spec, taken, asked)
    return experiment


class RestoreWords(NamedTuple):
    """How the user asked for an experiment, in messages about what was given again."""

    to: str = " input to `Tuner.restore()`"
    space: str = " (or leave it out, with Tuner.restore)"
    objective: str = ": Tuner.restore(path, tune_config=TuneConfig(scheduler=...))"
    instead: str = ""


BY_CALL = RestoreWords()


def _asked(root: Root, by_name: bool) -> RestoreWords:
    if not by_name:
        return BY_CALL
    return RestoreWords(
        to=f': {root.shown} exists, and RunConfig(if_exists="resume") resumes it',
        space="",
        objective=", and run the script again",
        instead=' For another one start another experiment, with a new RunConfig(name=...) or if_exists="new".',
    )


def _open_place(
    path: str | os.PathLike[str], filesystem: Any, sync_config: SyncConfig | None
) -> tuple[Root, SyncConfig | None]:
    if sync_config is None:
        return open_root(path, filesystem), None
    from holdfast.controller.synced_backend import fetch_copy

    return fetch_copy(os.fspath(path), sync_config)


def _take_space(
    settings: Settings, spec: Spec, param_space: Any, asked: RestoreWords
) -> tuple[dict[str, Any], list[str]]:
    """Take the functions of a space that was given again, or all of it if none is known.

    Returns:
        The objects in it, and what the user should know.
    """
    space, objects = _respecified(spec, param_space, asked)
    notes = check_same_space(settings.space, space, asked=asked)
    settings.space = space if imported.lacks_space(spec, settings.space) else _refreshed(settings.space, space)
    return objects, notes


def _change(experiment: Experiment, taken: Taken) -> None:
    """Let the experiment be what it will be once the change is a fact."""
    settings, keys, values = experiment.settings, {}, {}
    for name in taken.changes.keys() & set(OBJECTS):
        values[name] = taken.changes[name][1]
        keys[name], data = dump_changed(values[name], name)
        experiment.replacements[experiment.root.objects / f"{keys[name]}.pkl"] = data
    samples, total = taken.changes.get("num_samples"), None
    if samples is not None:
        imported.check_samples(experiment.spec, settings.space)
        total = plan_of(settings, samples[1], experiment.spec.seed, experiment.objects).total
    experiment.change = change_of(taken, total, keys)
    if experiment.change is not None:
        put_over(settings, experiment.spec, experiment.changed.after(experiment.change), values)


def check_again(settings: Settings, spec: Spec, taken: Taken, asked: RestoreWords) -> None:
    """Refuse what cannot work, before anything is changed.

    Raises:
        InvalidInputError: A given setting does not go with the others.
    """
    resolve_stopper(settings.run_config.stop)
    config, objective = settings.tune_config, taken.changes.keys() & OBJECTIVE
    try:
        check_algorithms(config, settings.space, spec.seed)
        own = getattr(config.search_alg, "metric", None)
        if objective and own is not None and (own, config.search_alg.mode) != (config.metric, config.mode):
            raise InvalidInputError(
                f"TuneConfig has metric={config.metric!r} and mode={config.mode!r}, but "
                f"{type(config.search_alg).__name__} was instantiated with metric={own!r} and "
                f"mode={config.search_alg.mode!r}."
            )
    except InvalidInputError as error:
        if not objective:
            raise
        raise InvalidInputError(
            f"{error} A scheduler or searcher that was constructed with its own metric keeps it. To change that one, "
            "give it again, made with the new metric and the same other arguments, and leave metric and mode of "
            f"TuneConfig out{asked.objective}. Nothing was changed."
        ) from error


def _checked_again(spec: Spec, trainable: Any, asked: RestoreWords) -> Any:
    name = trainable_name(trainable)
    if name != spec.trainable:
        raise InvalidInputError(
            f"Invalid `trainable`{asked.to}: it must be the one that the experiment was started with. "
            f"Got a trainable with identifier {name!r} but expected {spec.trainable!r}. Changed code under the same "
            f"name is fine.{asked.instead}"
        )
    function = resolve_trainable(trainable)
    if spec.is_kind_known and is_class_trainable(function) != spec.is_class:
        was, now = ("class", "function") if spec.is_class else ("function", "class")
        raise InvalidInputError(
            f"Invalid `trainable`{asked.to}: {spec.trainable!r} was a {was}, and its checkpoints are "
            f"those of one; got a {now} of the same name.{asked.instead}"
        )
    return function


def _stored_trainable(root: Root, spec: Spec, files: ObjectFiles) -> Any:
    data = files.read(root.trainable_file)
    try:
        return load_trainable(data)
    except Exception as error:
        raise InvalidInputError(
            f"The trainable {spec.trainable!r} stored at {root.shown} cannot be loaded "
            f"({type(error).__name__}: {error}). Pass it again: Tuner.restore(path, trainable=...)."
        ) from error


def _tell_of_stored_code(root: Root, spec: Spec, function: Any, files: ObjectFiles) -> list[str]:
    """Which code is used, because the user may have corrected it meanwhile; and a warning if so."""
    if not is_stored_code(function):
        return []  # it is imported by its name, as it is now
    at = stored_at(files.read(root.trainable_file)) or spec.created_at
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    use = f"trainable={spec.given_as or name_as_written(spec.trainable)}"
    differs = difference(function)
    if differs:
        warn_user(
            f"The trainable {spec.trainable!r} is used as stored at {when}, which differs from your current code: "
            f"{differs}. To use the changed code: Tuner.restore(path, {use}).",
            UserWarning,
        )
    return [f"using the stored trainable {spec.trainable} from {when}; pass {use} to use changed code"]


def _stored_settings(root: Root, files: ObjectFiles) -> Settings:
    data = files.read(root.settings_file)
    try:
        settings = pickle.loads(data)
    except Exception as error:
        raise InvalidInputError(
            f"The settings of {root.shown} cannot be loaded ({type(error).__name__}: {error}): they refer to code that "
            "is not importable here. Make it importable; the experiment's data is untouched and readable with "
            f"`holdfast status {root.shown}`."
        ) from error
    assert isinstance(settings, Settings)
    return settings


def settings_from_overrides(
    error: ObjectDamagedError,
    spec: Spec,
    param_space: Any,
    tune_config: TuneConfig | None,
    run_config: RunConfig | None,
    asked: RestoreWords,
) -> Settings:
    """The settings of an experiment whose file of them is damaged, if the user has given them all.

    Raises:
        ObjectDamagedError: Some are missing.
    """
    if tune_config is None or run_config is None or (param_space is None and spec.space_keys):
        raise error
    space, _ = _respecified(spec, {} if param_space is None else param_space, asked)
    begun = copy.copy(tune_config)
    for name in ("num_samples", "metric", "mode"):  # as it was begun; others are a change
        begun._set(name, getattr(spec, name))
    warn_user(f"{error.path} is damaged: {error.reason}. The settings passed now replace it.", UserWarning)
    return Settings(space, begun, copy.copy(run_config))


def _respecified(spec: Spec, param_space: Any, asked: RestoreWords) -> tuple[dict[str, Any], dict[str, Any]]:
    space = check_space(param_space)
    keys = space_keys(space)
    if spec.is_space_known and keys != spec.space_keys:
        raise InvalidInputError(
            f"Invalid `param_space`{asked.to}: its keys must be those of the original space, because "
            f"only objects in it are replaced.\nGot: {keys}\nExpected: {spec.space_keys}\nFor another space "
            f"start another experiment, with a new RunConfig(name=...). {BEGIN_FROM} Nothing was changed."
        )
    return extract_objects(space)


def _refreshed(stored: Any, given: Any) -> Any:
    """The stored space with the functions of the one that was given again; what else it draws from is settled."""
    if isinstance(stored, Function):
        return given if isinstance(given, Function) else stored
    if isinstance(stored, dict) and isinstance(given, dict):
        return {key: _refreshed(value, given.get(key)) for key, value in stored.items()}
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        return [_refreshed(value, other) for value, other in zip(stored, given, strict=True)]
    return stored


def check_same_space(stored: Any, given: Any, path: str = "", asked: RestoreWords = BY_CALL) -> list[str]:
    """Refuse other domains and grids than those of the experiment.

    Returns:
        What to tell the user about other constants, which are not used.

    Raises:
        InvalidInputError: It is another space.
    """
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        keys = [key for key in stored if key in given and not is_marker(stored) and not is_marker(given)]
        below = ((stored[key], given[key], f"{path}/{key}" if path else str(key)) for key in keys)
        return [note for each in below for note in check_same_space(*each, asked)]
    if _is_same(stored, given):
        return []
    if not path.endswith("/grid_search") and not isinstance(stored, Domain) and not isinstance(given, Domain):
        return [
            f"{path!r} of the space stays {shortened(stored)}, as in the original experiment, not {shortened(given)}"
        ]
    raise InvalidInputError(
        f"Invalid `param_space`: {path.removesuffix('/grid_search')!r} is {shortened(given)} now and was "
        f"{shortened(stored)}. An experiment keeps its original space. Pass the same space{asked.space} to resume, or "
        "start another experiment, with a new RunConfig(name=...). "
        f"{BEGIN_FROM} Nothing was changed."
    )


def _is_same(stored: Any, given: Any) -> bool:
    """The same values to choose from? Objects and functions may be others: they are refreshed."""
    if isinstance(stored, Function) or isinstance(given, Function):
        return isinstance(stored, Function) and isinstance(given, Function)
    if is_marker(stored) or is_marker(given):
        return True
    if isinstance(stored, Categorical) and isinstance(given, Categorical):
        return _is_same(list(stored.categories), list(given.categories))
    if isinstance(stored, list | tuple) and isinstance(given, list | tuple):
        return len(stored) == len(given) and all(_is_same(*pair) for pair in zip(stored, given, strict=True))
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        return stored.keys() == given.keys() and all(_is_same(stored[key], given[key]) for key in stored)
    return repr(stored) == repr(given) or _is_equal(stored, given)


def _is_equal(stored: Any, given: Any) -> bool:
    try:
        return bool(stored == given)
    except Exception:
        return True  # they cannot be compared: nobody says that they differ
