"""The environment variables, read in one place.

Owns: each variable's spellings, type, default and meaning. No other module reads ``os.environ``.
Must never: change the environment, or read it at import.

Every ``TUNE_X`` is also accepted as ``HOLDFAST_X``, which wins. An empty value counts as not set.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.config.secrets import refuse_missing_slashes
from holdfast.errors import InvalidInputError

T = TypeVar("T")

DEFAULT_ROOT = "~/holdfast_results"
"""Where experiments are stored when nothing says otherwise."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("0 or 1")


def _count(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"an integer >= {minimum}") from None
        if number < minimum:
            raise ValueError(f"an integer >= {minimum}")
        return number

    return parse


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("seconds >= 0") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError("seconds >= 0")
    return number


def _or_auto(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    def parse_or_auto(text: str) -> T | None:
        if text.lower() == "auto":
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"'auto' or {error}") from None

    return parse_or_auto


def _class_paths(text: str) -> tuple[str, ...]:
    paths = tuple(path.strip() for path in text.split(",") if path.strip())
    if not all("." in path and all(part.isidentifier() for part in path.split(".")) for path in paths):
        raise ValueError("a comma-separated list of classes such as 'package.module.Class'")
    return paths


def _path(text: str) -> str:
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _spellings(*names: str) -> tuple[str, ...]:
    """All names of a variable, the most wanted first: what begins with TUNE_ may begin with HOLDFAST_ too."""
    return (*(f"HOLDFAST_{name.removeprefix('TUNE_')}" for name in names if name.startswith("TUNE_")), *names)


def _variable(default: T, parse: Callable[[str], Any], *names: str) -> T:
    """A field of ``Environment``: its default, its parser, and its spellings, the most wanted first."""
    return dataclasses.field(default=default, metadata={"names": _spellings(*names), "parse": parse})


