"""The page itself: the built files beside this module. Only files that are known by name are ever served.

Owns reading them, for the server and for the report. Must never make a path from what a browser sends.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


def built_files() -> dict[str, bytes]:
    """The files of the page, by name.

    Raises:
        UsageError: They are not part of this installation.
    """
    folder = files("holdfast.ui") / "static"
    found: dict[str, bytes] = {}
    if folder.is_dir():
        for file in folder.iterdir():
            if _type_of(file.name) is not None:
                found[file.name] = file.read_bytes()
    if INDEX not in found:
        raise UsageError("The files of the page are missing in this installation of holdfast: install it again.")
    return found


def _type_of(name: str) -> str | None:
    return next((kind for end, kind in _TYPES.items() if name.endswith(end)), None)


class StaticFiles:
    """Serves them from memory."""

    @cached_property
    def _files(self) -> dict[str, tuple[bytes, str, str]]:
        found = {f"/{name}": (data, _type_of(name) or "", _etag(data)) for name, data in built_files().items()}
        return {**found, "/": found[f"/{INDEX}"]}

    @property
    def paths(self) -> list[str]:
        """What can be asked for."""
        return list(self._files)

    async def respond(self, request: Request) -> Response:
        """One file; 304 if the browser has it."""
        from starlette.responses import Response

        from holdfast.ui.responses import accepts_gzip, packed, respond

        data, kind, etag = self._files[request.url.path]
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        response = respond(*packed(data, zipped=accepts_gzip(request)), media_type=kind)
        response.headers.update(headers)
        return response


def _etag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=8).hexdigest()}"'
