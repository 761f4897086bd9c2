"""The bytes of answers: JSON that every browser reads, with long texts cut. For arrays, see `results.packing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.cli.printing import to_json

MAX_CELL_TEXT = 400
MAX_TEXT = 256 * 1024


def json_bytes(value: Any) -> bytes:
    """The value as JSON; NaN and infinity are null, text that is not Unicode is shown with marks."""
    try:
        return to_json(value, indent=False)
    except UnicodeEncodeError:
        return to_json(_encodable(value), indent=False)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return value


def shortened(value: Any, limit: int = MAX_TEXT) -> Any:
    """The same with long texts cut, so that one config of a megabyte does not make every answer one."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: shortened(each, limit) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(each, limit) for each in value]
    return value
