"""``import ray`` as a tuning script uses it: ``init``, ``put``, ``get`` and their relatives. No tasks, no actors.

Owns the objects that were put: each in a file of a temporary directory of this process, which goes with the process.
With the address of a cluster trials run there, and objects are put into the cluster by Ray itself.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
import pickle
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from holdfast.checkpoints import scratch
from holdfast.config import LocalEngine, RayEngine
from holdfast.config.arguments import suggestion
from holdfast.engines.cluster.joined import is_joined_here
from holdfast.errors import InvalidTypeError, NotRunError, StoreUnreachableError, UsageError
from holdfast.messages.warn import warn_user
from holdfast.storage.locks import lock
from holdfast.trainable.pickling import dump_value
from holdfast.trainable.session import current

_MODULES = ("air", "train", "tune")
_HERE = (None, "", "local")
_IGNORED = (
    "configure_logging",
    "dashboard_host",
    "dashboard_port",
    "include_dashboard",
    "job_config",
    "labels",
    "log_to_driver",
    "logging_config",
    "logging_format",
    "logging_level",
    "namespace",
    "object_store_memory",
    "redis_max_memory",
    "runtime_env",
    "webui_host",
)
"""Arguments that are about Ray's own processes, of which there are none."""


class ObjectRef:
    """A reference to an object that was put; it may be part of a config, and lives as long as its driver."""

    def __init__(self, path: str) -> None:
        self._path = path

    def hex(self) -> str:
        """Its name."""
        return os.path.basename(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"


class LostObjectError(UsageError, RuntimeError):
    """The driver that had put an object has ended."""


class _Runtime:
    """What ``init`` was told, and what was put."""

    def __init__(self) -> None:
        self.is_on = False
        self.engine: LocalEngine | RayEngine | None = None
        self.directory = ""
        self.objects: dict[str, Any] = {}  # those that were put or read by this process, by path
        self.pid = os.getpid()


_runtime = _Runtime()


class _Started:
    """What ``init`` returns: usable in a ``with`` statement."""

    address_info: Mapping[str, Any] = {"address": "local"}
    dashboard_url = ""

    def __enter__(self) -> _Started:
        return self

    def __exit__(self, *error: object) -> None:
        shutdown()

    def disconnect(self) -> None:
        """``shutdown()``."""
        shutdown()


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    ignore_reinit_error: bool = False,
    local_mode: bool = False,
    **ignored: Any,
) -> _Started:
    """Say where trials run: on this machine, with so many CPUs and GPUs to share, or on a Ray cluster.

    Args:
        address: None trains here; the address of a cluster trains there, if Ray is installed.
        num_cpus: CPUs that trials share out here.
        num_gpus: GPUs that they share out here.
        resources: Other resources, by name.
        ignore_reinit_error: Whether a second call is fine; it then changes nothing.
        local_mode: Not supported: trials always have processes of their own.
        ignored: Arguments about Ray's own processes.

    Raises:
        ConnectionError: ``address`` is that of a cluster, and Ray is not installed.
    """
    known = [name for name, each in inspect.signature(init).parameters.items() if each.kind is not each.VAR_KEYWORD]
    for name in ignored:
        if name not in _IGNORED and not name.startswith("_"):
            raise InvalidTypeError(f"ray.init() has no argument {name!r}.{suggestion(name, [*known, *_IGNORED])}")
    if address not in _HERE and importlib.util.find_spec("ray") is None:
        raise StoreUnreachableError(
            f"ray.init(address={address!r}): trials run on a Ray cluster with Ray itself, which is not installed here: "
            "pip install 'holdfast[ray]', also on every node. Use address=None to train on this machine."
        )
    if _runtime.is_on:
        if ignore_reinit_error:
            return _Started()
        raise NotRunError(
            "ray.init() was called twice. Leave one out, or write ray.init(ignore_reinit_error=True), which changes "
            "nothing the second time."
        )
    if local_mode:
        warn_user("ray.init(local_mode=True) is ignored: every trial runs in its own process.", UserWarning)
    limits = {"cpus": num_cpus, "gpus": num_gpus, "resources": resources}
    given = {name: value for name, value in limits.items() if value is not None}
    if address not in _HERE:
        if given:
            warn_user(
                f"ray.init(address={address!r}): the cluster's nodes say what they have; {', '.join(given)} ignored."
            )
        _runtime.engine = RayEngine(address=address)
    else:
        _runtime.engine = LocalEngine(**given) if given else None  # type: ignore[arg-type]
    _runtime.is_on = True
    return _Started()


def is_initialized() -> bool:
    """Whether ``init`` was called, and ``shutdown`` was not since."""
    return _runtime.is_on


