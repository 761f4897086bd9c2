"""Who may ask, and what browsers may do with the answers.

Owns the token, the check of Host and Origin, and the headers of every response. Stands before everything else, so that
nothing is routed, read or opened for somebody without the token. Must never compare a secret in a time that depends on
it, nor repeat the token in a response or a log.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import InvalidInputError
from holdfast.ui.responses import error_response

MIN_TOKEN = 8
"""Characters of a token of the user's choice, if others than this machine can try to guess it."""
MAX_QUERY = 16_384
SAFE_METHODS = ("GET", "HEAD")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WILDCARDS = ("0.0.0.0", "::")

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


def check_token(token: str, host: str) -> str:
    """The user's own token, if it can be one for a page at ``host``.

    Raises:
        InvalidInputError: It is too short, or has characters that an address or a cookie would change.
    """
    least = 1 if host in _LOOPBACK else MIN_TOKEN
    if len(token) < least or not token.isascii() or not all(char.isalnum() or char in "-_.~" for char in token):
        raise InvalidInputError(
            f"--token needs at least {least} characters out of a-z, A-Z, 0-9, '-', '_', '.' and '~'. "
            "Leave it out to have one made."
        )
    return token


class Guard:
    """Lets those requests through that have the token and come from the page itself.

    Args:
        app: What answers them.
        token: The secret.
        host: The address that the server listens on.
        port: Its port; part of the cookie's name, because browsers share cookies between ports.
    """

    def __init__(self, app: ASGIApp, token: str, host: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._any_address = host in _WILDCARDS
        self._hosts = {host.lower(), *_LOOPBACK}
        if host not in _LOOPBACK:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._cookie = f"holdfast-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        sender = _with_headers(scope, send)
        refusal = self._refusal(scope, Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, sender)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._is_own_host(headers.getlist("host")):
            return error_response(400, "This server does not go by the name in the Host header.")
        if len(scope["query_string"]) > MAX_QUERY:
            return error_response(400, f"The address has more than {MAX_QUERY:,} characters behind the question mark.")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and scope["method"] in SAFE_METHODS:
            return self._enter(scope, headers, query, given[-1])
        if not self._is_known(headers):
            return self._unknown(scope, headers)
        if scope["method"] not in SAFE_METHODS and self._is_foreign(headers):
            return error_response(403, "This request comes from a page of another origin.")
        return None

    def _is_own_host(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        name = _host_name(given[0])
        return name in self._hosts or (self._any_address and _is_address(name))

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return True
        # Parsed by hand: other servers on this host leave cookies here that the standard parser gives up at.
        cookies = (part.strip().partition("=") for line in headers.getlist("cookie") for part in line.split(";"))
        return any(name == self._cookie and self._is_token(value.strip('"')) for name, _, value in cookies)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token)

    def _is_foreign(self, headers: Headers) -> bool:
        """Whether the request was made by a page that is not ours. Programs that are no browsers name no origin."""
        origin = headers.get("origin")
        if origin is not None:
            return urlsplit(origin).netloc.lower() != headers["host"].lower()
        return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")

    def _enter(self, scope: Scope, headers: Headers, query: list[tuple[str, str]], token: str) -> Response:
        """Turn the token in an address into a cookie, and lead to the address without it."""
        if not self._is_token(token):
            return self._unknown(scope, headers)
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # Never "//host/path", which a browser would take for another host.
        target = "/" + scope["raw_path"].decode("ascii", "replace").partition("?")[0].lstrip("/")
        target += f"?{rest}" if rest else ""
        response: Response
        if headers.get("sec-fetch-site") == "cross-site":
            # Browsers do not send a SameSite=Strict cookie along a redirect that began on another site; they do when
            # our own response refreshes itself.
            response = PlainTextResponse("Opening the page ...\n", headers={"Refresh": f"0; url={target}"})
        else:
            response = RedirectResponse(target, 303)
        response.set_cookie(self._cookie, self._token.decode(), path="/", httponly=True, samesite="strict")
        response.headers["Cache-Control"] = "no-store"
        return response

    def _unknown(self, scope: Scope, headers: Headers) -> Response:
        sentence = "The token is missing or wrong: open the address that `holdfast ui` printed."
        if "text/html" in headers.get("accept", "") and not scope["path"].startswith("/api/"):
            return PlainTextResponse(f"{sentence}\n", 401, headers={"Cache-Control": "no-store"})
        return error_response(401, sentence)


def _with_headers(scope: Scope, send: Send) -> Send:
    private = scope["path"].startswith("/api/")

    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Any] = list(message.get("headers", []))
            headers += _ENCODED
            if private and not any(name.lower() == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return sender


def _host_name(given: str) -> str:
    """The name in a Host header, without its port."""
    given = given.strip().lower()
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
