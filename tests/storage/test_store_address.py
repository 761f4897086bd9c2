"""Addresses: what a URL means, and what a wrong one is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.storage.address import is_remote, parse


@pytest.mark.parametrize(
    ("text", "scheme", "bucket", "path"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://bucket/a/b/", "s3", "bucket", "a/b"),
        ("S3A://bucket//a//b", "s3", "bucket", "a/b"),
        ("gs://bucket/a b", "gs", "bucket", "a b"),
        ("gcs://bucket/50%25", "gs", "bucket", "50%25"),
        ("az://box/a", "az", "box", "a"),
        ("azure://box/a", "az", "box", "a"),
        ("abfs://box/a#1", "az", "box", "a#1"),
    ],
)
def test_a_url_names_bucket_and_prefix(text: str, scheme: str, bucket: str, path: str) -> None:
    address = parse(text)
    assert (address.scheme, address.bucket, address.path) == (scheme, bucket, path)
    assert parse(str(address)) == address
    assert is_remote(text)


def test_options_are_remembered_in_every_spelling() -> None:
    address = parse("s3://b/p?scheme=http&endpoint_override=localhost%3A9000&region=eu&path_style=1&anonymous")
    assert address.endpoint == "http://localhost:9000"
    assert address.allow_http
    assert address.option("region") == "eu"
    assert address.switch("path_style")
    assert address.switch("anonymous")
    assert parse(str(address)) == address
    assert parse("s3://b/p?endpoint_url=https://host/").endpoint == "https://host"
    assert not parse("s3://b/p?endpoint_url=https://host/").allow_http


def test_an_account_may_stand_before_the_path() -> None:
    address = parse("abfss://box@acc.dfs.core.windows.net/a/b")
    assert (address.bucket, address.path, address.option("account")) == ("box", "a/b", "acc")
    assert str(address) == "az://box/a/b?account=acc"


def test_plain_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    assert parse(tmp_path).path == str(tmp_path)
    assert parse(f"file://{tmp_path}/a%20b").path == f"{tmp_path}/a b"
    assert parse("relative").path == str(Path.cwd() / "relative")
    assert str(parse(tmp_path) / "a") == f"{tmp_path}/a"
    assert parse(tmp_path).is_local
    assert not is_remote(tmp_path)
    assert not is_remote("file:///x")


def test_names_are_added_with_a_slash() -> None:
    assert str(parse("s3://b?region=eu") / "x" / "y/z") == "s3://b/x/y/z?region=eu"
    with pytest.raises(InvalidInputError, match=r"'\.\.'"):
        parse("s3://b") / "../x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hdfs://host/x", r"'hdfs://' is not known.*s3://.*storage_filesystem"),
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("s3://b/x?regio=eu", "'regio' is not known.*region"),
        ("s3://b/x?anonymous=maybe", "neither 'true' nor 'false'"),
        ("s3://b/x?scheme=ftp", "neither 'http' nor 'https'"),
        ("s3://key:secret@b/x", "Credentials do not belong"),
        ("file://host/x", "three slashes"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


def test_something_else_than_a_path_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="not int"):
        parse(3)  # type: ignore[arg-type]
