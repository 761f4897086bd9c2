"""Find and abort unfinished multipart uploads of S3.

Owns the two requests that the client library does not have, and their signature (version 4). A process that dies during
an upload leaves parts that no listing shows but that cost money. Must never touch an upload of this process, nor one
that began after it started.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from holdfast.errors import StoreDeniedError, StoreUnreachableError
from holdfast.storage.address import Address
from holdfast.storage.clients import profile_credentials, s3_endpoint, s3_region

_TIMEOUT_S = 15.0
_EMPTY = hashlib.sha256(b"").hexdigest()


class _Keys(NamedTuple):
    access: str
    secret: str
    token: str


class _Answer(NamedTuple):
    body: bytes
    now: float  # by the server's clock


def abort(
    address: Address, environ: Mapping[str, str], *, prefix: str, older_than_s: float, spared: frozenset[str]
) -> int:
    """Give up the uploads below ``prefix`` that began more than ``older_than_s`` ago, except those of ``spared`` keys.

    Returns:
        How many were given up. None are if this process does not see the credentials, because the client library got
        them from the machine's role: a life-cycle rule of the bucket has to do it then.
    """
    keys = _find_keys(address, environ)
    if keys is None:
        return 0
    base = f"{address.path}/" if address.path else ""
    count = 0
    marker: dict[str, str] = {}
    while True:
        answer = _request("GET", "", {"uploads": "", "prefix": base + prefix, **marker}, address, environ, keys)
        page = ElementTree.fromstring(answer.body)
        for upload in _all(page, "Upload"):
            key, begun = _text(upload, "Key"), _seconds(_text(upload, "Initiated"))
            if key.removeprefix(base) in spared or answer.now - begun < older_than_s:
                continue
            _request("DELETE", key, {"uploadId": _text(upload, "UploadId")}, address, environ, keys)
            count += 1
        if _text(page, "IsTruncated") != "true":
            return count
        marker = {
            "key-marker": _text(page, "NextKeyMarker"),
            "upload-id-marker": _text(page, "NextUploadIdMarker"),
        }


def _find_keys(address: Address, environ: Mapping[str, str]) -> _Keys | None:
    if address.switch("anonymous"):
        return None
    if environ.get("AWS_ACCESS_KEY_ID"):
        return _Keys(
            environ["AWS_ACCESS_KEY_ID"],
            environ.get("AWS_SECRET_ACCESS_KEY", ""),
            environ.get("AWS_SESSION_TOKEN", "") or environ.get("AWS_TOKEN", ""),
        )
    try:
        found = profile_credentials(address, environ)()
    except StoreDeniedError:
        return None
    return _Keys(found["access_key_id"], found["secret_access_key"], found["token"] or "")


def _request(
    method: str, key: str, query: Mapping[str, str], address: Address, environ: Mapping[str, str], keys: _Keys
) -> _Answer:
    region = s3_region(address, environ) or "us-east-1"
    endpoint = s3_endpoint(address, environ) or f"https://s3.{region}.amazonaws.com"
    path = quote(f"{urlsplit(endpoint).path}/{address.bucket}" + (f"/{key}" if key else ""), safe="/~")
    text = "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(query.items()))
    target = urlsplit(endpoint)
    headers = _signed(method, target.netloc, path, text, region, keys)
    request = urllib.request.Request(f"{target.scheme}://{target.netloc}{path}?{text}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            date = response.headers.get("Date")
            now = parsedate_to_datetime(date).timestamp() if date else time.time()
            return _Answer(response.read(), now)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404 and method == "DELETE":
                return _Answer(b"", 0.0)  # its end came by itself
            said = f"{address.url}: cannot look for unfinished uploads: {error.code} {error.reason}."
        raise (StoreUnreachableError if error.code == 429 or error.code >= 500 else StoreDeniedError)(said) from error
    except OSError as error:
        raise StoreUnreachableError(f"{address.url}: cannot look for unfinished uploads: {error}.") from error


def _signed(method: str, host: str, path: str, query: str, region: str, keys: _Keys) -> dict[str, str]:
    """Return the headers of a request without a body, with its signature."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, query, lines, names, _EMPTY])
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _all(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _text(element: ElementTree.Element, name: str) -> str:
    found = _all(element, name)
    return (found[0].text or "").strip() if found else ""


def _seconds(stamp: str) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return time.time()  # not understood: not stale
