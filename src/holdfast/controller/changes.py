"""Settings that were changed after the experiment was created: read from its journal, and applied over the stored ones.

``spec.json`` and ``settings.pkl`` hold the original settings and are not rewritten by a change: the event
``SettingsChanged`` is the change. A stop rule, scheduler or searcher that replaces another is a value in its own file,
named by its content and written before the event that refers to it. So a crash leaves either the former settings or the
new ones.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import xxhash

from holdfast.config import RunConfig, TuneConfig
from holdfast.controller.object_files import ObjectFiles
from holdfast.controller.opening import SnapshotRecord
from holdfast.controller.spec import Spec
from holdfast.core import events as ev
from holdfast.core.changed_settings import ChangedSettings
from holdfast.errors import DamageError, InvalidInputError, TuneError
from holdfast.journal.reader import read_journal
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.layout import Root
from holdfast.trainable.pickling import OWN_FILE, dump_value
from holdfast.trainable.sealed import is_own_file

if TYPE_CHECKING:
    from holdfast.controller.experiment import Experiment
    from holdfast.views.trials import ExperimentInfo

MARK = b"\xa8settings"
"""How the payload of such an event continues behind its first byte: all others need not be decoded."""

TUNE = ("metric", "mode", "num_samples", "time_budget_s", "max_concurrent_trials", "search_alg", "scheduler")
RUN = ("stop",)
OBJECTS = ("search_alg", "scheduler", "stop")
"""Of these, the ones that may be any object."""


class ChangeableSettings(Protocol):
    """As ``experiment.Settings``."""

    tune_config: TuneConfig
    run_config: RunConfig
    taken: dict[str, str]


_UNREAD = msgspec.Raw(b"\xc0")
_Peek: Any = msgspec.defstruct(
    "_Peek",
    [
        ("settings", ChangedSettings, ChangedSettings()) if name == "settings" else (name, msgspec.Raw, _UNREAD)
        for name in SnapshotRecord.__struct_fields__
    ],
    array_like=True,
)
"""A ``SnapshotRecord``, all but its settings left undecoded."""

_decode_peek = msgspec.msgpack.Decoder(_Peek).decode


def read_changed(root: Path) -> ChangedSettings:
    """What was changed by now, without folding the journal; what cannot be read is for the driver to complain about."""
    changed, position = ChangedSettings(), None
    try:
        snapshot = SnapshotStore(root).peek()
        if snapshot is not None:
            changed = _decode_peek(snapshot.payload).settings
            position = snapshot.position
        for _, payload in read_journal(root, after=position):
            if payload[1:10] == MARK:
                event = ev.decode(payload)
                assert isinstance(event, ev.SettingsChanged)
                changed = changed.after(event)
    except (TuneError, OSError, ValueError, RecursionError):
        pass
    return changed


def as_begun(settings: ChangeableSettings) -> dict[str, Any]:
    """The settings that a change may concern, as they are stored."""
    return {
        **{name: getattr(settings.tune_config, name) for name in TUNE},
        **{name: getattr(settings.run_config, name) for name in RUN},
    }


def stored_form(settings: Any, begun: dict[str, Any]) -> Any:
    """The settings as they are stored: what was changed by events stays as it was begun."""
    form = copy.copy(settings)
    form.tune_config, form.run_config = copy.copy(settings.tune_config), copy.copy(settings.run_config)
    for name, value in begun.items():
        (form.run_config if name in RUN else form.tune_config)._set(name, value)
    return form


def put_over(settings: ChangeableSettings, spec: Spec, changed: ChangedSettings, values: dict[str, Any]) -> None:
    """Let settings and facts say what holds now.

    Args:
        settings: As they are stored.
        spec: As it is stored.
        changed: What was changed since.
        values: The objects among that, by the name of the setting.
    """
    plain = {
        "metric": changed.metric,
        "mode": changed.mode,
        "num_samples": changed.num_samples,
        "time_budget_s": changed.time_budget_s,
        "max_concurrent_trials": changed.max_concurrent,
    }
    for name, value in plain.items():
        if value is not None:
            settings.tune_config._set(name, value)
    for name, value in values.items():
        (settings.run_config if name in RUN else settings.tune_config)._set(name, value)
    put_over_spec(spec, changed)


def take_change(experiment: Experiment, info: ExperimentInfo, changed: ChangedSettings) -> None:
    """A user has changed settings of a live experiment: let its driver, and a later one of its Tuner, know them."""
    experiment.changed = changed
    put_over(experiment.settings, experiment.spec, changed, {})
    info.num_samples, info.total_samples = experiment.spec.num_samples, experiment.spec.total


def put_over_spec(spec: Spec, changed: ChangedSettings) -> None:
    """Let the facts say what holds now, for those who only look."""
    spec.metric = spec.metric if changed.metric is None else changed.metric
    spec.mode = spec.mode if changed.mode is None else changed.mode
    if changed.num_samples is not None:
        spec.num_samples, spec.total = changed.num_samples, changed.total


def changed_values(
    root: Root, files: ObjectFiles, settings: ChangeableSettings, changed: ChangedSettings
) -> dict[str, Any]:
    """The objects that have taken the place of stored ones; not those whose code was corrected after that.

    Raises:
        DamageError: One of them is not what was stored.
        InvalidInputError: It refers to code that is not here.
    """
    wanted = {name: key for name, key in changed.objects.items() if name in OBJECTS and settings.taken.get(name) != key}
    return {name: _read_value(root, files, name, key) for name, key in wanted.items()}


def _read_value(root: Root, files: ObjectFiles, name: str, key: str) -> Any:
    if not is_own_file(f"{key}.pkl"):
        raise DamageError(
            f"The journal of {root.shown} names {key!r} as the file of its {name}, which no driver writes. Nothing was "
            "read from there, and nothing was changed."
        )
    data = files.read(root.objects / f"{key}.pkl")
    try:
        return pickle.loads(data)
    except Exception as error:
        raise InvalidInputError(
            f"The {name} of {root.shown} cannot be loaded ({type(error).__name__}: {error}): it refers to code that is "
            "not importable here. Make it importable; the experiment's data is untouched and readable with "
            f"`holdfast status {root.shown}`."
        ) from error


def dump_changed(value: Any, name: str) -> tuple[str, bytes]:
    """A setting's new value as the content of a file, and the key that names it by that content."""
    data = dump_value(value, f"{name}={value!r}")
    return f"{OWN_FILE}{xxhash.xxh3_128_hexdigest(data)}", data
