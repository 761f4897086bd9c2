"""What the S3 servers have in common: keys, buckets, the environment of clients.

Owns: one signed request at a time, for creating buckets and asking whether the server answers. It is not a client
for tests: those use the real one (`store`).
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from servers.process import HOST, Server, ServerFailed

if TYPE_CHECKING:
    from obstore.store import S3Store

REGION = "us-east-1"
REQUEST_TIMEOUT_S = 10


def signed_headers(method: str, host: str, path: str, body: bytes, keys: tuple[str, str]) -> dict[str, str]:
    """The headers of an AWS Signature Version 4 for a path without a query."""
    access_key, secret_key = keys
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    names = ";".join(headers)
    listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"{method}\n{quote(path)}\n\n{listed}\n{names}\n{digest}"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = b"AWS4" + secret_key.encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": authorization}


class S3Server(Server):
    """A server that speaks S3."""

    conditional_puts = True
    """Whether `If-None-Match: *` and `If-Match` are honoured."""
    access_key = "AKIDHOLDFAST"
    secret_key = "holdfast-secret-of-the-tests"

    def bucket(self, name: str) -> str:
        """Create a bucket (three letters and more) and return its name; one that exists is fine."""
        status, answer = self.request("PUT", f"/{name}")
        if status not in (200, 409):
            raise ServerFailed(f"{self.name} did not create bucket {name!r}: {status} {answer[:200]!r}")
        return name

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that a client process needs; `endpoint` is that of a proxy in front, if there is one."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def store(self, bucket: str, endpoint: str | None = None, **options: Any) -> S3Store:
        """An obstore client of this bucket, with `options` of S3Store (retry_config, client_options, ...)."""
        from obstore.store import S3Store

        client_options: Any = {"allow_http": True, **options.pop("client_options", {})}
        return S3Store(
            bucket,
            endpoint=endpoint or self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region=REGION,
            virtual_hosted_style_request=False,
            client_options=client_options,
            **options,
        )

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One signed request; returns the status and the answer."""
        headers = signed_headers(method, f"{HOST}:{self.port}", path, body, (self.access_key, self.secret_key))
        connection = http.client.HTTPConnection(HOST, self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, quote(path), body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"{self.name} broke off: {error!r}") from error
        finally:
            connection.close()

    def ready(self) -> bool:
        return self.request("GET", "/")[0] == 200
