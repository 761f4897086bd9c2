"""What the page's buttons do: each leaves a request for the live driver, which alone writes the experiment.

Owns the check of what a browser sends. Must never change anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.controller import user_requests
from holdfast.errors import InvalidInputError

Body = dict[str, Any]


def _stop(path: str, body: Body, tags: list[str]) -> str:
    trial = _trial(body)
    return user_requests.stop_trial(path, trial) if trial else user_requests.stop_all(path)


def _note(path: str, body: Body, tags: list[str]) -> str:
    return user_requests.add_note(path, _text(body, "text"), _trial(body))


def _tag(path: str, body: Body, tags: list[str]) -> str:
    """Let the tags be those that were sent: the driver is asked to add and to remove the difference."""
    wanted = body.get("tags")
    if not isinstance(wanted, list) or not all(isinstance(tag, str) for tag in wanted):
        raise InvalidInputError("The field 'tags' must be a list of strings.")
    trial = _trial(body)
    new, old = [tag for tag in wanted if tag not in tags], [tag for tag in tags if tag not in wanted]
    told = [user_requests.add_tags(path, new, trial)] if new else []
    told += [user_requests.add_tags(path, old, trial, remove=True)] if old else []
    return " ".join(told) or "The tags are as they were."


def _samples(path: str, body: Body, tags: list[str]) -> str:
    number = body.get("num_samples")
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInputError("The field 'num_samples' must be a whole number.")
    return user_requests.set_samples(path, number)


ACTIONS: dict[str, Callable[[str, Body, list[str]], str]] = {
    "stop": _stop,
    "note": _note,
    "tag": _tag,
    "samples": _samples,
}
"""Each gets the experiment's address, what was sent, and the tags that there are now; waits for the driver's answer,
and returns it in words."""


def _trial(body: Body) -> str:
    return _text(body, "trial") if body.get("trial") is not None else ""


def _text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"The field {name!r} must be a string that is not empty.")
    return value
