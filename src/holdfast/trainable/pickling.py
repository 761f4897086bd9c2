"""The one pickle of an experiment: the trainable and the objects its configs refer to (I11).

Owns both file formats, the limits on their size, and the diagnosis of what cannot be pickled. Loading either runs
user code, so only workers and restores that were not given the trainable again may do it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import pickletools
import sys
import sysconfig
import time
import types
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import NotSerializableError, TuneError
from holdfast.trainable.sealed import damaged, is_own_file, read_object
from holdfast.trainable.unpicklable import diagnose, largest_parts, trace

MAX_TRAINABLE_BYTES = 100 * 1024 * 1024

OWN_FILE = "value-"  # markers with this prefix stand for a value in a file of its own

CODE, PARAMETERS, VALUES, SETTINGS = "trainable", "with_parameters", "param_space", "settings"
"""What is pickled, for ``noting_references``."""

_PARAMETERS = "parameters"
_REFERENCE = b"_object_ref_deserializer"
"""What Ray calls to make a reference of its pickle."""

_noted: ContextVar[list[tuple[str, str]] | None] = ContextVar("noted", default=None)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class _File(msgspec.Struct, array_like=True):
    """The code, and apart from it what ``with_parameters`` attached, which may be as large as it likes."""

    code: bytes
    parameters: bytes
    stored_at: float = 0.0  # 0: by a version that did not say


_decode_file = msgspec.msgpack.Decoder(_File).decode


def dump_trainable(trainable: Any) -> bytes:
    """The content of the trainable file.

    Raises:
        NotSerializableError: If it cannot be pickled; the message leads to the object inside it.
        TuneError: If it is too large without its ``with_parameters`` values.
    """
    # Wrapped as they are by ``with_parameters``; a subclass of a wrapped class shares the dict.
    parameters = getattr(trainable, "_holdfast_parameters", None) or None
    name = _name(trainable)
    file = _File(_dump(trainable, parameters, name, (CODE, name)), b"", time.time())
    if len(file.code) > MAX_TRAINABLE_BYTES:
        raise TuneError(
            f"The trainable {_name(trainable)} is too large: {len(file.code):,} bytes when pickled, the limit is "
            f"{MAX_TRAINABLE_BYTES:,}. {_largest(trainable)}Check that its definition does not capture large objects; "
            "pass them with tune.with_parameters(trainable, data=data), or load them inside the trainable."
        )
    if parameters is not None:
        file.parameters = _dump(parameters, None, f"what with_parameters attaches to {name}", (PARAMETERS, ""))
    return msgspec.msgpack.encode(file)


def load_trainable(data: bytes) -> Any:
    """The inverse of ``dump_trainable``. Runs user code."""
    file = _decode_file(data)
    return _Unpickler(io.BytesIO(file.code), file.parameters).load()


def stored_at(data: bytes) -> float:
    """When ``dump_trainable`` made this; 0 if it does not say. Runs nothing."""
    return _decode_file(data).stored_at


def dump_objects(objects: Mapping[str, Any]) -> bytes:
    """The content of the objects file: each value pickled by itself, so that a trial loads only what it needs.

    Raises:
        NotSerializableError: If a value cannot be pickled; the message names its place in the search space.
    """
    return msgspec.msgpack.encode(
        {
            path: _dump(value, None, f"the value {path!r} of the search space", (VALUES, path))
            for path, value in objects.items()
        }
    )


def load_objects(file: str | os.PathLike[str], newer: bytes = b"", stored: bytes | None = None) -> StoredObjects:
    """What ``dump_objects`` wrote into a file, and the values that stand in files beside it.

    Args:
        file: The objects file.
        newer: What ``dump_objects`` returned for values that replace those in the file.
        stored: What is in the file, if somebody has read it and compared it with its checksum.

    Raises:
        ObjectDamagedError: It is not what was stored.
    """
    data = read_object(file).payload if stored is None else stored
    try:
        pickles = msgspec.msgpack.decode(data, type=dict[str, bytes])
        if newer:  # values that functions had made again are made once more
            pickles = {path: pickled for path, pickled in pickles.items() if not path.startswith(OWN_FILE)}
    except (msgspec.DecodeError, ValueError) as error:
        raise damaged(file, f"it cannot be read ({error})") from error
    if newer:
        pickles.update(msgspec.msgpack.decode(newer, type=dict[str, bytes]))
    return StoredObjects(pickles, os.path.dirname(file))


class StoredObjects(Mapping[str, Any]):
    """Objects by the path in their marker; each look-up makes the value anew, so that trials cannot share it.

    A value that a function of the search space made for one trial is in a file of its own, ``<path>.pkl``, unless it
    was made again: then it is among the others, and the file has the old one.

    Attributes:
        own_files: Whether there are such files.
    """

    def __init__(self, pickles: dict[str, bytes], directory: str) -> None:
        self._pickles = pickles
        self._directory = directory
        self.own_files = any(name.startswith(OWN_FILE) for name in os.listdir(directory))

    def __bool__(self) -> bool:
        return self.own_files or bool(self._pickles)

    def __getitem__(self, path: str) -> Any:
        return pickle.loads(self._pickled(path))

    def _pickled(self, path: str) -> bytes:
        if path in self._pickles or not path.startswith(OWN_FILE):
            return self._pickles[path]
        file = os.path.join(self._directory, f"{path}.pkl")
        if not is_own_file(f"{path}.pkl"):  # a forged name could lead anywhere
            raise damaged(file, "no value is stored under such a name")
        return read_object(file).payload

    def is_reference(self, path: str) -> bool:
        """Whether a value refers to the memory of a cluster. Runs nothing."""
        return _REFERENCE in self._pickled(path)

    def put(self, path: str, pickled: bytes) -> None:
        """Take this value from now on."""
        self._pickles[path] = pickled

    def dump(self) -> bytes:
        """The content of the objects file that holds these."""
        return msgspec.msgpack.encode(self._pickles)

    def dump_by_value(self) -> bytes:
        """The same for a machine that does not have the user's own modules: objects of those bring them along."""
        mine = {module.__name__ for module in list(sys.modules.values()) if _is_users(module)}
        with by_value():
            pickles = {
                path: _dump(self[path], None, f"the value {path!r} of the search space") if _names(data, mine) else data
                for path, data in self._pickles.items()
            }
        return msgspec.msgpack.encode(pickles)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pickles)

    def __len__(self) -> int:
        return len(self._pickles)


