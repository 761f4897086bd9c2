"""How a class trainable's checkpoint looks on disk.

Owns the files beside the user's own: ``_dict_checkpoint.pkl`` for a state that is a dict, and one with the counters.
Reads, but never writes, what Ray Tune up to 2.2 left in such directories.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import msgspec

from holdfast.checkpoints.names import DICT_FILE
from holdfast.checkpoints.verified import ensure
from holdfast.errors import InvalidInputError
from holdfast.messages.shortened import shortened

COUNTERS_FILE = ".holdfast_trainable.json"
OLD_SUFFIX = ".tune_metadata"


class Counters(msgspec.Struct):
    """How far the training was. ``path``: what the user's ``_save`` returned, relative to the directory."""

    iteration: int = 0
    time_total: float = 0.0
    timesteps_total: int | float | None = None
    episodes_total: int | float | None = None
    path: str = ""


_decode_counters = msgspec.json.Decoder(Counters).decode


class Loaded(msgspec.Struct):
    """A checkpoint as ``load_checkpoint`` gets it: the dict, or the path."""

    state: Any
    counters: Counters
    directory: str


def write(directory: str, returned: Any, counters: Counters, *, may_return_path: bool) -> str:
    """Complete a checkpoint whose files the user has written; returns the path to hand back to ``restore``.

    Args:
        directory: Where the user's method was told to write.
        returned: What it returned.
        counters: Written beside the user's files.
        may_return_path: Whether a path inside the directory is fine (``_save``), or only the directory itself.
    """
    if isinstance(returned, dict):
        import cloudpickle

        with open(os.path.join(directory, DICT_FILE), "wb") as file:
            cloudpickle.dump(returned, file)
    elif isinstance(returned, (str, os.PathLike)):
        counters.path = _inside(directory, os.fspath(returned), may_return_path)
    elif returned is not None:
        raise InvalidInputError(
            f"save_checkpoint() must return a dict, the directory it was given, or nothing; got "
            f"{type(returned).__name__}: {shortened(returned)}."
        )
    with open(os.path.join(directory, COUNTERS_FILE), "wb") as out:
        out.write(msgspec.json.encode(counters))
    return os.path.join(directory, counters.path) if counters.path else directory


def read(path: str) -> Loaded:
    """Read a checkpoint directory, or the path inside one that ``save`` returned.

    Raises:
        InvalidInputError: If there is nothing.
        CheckpointDamagedError: If an experiment has saved it and it is not what was saved.
    """
    directory = directory_of(path)
    ensure(directory)
    counters = _read_counters(directory)
    if counters is None:
        old = _read_old(directory)
        if old is not None:
            return old
    state: Any = path if path != directory else directory
    dict_file = os.path.join(directory, DICT_FILE)
    if os.path.exists(dict_file):
        with open(dict_file, "rb") as file:
            state = pickle.load(file)
    elif counters is not None and counters.path:
        state = os.path.join(directory, counters.path)
    return Loaded(state, counters or Counters(), directory)


def directory_of(path: str) -> str:
    """The checkpoint directory that ``path`` is or lies in."""
    if os.path.isdir(path):
        return path
    parent = os.path.dirname(path)
    # A prefix (TensorFlow's savers) is not itself a file: what marks the directory are the counters.
    for directory in (parent, os.path.dirname(parent)):
        if os.path.isdir(directory) and is_checkpoint(directory):
            return directory
    if os.path.exists(path):
        return parent
    raise InvalidInputError(
        f"Could not recover from checkpoint as it does not exist on storage anymore: {path}. Check the path, or "
        "restore from another checkpoint of the trial."
    )


def is_checkpoint(directory: str) -> bool:
    """Whether ``save`` wrote this directory."""
    return os.path.exists(os.path.join(directory, COUNTERS_FILE)) or bool(_old_files(directory))


def _inside(directory: str, returned: str, may_return_path: bool) -> str:
    top, place = os.path.realpath(directory), os.path.realpath(returned)
    if place == top:
        return ""
    if not may_return_path:
        raise InvalidInputError(
            f"save_checkpoint() must return the directory it was given, a dict, or nothing; it was given {directory!r} "
            f"and returned {returned!r}. Write the files into that directory and return it."
        )
    if not place.startswith(os.path.join(top, "")):
        raise InvalidInputError(
            f"_save() must return a path inside the directory it was given; it was given {directory!r} and returned "
            f"{returned!r}."
        )
    return os.path.relpath(place, top)


def _read_counters(directory: str) -> Counters | None:
    try:
        with open(os.path.join(directory, COUNTERS_FILE), "rb") as file:
            return _decode_counters(file.read())
    except FileNotFoundError:
        return None


def _old_files(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(OLD_SUFFIX))


def _read_old(directory: str) -> Loaded | None:
    """A checkpoint of Ray Tune 0.8 to 2.2: ``<file>.tune_metadata``, a pickled dict, stands beside ``<file>``."""
    names = _old_files(directory)
    if not names:
        return None
    with open(os.path.join(directory, names[0]), "rb") as file:
        facts = pickle.load(file)
    base = names[0].removesuffix(OLD_SUFFIX)
    place = os.path.join(directory, base) if base else directory
    counters = Counters(
        facts.get("iteration") or 0,
        facts.get("time_total") or 0.0,
        facts.get("timesteps_total"),
        facts.get("episodes_total"),
        base,
    )
    if not facts.get("saved_as_dict"):
        return Loaded(place, counters, directory)
    with open(place, "rb") as file:
        return Loaded(pickle.load(file), counters, directory)
