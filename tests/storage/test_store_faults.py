"""A bucket behind a network that fails: what is repeated, what is refused, what is never lost."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from holdfast.errors import ObjectMissingError, StoreDeniedError, StoreUnreachableError, UnsafeStoreError
from holdfast.storage.probe import probe
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending, create_once
from servers.faults import Answer, Cut, DropAnswer, Throttle
from servers.process import poll

MB = 1024 * 1024
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"


def use_all_verbs(store: Any) -> None:
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert store.stat("a").size == 1
    assert [found.key for found in store.list("")] == ["a"]
    store.delete(["a", "b"])
    assert store.stat("a") is None


@pytest.mark.parametrize(
    "fault", [Answer(503, SLOW_DOWN), Answer(429), Answer(500), Answer(408), Cut("before"), Cut("after"), DropAnswer()]
)
def test_every_verb_gets_over_a_failure_that_passes(proxied: Callable[..., Any], fault: Any) -> None:
    store, proxy = proxied()
    for method in ("PUT", "GET", "HEAD", "POST"):
        proxy.rule(fault, method=method, times=2)
    use_all_verbs(store)


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_lost_answer_to_a_create_is_known_as_ones_own(proxied: Callable[..., Any], ending: Any) -> None:
    store, proxy = proxied()
    proxy.rule(DropAnswer(ending=ending), method="PUT", nth=1)
    assert create_once(store, "parts/1", b"unique") is None
    assert store.get("parts/1") == b"unique"
    assert [request.server_status for request in proxy.matching(method="PUT")] == [200, 412]


@pytest.mark.parametrize("nth", [1, 2, {1, 2, 3}])
def test_lost_answers_do_not_fool_the_probe(proxied: Callable[..., Any], nth: Any) -> None:
    store, proxy = proxied()
    proxy.rule(DropAnswer(), method="PUT", nth=nth)
    probe(store)


def test_lost_answers_do_not_hide_a_store_that_overwrites(proxied: Callable[..., Any]) -> None:
    store, proxy = proxied("rclone")
    proxy.rule(DropAnswer(), method="PUT", times=3)
    with pytest.raises(UnsafeStoreError):
        probe(store)


def replace(store: Any, path: Path, content: bytes, version: str) -> Replaced:
    path.write_bytes(content)
    [replaced] = store.replace([Replacing(str(path), "file", version)])
    return Replaced(*replaced)


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_lost_answer_to_a_replacement_is_told_as_an_unexpected_version(
    proxied: Callable[..., Any], tmp_path: Path, ending: Any
) -> None:
    store, proxy = proxied()
    version = replace(store, tmp_path / "file", b"one", ABSENT).version
    rule = proxy.rule(DropAnswer(ending=ending), method="PUT", path="/file$", times=1)
    done, found = replace(store, tmp_path / "file", b"two", version)
    assert rule.hits == 1
    assert (done, found) == (False, store.stat("file").version)
    assert store.get("file") == b"two"
    assert replace(store, tmp_path / "file", b"three", found).done


def test_a_server_that_wants_no_condition_gets_none(proxied: Callable[..., Any], tmp_path: Path) -> None:
    """Its files are as safe as the look before each upload, which is better than no files at all."""
    store, proxy = proxied()
    refusal = Answer(501, b"<Error><Code>NotImplemented</Code></Error>")
    rule = proxy.rule(refusal, when=lambda request: "if-match" in request.headers)
    version = replace(store, tmp_path / "file", b"one", ABSENT).version
    assert replace(store, tmp_path / "file", b"two", version) == Replaced(True, ANY)
    assert store.get("file") == b"two"
    assert store.stat("file").version == ANY
    assert replace(store, tmp_path / "file", b"three", ANY) == Replaced(True, ANY)
    assert rule.hits == 1


def test_a_refusal_for_another_reason_is_never_repeated_without_the_condition(
    proxied: Callable[..., Any], tmp_path: Path
) -> None:
    """As when a driver wakes whose credentials have expired, and whose file is somebody else's now."""
    store, proxy = proxied()
    version = replace(store, tmp_path / "file", b"mine", ABSENT).version
    store.put("file", b"theirs")
    proxy.forget()
    proxy.rule(Answer(400, b"<Error><Code>ExpiredToken</Code></Error>"), method="PUT", times=1)
    with contextlib.suppress(StoreDeniedError):  # unless it was time to look for new credentials
        assert not replace(store, tmp_path / "file", b"mine, longer", version).done
    assert store.get("file") == b"theirs"
    assert all("if-match" in request.headers for request in proxy.matching(method="PUT"))


def test_two_writers_that_meet_are_sent_back(proxied: Callable[..., Any]) -> None:
    store, proxy = proxied()
    conflict = b"<Error><Code>ConditionalRequestConflict</Code><Message>Conflict.</Message></Error>"
    proxy.rule(Answer(409, conflict), method="PUT", times=2)
    assert store.create("parts/1", b"x")


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_stays_away_is_unreachable(proxied: Callable[..., Any], status: int) -> None:
    store, proxy = proxied(timeout_s=3.0, stall_s=3.0)
    proxy.rule(Answer(status, SLOW_DOWN))
    with pytest.raises(StoreUnreachableError, match=rf"put some/key: {status} SlowDown") as caught:
        store.put("some/key", b"x")
    assert store.url in str(caught.value)
    proxy.clear()
    store.put("some/key", b"x")


