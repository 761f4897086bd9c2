"""Where and how an experiment runs: ``RunConfig``, ``FailureConfig``, ``LocalEngine``, ``RayEngine``.

Owns: the fields, their validation, and which of several given paths is the root.
Must never: create a directory or open a file system.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.config.checkpoint import CheckpointConfig, SyncConfig
from holdfast.config.environment import default_storage_root, local_root
from holdfast.config.secrets import refuse_fragment, refuse_missing_slashes, refuse_secrets
from holdfast.config.settings import (
    ConfigBase,
    documented,
    instance_not_class,
    one_of,
    real_number,
    refuse,
    warn_legacy,
    whole_number,
)
from holdfast.errors import InvalidInputError
from holdfast.space.naming import MAX_NAME_BYTES, why_no_dirname

ENGINES = ("local", "ray")
"""Engines that can be asked for by name."""

RAY_CLIENT = "ray://"

LEAST_OUTPUT_BYTES = 4096

CALLBACK_HOOKS = (
    "setup",
    "on_step_begin",
    "on_step_end",
    "on_trial_start",
    "on_trial_restore",
    "on_trial_save",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_recover",
    "on_trial_error",
    "on_checkpoint",
    "on_experiment_end",
)
"""What can be called on a callback; it has at least one of these."""


@documented
@dataclass(repr=False)
class FailureConfig(ConfigBase):
    """What happens when a trial fails.

    Example:
        >>> FailureConfig(max_failures=3, stall_timeout_s=600)
        FailureConfig(max_failures=3, stall_timeout_s=600)
    """

    max_failures: int = 0
    """Retries per trial, each from its latest checkpoint; -1 retries for ever."""

    fail_fast: bool | str = False
    """True ends the experiment at the first trial that fails; "raise" also raises that trial's exception."""

    stall_timeout_s: float | None = field(default=None, kw_only=True)
    """Seconds without a report after which a trial is killed and retried; None waits for ever."""

    grace_s: float = field(default=30.0, kw_only=True)
    """Seconds that trials get to take a last checkpoint after SIGINT or SIGTERM."""

    def _validate(self) -> None:
        retries = whole_number("FailureConfig.max_failures", self.max_failures, -(2**63), "an integer")
        self._set("max_failures", max(retries, -1))
        if isinstance(self.fail_fast, str) and self.fail_fast.lower() == "raise":
            self._set("fail_fast", "raise")
        elif not isinstance(self.fail_fast, bool):
            raise refuse("FailureConfig.fail_fast", self.fail_fast, "True, False or 'raise'")
        if self.fail_fast and self.max_failures != 0:
            raise InvalidInputError(
                f"max_failures must be 0 if fail_fast={self.fail_fast!r}, got {self.max_failures}: "
                "an experiment either retries failed trials or ends at the first. Leave one of them out."
            )
        if self.stall_timeout_s is not None:
            limit = real_number("FailureConfig.stall_timeout_s", self.stall_timeout_s, positive=True)
            self._set("stall_timeout_s", limit)
        self._set("grace_s", real_number("FailureConfig.grace_s", self.grace_s))


@documented
@dataclass(repr=False, kw_only=True)
class LocalEngine(ConfigBase):
    """Runs trials in worker processes on this machine.

    Example:
        >>> LocalEngine(cpus=8, resources={"licence": 2}, preload=["torch"])
        LocalEngine(cpus=8, resources={'licence': 2}, preload=('torch',))
    """

    cpus: float | None = None
    """CPUs to share out among trials; None means those this process may use."""

    gpus: float | None = None
    """GPUs to share out among trials; None means those that are visible."""

    resources: Mapping[str, float] | None = None
    """Other resources of your own naming, and how much of each there is."""

    start: Literal["fork", "spawn"] = "fork"
    """How workers start: "fork" (milliseconds) or "spawn" (for libraries that dislike fork)."""

    preload: Sequence[str] = ()
    """Modules imported once, before workers are forked, so that trials start with them loaded."""

    memory_limit_bytes: int | None = None
    """Memory that one trial may use; beyond it, allocations fail with MemoryError. None sets no limit."""

    max_trials_per_worker: int | None = None
    """Trials after which a worker process is replaced; None reuses it without limit."""

    def _validate(self) -> None:
        if self.cpus is not None:
            self._set("cpus", real_number("LocalEngine.cpus", self.cpus, positive=True))
        if self.gpus is not None:
            self._set("gpus", real_number("LocalEngine.gpus", self.gpus))
        if self.resources is not None:
            self._set("resources", _checked_resources(self.resources))
        one_of("LocalEngine.start", self.start, ("fork", "spawn"))
        preload = self.preload
        if isinstance(preload, str) or not all(isinstance(name, str) and name for name in preload):
            raise refuse("LocalEngine.preload", preload, "a list of module names", 'For example ["torch"].')
        self._set("preload", tuple(preload))
        for name in ("memory_limit_bytes", "max_trials_per_worker"):
            value = getattr(self, name)
            if value is not None:
                self._set(name, whole_number(f"LocalEngine.{name}", value, 1, "None or an integer >= 1"))


