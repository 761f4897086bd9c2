"""Credentials: where they are looked for, and that renewed ones are found in the middle of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreDeniedError, StoreUnreachableError
from holdfast.storage import agent_client
from holdfast.storage.clients import _azure_settings
from holdfast.storage.options import StoreOptions
from servers.faults import Answer

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def refuse(proxy: Any, secret: str, status: int = 400) -> Any:
    """Let the server refuse whatever was signed with these credentials."""
    return proxy.rule(Answer(status, EXPIRED), when=lambda request: secret in str(request.headers))


@pytest.mark.parametrize("status", [400, 403])
def test_an_expired_token_is_refused_with_advice(proxied: Any, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-one")
    store, proxy = proxied("moto")
    refuse(proxy, "token-one", status)
    with pytest.raises(StoreDeniedError, match=r"ExpiredToken.*renew it"):
        store.put("a", b"1")


def test_new_values_in_the_environment_are_picked_up(proxied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-one")
    store, proxy = proxied("moto")
    store.put("a", b"1")
    first = agent_client.agent_pid()
    refuse(proxy, "token-one")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-two")
    store.put("a", b"2")
    assert store.get("a") == b"2"
    assert agent_client.agent_pid() != first


def write_profile(path: Path, key: str) -> None:
    path.write_text(f"[lab]\naws_access_key_id = {key}\naws_secret_access_key = secret-{key}\n")


def use_profile(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))


def test_a_renewed_profile_is_picked_up(proxied: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    store, proxy = proxied("moto")
    write_profile(tmp_path / "profile", "KEYONE")
    use_profile(monkeypatch, tmp_path / "profile")
    store.put("a", b"1")
    assert "KEYONE" in proxy.requests[-1].headers["authorization"]
    refuse(proxy, "KEYONE")
    with pytest.raises(StoreDeniedError):
        store.put("a", b"2")
    write_profile(tmp_path / "profile", "KEYTWO")
    deadline = time.monotonic() + 20
    while True:  # files are not read more often than once a second
        try:
            store.put("a", b"3")
            break
        except StoreDeniedError:
            assert time.monotonic() < deadline
    assert store.get("a") == b"3"
    assert "KEYTWO" in proxy.requests[-1].headers["authorization"]


def test_a_profile_without_boto3_names_the_package(
    bucket_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = bucket_of("moto")
    write_profile(tmp_path / "profile", "KEYONE")
    use_profile(monkeypatch, tmp_path / "profile")
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "boto3.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    with pytest.raises(StoreDeniedError, match=r"profile 'lab'.*pip install boto3"):
        store.put("a", b"1")


def test_a_profile_that_is_not_there_is_named(bucket_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    store = bucket_of("moto")
    use_profile(monkeypatch, tmp_path / "nothing")
    with pytest.raises(StoreDeniedError, match="'lab' gives no credentials"):
        store.put("a", b"1")


def test_no_credentials_at_all_is_a_refusal_that_says_where_to_put_them(
    opened: Any, fault_proxy: Any, monkeypatch: Any
) -> None:
    nobody = fault_proxy("http://127.0.0.1:9")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{nobody.endpoint}/169.254.169.254")
    store = opened(f"s3://bucket/x?endpoint_url={nobody.endpoint}")
    with pytest.raises(StoreDeniedError, match=r"No credentials were found.*AWS_ACCESS_KEY_ID"):
        store.put("a", b"")


def test_anonymous_requests_are_not_signed(moto: Any, fault_proxy: Any, opened: Any, bucket_name: str) -> None:
    proxy = fault_proxy(moto.endpoint)
    moto.bucket(bucket_name)
    opened(f"s3://{bucket_name}/x?endpoint_url={proxy.endpoint}&anonymous=true").list("")
    assert "authorization" not in proxy.requests[-1].headers


def test_the_region_of_the_url_is_signed_for(
    moto: Any, fault_proxy: Any, bucket_of: Any, opened: Any, bucket_name: str
) -> None:
    bucket_of("moto")
    proxy = fault_proxy(moto.endpoint)
    opened(f"s3://{bucket_name}/x?endpoint_url={proxy.endpoint}&region=eu-west-7").list("")
    assert "/eu-west-7/s3/" in proxy.requests[-1].headers["authorization"]


def test_emulators_are_found_by_the_variables_of_their_clouds(
    gcs: Any, opened: Any, bucket_name: str, monkeypatch: Any
) -> None:
    gcs.bucket(bucket_name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint.removeprefix("http://"))
    store = opened(f"gs://{bucket_name}/x")
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_connection_string_is_understood(azurite: Any, opened: Any, bucket_name: str, monkeypatch: Any) -> None:
    azurite.bucket(bucket_name)
    fields = {"DefaultEndpointsProtocol": "http", "AccountName": azurite.account, "AccountKey": azurite.key}
    fields["BlobEndpoint"] = azurite.endpoint
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", ";".join(f"{name}={value}" for name, value in fields.items()))
    store = opened(f"az://{bucket_name}/x")
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_the_emulator_of_azure_is_understood() -> None:
    assert _azure_settings({"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}) == {"use_emulator": True}
    assert _azure_settings({"AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:10000"})["use_emulator"]
    assert _azure_settings({"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"}) == {
        "account_name": "a",
        "account_key": "k",
    }


def test_a_bucket_may_be_part_of_the_host(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = "s3://bucket/x?endpoint_url=http://no-such-host.invalid&path_style=false"
    with pytest.raises(StoreUnreachableError, match=r"http://bucket\.no-such-host\.invalid/"):
        opened(url, options=StoreOptions(timeout_s=3.0)).list("")
