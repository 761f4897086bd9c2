"""How answers leave the server: JSON or binary, compressed if that is worth it. Every error is one sentence."""

from __future__ import annotations

import gzip
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.ui.encoding import json_bytes

MIN_GZIP = 1024
JSON = "application/json"
BINARY = "application/octet-stream"


def error_response(status: int, sentence: str, **more: Any) -> Response:
    """An error in words."""
    return Response(json_bytes({"error": sentence, **more}), status, media_type=JSON)


def accepts_gzip(request: Request) -> bool:
    """Whether the client can unpack it."""
    return any(
        part.partition(";")[0].strip() == "gzip" and not part.replace(" ", "").endswith(";q=0")
        for part in request.headers.get("accept-encoding", "").lower().split(",")
    )


def is_near(request: Request) -> bool:
    """Whether the client is on this machine: to compress arrays of numbers would take longer than to send them."""
    host = "" if request.client is None else request.client.host
    return host == "::1" or host.startswith("127.")


def packed(body: bytes, *, zipped: bool) -> tuple[bytes, bool]:
    """The body and whether it was compressed. Quickly: the reader is mostly on the same machine."""
    if not zipped or len(body) < MIN_GZIP:
        return body, False
    return gzip.compress(body, compresslevel=1, mtime=0), True


def respond(body: bytes, is_zipped: bool, *, media_type: str = JSON, status: int = 200) -> Response:
    """A response from what `packed` returned."""
    headers = {"Vary": "Accept-Encoding"}
    if is_zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, headers, media_type)
