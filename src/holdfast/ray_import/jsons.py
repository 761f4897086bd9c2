"""JSON as others write it: what a record of ours could not hold is refused or replaced.

Owns that check. Python's reader takes half characters and any depth; the journal takes neither.
"""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.journal.records import MAX_NESTING

MAX_DEPTH = MAX_NESTING // 2
"""How deep a value may be; what stands around it in a record needs some levels, too."""

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def loads(data: str | bytes) -> Any:
    """The value of a JSON text; half characters are replaced by "?".

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    text = data if isinstance(data, str) else data.decode(errors="replace")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return _whole(value) if _HALF.search(text) else value
    raise ValueError("it is nested too deeply")


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _whole(node: Any) -> Any:
    if isinstance(node, str):
        return node.encode(errors="replace").decode()
    if isinstance(node, dict):
        return {_whole(key): _whole(value) for key, value in node.items()}
    return [_whole(value) for value in node] if isinstance(node, list) else node
