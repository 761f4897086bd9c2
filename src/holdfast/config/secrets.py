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
_PARAMETER = re.compile(r"[#;]([^#;/?=]+)=")
_MORE = re.compile(r"[?#]|;[^#;/?=]+=")
"""Where what follows the path of an address begins."""

_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "file")
_NO_SLASHES = re.compile(rf"\s*({'|'.join(_SCHEMES)}):(?!//)(.*)", re.IGNORECASE | re.DOTALL)
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
    for name in _PARAMETER.findall(rest):
        if _SECRET.search(name.lower()):
            raise InvalidInputError(f"{what}={hidden(address)!r} is followed by {name!r}, a credential. {_ADVICE}")
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
        if _MORE.search(value):
            raise InvalidInputError(
                f"{what}={hidden(address)!r}: the value of {name!r} has options of its own, and one of them may be a "
                f"credential. {_ADVICE}"
            )


def refuse_missing_slashes(what: str, address: str) -> None:
    """Refuse ``s3:/bucket`` and ``s3:bucket``, which would be directories of this machine, named after a password too.

    Not for addresses that a syncer of the user's understands: rclone writes ``s3:bucket/path``.

    Raises:
        InvalidInputError: It is one. The message shows it only if it can hold no password.
    """
    found = _NO_SLASHES.match(address)
    if found is None:
        return
    scheme, rest = found[1].lower(), found[2].lstrip("/\\")
    meant = f"{scheme}://{'/' if scheme == 'file' else ''}"
    harmless = bool(rest) and not re.search(r"[@:?#;\\]", rest)
    raise InvalidInputError(
        f"{what} begins with {found[1] + ':'!r}, and two slashes have to follow: "
        + (f"{meant}{rest}." if harmless else f"{meant}{'PATH' if scheme == 'file' else 'BUCKET/PATH'}.")
        + f" A directory of this machine whose name begins so is written './{found[1]}:...'. Nothing was stored."
    )


def refuse_fragment(what: str, address: str) -> None:
    """Refuse what follows the path of a new experiment's address, other than options: no store knows such parts.

    Raises:
        InvalidInputError: There is something. The message does not show it.
    """
    scheme, found, rest = address.partition("://")
    mark = _MORE.search(rest.partition("?")[0]) if found and scheme.lower() != "file" else None
    if mark is not None:
        raise InvalidInputError(
            f"{what}={hidden(address)!r}: {mark[0][0]!r} and what follows it mean nothing to a store. Options follow "
            f"'?', as in ?region=eu-west-1. {_ADVICE}"
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
    more = _MORE.search(rest)
    place, mark = (rest, "") if more is None else (rest[: more.start()], f"{more[0][0]}...")
    if "@" in place:
        place = "***@" + place.rpartition("@")[2]
    elif _names_password(place):
        place = "***"
    return f"{scheme}://{place}{mark}"