def dump_value(value: Any, name: str) -> bytes:
    """One object as the content of a file.

    Args:
        value: The object.
        name: How to call it in the message if it cannot be pickled.

    Raises:
        NotSerializableError: It cannot be pickled; the message leads to the object inside it.
    """
    return _dump(value, None, name)


def dump_settings(settings: Any) -> bytes:
    """What the Tuner was given besides its trainable, as the content of a file.

    Args:
        settings: An object with the attributes ``space``, ``tune_config`` and ``run_config``.

    Raises:
        NotSerializableError: It cannot be pickled; the message names the callback, stopper or function that holds the
            offending object, and the way from the one to the other.
    """
    try:
        return _pickled(settings, None, (SETTINGS, ""))
    except Exception as error:
        raise NotSerializableError(_settings_text(settings, error)) from error


def _settings_text(settings: Any, error: Exception) -> str:
    steps = trace(settings)
    where = "".join(step.code for step in steps[:1]).lstrip(".")
    where = {"run_config": "RunConfig", "tune_config": "TuneConfig", "space": "param_space"}.get(where, where)
    owner: Any = settings
    rest = steps[1:]
    while rest and (owner is settings or isinstance(owner, (list, tuple, dict))):
        owner = rest[0].obj
        where += rest.pop(0).code
    way = "".join(step.code for step in rest)
    culprit = f"\n  {where}{way}: {type(rest[-1].obj).__name__}" if rest else ""
    return (
        f"{where} ({_name(owner)}) is not serializable, so it cannot be stored with the experiment for a restore: "
        f"{type(error).__name__}: {error}{culprit}\n{_way_out(where, owner)}"
    )


def _way_out(where: str, owner: Any) -> str:
    if isinstance(owner, (types.FunctionType, types.MethodType, functools.partial)) or where.startswith("param_space"):
        return "Create that object inside the function, or let the function refer to something picklable."
    if where.startswith(("RunConfig.callbacks", "RunConfig.progress_reporter")):
        return (
            "Create that object in setup(), which is called whenever a run begins, or leave it out in __getstate__()."
        )
    return "Create that object when it is first used, or leave it out in __getstate__()."


