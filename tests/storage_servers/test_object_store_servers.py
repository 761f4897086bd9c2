"""Each object store server against the real client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servers.azurite import Azurite
from servers.fault_proxy import FaultProxy
from servers.gcs import GCS
from servers.install import Unavailable
from servers.moto import Moto
from servers.process import Server
from servers.rclone import Rclone
from servers.seaweedfs import SeaweedFS

obstore = pytest.importorskip("obstore", reason="obstore is not installed: `make servers` installs it")
from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: E402

KINDS = ("seaweedfs", "moto", "rclone", "azurite", "gcs")
CONDITIONAL = tuple(kind for kind in KINDS if kind != "rclone")
# Retries of the client would hide what the server did.
IMPATIENT = {"retry_config": {"max_retries": 0}}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_what_was_put_is_got_listed_and_deleted(server: Any, bucket_name: str) -> None:
    store = server.store(server.bucket(bucket_name))
    store.put("trial/checkpoint/file", b"content")
    assert bytes(store.get("trial/checkpoint/file").bytes()) == b"content"
    assert [found["path"] for found in store.list("trial").collect()] == ["trial/checkpoint/file"]
    store.delete("trial/checkpoint/file")
    with pytest.raises(FileNotFoundError):
        store.get("trial/checkpoint/file")


@pytest.mark.parametrize("server", CONDITIONAL, indirect=True)
def test_second_create_of_a_key_is_refused(server: Any, bucket_name: str) -> None:
    store = server.store(server.bucket(bucket_name))
    store.put("key", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("key", b"second", mode="create")
    assert bytes(store.get("key").bytes()) == b"first"
    assert server.conditional_puts


@pytest.mark.parametrize("server", CONDITIONAL, indirect=True)
def test_update_of_a_version_that_is_gone_is_refused(server: Any, bucket_name: str) -> None:
    store = server.store(server.bucket(bucket_name))
    seen = store.put("key", b"first")
    version = {name: value for name, value in seen.items() if value is not None}
    store.put("key", b"second", mode=version)
    with pytest.raises(PreconditionError):
        store.put("key", b"third", mode=version)
    assert bytes(store.get("key").bytes()) == b"second"


@pytest.mark.parametrize("server", CONDITIONAL, indirect=True)
def test_one_of_many_simultaneous_creates_wins(server: Any, bucket_name: str) -> None:
    store = server.store(server.bucket(bucket_name))
    barrier = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        barrier.wait()
        try:
            store.put("key", b"%d" % number, mode="create")
        except AlreadyExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert bytes(store.get("key").bytes()) == b"%d" % won[0]


def test_rclone_overwrites_in_spite_of_the_condition(rclone: Rclone, bucket_name: str) -> None:
    store = rclone.store(rclone.bucket(bucket_name))
    store.put("key", b"first", mode="create")
    store.put("key", b"second", mode="create")
    assert bytes(store.get("key").bytes()) == b"second"
    assert not rclone.conditional_puts


@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_multipart_upload_arrives_whole(server: Any, bucket_name: str) -> None:
    store = server.store(server.bucket(bucket_name))
    content = bytes(range(256)) * 4096 * 12
    store.put("large", content, chunk_size=5 * 1024 * 1024)
    assert bytes(store.get("large").bytes()) == content


@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_a_signed_request_passes_through_the_proxy(
    server: Any, bucket_name: str, fault_proxy: Callable[..., FaultProxy]
) -> None:
    proxy = fault_proxy(server.endpoint)
    store = server.store(server.bucket(bucket_name), endpoint=proxy.endpoint)
    store.put("a key with spaces", b"content", mode="overwrite")
    assert bytes(store.get("a key with spaces").bytes()) == b"content"
    assert {request.status for request in proxy.requests} <= {200, 201}


@pytest.mark.parametrize("server", ["seaweedfs", "rclone", "azurite"], indirect=True)
def test_a_wrong_secret_is_refused(server: Any, bucket_name: str) -> None:
    bucket = server.bucket(bucket_name)
    wrong = type(server)(server.directory)
    wrong.secret_key = wrong.key = "d3Jvbmctc2VjcmV0"
    with pytest.raises(obstore.exceptions.BaseError):
        wrong.store(bucket, endpoint=server.endpoint, **IMPATIENT).put("key", b"content")


@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_the_environment_is_enough_for_a_client(server: Any, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = server.bucket(bucket_name)
    client = type(server.store(bucket))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client(bucket).put("key", b"content")
    assert bytes(server.store(bucket).get("key").bytes()) == b"content"


@pytest.mark.parametrize("kind", [SeaweedFS, Rclone, Azurite, GCS])
def test_stop_and_start_keep_port_and_data(kind: Callable[[Path], Server], tmp_path: Path) -> None:
    server: Any = kind(tmp_path)
    with started(server):
        endpoint = server.endpoint
        store = server.store(server.bucket("bucket"), **IMPATIENT)
        store.put("key", b"content")
        server.stop()
        assert not server.running
        with pytest.raises(obstore.exceptions.BaseError):
            store.get("key")
        server.start()
        assert server.endpoint == endpoint
        store.put("new", b"newer")
        server.store(server.bucket("another"), **IMPATIENT).put("key", b"other")
        assert bytes(store.get("key").bytes()) == b"content"
        assert bytes(store.get("new").bytes()) == b"newer"
        assert server.durable


def test_moto_forgets_everything_when_it_stops(tmp_path: Path) -> None:
    server = Moto(tmp_path)
    with started(server):
        store = server.store(server.bucket("bucket"), **IMPATIENT)
        store.put("key", b"content")
        server.stop()
        server.start()
        with pytest.raises(FileNotFoundError):
            store.get("key")
        assert not server.durable


def test_a_paused_server_answers_after_it_is_resumed(tmp_path: Path) -> None:
    server = Rclone(tmp_path)
    with started(server):
        store = server.store(server.bucket("bucket"))
        answers: list[bytes] = []
        store.put("key", b"content")
        server.pause()
        asking = threading.Thread(target=lambda: answers.append(bytes(store.get("key").bytes())))
        asking.start()
        asking.join(0.2)
        assert answers == []
        server.resume()
        asking.join(10)
        assert answers == [b"content"]


def test_gcs_listing_continues_over_pages_and_groups(gcs: GCS, bucket_name: str) -> None:
    store = gcs.store(gcs.bucket(bucket_name))
    names = [f"trial-{number:04}/file" for number in range(1100)]
    for name in names:
        store.put(name, b"")
    assert [found["path"] for found in store.list().collect()] == names
    found = store.list_with_delimiter()
    assert found["common_prefixes"] == [name.partition("/")[0] for name in names]
    assert list(found["objects"]) == []


def started(server: Server) -> Server:
    try:
        return server.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
