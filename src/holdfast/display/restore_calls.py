"""Calls of ``Tuner.restore`` that a user can paste.

Owns how they are written. Must never import a display: errors and the command line print them too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

NOT_KEPT = frozenset({"LostObjectError", "MissingObjectError"})
"""Exceptions that say that an object of the search space is not there any more."""


def restore_call(root: str, trainable: str = "", **arguments: Any) -> str:
    """The exact call that continues with an experiment, ready to paste.

    Args:
        root: Where the experiment is.
        trainable: How the trainable is written in the user's script, if its code may have been corrected there.
        **arguments: The others; an ellipsis for what the user has to fill in.
    """
    given = f", trainable={trainable}" if trainable else ""
    given += "".join(f", {name}={'...' if value is ... else repr(value)}" for name, value in arguments.items())
    # JSON's escapes are Python's too, and its quotes are double; what UTF-8 cannot encode is written as an escape.
    readable = root.isprintable()
    return f"Tuner.restore({json.dumps(root, ensure_ascii=not readable)}{given})"


def retry_call(root: str, trainable: str, *, needs_space: bool, restart: bool = False) -> str:
    """The call that retries failed trials, from their latest checkpoints or from the beginning."""
    space = {"param_space": ...} if needs_space else {}
    return restore_call(root, trainable, **space, **{"restart_errored" if restart else "resume_errored": True})


def needs_space(types: Iterable[str]) -> bool:
    """Whether one of these exceptions is raised again unless the search space is given again."""
    return any(each.rpartition(".")[2] in NOT_KEPT for each in types)
