"""Names of trials and of their directories, from facts that are passed in.

Owns the spelling. Must never read a clock, an environment variable or a disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.space.exact import is_exact, shown
from holdfast.space.objects import is_marker

MAX_LEN_IDENTIFIER = 130
"""Default cut of the experiment tag in a directory's name."""

MAX_DIRNAME_BYTES = 250
"""File systems end at 255; five are left for the suffix that tells two equal names apart."""

MAX_NAME_BYTES = 255
"""The longest name of a file or directory that file systems take."""

RESERVED = (".holdfast", ".tmp-")
"""What names of the experiment's own files begin with, beside the directories of its trials."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OTHER_CHARS = re.compile(r"[^a-zA-Z0-9_-]+")


def why_no_name(name: str) -> str:
    """Why this cannot be the name of a file or directory, one part of a path; "" if it can.

    Every name that comes from a journal, a manifest, a spec, a store's listing or a user goes through here before a
    path is made of it: what is no name could lead out of the directory that it belongs to.

    Example:
        >>> why_no_name("../victim")
        "it contains '/'"
    """
    if name in ("", ".", ".."):
        return "it names no directory of its own" if name else "it is empty"
    if "/" in name:
        return "it contains '/'"
    if "\0" in name:
        return "it contains a NUL character"
    if len(name) > MAX_NAME_BYTES // 4:  # no character has more than four bytes
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            return "it is not valid Unicode"
        if size > MAX_NAME_BYTES:
            return f"it has {size} bytes, and file systems take {MAX_NAME_BYTES}"
    return ""


def is_inside(path: str) -> bool:
    """Whether a relative path, with slashes between its parts, is made of names and so stays below its directory.

    Example:
        >>> is_inside("a/b.txt"), is_inside("a/../../b.txt"), is_inside("/etc/passwd")
        (True, False, False)
    """
    return not any(map(why_no_name, path.split("/")))


def why_no_dirname(name: str, *, new: bool = False) -> str:
    """Why this cannot be the name of a trial's directory; "" if it can.

    Args:
        name: The name.
        new: Whether a trial is about to get it. Earlier versions let control characters pass, and such trials stay.
    """
    why = why_no_name(name)
    if not why and name.startswith(RESERVED):
        why = f"names that begin with {' or '.join(map(repr, RESERVED))} are the experiment's own"
    if not why and new:
        why = why_no_text(name)
    return why


def why_no_text(name: str) -> str:
    """Why a name could not be stored and shown; "" if it can."""
    if _CONTROL.search(name):
        return "it contains control characters"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return ""


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
    if is_exact(value):
        value = shown(value)
    if isinstance(value, float):
        return f"{value:.4f}"
    return _OTHER_CHARS.sub("_", str(_shown(value))).strip("_")


def _shown(value: Any) -> Any:
    """A value with markers replaced by something short that is the same in every process."""
    if is_marker(value):
        return f"{value['type'].rpartition('.')[2]}_{value['__object__'].rpartition('/')[2]}"
    if is_exact(value):
        return _shown(shown(value))
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return kind.__name__  # the default text has the object's address in it
    return value
