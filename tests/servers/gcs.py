"""The stand-in for Google Cloud Storage; `gcs_server.py` says what it can do.

None of the emulators that the registries have can be used by obstore, or honour preconditions; hence our own.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.process import HOST, Server, ServerFailed

if TYPE_CHECKING:
    from obstore.store import GCSStore

REQUEST_TIMEOUT_S = 10
_SCRIPT = Path(__file__).with_name("gcs_server.py")


class GCS(Server):
    """`with GCS(directory) as server: server.bucket("name")`."""

    name = "the GCS stand-in"
    conditional_puts = True

    def command(self) -> list[str]:
        return [sys.executable, "-I", str(_SCRIPT), str(self.port), str(self.data)]

    def bucket(self, name: str) -> str:
        """Create a bucket and return its name; one that exists is fine."""
        status = self._request("PUT", f"/{name}")
        if status not in (200, 409):
            raise ServerFailed(f"{self.name} did not create bucket {name!r}: {status}")
        return name

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that a client process needs; `endpoint` is that of a proxy in front, if there is one."""
        return {"GOOGLE_SERVICE_ACCOUNT": str(self._account(endpoint)), "GOOGLE_ALLOW_HTTP": "true"}

    def store(self, bucket: str, endpoint: str | None = None, **options: Any) -> GCSStore:
        """An obstore client of this bucket, with `options` of GCSStore."""
        from obstore.store import GCSStore

        client_options: Any = {"allow_http": True, **options.pop("client_options", {})}
        account = str(self._account(endpoint))
        return GCSStore(bucket, service_account=account, client_options=client_options, **options)

    def ready(self) -> bool:
        return self._request("GET", "/") == 200

    def _account(self, endpoint: str | None) -> Path:
        """A file of credentials that sends clients to the stand-in without asking Google for a token."""
        target = endpoint or self.endpoint
        path = self.directory / f"account-{target.rpartition(':')[2]}.json"
        account = {"gcs_base_url": target, "disable_oauth": True}
        path.write_text(json.dumps(account | {"client_email": "", "private_key": "", "private_key_id": ""}))
        return path

    def _request(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, headers={"content-length": "0"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except http.client.HTTPException as error:
            raise OSError(f"{self.name} broke off: {error!r}") from error
        finally:
            connection.close()