def _dump(value: Any, apart: Any, name: str, place: tuple[str, str] = ("", "")) -> bytes:
    try:
        return _pickled(value, apart, place)
    except Exception as error:
        way = "\n".join(f"  {line}" for line in diagnose(value))
        raise NotSerializableError(
            f"{name} is not serializable, so it cannot be sent to a worker process: {type(error).__name__}: {error}\n"
            f"{way}\nCreate that object inside the trainable, or pass something picklable from which it can be made."
        ) from error


@contextlib.contextmanager
def noting_references() -> Iterator[list[tuple[str, str]]]:
    """Note what holds references to objects in the memory of a cluster, of all that is pickled meanwhile.

    The pickler sees each of them, however deep in a closure or an object it is.

    Yields:
        What it is (``CODE``, ...) and its name. The list grows.
    """
    found: list[tuple[str, str]] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def holds_reference(value: Any) -> bool:
    """Whether there is such a reference anywhere in a value."""
    with noting_references() as found, contextlib.suppress(Exception):  # whoever stores it says what cannot be pickled
        _pickled(value, None, ("", ""))
    return bool(found)


def _is_reference(obj: Any) -> bool:
    kind = type(obj)
    return kind.__name__ == "ObjectRef" and kind.__module__.split(".")[0] == "ray"


@contextlib.contextmanager
def by_value() -> Iterator[None]:
    """What is pickled meanwhile brings the user's own modules along: a script and what lies beside it.

    Installed packages are expected wherever it is loaded, and go by name.
    """
    pickler = _pickler()
    users = pickler.list_registry_pickle_by_value()  # which stay as the user has registered them
    mine = [module for module in list(sys.modules.values()) if _is_users(module) and module.__name__ not in users]
    registered = []
    try:
        for module in mine:
            with contextlib.suppress(ValueError):
                pickler.register_pickle_by_value(module)
                registered.append(module)
        yield
    finally:
        for module in registered:
            with contextlib.suppress(ValueError):  # two names of one module
                pickler.unregister_pickle_by_value(module)


def _is_users(module: Any) -> bool:
    """Whether a module is neither installed nor part of Python or of holdfast."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not isinstance(file, str) or name == "__main__" or name.split(".")[0] == "holdfast":
        return False
    paths = sysconfig.get_paths()
    installed = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    place = os.path.realpath(file)
    return not _INSTALLED.intersection(place.split(os.sep)) and not place.startswith(tuple(installed))


def _names(data: bytes, modules: set[str]) -> bool:
    """Whether a pickle mentions one of these modules. Runs nothing."""
    return any(isinstance(word, str) and word in modules for _, word, _ in pickletools.genops(data))


def _pickler() -> Any:
    """cloudpickle; or Ray's own, if this process has joined a cluster: only that one keeps object references alive."""
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", bool)():
        from ray import cloudpickle
    else:
        import cloudpickle
    return cloudpickle


def _pickled(value: Any, apart: Any, place: tuple[str, str]) -> bytes:
    """Pickle ``value``, with a reference in place of the object ``apart``; ``place`` says what it is."""
    cloudpickle, noted = _pickler(), _noted.get()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        def persistent_id(self, obj: Any) -> str | None:
            if noted is not None and _is_reference(obj) and place not in noted:
                noted.append(place)
            return _PARAMETERS if obj is apart and apart is not None else None

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parameters: bytes) -> None:
        super().__init__(file)
        self._bytes = parameters
        self._loaded: Any = None

    def persistent_load(self, pid: Any) -> Any:
        if pid != _PARAMETERS:
            raise pickle.UnpicklingError(f"unknown reference {pid!r} in the trainable file")
        if self._loaded is None:
            self._loaded = pickle.loads(self._bytes)
        return self._loaded


def _name(trainable: Any) -> str:
    name = getattr(trainable, "__name__", None)
    return name if isinstance(name, str) else type(trainable).__name__


def _largest(trainable: Any) -> str:
    parts = largest_parts(trainable)
    return f"Its largest parts: {', '.join(f'{name} ({size:,} bytes)' for name, size in parts)}. " if parts else ""
