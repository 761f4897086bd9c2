"""What the page's buttons do: each leaves a request for the live driver, which alone writes the experiment.

Owns the check of what a browser sends. Must never change anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.controller import user_requests
from holdfast.errors import InvalidInputError
from holdfast.ui.query import refuse_unknown

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


class PageAction(NamedTuple):
    """A button.

    Attributes:
        act: Gets the experiment's address, what was sent, and the tags that there are now; waits for the driver's
            answer, and returns it in words.
        fields: What may be sent.
    """

    act: Callable[[str, Body, list[str]], str]
    fields: tuple[str, ...]


ACTIONS: dict[str, PageAction] = {
    "stop": PageAction(_stop, ("trial",)),
    "note": PageAction(_note, ("trial", "text")),
    "tag": PageAction(_tag, ("trial", "tags")),
    "samples": PageAction(_samples, ("num_samples",)),
}


def check_fields(name: str, body: Body) -> None:
    """Refuse fields that the action does not know: without its misspelt trial, a stop would be for the experiment.

    Raises:
        InvalidInputError: There is one; the message names it.
    """
    refuse_unknown("field", body, ACTIONS[name].fields, "in this request")


def _trial(body: Body) -> str:
    return _text(body, "trial") if body.get("trial") is not None else ""


def _text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"The field {name!r} must be a string that is not empty.")
    return value