@documented
@dataclass(repr=False, kw_only=True)
class RayEngine(ConfigBase):
    """Runs trials on a Ray cluster.

    Example:
        >>> RayEngine(address="10.0.0.7:6379", port=7070)
        RayEngine(address='10.0.0.7:6379', port=7070)
    """

    address: str | None = None
    """Of the cluster, ``HOST:PORT`` or "auto" for the one that this machine is part of; None means the one that
    ``ray.init()`` has joined in this process, or RAY_ADDRESS."""

    host: str | None = None
    """Address of this machine at which workers reach the driver; None tries those that it has."""

    port: int = 0
    """Port at which workers reach the driver, to be opened in firewalls; 0 takes a free one."""

    scratch_dir: str | None = None
    """Directory on each node for files of running trials; None means the system's temporary directory."""

    spares: int = 0
    """Idle workers that are kept ready, of the size that the last trial asked for: when a worker dies, its trial
    continues in one of them at once. They occupy what a trial does, and only what no trial needs."""

    def _validate(self) -> None:
        for name in ("address", "host", "scratch_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise refuse(f"RayEngine.{name}", value, "a str")
        self._set("spares", whole_number("RayEngine.spares", self.spares, 0))
        self._set("port", whole_number("RayEngine.port", self.port, 0, "a port from 0 to 65535"))
        if self.port > 65535:
            raise refuse("RayEngine.port", self.port, "a port from 0 to 65535")


def _checked_resources(resources: Any) -> dict[str, float]:
    if not isinstance(resources, Mapping):
        raise refuse("LocalEngine.resources", resources, "a dict of names and amounts")
    reserved = {"cpu": "cpus", "gpu": "gpus", "memory": "memory_limit_bytes"}
    for name in resources:
        if not isinstance(name, str) or not name:
            raise refuse("A name in LocalEngine.resources", name, "a str")
        if name.lower() in reserved:
            hint = f"Use LocalEngine({reserved[name.lower()]}=...)."
            raise refuse("A name in LocalEngine.resources", name, "your own", hint)
    return {name: real_number(f"LocalEngine.resources[{name!r}]", amount) for name, amount in resources.items()}


@documented
@dataclass(repr=False)
class RunConfig(ConfigBase):
    """Where an experiment lives, what it survives, and what it shows.

    Example:
        >>> RunConfig(name="lr", storage_path="/data/tuning", if_exists="resume")
        RunConfig(name='lr', storage_path='/data/tuning', if_exists='resume')
    """

    name: str | None = None
    """Name of the experiment, the last part of its root; None makes one from the trainable and the date."""

    storage_path: str | os.PathLike[str] | None = None
    """Directory or URI that holds experiments; default HOLDFAST_STORAGE, else ``~/holdfast_results``. With a syncer of
    your own a URI is where that copies to, and a directory holds what it copies to ``SyncConfig(upload_dir=...)``."""

    storage_filesystem: Any = None
    """pyarrow or fsspec file system in which ``storage_path`` (then without a scheme) is a path."""

    failure_config: FailureConfig | None = None
    """What happens when trials fail."""

    checkpoint_config: CheckpointConfig | None = None
    """Which checkpoints are taken and kept."""

    sync_config: SyncConfig | None = None
    """How copies travel between nodes and storage."""

    verbose: int | None = None
    """What is shown: 0 nothing, 1 (also None) the progress and what trials print, 2 also each trial that ends, 3 also
    each result."""

    stop: Any = None
    """When trials end: dict of metric and bound, function, Stopper or list of them."""

    callbacks: Sequence[Any] | None = None
    """Callback objects, called in this order."""

    progress_reporter: Any = None
    """Object that shows progress instead of the built-in display."""

    log_to_file: bool | str | Sequence[str] = False
    """Where trials' output goes: True for files ``stdout`` and ``stderr``, a name for both, or two names."""

    local_dir: str | os.PathLike[str] | None = None
    """Older spelling of ``storage_path``; when storage is a URI, the directory for local copies."""

    if_exists: Literal["error", "resume", "new"] = field(default="error", kw_only=True)
    """If an experiment of this name exists: "error" refuses, "resume" continues, "new" picks a free name."""

    durability: Literal["group", "sync"] = field(default="group", kw_only=True)
    """When the disk is synced: "group" at most 0.5 s late, in batches; "sync" before ``report()`` returns."""

    engine: LocalEngine | RayEngine | str | None = field(default=None, kw_only=True)
    """What runs trials: a LocalEngine or "local", a RayEngine, or "ray"; None is Ray if
    ``ray.init()`` was called in this process, else local."""

    max_output_bytes: int | None = field(default=64 * 1024 * 1024, kw_only=True)
    """The most bytes that are kept of what one trial prints, the newest; None keeps everything."""

    @property
    def log_files(self) -> tuple[str, str] | None:
        """Names of the files for a trial's stdout and stderr, or None if they are not kept."""
        chosen = self.log_to_file
        if isinstance(chosen, bool):
            return ("stdout", "stderr") if chosen else None
        if isinstance(chosen, str):
            return chosen, chosen
        return chosen[0], chosen[1]

    def _accept_legacy(self, given: Collection[str]) -> None:
        if "local_dir" in given and self.local_dir is not None:
            warn_legacy("RunConfig(local_dir=...)", "RunConfig(storage_path=...)")

    def _validate(self) -> None:
        self._check_name()
        defaults: dict[str, type[ConfigBase]] = {
            "failure_config": FailureConfig,
            "checkpoint_config": CheckpointConfig,
            "sync_config": SyncConfig,
        }
        for field_name, kind in defaults.items():
            value = getattr(self, field_name)
            if value is None:
                self._set(field_name, kind())
            elif not isinstance(value, kind):
                raise refuse(f"RunConfig.{field_name}", value, f"a {kind.__name__}")
        self._settle_storage()
        self._check_output()
        one_of("RunConfig.if_exists", self.if_exists, ("error", "resume", "new"))
        one_of("RunConfig.durability", self.durability, ("group", "sync"))
        if isinstance(self.engine, str):
            if not self.engine.startswith(RAY_CLIENT):
                one_of("RunConfig.engine", self.engine, ENGINES, "Or give a LocalEngine(...) or a RayEngine(...).")
        elif self.engine is not None and not isinstance(self.engine, LocalEngine | RayEngine):
            expected = f"None, a LocalEngine(...), a RayEngine(...) or one of {list(ENGINES)}"
            raise refuse("RunConfig.engine", self.engine, expected)

    def _check_name(self) -> None:
        if self.name is None:
            return
        expected = f"a relative name without empty, '.' or '..' parts, each of at most {MAX_NAME_BYTES} bytes"
        if not isinstance(self.name, str):
            raise refuse("RunConfig.name", self.name, expected)
        for part in self.name.split("/"):
            if why := why_no_dirname(part, new=True):
                hint = f"Of {part!r}: {why}. Directories belong in storage_path."
                raise refuse("RunConfig.name", self.name, expected, hint)

    def _settle_storage(self) -> None:
        """Choose the one root among ``storage_path``, ``local_dir`` and ``upload_dir``."""
        for name in ("storage_path", "local_dir"):
            self._set(name, _as_path(f"RunConfig.{name}", getattr(self, name)))
        if self.storage_filesystem is not None:
            self._check_filesystem()
            return
        refuse_secrets("HOLDFAST_STORAGE", default_storage_root())
        refuse_fragment("HOLDFAST_STORAGE", default_storage_root())
        local_dir = None if self.local_dir is None else _absolute(self.local_dir)
        root = None if self.storage_path is None else _absolute(self.storage_path)
        if root in (default_storage_root(), local_dir):
            # A copy made by `dataclasses.replace` hands the settled root back in; no user asked for it.
            root = None
        if self._settle_copied(root, local_dir):
            return
        upload_dir = self.sync_config.upload_dir if self.sync_config is not None else None
        if upload_dir is not None:
            self._refuse_two_roots(root, upload_dir, "SyncConfig.upload_dir")
            root = upload_dir
        elif local_dir is not None and not _is_uri(root):
            self._refuse_two_roots(root, local_dir, "local_dir")
            root = local_dir
        self._set("storage_path", root or default_storage_root())

    def _settle_copied(self, root: str | None, local_dir: str | None) -> bool:
        """With a syncer of the user's the experiment is in a directory here; the address is that of its copy."""
        sync = self.sync_config
        if sync is None or not sync.has_own_syncer:
            return False
        if root is not None and _is_uri(root):
            self._refuse_two_roots(root, sync.upload_dir or root, "SyncConfig.upload_dir")
            sync = copy.copy(sync)
            sync._set("upload_dir", root)
            self._set("sync_config", sync)
            root = None
        if sync.upload_dir is None:
            return False
        if local_dir is not None:
            self._refuse_two_roots(root, local_dir, "local_dir")
        self._set("storage_path", root or local_dir or local_root())
        return True

    def _check_filesystem(self) -> None:
        if isinstance(self.storage_filesystem, str):
            raise refuse(
                "RunConfig.storage_filesystem",
                self.storage_filesystem,
                "a file system object",
                "A URI goes into storage_path.",
            )
        if self.storage_path is None or _is_uri(self.storage_path):
            raise refuse(
                "RunConfig.storage_path",
                self.storage_path,
                "a path inside storage_filesystem, without a scheme",
                "For example storage_path='bucket/prefix'.",
            )

    @staticmethod
    def _refuse_two_roots(root: str | None, other: str, name: str) -> None:
        if root is not None and root != other:
            raise InvalidInputError(
                f"RunConfig has two roots: storage_path={root!r} and {name}={other!r}. "
                f"An experiment has one; leave {name} out."
            )

    def _check_output(self) -> None:
        if self.verbose is not None:
            verbose = int(self.verbose) if isinstance(self.verbose, bool) else self.verbose
            level = whole_number("RunConfig.verbose", verbose, 0, "None, 0, 1, 2 or 3")
            if level > 3:
                raise refuse("RunConfig.verbose", self.verbose, "None, 0, 1, 2 or 3")
            self._set("verbose", level)
        if self.callbacks is not None:
            if isinstance(self.callbacks, str) or not isinstance(self.callbacks, Sequence):
                raise refuse("RunConfig.callbacks", self.callbacks, "a list of callback objects")
            for index, callback in enumerate(self.callbacks):
                instance_not_class(f"RunConfig.callbacks[{index}]", callback)
                if not any(hasattr(callback, hook) for hook in CALLBACK_HOOKS):
                    what, hint = (
                        f"RunConfig.callbacks[{index}]",
                        "Expected a Callback: derive its class from tune.Callback.",
                    )
                    raise refuse(what, callback, "a callback object", hint)
        instance_not_class("RunConfig.progress_reporter", self.progress_reporter)
        if self.max_output_bytes is not None:
            expected = f"None or an integer >= {LEAST_OUTPUT_BYTES}"
            least = whole_number("RunConfig.max_output_bytes", self.max_output_bytes, LEAST_OUTPUT_BYTES, expected)
            self._set("max_output_bytes", least)
        chosen = self.log_to_file
        if isinstance(chosen, bool) or (isinstance(chosen, str) and chosen):
            return
        pair = isinstance(chosen, Sequence) and not isinstance(chosen, str) and len(chosen) == 2
        if not pair or not all(isinstance(name, str) and name for name in chosen):
            expected = "True, False, one file name or a pair (stdout name, stderr name)"
            raise refuse("RunConfig.log_to_file", chosen, expected)


def _is_uri(path: str | os.PathLike[str] | None) -> bool:
    return isinstance(path, str) and "://" in path


def _as_path(what: str, path: Any) -> str | None:
    if path is None:
        return None
    try:
        text = os.fspath(path)
    except TypeError:
        raise refuse(what, path, "a directory or a URI") from None
    if not isinstance(text, str) or not text:
        raise refuse(what, path, "a directory or a URI")
    refuse_missing_slashes(what, text)
    refuse_secrets(what, text)
    refuse_fragment(what, text)
    if "\0" in text:
        raise refuse(what, path, "a directory or a URI", "It contains a NUL character.")
    return text


def _absolute(path: str | os.PathLike[str]) -> str:
    """Settle a local path now, so that a later change of directory cannot move the experiment."""
    text = os.fspath(path)
    return text if _is_uri(text) else os.path.abspath(os.path.expanduser(text))