IGNORED_VARIABLES: dict[tuple[str, ...], Callable[[str], Any]] = {
    _spellings("TUNE_RESULT_BUFFER_LENGTH"): _count(1),
    _spellings("TUNE_RESULT_BUFFER_MIN_TIME_S"): _seconds,
    _spellings("TUNE_RESULT_BUFFER_MAX_TIME_S"): _seconds,
    _spellings("TUNE_FUNCTION_THREAD_TIMEOUT_S"): _seconds,
    _spellings("TUNE_PRINT_ALL_TRIAL_ERRORS"): _switch,
    _spellings("TUNE_RESULT_DELIM"): str,
    _spellings("TUNE_WARN_THRESHOLD_S"): _seconds,
    _spellings("TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S"): _seconds,
    _spellings("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S"): _seconds,
    _spellings("TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE"): _switch,
    ("HOLDFAST_NEW_OUTPUT", "RAY_AIR_NEW_OUTPUT"): _switch,
}
"""Variables of other tools that have no effect here; a value of the wrong kind is refused all the same."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the environment variables say, typed and validated.

    Example:
        >>> Environment.read({"TUNE_RESTORE_RETRY_NUM": "2"}).restore_retries
        2
    """

    storage: str | None = _variable(None, _path, "HOLDFAST_STORAGE", "RAY_STORAGE")
    """Directory or URI that holds experiments."""

    result_dir: str | None = _variable(None, _path, "TUNE_RESULT_DIR")
    """Older way to say ``storage``; with remote storage, the directory for local copies."""

    local_cache_dir: str | None = _variable(None, _path, "HOLDFAST_LOCAL_CACHE_DIR", "RAY_AIR_LOCAL_CACHE_DIR")
    """Directory for local copies when storage is remote."""

    snapshot_period_s: float | None = _variable(None, _or_auto(_seconds), "TUNE_GLOBAL_CHECKPOINT_S")
    """Seconds between snapshots of the journal; None keeps them under 5 % of the time."""

    restore_retries: int = _variable(0, _count(0), "TUNE_RESTORE_RETRY_NUM")
    """Failed restores of a trial in a row that do not count as failures."""

    max_pending_trials: int | None = _variable(None, _or_auto(_count(1)), "TUNE_MAX_PENDING_TRIALS_PG")
    """Trials generated ahead of free resources; None chooses by the searcher and the number of CPUs."""

    force_trial_cleanup_s: float = _variable(600.0, _seconds, "TUNE_FORCE_TRIAL_CLEANUP_S")
    """Seconds that a stopping trial gets before it is killed."""

    disable_sigint_handler: bool = _variable(False, _switch, "TUNE_DISABLE_SIGINT_HANDLER")
    """Whether Ctrl+C raises KeyboardInterrupt at once instead of shutting the run down gracefully."""

    disable_strict_metric_checking: bool = _variable(False, _switch, "TUNE_DISABLE_STRICT_METRIC_CHECKING")
    """Whether results may lack the metric that searcher or scheduler need."""

    disable_auto_callback_loggers: bool = _variable(False, _switch, "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS")
    """Whether the CSV, JSON and TensorBoard files are left out."""

    disable_dated_subdir: bool = _variable(False, _switch, "TUNE_DISABLE_DATED_SUBDIR")
    """Whether a generated experiment name goes without the date."""

    max_len_identifier: int = _variable(130, _count(1), "TUNE_MAX_LEN_IDENTIFIER")
    """Length at which the names of trial directories are cut."""

    warn_insufficient_resources_s: float = _variable(
        60.0,
        _seconds,
        "TUNE_WARN_INSUFFICIENT_RESOURCE_THRESHOLD_S",
        "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S",
    )
    """Seconds without any trial starting after which what was asked and what exists are shown."""

    chdir_to_trial_dir: bool = _variable(True, _switch, "HOLDFAST_CHDIR_TO_TRIAL_DIR", "RAY_CHDIR_TO_TRIAL_DIR")
    """Whether trials run in a directory of their own (the driver's is in TUNE_ORIG_WORKING_DIR)."""

    count_preemption_as_failure: bool = _variable(
        False, _switch, "HOLDFAST_COUNT_PREEMPTION_AS_FAILURE", "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE"
    )
    """Whether a lost machine uses up one of ``max_failures``."""

    callbacks: tuple[str, ...] = _variable((), _class_paths, "HOLDFAST_CALLBACKS", "RAY_TUNE_CALLBACKS")
    """Callback classes added to every run."""

    full_tracebacks: bool = _variable(False, _switch, "HOLDFAST_FULL_TRACEBACKS", "RAY_AIR_FULL_TRACEBACKS")
    """Whether tracebacks show holdfast's own frames too."""

    ray_address: str | None = _variable(None, str, "HOLDFAST_RAY_ADDRESS", "RAY_ADDRESS")
    """Address of the Ray cluster that the Ray engine joins if neither its settings nor ``ray.init()`` name one."""

    trial_id_prefix: str | None = _variable(None, str, "HOLDFAST_TRIAL_UUID", "_TEST_TUNE_TRIAL_UUID")
    """Fixed first part of generated trial ids, for tests that compare directories."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Environment:
        """Read all variables.

        Raises:
            InvalidInputError: A variable has a value of the wrong kind; the message names it.
        """
        for names, parse in IGNORED_VARIABLES.items():
            _read(names, parse, environ)
        return cls(**{field.name: _field(field, environ) for field in dataclasses.fields(cls)})

    @property
    def storage_root(self) -> str:
        """Directory or URI that holds experiments when a RunConfig names none."""
        return self.storage or self.result_dir or _path(DEFAULT_ROOT)

    @property
    def staging_root(self) -> str | None:
        """Directory for local copies of experiments whose storage is remote, if one was chosen."""
        return self.local_cache_dir or self.result_dir


def _field(field: dataclasses.Field[Any], environ: Mapping[str, str]) -> Any:
    return _read(field.metadata["names"], field.metadata["parse"], environ, field.default)


def _read(names: tuple[str, ...], parse: Callable[[str], Any], environ: Mapping[str, str], default: Any = None) -> Any:
    for name in names:
        text = environ.get(name, "")
        if not text.strip():
            continue
        if parse is _path:
            refuse_missing_slashes(name, text.strip())
        try:
            return parse(text.strip())
        except ValueError as error:
            raise InvalidInputError(
                f"The environment variable {name} must be {error}, got {text!r}. "
                f"Correct it or remove it with: unset {name}"
            ) from None
    return default


def _paths_only(environ: Mapping[str, str]) -> Environment:
    # A RunConfig needs the paths alone; a mistake in an unrelated variable must not break its construction.
    wanted = ("storage", "result_dir", "local_cache_dir")
    found = {f.name: _field(f, environ) for f in dataclasses.fields(Environment) if f.name in wanted}
    return Environment(**found)


def default_storage_root(environ: Mapping[str, str] = os.environ) -> str:
    """Directory or URI that holds experiments when a RunConfig names none."""
    return _paths_only(environ).storage_root


def local_root(environ: Mapping[str, str] = os.environ) -> str:
    """Directory for experiments that a syncer copies elsewhere, when nobody names one."""
    paths = _paths_only(environ)
    root = paths.staging_root or paths.storage_root
    return _path(DEFAULT_ROOT) if "://" in root else root
