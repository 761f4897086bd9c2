"""``tune.run(resume=...)``: what its values of all generations mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.config import ResumeConfig
from holdfast.errors import InvalidInputError

WAYS = ("AUTO", "LOCAL", "REMOTE", "PROMPT")
SUFFIXES = {
    "ERRORED": {"errored": "resume"},
    "RESTART_ERRORED": {"errored": "restart"},
    "ERRORED_ONLY": {"errored": "resume", "unfinished": "skip"},
    "RESTART_ERRORED_ONLY": {"errored": "restart", "unfinished": "skip"},
}


class Resume(NamedTuple):
    """Where to resume from, "" begins a new experiment; and what becomes of trials."""

    way: str
    trials: ResumeConfig


def parse_resume(value: Any, config: ResumeConfig | None = None) -> Resume:
    """Read a value of ``resume``.

    Args:
        value: False, None, True or a string.
        config: ``resume_config``, which wins over suffixes.

    Raises:
        InvalidInputError: There is no such value.
    """
    if value is None or value is False:
        return Resume("", config or ResumeConfig())
    if value is True:
        return Resume("AUTO", config or ResumeConfig())
    if not isinstance(value, str):
        raise _invalid(value)
    text = "LOCAL+RESTART_ERRORED_ONLY" if value.upper() == "ERRORED_ONLY" else value.upper()
    way, *suffixes = text.split("+")
    trials: dict[str, Any] = {}
    if way in SUFFIXES:
        way, suffixes = "AUTO", [way, *suffixes]
    if way not in WAYS or any(suffix not in SUFFIXES for suffix in suffixes):
        raise _invalid(value)
    for suffix in suffixes:
        trials.update(SUFFIXES[suffix])
    return Resume(way, config or ResumeConfig(**trials))


def _invalid(value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid resume setting: {value!r}. It must be False, True, one of {', '.join(WAYS)}, ERRORED_ONLY, or one of "
        f"those with suffixes, such as AUTO+ERRORED: {', '.join('+' + name for name in SUFFIXES)}."
    )
