"""Writes the experiment that an import makes: in a directory beside its place, which gets its name when all is there.

Owns the facts and settings of an imported experiment. Must never write at the place itself before the rename, so that
whatever ends the import there is a whole experiment or nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import msgspec

from holdfast._version import __version__
from holdfast.checkpoints.syscalls import rename_noreplace
from holdfast.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from holdfast.controller.experiment import Settings
from holdfast.controller.opening import open_state
from holdfast.controller.spec import Spec, write_spec
from holdfast.core import events as ev
from holdfast.errors import DamageError, ExperimentExistsError, InvalidInputError, JournalDamagedError
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal
from holdfast.ray_import.configs import placeholders
from holdfast.ray_import.facts import FINAL, RayExperiment
from holdfast.ray_import.imported_history import ImportCounts, ImportedHistory
from holdfast.space.naming import trial_id, why_no_name
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.digest import digest_of
from holdfast.storage.layout import Root
from holdfast.storage.local import fsync_dir, write_atomic
from holdfast.trainable.pickling import dump_objects, dump_settings
from holdfast.views.trials import ExperimentInfo

ORIGIN = "Ray Tune"
BATCH = 1024


class Imported(msgspec.Struct):
    """What an import has made."""

    source: str
    target: str
    state_file: str
    trainable: str
    counts: dict[str, int]
    copied: ImportCounts
    num_samples: int | None
    notes: list[str]
    left: list[str]
    placeholders: dict[str, str]
    """Keys of configs whose value was an object, and the class of each."""


def check_target(source: Path, target: Path) -> None:
    """Refuse a directory that exists, or lies inside the source.

    Raises:
        ExperimentExistsError: Something is there.
        InvalidInputError: It cannot be the place of the experiment.
    """
    if os.path.lexists(target):
        raise exists_error(str(target))
    if why := why_no_name(target.name):
        raise InvalidInputError(f"{str(target)!r} cannot be the directory of an experiment: {why}.")
    above = os.path.realpath(source)
    if os.path.commonpath([above, os.path.realpath(target)]) == above:
        raise InvalidInputError(f"{target} is inside {source}, which is not changed: choose a directory elsewhere.")


def exists_error(shown: str) -> ExperimentExistsError:
    """The error for a target at which something is."""
    return ExperimentExistsError(f"{shown} exists already. Nothing was changed. Choose a path that does not exist yet.")


def write_beside(read: RayExperiment, place: Path) -> ImportCounts:
    """Write the experiment beside its place, then give it its name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=place.parent) as scratch:
        made = Path(scratch) / place.name
        copied = write(read, made)
        crashpoint("import.written")
        try:
            rename_noreplace(str(made), str(place))
        except FileExistsError:
            raise exists_error(str(place)) from None
        crashpoint("import.renamed")
    fsync_dir(str(place.parent))
    return copied


def write(read: RayExperiment, path: Path) -> ImportCounts:
    """Write the whole experiment; what makes the directory one comes last."""
    root, spec = Root(path), _spec(read, path.name)
    root.objects.mkdir(parents=True)
    info = ExperimentInfo(
        root=path,
        name=path.name,
        trainable_name=spec.trainable,
        is_class=spec.is_class,
        metric=spec.metric,
        mode=spec.mode,
        max_identifier_len=spec.max_identifier_len,
        utc_offset_s=spec.utc_offset_s,
    )
    files = {root.values_file: dump_objects({}), root.settings_file: dump_settings(_settings(read, spec))}
    spec.objects = {file.name: digest_of(content) for file, content in files.items()}
    for file, content in files.items():
        write_atomic(str(file), content)
    claim = claim_epoch(path)
    journal = Journal.create_or_append(path, claim, threaded=False)
    history = ImportedHistory(read, path, info, spec.retention, claim)
    try:
        payloads = [ev.encode(event) for event in history.events()]
        for at in range(0, len(payloads), BATCH):
            journal.append(payloads[at : at + BATCH])
        journal.sync()
    finally:
        journal.close()
    _check(path, spec, read)
    os.sync()  # one call for all checkpoints; the file below says that they are all there
    write_spec(root, spec)
    return history.copied


