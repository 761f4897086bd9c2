"""A module for ``preload``: in the nanny and in every worker, some file operations fail while a file says so.

The file that ``FAULT_FILE`` names holds what fails and how: ``{"call": "mkdir", "in": "/train_", "errno": 5}``. A path
with ``in`` in it is refused, by the functions of ``os`` that the engine and the workers use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def _fault(call: str, path: object) -> None:
    if not isinstance(path, str):
        return
    try:
        with open(os.environ["FAULT_FILE"]) as file:
            fault = json.load(file)
    except (OSError, KeyError):
        return
    if fault["call"] == call and fault["in"] in path:
        raise OSError(fault["errno"], os.strerror(fault["errno"]), path)


def _faulty(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(path: Any, *arguments: Any, **more: Any) -> Any:
        _fault(call, path)
        return real(path, *arguments, **more)

    return wrapped


for _call in ("mkdir", "chdir", "open", "rename", "scandir"):
    setattr(os, _call, _faulty(_call, getattr(os, _call)))
