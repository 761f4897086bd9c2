"""The client library's objects for an address: endpoints, credentials, timeouts.

Owns the arguments of obstore's constructors and the environment variables of the three clouds. Must be imported in the
storage agent only: obstore keeps threads that do not survive a fork.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast._version import __version__
from holdfast.errors import InvalidInputError, StoreDeniedError
from holdfast.storage.address import Address
from holdfast.storage.options import REQUEST_BACKOFF

_AWS_OWN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_NEEDS_LIBRARY = frozenset({"external_account", "impersonated_service_account"})
# Every emulator of Azure has this account; Microsoft publishes its key.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_DAY_S = 86400.0


class Clients:
    """The same bucket several times, with different patience.

    Attributes:
        small: One attempt at a time; whoever asks repeats it.
        bulk: For parts of files, which only the library itself can repeat.
        stream: For answers of unknown length: it may take for ever, but not stand still.
        create: Like ``small``, for objects that are never replaced: with a checksum in the head of the request. There
            are servers that make an empty object when a connection breaks before the body has begun.
        bulk_create: The same for large ones.
    """

    def __init__(self, address: Address, environ: Mapping[str, str], timeout_s: float, stall_s: float) -> None:
        attempt_s = max(timeout_s / 3, min(timeout_s, 5.0))
        still_s = min(60.0, stall_s)
        build = {"s3": _s3, "gs": _gcs, "az": _azure}[address.scheme]
        try:
            self.small = build(address, environ, _limits(attempt_s, retries=0))
            self.bulk = build(address, environ, _limits(stall_s / 2, retries=6, retry_s=stall_s / 2))
            self.stream = build(address, environ, _limits(_DAY_S, retries=1, still_s=still_s))
            self.create, self.bulk_create = self.small, self.bulk
            if address.scheme == "s3":
                self.create = _s3(address, environ, _limits(attempt_s, retries=0), checksum="SHA256")
                self.bulk_create = _s3(address, environ, _limits(stall_s / 2, retries=0), checksum="SHA256")
        except (StoreDeniedError, InvalidInputError):
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise InvalidInputError(f"{address.url}: the client cannot be set up: {reason}") from error


def _limits(timeout_s: float, *, retries: int, retry_s: float = 30.0, still_s: float = 0.0) -> dict[str, Any]:
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
        "user_agent": f"holdfast/{__version__}",
    }
    if still_s:
        client["read_timeout"] = timedelta(seconds=still_s)
    backoff = {
        "init_backoff": timedelta(seconds=REQUEST_BACKOFF.first_s),
        "max_backoff": timedelta(seconds=REQUEST_BACKOFF.longest_s),
        "base": REQUEST_BACKOFF.factor,
    }
    retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=retry_s), "backoff": backoff}
    return {"client_options": client, "retry_config": retry}


def _obstore() -> Any:
    # Not by an import statement: the constructors' many typed settings are put together as plain dictionaries here.
    return import_module("obstore.store")


def _prefix(address: Address) -> dict[str, str]:
    return {"prefix": address.path} if address.path else {}


def _allow_http(limits: dict[str, Any], address: Address, environ: Mapping[str, str], endpoint: str) -> None:
    """Permit plain HTTP where it was asked for: by the URL, by the endpoint's own scheme, or by the environment."""
    said = any(environ.get(f"{cloud}_ALLOW_HTTP", "").lower() == "true" for cloud in ("AWS", "GOOGLE", "AZURE"))
    if said or address.allow_http or endpoint.startswith("http://"):
        limits["client_options"]["allow_http"] = True


def s3_endpoint(address: Address, environ: Mapping[str, str]) -> str:
    """Return the server to talk to, or "" for Amazon's own."""
    return address.endpoint or environ.get("AWS_ENDPOINT_URL_S3", "") or environ.get("AWS_ENDPOINT_URL", "")


def s3_region(address: Address, environ: Mapping[str, str]) -> str:
    """Return the region that requests are signed for, or "" if nobody has said one."""
    return address.option("region") or environ.get("AWS_REGION", "") or environ.get("AWS_DEFAULT_REGION", "")


def _s3(address: Address, environ: Mapping[str, str], limits: dict[str, Any], checksum: str = "") -> Any:
    config: dict[str, Any] = {"checksum_algorithm": checksum} if checksum else {}
    endpoint = s3_endpoint(address, environ)
    if endpoint:
        # The service's own variable would win over the URL otherwise.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
    if address.option("path_style") == "false":
        config["virtual_hosted_style_request"] = True
        if endpoint:
            config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint.replace("://", f"://{address.bucket}.", 1)
    client = limits["client_options"]
    _allow_http(limits, address, environ, endpoint)
    if environ.get("AWS_CA_BUNDLE"):
        with open(environ["AWS_CA_BUNDLE"], "rb") as file:
            client["root_certificate"] = file.read()
    provider = None
    if address.switch("anonymous"):
        config["skip_signature"] = True
    elif _needs_profile(environ):
        provider = profile_credentials(address, environ)
    region = s3_region(address, environ) or getattr(provider, "config", {}).get("region", "")
    config["region"] = region or "us-east-1"
    return _obstore().S3Store(address.bucket, **_prefix(address), config=config, credential_provider=provider, **limits)