def _check(path: Path, spec: Spec, read: RayExperiment) -> None:
    """Read what was written, as every reader will."""
    try:
        open_state(path, spec.retention)
    except JournalDamagedError as error:
        raise DamageError(
            f"{read.path} cannot be imported: {read.state_file} or a result.json there says what no experiment can "
            f"hold ({error.summary or error}). Nothing was written."
        ) from error


def _spec(read: RayExperiment, name: str) -> Spec:
    trials = read.trials
    # Ids continue where Ray Tune's end, if they have the usual form; the rest says which experiment it is, so that an
    # import into a store that was cut short is found to be the same one.
    prefix = trials[0].id[:5]
    usual = all(trial.id == f"{prefix}_{n:05d}" for n, trial in enumerate(trials)) and _is_prefix(prefix)
    uid = f"{prefix if usual else read.digest[:5]}{read.digest[5:]}"
    created = read.started_at or min((trial.started_at for trial in trials if trial.started_at), default=time.time())
    return Spec(
        version=__version__,
        uid=uid,
        name=name,
        trainable=read.trainable.replace("\0", ""),
        is_class=bool(read.is_class),
        created_at=created,
        seed=int(read.digest[:15], 16),
        num_samples=_num_samples(read),
        metric=read.metric,
        mode=read.mode,
        space_keys=read.space_keys or [],
        total=_total(read),
        stop=repr(read.stop) if read.stop else "",
        max_failures=read.max_failures,
        retention=read.retention,
        utc_offset_s=time.localtime().tm_gmtoff,
        origin=ORIGIN,
        is_kind_known=read.is_class is not None,
        is_space_known=read.space_keys is not None,
    )


def _is_prefix(prefix: str) -> bool:
    try:
        trial_id(prefix, 0)
    except InvalidInputError:
        return False
    return True


def _num_samples(read: RayExperiment) -> int:
    return read.num_samples or 1  # if that is not known, a restore can be given a larger number


def _total(read: RayExperiment) -> int | None:
    """How many trials there will be, as far as that can be known: grids multiply the samples."""
    if all(trial.status in FINAL for trial in read.trials):
        return len(read.trials)
    has_grid = read.space_keys is None or any("grid_search" in key.split("/") for key in read.space_keys)
    samples = _num_samples(read)
    return None if has_grid or samples < 0 else max(samples, len(read.trials))


def _settings(read: RayExperiment, spec: Spec) -> Settings:
    rule = read.retention
    checkpoint = CheckpointConfig(
        num_to_keep=rule.num_to_keep,
        checkpoint_score_attribute=rule.score_attribute,
        checkpoint_score_order=rule.score_order,
        checkpoint_frequency=read.checkpoint_frequency,
        checkpoint_at_end=read.checkpoint_at_end,
    )
    run = RunConfig(
        name=spec.name,
        stop=read.stop,
        failure_config=FailureConfig(max_failures=read.max_failures),
        checkpoint_config=checkpoint,
    )
    tune = TuneConfig(metric=read.metric, mode=read.mode, num_samples=spec.num_samples)
    return Settings({}, tune, run)


def summary(read: RayExperiment, copied: ImportCounts, target: str) -> Imported:
    """What to tell about an import."""
    counts: dict[str, int] = {}
    for trial in read.trials:
        shown = trial.status if trial.status in FINAL else "unfinished"
        counts[shown] = counts.get(shown, 0) + 1
    found = {each["__object__"]: each["type"] for trial in read.trials for each in placeholders(trial.config)}
    return Imported(
        source=read.path,
        target=target,
        state_file=read.state_file,
        trainable=read.trainable,
        counts=counts,
        copied=copied,
        num_samples=read.num_samples,
        notes=read.notes,
        left=read.left,
        placeholders=found,
    )
