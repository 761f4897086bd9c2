"""Classify a failure of an object store for the caller: missing, denied, or retry later.

Owns the parsing of error texts, because the client library distinguishes most failures by text alone. Must never retry
or hide one.
"""

from __future__ import annotations

import re

from holdfast.errors import (
    InvalidInputError,
    ObjectMissingError,
    StorageError,
    StoreDeniedError,
    StoreUnreachableError,
    TuneError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S*")  # may hold a signature
_USER = re.compile(r"(https?://)[^\s/@]+@")  # of an endpoint in the environment
_SYSTEM = re.compile(r'(?:message|error): "([^"]+)"')

_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ContainerBeingDeleted"})
_LATER_CODES = frozenset(
    {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "ServerBusy", "OperationTimedOut"}
)
_LATER_STATUS = frozenset({408, 409, 425, 429})
_CREDENTIAL_PLACES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
_HINTS = {
    "ExpiredToken": "The session token has expired: renew it (a fresh environment or credentials file is picked up).",
    "ExpiredTokenException": "The session token has expired: renew it.",
    "InvalidAccessKeyId": "The access key is not known there: check AWS_ACCESS_KEY_ID and the endpoint.",
    "SignatureDoesNotMatch": "The secret key is wrong: check AWS_SECRET_ACCESS_KEY.",
    "RequestTimeTooSkewed": "This machine's clock is wrong: set it.",
    "PermanentRedirect": "The bucket lives in another region: add ?region=... to the URL.",
    "AuthorizationHeaderMalformed": "The region is wrong: add ?region=... to the URL or set AWS_REGION.",
    "AuthenticationFailed": "Check the account's name and key, and this machine's clock.",
}
_DEFAULT_HINT = "Check the credentials, their permissions (read, write, list, delete), the bucket's name and region."
_NO_CREDENTIALS = (
    "No credentials were found: not in the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
    "AZURE_STORAGE_ACCOUNT_KEY), nor from this machine's role. For a public bucket add ?anonymous=true to the URL."
)


def classify(error: BaseException, doing: str, url: str, *, worked_before: bool = True) -> TuneError:
    """Turn what the client library raised into the exception that callers know.

    Args:
        error: What was raised.
        doing: The request, for people: ``put a/b``.
        url: The store's address, for people.
        worked_before: Whether credentials were found earlier; if so, their source not answering is an outage.
    """
    if isinstance(error, StorageError):
        return error
    text = str(error)
    if isinstance(error, ValueError):
        return InvalidInputError(f"{url}: cannot {doing}: {_first_line(text)}")
    if isinstance(error, OSError) and error.errno is not None:
        return StorageError(f"{url}: cannot {doing}: {error}.")
    status, code = _status(text), _first(_CODE, text)
    said = f"{url}: cannot {doing}: {_server_said(text, status, code)}."
    if code in _NO_BUCKET:
        return StoreDeniedError(f"{said} There is no such bucket: check its name, region and endpoint, or create it.")
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError(f"{said} There is no such object.")
    if any(place in text for place in _CREDENTIAL_PLACES):
        if worked_before:
            return StoreUnreachableError(said)
        return StoreDeniedError(f"{url}: cannot {doing}. {_NO_CREDENTIALS}")
    if code in _LATER_CODES or status in _LATER_STATUS or (status >= 500 and status != 501):
        return StoreUnreachableError(f"{said} The store asks to try again later.")
    if status >= 300 or _is_refusal(error):
        return StoreDeniedError(f"{said} {_HINTS.get(code, _DEFAULT_HINT)}")
    if "builder error" in text:
        return StoreDeniedError(f"{said} If the server speaks plain HTTP, add ?allow_http=true to the URL.")
    if "invalid peer certificate" in text or "InvalidCertificate" in text:
        return StoreDeniedError(
            f"{said} The server's certificate is not trusted: set AWS_CA_BUNDLE to your own CA's file."
        )
    return StoreUnreachableError(f"{said} The store cannot be reached: check the network and the endpoint.")


def is_timeout(error: BaseException) -> bool:
    """Tell whether an attempt ended because it took too long: a slow network, perhaps, not a dead one."""
    text = str(error)
    return "TimedOut" in text or "kind: Timeout" in text


def is_conflict(error: BaseException) -> bool:
    """Tell a real "there is an object already" from S3's 409: two writers met, and neither may have won."""
    return _status(str(error)) == 409 and _first(_CODE, str(error)) in (
        "ConditionalRequestConflict",
        "OperationAborted",
    )


def lacks_verb(error: BaseException) -> bool:
    """Tell whether the server does not have the request at all, such as the deletion of many at once."""
    text = str(error)
    return _status(text) in (405, 501) or _first(_CODE, text) in ("NotImplemented", "MethodNotAllowed")


def refuses_header(error: BaseException) -> bool:
    """Tell whether the server may have refused a request for a header that it does not know."""
    text = str(error)
    return _status(text) in (400, 501) and _first(_CODE, text) not in (*_LATER_CODES, "BadDigest", "IncompleteBody")


def lacks_ranges(error: BaseException) -> bool:
    """Tell whether a server has answered a request for a range with the whole object."""
    return "non-partial response" in str(error)


def _is_refusal(error: BaseException) -> bool:
    return type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError")


def _status(text: str) -> int:
    found = _first(_STATUS, text)
    return int(found) if found else 0


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _server_said(text: str, status: int, code: str) -> str:
    if status:
        message = _first(_MESSAGE, text).strip().splitlines()
        words = [str(status), code, *message[:1]]
        return " ".join(word for word in words if word).rstrip(".")
    # Without an answer, the reason stands in the depth of the debug text only.
    system = _SYSTEM.findall(text)
    if system:
        return f"{_first_line(text)} ({system[-1]})"
    return _first_line(text) + (" (it took too long)" if "TimedOut" in text else "")


def _first_line(text: str) -> str:
    return _USER.sub(r"\1***@", _QUERY.sub(r"\1", text.strip().partition("\n")[0]))[:500].rstrip(".")