def _needs_profile(environ: Mapping[str, str]) -> bool:
    """Tell whether credentials are in files that obstore does not read, and nowhere else."""
    if any(environ.get(name) for name in _AWS_OWN):
        return False
    if environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE"):
        return True
    home = environ.get("HOME", os.path.expanduser("~"))
    return os.path.exists(environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials"))


def profile_credentials(address: Address, environ: Mapping[str, str]) -> Any:
    """Return a provider that reads ``~/.aws`` through boto3: profiles, single sign-on, assumed roles."""
    profile = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    try:
        boto3: Any = import_module("boto3")
        provider: Any = import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError as error:
        raise StoreDeniedError(
            f"{address.url}: the credentials are in the AWS profile {profile!r}; reading it needs boto3. "
            f"Type: pip install boto3. Or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from error
    try:
        # A new session reads the files anew, which is how renewed credentials are found.
        return provider(boto3.Session())
    except Exception as error:
        raise StoreDeniedError(
            f"{address.url}: the AWS profile {profile!r} gives no credentials: {error} "
            f"Check AWS_PROFILE and ~/.aws, or log in again (aws sso login)."
        ) from error


def _gcs(address: Address, environ: Mapping[str, str], limits: dict[str, Any]) -> Any:
    config: dict[str, Any] = {}
    endpoint = address.endpoint
    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    if not endpoint and emulator:
        endpoint = emulator if "://" in emulator else f"http://{emulator}"
        config["bearer_token"] = "emulator"  # otherwise the library asks the cloud's metadata server
    if endpoint:
        config["base_url"] = endpoint.rstrip("/")
    _allow_http(limits, address, environ, endpoint)
    provider = None
    if address.switch("anonymous"):
        config["skip_signature"] = True
    elif "bearer_token" not in config and _google_kind(environ) in _GOOGLE_NEEDS_LIBRARY:
        provider = _google_library(address, _google_kind(environ))
    return _obstore().GCSStore(
        address.bucket, **_prefix(address), config=config, credential_provider=provider, **limits
    )


def _google_kind(environ: Mapping[str, str]) -> str:
    """Return what sort of credentials the file of GOOGLE_APPLICATION_CREDENTIALS holds, or ""."""
    path = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file).get("type", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _google_library(address: Address, kind: str) -> Any:
    try:
        provider: Any = import_module("obstore.auth.google").GoogleCredentialProvider
    except ImportError as error:
        raise StoreDeniedError(
            f"{address.url}: GOOGLE_APPLICATION_CREDENTIALS names credentials of type {kind!r}, which need "
            f"google-auth. Type: pip install google-auth requests."
        ) from error
    return provider()


def _azure(address: Address, environ: Mapping[str, str], limits: dict[str, Any]) -> Any:
    config = _azure_settings(environ)
    if address.option("account"):
        config["account_name"] = address.option("account")
    if address.endpoint:
        config["endpoint"] = address.endpoint
    if address.switch("anonymous"):
        config["skip_signature"] = True
    emulator = environ.get("AZURITE_BLOB_STORAGE_URL", "http://") if config.get("use_emulator") else ""
    _allow_http(limits, address, environ, emulator or str(config.get("endpoint", "")))
    return _obstore().AzureStore(address.bucket, **_prefix(address), config=config, **limits)


def _azure_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the variables that Azure's own tools know and obstore does not."""
    config: dict[str, Any] = {}
    if environ.get("AZURITE_BLOB_STORAGE_URL"):  # obstore reads the URL by itself
        return {"use_emulator": True, "account_name": environ.get("AZURE_STORAGE_ACCOUNT_NAME", _EMULATOR_ACCOUNT)}
    for name, keys in (
        ("account_name", ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")),
        ("account_key", ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")),
        ("sas_key", ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")),
        ("endpoint", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
    ):
        found = next((environ[key] for key in keys if environ.get(key)), "")
        if found:
            config[name] = found
    fields = dict(
        field.split("=", 1) for field in environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";") if "=" in field
    )
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        return {"use_emulator": True}
    for name, key in (
        ("account_name", "AccountName"),
        ("account_key", "AccountKey"),
        ("sas_key", "SharedAccessSignature"),
        ("endpoint", "BlobEndpoint"),
    ):
        if fields.get(key):
            config[name] = fields[key]
    return config
