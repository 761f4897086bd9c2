"""``result.json``: one JSON object per line per result; ``params.json`` and ``params.pkl``: the trial's config.

Owns the three formats. Must never write a row in another form than the last time: ``sync_rows`` compares them.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.callbacks.loggers import FileLogger, Load, TrialLog
from holdfast.messages.shortened import shortened
from holdfast.space.exact import unpack
from holdfast.space.nested import SCALARS
from holdfast.space.objects import plain_scalar
from holdfast.storage.layout import PARAMS_FILE, RESULT_FILE
from holdfast.views.results import flatten_result

if TYPE_CHECKING:
    from holdfast.views.trials import TrialView

PICKLED_PARAMS_FILE = "params.pkl"

MAX_PICKLED_BYTES = 1 << 20
"""Objects in a config that need more stay markers in ``params.pkl``: the experiment keeps them, once."""


class _Config:
    """A config as JSON: made once per trial, put into each of its rows."""

    __slots__ = ("nulls", "raw", "value")

    def __init__(self, value: Any) -> None:
        encoded = encode_json(value)
        self.value = value
        self.raw = msgspec.Raw(encoded)
        self.nulls = encoded.count(b"null")


class JsonLoggerCallback(FileLogger):
    """Writes each result as a line of ``result.json``, and the config to ``params.json`` and ``params.pkl``.

    Numbers that JSON does not know are written as ``NaN``, ``Infinity`` and ``-Infinity``, bytes in base64, and objects
    in configs by their ``repr``.
    """

    def filename(self, trial: TrialView) -> str:
        return RESULT_FILE

    def log_trial_start(self, trial: TrialView) -> None:
        super().log_trial_start(trial)
        self._write_params(trial)

    def sync_rows(self, trial: TrialView, rows: int, load: Load | None) -> None:
        super().sync_rows(trial, rows, load)
        files = (os.path.join(trial.path, name) for name in (PARAMS_FILE, PICKLED_PARAMS_FILE))
        if trial.is_finished() and not all(map(self.writer.read, files)):
            self._write_params(trial)

    def _write_params(self, trial: TrialView) -> None:
        config = trial.config
        text = encode_json(config)
        try:
            text = msgspec.json.format(text, indent=2)
        except msgspec.DecodeError:  # it has a NaN
            text = json.dumps(json.loads(text), indent=2).encode()
        self.writer.replace(os.path.join(trial.path, PARAMS_FILE), text)
        pickled = _pickled(config, unpack(trial.record.config), has_objects=bool(trial.info.objects))
        self.writer.replace(os.path.join(trial.path, PICKLED_PARAMS_FILE), pickled)

    def encode(self, log: TrialLog, trial: TrialView, result: Mapping[str, Any]) -> bytes:
        config: _Config | None = log.extra
        value = result.get("config")
        if config is None or config.value is not value:
            config = log.extra = _Config(value)
        row = {**result, "config": config.raw}
        try:
            line: bytes | None = _encode(row)
        except Exception:  # a key or value that only the slow way knows
            line = None
        # The fast encoder writes NaN as null. A row without any null but those we know of has no NaN.
        nulls = config.nulls + (result.get("checkpoint_dir_name", "") is None)
        if line is None or line.count(b"null") != nulls:
            line = _exact(row, line)
        return line + b"\n"

    def row_ends(self, data: bytes) -> list[int]:
        ends: list[int] = []
        start = 0
        while True:
            end = data.find(b"\n", start) + 1
            if not end or data[start] != 0x7B or data[end - 2] != 0x7D:  # a row is {...}
                return ends
            ends.append(end)
            start = end

    def decode(self, data: bytes, start: int, end: int) -> dict[str, Any]:
        try:
            return flatten_result(json.loads(data[start:end]))
        except ValueError:
            return {}


def encode_json(value: Any) -> bytes:
    """Any value as JSON: what is not plain data by its ``repr``, NaN and infinity as the json module writes them."""
    plain = _plain(value)
    if not _has_nonfinite(plain):
        try:
            return _encode(plain)
        except UnicodeEncodeError:  # lone surrogates, which only escapes can spell
            pass
    return json.dumps(plain).encode()


def _other(value: Any) -> Any:
    """Results are plain data, except what a user's own code makes of them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    plain = plain_scalar(value)
    if type(plain) in SCALARS:
        return plain
    return value.tolist() if hasattr(value, "tolist") else shortened(value)


_encode = msgspec.json.Encoder(enc_hook=_other).encode


def _exact(row: Mapping[str, Any], fast: bytes | None) -> bytes:
    """The row as the json module would write it, if the fast encoder cannot."""
    rest = {key: value for key, value in row.items() if key != "config"}
    if fast is not None and not _has_nonfinite(rest):
        return fast
    text = json.dumps(rest, separators=(",", ":"), default=_other, skipkeys=True)
    config: Any = row["config"]
    return text[:-1].encode() + (b"," if rest else b"") + b'"config":' + bytes(config) + b"}"


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nonfinite, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nonfinite, value))


def _plain(value: Any) -> Any:
    """The value as JSON knows it; see ``encode_json``."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key if type(key) is str else str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):  # which have no order of their own
        return sorted((_plain(each) for each in value), key=repr)
    if isinstance(value, os.PathLike):
        return str(value)
    plain = plain_scalar(value)
    return plain if type(plain) in SCALARS else shortened(value)


def _pickled(config: Any, plain: Any, *, has_objects: bool) -> bytes:
    """The config for ``params.pkl``; with markers for objects that do not pickle, or not into a small file."""
    if has_objects:
        import cloudpickle

        sink = _Bounded()
        try:
            cloudpickle.Pickler(sink).dump(config)
            return sink.getvalue()
        except Exception:
            pass
    return pickle.dumps(plain)


class _Bounded(io.BytesIO):
    """Refuses to grow beyond the limit, so that pickling a large object ends before it has cost anything."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MAX_PICKLED_BYTES:
            raise OverflowError
        return super().write(data)


__all__: Sequence[str] = ["JsonLoggerCallback", "encode_json"]