@pytest.mark.parametrize("kind", ["refuse", "reset", "hang"])
def test_an_outage_is_waited_for_no_longer_than_the_deadline(proxied: Callable[..., Any], kind: Any) -> None:
    store, proxy = proxied(timeout_s=3.0)
    store.put("a", b"1")
    with proxy.outage(kind):
        for call in (lambda: store.put("a", b"2"), lambda: store.create("b", b""), lambda: store.list("")):
            with pytest.raises(StoreUnreachableError, match=str(store.url)):
                call()
    # What hung continues to the server now, although its client has given up.
    poll(lambda: all(request.ended for request in proxy.requests), 20, "the end of the requests that hung")
    assert store.get("a") in (b"1", b"2")
    store.put("a", b"3")
    assert store.get("a") == b"3"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_at_once_and_not_repeated(proxied: Callable[..., Any], status: int) -> None:
    store, proxy = proxied()
    proxy.rule(Answer(status, DENIED))
    for call in (lambda: store.put("some/key", b"x"), lambda: store.list(""), lambda: store.delete(["a", "b"])):
        proxy.forget()
        with pytest.raises(StoreDeniedError, match=r"AccessDenied Access Denied.*permissions"):
            call()
        assert len(proxy.requests) <= 2  # once more with credentials that were looked for anew


def test_a_name_that_cannot_be_resolved_is_unreachable(opened: Callable[..., Any], monkeypatch: Any) -> None:
    from holdfast.storage.options import StoreOptions

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = opened("s3://bucket/x?endpoint_url=http://no-such-host.invalid", options=StoreOptions(timeout_s=3.0))
    with pytest.raises(StoreUnreachableError, match=r"no-such-host\.invalid.*lookup"):
        store.put("a", b"")


def write(path: Path, size: int) -> str:
    data = random.Random(path.name).randbytes(size)
    path.write_bytes(data)
    return xxhash.xxh3_128_hexdigest(data)


@pytest.mark.parametrize(
    ("fault", "which"),
    [
        (Answer(503, SLOW_DOWN), {"method": "PUT", "times": 3}),
        (Answer(503, SLOW_DOWN), {"method": "POST", "times": 2}),
        (Cut("while", body_bytes=MB), {"method": "PUT", "nth": {2, 4}}),
        (Cut("while", body_bytes=MB, ending="reset"), {"method": "PUT", "nth": {2, 4}}),
        (DropAnswer(), {"method": "PUT", "nth": {1, 3}}),
        (DropAnswer(), {"method": "POST", "path": "uploads", "times": 1}),
        (DropAnswer(), {"method": "POST", "path": "uploadId", "times": 1}),
        (DropAnswer(ending="reset"), {"method": "POST", "path": "uploadId", "times": 1}),
    ],
)
def test_an_upload_in_parts_gets_over_failures(proxied: Any, tmp_path: Path, fault: Any, which: Any) -> None:
    store, proxy = proxied()
    digest = write(tmp_path / "big", 40 * MB)
    rule = proxy.rule(fault, **which)
    assert store.send([Sending(str(tmp_path / "big"), "big")]) == [digest]
    assert rule.hits
    assert store.fetch([Fetching("big", str(tmp_path / "back"))]) == [digest]


@pytest.mark.parametrize("size", [MB, 48 * MB])
@pytest.mark.parametrize(
    "fault", [Answer(503), Cut("before"), DropAnswer(body_bytes=0), DropAnswer(body_bytes=MB // 2, ending="reset")]
)
def test_a_torn_download_is_begun_again(proxied: Callable[..., Any], tmp_path: Path, fault: Any, size: int) -> None:
    store, proxy = proxied()
    digest = write(tmp_path / "file", size)
    store.send([Sending(str(tmp_path / "file"), "file")])
    rule = proxy.rule(fault, method="GET", nth={1, 3, 4})
    assert store.fetch([Fetching("file", str(tmp_path / "back"))]) == [digest]
    assert rule.hits
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "file"]


def test_transfers_stop_when_nothing_moves(proxied: Callable[..., Any], tmp_path: Path) -> None:
    store, proxy = proxied(timeout_s=1.0, stall_s=2.0)
    digest = write(tmp_path / "big", 40 * MB)
    files = [Sending(str(tmp_path / "big"), "big")]
    with proxy.outage("hang"), pytest.raises(StoreUnreachableError, match="send big"):
        store.send(files)
    assert store.send(files) == [digest]
    with proxy.outage("refuse"), pytest.raises(StoreUnreachableError, match="fetch big"):
        store.fetch([Fetching("big", str(tmp_path / "back"))])
    with proxy.outage("refuse"), pytest.raises(StoreUnreachableError, match="send big"):
        store.send(files)


def test_a_slow_network_is_waited_for(proxied: Callable[..., Any], tmp_path: Path) -> None:
    store, proxy = proxied(timeout_s=1.0)
    digest = write(tmp_path / "slow", 24 * MB)
    proxy.rule(Throttle(6 * MB))
    assert store.send([Sending(str(tmp_path / "slow"), "slow")]) == [digest]
    assert store.fetch([Fetching("slow", str(tmp_path / "back"))]) == [digest]


def test_one_failed_file_fails_all_and_says_which(proxied: Callable[..., Any], tmp_path: Path) -> None:
    store, proxy = proxied()
    files = []
    for number in range(40):
        write(tmp_path / str(number), 1600)
        files.append(Sending(str(tmp_path / str(number)), f"dir/{number}"))
    proxy.rule(Answer(403, DENIED), method="PUT", path=r"dir/7$")
    with pytest.raises(StoreDeniedError, match="send dir/7"):
        store.send(files)
    proxy.clear()
    store.send(files)
    with pytest.raises(ObjectMissingError, match="dir/nope"):
        store.fetch([Fetching("dir/nope", str(tmp_path / "x")), Fetching("dir/1", str(tmp_path / "y"))])
