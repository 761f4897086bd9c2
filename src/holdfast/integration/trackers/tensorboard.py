"""TensorBoard event files with HParams, written without TensorBoard.

Owns the messages of the HParams plugin in protobuf's wire format; scalars are those of ``TBXLoggerCallback``. Each
trial's file is a function of the journal, so a file that is right already is left alone. Must never need a package that
is not there.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from holdfast.callbacks.loggers import TrialLog
from holdfast.callbacks.tensorboard import TAG_PREFIX, TBXLoggerCallback, file_head, framed, varint
from holdfast.core.state import Status, Trial
from holdfast.integration.trackers.runs import is_number, plain_config
from holdfast.results.history import History
from holdfast.storage.local import write_atomic
from holdfast.views.results import OURS, flatten_result
from holdfast.views.trials import trial_dirname

EXPERIMENT_FILE = "events.out.tfevents.{at}.experiment"

_AUTOMATIC = OURS | {"training_iteration", "time_this_iter_s", "timestamp", "timesteps_total", "episodes_total"}
_ENDINGS = {Status.TERMINATED: 1, Status.ERROR: 2}
_RUNNING = 3
_KINDS = {str: 1, bool: 2, float: 3}


def write_event_files(history: History, directory: str) -> int:
    """Write one event file for each trial, and one for the experiment; returns how many had to be written."""
    written = 0
    metrics: dict[str, None] = dict.fromkeys(filter(None, [history.info.metric]))
    params: dict[str, type] = {}
    for trial in history.state.trials:
        config = _values(trial)
        for name, value in config.items():
            params[name] = type(value) if params.get(name, type(value)) is type(value) else str
        metrics.update(dict.fromkeys(_metric_names(trial)))
        folder = os.path.join(directory, trial_dirname(history.info, trial))
        written += _write(os.path.join(folder, _filename(trial)), _trial_file(history, trial, config))
    at = history.spec.created_at
    content = file_head(at) + _summary(at, "_hparams_/experiment", _experiment(history, params, list(metrics)))
    return written + _write(os.path.join(directory, EXPERIMENT_FILE.format(at=int(at))), content)


def _write(path: str, content: bytes) -> int:
    try:
        with open(path, "rb") as file:
            if file.read() == content:
                return 0
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, content)
    return 1


def _filename(trial: Trial) -> str:
    return f"events.out.tfevents.{int(trial.created_at)}.{trial.id}"


def _values(trial: Trial) -> dict[str, Any]:
    """The config by flat names, as the plugin knows values: text, numbers, True and False."""
    flat = flatten_result(plain_config(trial.config))
    values = {}
    for name, value in flat.items():
        plain = value if isinstance(value, bool | str) else float(value) if _is_float(value) else str(value)
        values[str(name)] = plain
    return values


def _is_float(value: Any) -> bool:
    return is_number(value) and abs(value) < 1e300


def _metric_names(trial: Trial) -> list[str]:
    flat = flatten_result(trial.metrics or {})
    return [str(key) for key, value in flat.items() if is_number(value) and key not in _AUTOMATIC]


def _trial_file(history: History, trial: Trial, config: dict[str, Any]) -> bytes:
    view, writer, log = history.view(trial), TBXLoggerCallback(), TrialLog("", 1)
    parts = [
        file_head(trial.created_at),
        _summary(trial.created_at, "_hparams_/session_start_info", _start(trial, config)),
    ]
    for row in history.rows(trial.n):
        parts.append(writer.encode(log, view, row))
        log.rows += 1
    ended = _ENDINGS.get(trial.status, _RUNNING)
    end = _field(4, _number(1, ended) + _double(2, trial.ended_at or trial.last_at))
    return b"".join([*parts, _summary(trial.ended_at or trial.created_at, "_hparams_/session_end_info", end)])


# --- messages


def _start(trial: Trial, config: dict[str, Any]) -> bytes:
    entries = b"".join(_field(1, _text(1, name) + _field(2, _value(value))) for name, value in config.items())
    return _field(3, entries + _text(4, trial.id) + _double(5, trial.started_at or trial.created_at))


def _experiment(history: History, params: dict[str, type], metrics: list[str]) -> bytes:
    hparams = b"".join(_field(4, _text(1, name) + _number(4, _KINDS[kind])) for name, kind in params.items())
    infos = b"".join(_field(5, _field(1, _text(2, TAG_PREFIX + name)) + _text(3, name)) for name in metrics)
    return _field(2, _double(3, history.spec.created_at) + hparams + infos + _text(6, history.info.name))


def _summary(at: float, tag: str, content: bytes) -> bytes:
    """One record of the plugin; its tensor is an empty one, as the plugin's own writer has it."""
    metadata = _field(1, _text(1, "hparams") + _field(2, content))
    empty = _number(1, 1) + _field(2, _field(2, b""))
    value = _text(1, tag) + _field(8, empty) + _field(9, metadata)
    return framed(_double(1, at) + _field(5, _field(1, value)))


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return _number(4, int(value))
    return _double(2, value) if isinstance(value, float) else _text(3, value)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "backslashreplace"))


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)
