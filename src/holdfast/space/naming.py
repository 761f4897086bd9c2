"""Names of trials and of their directories, from facts that are passed in.

Owns the spelling. Must never read a clock, an environment variable or a disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space.objects import is_marker

MAX_LEN_IDENTIFIER = 130
"""Default cut of the experiment tag in a directory's name."""

MAX_DIRNAME_BYTES = 250
"""File systems end at 255; five are left for the suffix that tells two equal names apart."""

_OTHER_CHARS = re.compile(r"[^a-zA-Z0-9_-]+")


def trial_id(prefix: str, n: int) -> str:
    """The id of an experiment's n-th trial.

    Args:
        prefix: Five hexadecimal digits, the same for every trial of the experiment.
        n: Number of the trial, from 0.

    Example:
        >>> trial_id("a1b2c", 7)
        'a1b2c_00007'
    """
    if not re.fullmatch("[0-9a-f]{5}", prefix):
        raise InvalidInputError(f"The prefix of trial ids must be five hexadecimal digits, got {prefix!r}.")
    return f"{prefix}_{n:05d}"


def format_vars(evaluated: Mapping[str, Any]) -> str:
    """Chosen values as ``k=v,k=v``, sorted by path; only the last part of each path is shown.

    Example:
        >>> format_vars({"lr": 0.12345678, "w": "a b/c", "k": True})
        'k=True,lr=0.1235,w=a_b_c'
    """
    ordered = sorted(evaluated.items(), key=lambda item: item[0].split("/"))
    return ",".join(f"{_clean(path.rpartition('/')[2])}={_clean(value)}" for path, value in ordered)


def experiment_tag(n: int, evaluated: Mapping[str, Any]) -> str:
    """The number of a trial and what the search chose for it.

    Example:
        >>> experiment_tag(3, {"net/width": 64})
        '3_width=64'
    """
    chosen = format_vars(evaluated)
    return f"{n}_{chosen}" if chosen else str(n)


def trial_name(trainable: str, trial: str) -> str:
    """How a trial is shown: its trainable and its id."""
    return f"{trainable}_{trial}"


def trial_dirname(name: str, tag: str, date: str, max_len_identifier: int = MAX_LEN_IDENTIFIER) -> str:
    """The directory of a trial: ``<trainable>_<trial_id>_<tag>_<date>``.

    Args:
        name: The trial's name, ``<trainable>_<trial_id>``.
        tag: Its experiment tag.
        date: When it was created, as ``%Y-%m-%d_%H-%M-%S``.
        max_len_identifier: How many characters of the tag to keep; fewer are kept if the whole would be too long
            for a file system.
    """
    room = MAX_DIRNAME_BYTES - len(f"{name}__{date}".encode())
    kept = tag[: max(0, max_len_identifier)].encode()[: max(0, room)].decode(errors="ignore")
    return re.sub("[/()]", "_", f"{name}_{kept}_{date}")


def _clean(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return _OTHER_CHARS.sub("_", str(_shown(value))).strip("_")


def _shown(value: Any) -> Any:
    """A value with markers replaced by something short that is the same in every process."""
    if is_marker(value):
        return f"{value['type'].rpartition('.')[2]}_{value['__object__'].rpartition('/')[2]}"
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return kind.__name__  # the default text has the object's address in it
    return value
