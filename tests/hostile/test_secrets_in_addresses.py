"""A password in an address is refused, and neither shown nor stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.storage.address import _SCHEMES, parse
from holdfast.storage.store_failures import classify

SECRET = "hunter2hunter2"
ADDRESSES = [
    f"s3://AKIAKEY:{SECRET}@bucket/runs",
    f"s3://AKIAKEY:ab/{SECRET}@bucket/runs",
    f"s3://AKIAKEY:{SECRET}%40bucket/runs",
    f"s3a://{SECRET}@bucket/runs",
    f"gs://user:{SECRET}@bucket/runs",
    f"abfss://container:{SECRET}@account.dfs.core.windows.net/runs",
    f"hdfs://user:{SECRET}@namenode:8020/runs",
    f"ftp://user:{SECRET}@host/runs",
    f"s3://bucket/runs?secret_access_key={SECRET}",
    f"s3://bucket/runs?AWS_SECRET_ACCESS_KEY={SECRET}",
    f"s3://bucket/runs?session_token={SECRET}",
    f"az://container/runs?sig={SECRET}",
    f"az://container/runs?account_key={SECRET}",
    f"s3://bucket/runs?endpoint_url=https://user:{SECRET}@host:9000",
    f"s3://bucket/runs?endpoint_override=user:{SECRET}@host:9000",
    f"s3://bucket/runs?endpoint_url=https%3A%2F%2Fuser%3A{SECRET}%40host",
    f"s3://bucket/runs?endpoint_url=http://host:9000/?token={SECRET}",
    f"s3://bucket/runs?endpoint_url=http%3A%2F%2Fhost%3A9000%2F%3Ftoken%3D{SECRET}",
    f"s3://bucket/runs?endpoint_override=host:9000/%23{SECRET}",
    f"s3://bucket/runs?endpoint=host:9000/;x={SECRET}",
    f"s3://bucket/runs?region={SECRET}@",
    f"file://user:{SECRET}@host/runs",
    f"s3://bucket/runs?colour={SECRET}",
]
WITHOUT_SLASHES = [
    f"s3:/user:{SECRET}@bucket/runs",
    f"s3:user:{SECRET}@bucket/runs",
    f"S3:{SECRET}@bucket/runs",
    f" gs:/{SECRET}@bucket/runs",
    f"s3:\\user:{SECRET}@bucket/runs",
    f"file:/user:{SECRET}@host/runs",
    f"s3:/bucket/runs?secret={SECRET}",
    f"s3:/bucket/runs#{SECRET}",
]
FOLLOWED = [f"s3://bucket/runs#token={SECRET}", f"gs://bucket/runs;token={SECRET}", f"az://c/x;a=b#sig={SECRET}"]
FINE = [
    "s3://bucket/runs",
    "s3://bucket/a@b/c:d",
    "s3://bucket/runs?endpoint_url=http://localhost:9000&region=eu-west-1",
    "s3://bucket/runs?endpoint_override=minio:9000&scheme=http",
    "s3://bucket/runs?endpoint_url=http://[::1]:9000",
    "abfss://container@account.dfs.core.windows.net/runs",
    "gs://bucket",
    "file:///data/a@b/c",
    "file:///data/run#1;a=b",
    "./s3:/bucket",
    "/data/s3:/bucket",
    "s3://bucket/a;b",
    "/data/user:secret@host/runs",
]


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        call()
    error: BaseException | None = caught.value
    told = ""
    while error is not None:
        told += f"{error} {error!r} {error.args} "
        error = error.__cause__ or error.__context__
    assert SECRET not in told
    return told


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_secret_is_refused_without_being_shown(address: str) -> None:
    told = refusal(lambda: parse(address))
    assert "storage_path" in told


@pytest.mark.parametrize("address", ADDRESSES[:-2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_settings_refuse_it_before_anything_is_made(address: str, tmp_path: Path) -> None:
    assert "storage_path" in refusal(lambda: tune.RunConfig(storage_path=address))
    assert "local_dir" in refusal(lambda: tune.RunConfig(local_dir=address))
    assert "upload_dir" in refusal(lambda: tune.SyncConfig(upload_dir=address))
    assert "upload_dir" in refusal(lambda: tune.SyncConfig(upload_dir=address, syncer="cp -r {source} {target}"))
    config = tune.RunConfig(storage_path=str(tmp_path))
    refusal(lambda: setattr(config, "storage_path", address))
    assert config.storage_path == str(tmp_path)
    assert SECRET not in repr(config)


@pytest.mark.parametrize("address", ADDRESSES)
def test_restoring_and_reading_refuse_it(address: str) -> None:
    refusal(lambda: tune.Tuner.restore(address))
    refusal(lambda: tune.Tuner.can_restore(address))
    refusal(lambda: tune.ResultGrid.from_path(address))
    refusal(lambda: tune.Checkpoint(address).to_dict())


@pytest.mark.parametrize("address", WITHOUT_SLASHES + FOLLOWED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_only_nearly_an_address_is_refused_without_being_shown(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "storage_path" in refusal(lambda: tune.RunConfig(storage_path=address))
    assert "local_dir" in refusal(lambda: tune.RunConfig(local_dir=address))
    assert "upload_dir" in refusal(lambda: tune.SyncConfig(upload_dir=address))
    refusal(lambda: parse(address))
    refusal(lambda: tune.Tuner.restore(address))
    refusal(lambda: tune.ResultGrid.from_path(address))
    refusal(lambda: tune.Checkpoint(address).to_dict())
    monkeypatch.setenv("HOLDFAST_STORAGE", address)
    assert "HOLDFAST_STORAGE" in refusal(tune.RunConfig)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("scheme", sorted(_SCHEMES))
def test_one_slash_is_refused_with_what_was_meant(scheme: str) -> None:
    meant = "file:///data/runs" if scheme == "file" else f"{scheme}://data/runs"
    with pytest.raises(InvalidInputError, match=f"two slashes have to follow: {meant}"):
        tune.RunConfig(storage_path=f"{scheme}:/data/runs")


@pytest.mark.parametrize("address", ["s3://bucket/runs#hunter2", "s3://bucket/runs;a=hunter2?region=x"])
def test_a_new_experiment_is_given_no_fragment(address: str) -> None:
    with pytest.raises(InvalidInputError, match="mean nothing to a store") as refused:
        tune.RunConfig(storage_path=address)
    assert "hunter2" not in str(refused.value)


def test_a_syncer_of_ones_own_may_have_addresses_without_slashes() -> None:
    address = "s3:bucket/runs"  # as rclone names a remote
    assert tune.SyncConfig(upload_dir=address, syncer="rclone copy {source} {target}").upload_dir == address


@pytest.mark.parametrize("command", ["status", "show", "verify", "repair", "resume", "gc", "list"])
@pytest.mark.parametrize("address", ADDRESSES[:2] + ADDRESSES[8:9] + ADDRESSES[13:14] + WITHOUT_SLASHES[:3] + FOLLOWED)
def test_no_command_shows_it(
    command: str, address: str, holdfast: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = holdfast(command, address)
    assert answer.code == 2
    assert SECRET not in answer.said + caplog.text


def test_copy_and_export_show_nothing_either(holdfast: Callable[..., Any], tmp_path: Path) -> None:
    for line in (
        ("copy", ADDRESSES[0], tmp_path / "x"),
        ("copy", tmp_path, ADDRESSES[0]),
        ("export", ADDRESSES[0], "x.csv"),
    ):
        answer = holdfast(*line)
        assert answer.code == 2
        assert SECRET not in answer.said
    assert not (tmp_path / "x").exists()


def test_a_default_from_the_environment_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", ADDRESSES[0])
    assert "HOLDFAST_STORAGE" in refusal(tune.RunConfig)


def test_a_failing_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    refusal(lambda: tune.Tuner(len, run_config=tune.RunConfig(storage_path=ADDRESSES[0])).fit())
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("address", FINE)
def test_addresses_without_secrets_are_taken(address: str) -> None:
    parse(address)
    tune.RunConfig(storage_path=address)


def test_a_server_named_with_a_password_in_the_environment_is_not_shown() -> None:
    said = classify(RuntimeError(f"error sending request for url (http://user:{SECRET}@host/bucket)"), "list", "s3://b")
    assert SECRET not in str(said)
    assert "host/bucket" in str(said)
