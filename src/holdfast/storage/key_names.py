"""Keys that every store accepts, for names that some would refuse or change.

Owns the spelling of keys inside a bucket. Must never change a harmless name: people look for their files in a bucket by
name.

Control characters and backslashes become ``%XX``: the client library refuses the former, and some servers turn the
latter into slashes. A percent sign is escaped only where it would read as such an escape, so ``50%.txt`` stays.
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidInputError

_CODES = "[01][0-9A-F]|25|5C|7F"
_ODD = re.compile(rf"[\x00-\x1f\\\x7f]|%(?={_CODES})")
_ESCAPE = re.compile(rf"%({_CODES})")


def to_key(name: str) -> str:
    """Return the spelling of a relative name in a bucket.

    Raises:
        InvalidInputError: If no key can stand for it: empty, absolute, with ``.`` or ``..``, or not valid Unicode.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"The name {name!r} is not valid UTF-8; object stores cannot keep it. Rename it."
        ) from None
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidInputError(f"{name!r} cannot be the name of an object: expected a relative path like 'a/b.txt'.")
    return _ODD.sub(lambda found: f"%{ord(found[0]):02X}", name)


def from_key(key: str) -> str:
    """Undo `to_key`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), key)
