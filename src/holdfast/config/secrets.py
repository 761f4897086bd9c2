"""Addresses that hold a password: recognised, refused, and never repeated.

An address is written down in many places: the spec, settings, messages, logs, the names of mirrors. So a credential in
one is refused before anything is stored or started, and the refusal does not show it. Must never print an address as it
was given.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from holdfast.errors import InvalidInputError

_SECRET = re.compile(
    r"secret|passw|pwd|token|signature|credential|access_?key|account_?key|api_?key|^(sig|sas|key|auth)$"
)
_NO_USER = frozenset({"s3", "s3a", "gs", "gcs"})  # a bucket has none: whatever stands before it is a key
_ADVICE = (
    "Credentials do not belong in an address, because it is stored in many places (the experiment, messages, "
    "logs). Nothing was stored. Put them into the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY) or a profile (AWS_PROFILE), and leave them out of "
    "the address."
)


def refuse_secrets(what: str, address: str) -> None:
    """Refuse an address that holds a credential.

    Args:
        what: How the address is called, for the message: ``storage_path``.
        address: A path or URL.

    Raises:
        InvalidInputError: It holds one. The message does not show it.
    """
    scheme, found, rest = address.partition("://")
    if not found:
        return
    place, _, query = rest.partition("?")
    has_user = scheme.lower() in _NO_USER and "@" in place.partition("/")[0]
    if has_user or _names_password(place):
        raise InvalidInputError(f"{what}={hidden(address)!r} has a name or password before its host. {_ADVICE}")
    for name, value in parse_qsl(query, keep_blank_values=True):
        if _SECRET.search(name.lower()):
            raise InvalidInputError(f"{what}={hidden(address)!r} has the option {name!r}, a credential. {_ADVICE}")
        if "@" in value or _names_password(value.partition("://")[2] or value):
            raise InvalidInputError(
                f"{what}={hidden(address)!r}: the option {name!r} has a name or password before its host. {_ADVICE}"
            )


def _names_password(place: str) -> bool:
    """Whether ``user:password`` stands before a host. A password may hold slashes, a host may have a port."""
    authority, _, path = place.partition("/")
    user, at, _ = authority.rpartition("@")
    if at:
        return ":" in user
    _, colon, port = authority.rpartition(":")
    is_port = not colon or (port.isdecimal() and "@" not in path) or authority.endswith("]")
    return not is_port


def hidden(address: str) -> str:
    """An address as messages may show it: without what stands before its host, and without its options.

    Example:
        >>> hidden("s3://AKIA:abc/def@bucket/runs?region=eu-west-1")
        's3://***@bucket/runs?...'
    """
    scheme, found, rest = address.partition("://")
    if not found:
        return address
    place, mark, _ = rest.partition("?")
    if "@" in place:
        place = "***@" + place.rpartition("@")[2]
    elif _names_password(place):
        place = "***"
    return f"{scheme}://{place}{'?...' if mark else ''}"