def shutdown() -> None:
    """Forget what ``init`` was told, and every object that was put."""
    if isinstance(_runtime.engine, RayEngine) and is_joined_here():
        import_module("ray").shutdown()
    _runtime.is_on, _runtime.engine = False, None
    _runtime.objects.clear()
    directory, _runtime.directory = _runtime.directory, ""
    if directory and _runtime.pid == os.getpid():
        scratch.remove(directory)


def engine() -> LocalEngine | RayEngine | None:
    """The engine that ``init`` asked for; None if it said nothing about it."""
    return _runtime.engine


def put(value: Any) -> Any:
    """Store an object once for all trials; a config holds the reference, and ``get`` in a trial returns the object.

    Durability:
        It lives as long as this process. A restored experiment is given new references in ``param_space=``.

    Returns:
        A reference; Ray's own after ``init`` with the address of a cluster, which this process joins for it.

    Raises:
        TypeError: It cannot be pickled, or is a reference itself.
    """
    if isinstance(_runtime.engine, RayEngine):
        return _joined(_runtime.engine).put(value)
    if isinstance(value, ObjectRef):
        raise InvalidTypeError(f"ray.put({value!r}): that is a reference already. Use it as it is.")
    data = dump_value(value, "the object given to ray.put()")
    if not _runtime.directory or _runtime.pid != os.getpid() or not os.path.isdir(_runtime.directory):
        if not _runtime.directory:
            atexit.register(shutdown)
        _runtime.pid, _runtime.directory = os.getpid(), scratch.make("objects")
    path = os.path.join(_runtime.directory, uuid.uuid4().hex)
    with open(path, "xb") as file:
        file.write(data)
    _runtime.objects[path] = value
    return ObjectRef(path)


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """The object behind a reference, or a list of them for a list of references.

    Args:
        refs: What ``put`` returned, or a list of such.
        timeout: Seconds, for Ray's own references. Ignored for others: what was put is there.

    Raises:
        LostObjectError: The driver that had put it has ended.
    """
    if isinstance(refs, ObjectRef):
        return _fetch(refs)
    if _is_rays(refs):
        return sys.modules["ray"].get(refs, timeout=timeout)
    if isinstance(refs, Sequence) and not isinstance(refs, str | bytes):
        return [get(each, timeout=timeout) for each in refs]
    raise InvalidTypeError(f"ray.get() takes what ray.put() returned, or a list of such; got {refs!r}.")


def _joined(engine: RayEngine) -> Any:
    """Ray itself, after this process has joined the cluster: references belong to the process that has put them."""
    ray = import_module("ray")
    if not ray.is_initialized():
        ray.init(address=engine.address, log_to_driver=False)
    return ray


def _is_rays(ref: Any) -> bool:
    return type(ref).__name__ == "ObjectRef" and type(ref).__module__.split(".")[0] == "ray"


def _fetch(ref: ObjectRef) -> Any:
    if ref._path in _runtime.objects:
        return _runtime.objects[ref._path]
    if _has_ended(os.path.dirname(os.path.dirname(ref._path))):
        raise LostObjectError(_lost(ref))
    try:
        with open(ref._path, "rb") as file:
            value = pickle.load(file)
    except FileNotFoundError:
        raise LostObjectError(_lost(ref)) from None
    _runtime.objects[ref._path] = value
    return value


def _has_ended(directory: str) -> bool:
    """Whether the process that owns a directory is gone: it keeps it locked while it lives, and may be killed."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True
    try:
        return lock(fd, shared=True, without=False)
    finally:
        os.close(fd)


def _lost(ref: ObjectRef) -> str:
    session = current()
    key = _key_of(ref, session.config) if session is not None else ""
    place = f"the object of param_space key {key!r}" if key else "the object"
    # What to do comes first: displays cut messages.
    return (
        f"Put it again and pass param_space= with the new reference to Tuner.restore(): {place} no longer exists, "
        f"because the driver that put it has ended ({ref!r})."
    )


def _key_of(ref: ObjectRef, node: Any, path: str = "") -> str:
    """Where in a config a reference is; "" if it is not in it."""
    if isinstance(node, ObjectRef):
        return path if node == ref else ""
    pairs: Any = (
        node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    )
    return next(
        (key for name, value in pairs if (key := _key_of(ref, value, f"{path}/{name}" if path else str(name)))), ""
    )


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"holdfast.compat.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(
        f"holdfast.compat.ray has no {name!r}: it stands for what a tuning script needs of Ray (init, is_initialized, "
        "shutdown, put, get). Tasks, actors and data are Ray's own: import ray beside it."
    )
