"""Azurite, the Azure blob server of Microsoft's emulator; honours conditional puts.

Node comes from PyPI with the other servers, Azurite from the npm registry that npm is set up with.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.install import HOW, Unavailable, cache, node, npm, run, why_missing
from servers.process import HOST, Server, ServerFailed

if TYPE_CHECKING:
    from obstore.store import AzureStore

VERSION = "3.36.0"
_FOLDER = "azurite"
_MAIN = Path("node_modules", "azurite", "dist", "src", "blob", "main.js")
_API_VERSION = "2023-11-03"
REQUEST_TIMEOUT_S = 10


def install() -> None:
    """Install Azurite beside the other servers; needs the Python packages of `install_python`."""
    home = cache() / _FOLDER
    if (home / _MAIN).exists() and (home / "version").read_text() == VERSION:
        return
    home.mkdir(parents=True, exist_ok=True)
    options = ["--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
    run([*npm(), "install", *options, f"azurite@{VERSION}"], cwd=home)
    (home / "version").write_text(VERSION)


class Azurite(Server):
    """`with Azurite(directory) as server: server.bucket("name")`; buckets are containers here."""

    name = "Azurite"
    stop_signal = signal.SIGTERM  # its index is in memory and written every few seconds: `kill` may lose the newest
    conditional_puts = True
    account = "holdfast"
    key = base64.b64encode(b"holdfast-key-of-the-tests").decode()

    def command(self) -> list[str]:
        main = cache() / _FOLDER / _MAIN
        if not main.exists():
            raise Unavailable(f"Azurite is not in {cache()}: {why_missing('azurite') or HOW}")
        return [
            *(str(node()), str(main), "--blobHost", HOST, "--blobPort", str(self.port)),
            *("--location", str(self.data), "--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]

    def variables(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"http://{HOST}:{self.port}/{self.account}"

    def bucket(self, name: str) -> str:
        """Create a container and return its name; one that exists is fine."""
        status = self._request("PUT", f"/{self.account}/{name}", "restype=container")
        if status not in (201, 409):
            raise ServerFailed(f"{self.name} did not create container {name!r}: {status}")
        return name

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that a client process needs; `endpoint` is that of a proxy in front, if there is one."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": endpoint or self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    def store(self, bucket: str, endpoint: str | None = None, **options: Any) -> AzureStore:
        """An obstore client of this container, with `options` of AzureStore."""
        from obstore.store import AzureStore

        client_options: Any = {"allow_http": True, **options.pop("client_options", {})}
        return AzureStore(
            bucket,
            account_name=self.account,
            account_key=self.key,
            endpoint=endpoint or self.endpoint,
            client_options=client_options,
            **options,
        )

    def ready(self) -> bool:
        return self._request("GET", f"/{self.account}/", "comp=list") == 200

    def _request(self, method: str, path: str, query: str) -> int:
        """One request signed with the account's key; returns the status."""
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": _API_VERSION}
        listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
        # Method, eleven standard headers that are all empty here, ours, and the account's name twice: once as the
        # owner, once as the first part of an emulator's path.
        to_sign = f"{method}{12 * chr(10)}{listed}/{self.account}{path}\n{query.replace('=', ':')}"
        digest = hmac.new(base64.b64decode(self.key), to_sign.encode(), hashlib.sha256).digest()
        headers["authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        headers["content-length"] = "0"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, f"{path}?{query}", headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except http.client.HTTPException as error:
            raise OSError(f"{self.name} broke off: {error!r}") from error
        finally:
            connection.close()
