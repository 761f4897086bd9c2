"""The agent process: it dies with its driver, its driver does not die with it, and forks cannot hurt either."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash

from holdfast.errors import ForkedStorageError, InvalidInputError, StoreUnreachableError
from holdfast.storage import agent_client, agent_link
from holdfast.storage.store import Fetching, Sending, create_once

MB = 1024 * 1024


def poll(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def agent() -> int:
    pid = agent_client.agent_pid()
    assert pid is not None
    return pid


def test_the_driver_never_imports_the_client_library() -> None:
    code = (
        "import sys, holdfast, holdfast.storage.agent_client as client; client.connect('/tmp/x');"
        "assert not {'obstore', 'pyarrow', 'fsspec', 'boto3', 'cloudpickle'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=r'pip install "holdfast\[cloud\]"'):
        agent_client.connect("s3://bucket/x")


def test_the_agent_starts_with_the_first_call_and_ends_with_the_last_store(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert agent_client.agent_pid() is None
    first.put("a", b"1")
    pid = agent()
    assert second.get("a") == b"1"
    assert agent() == pid
    first.close()
    first.close()
    assert is_alive(pid)
    second.close()
    assert not is_alive(pid)
    with pytest.raises(InvalidInputError, match="closed"):
        second.get("a")


def test_many_threads_share_one_agent(opened: Callable[..., Any], tmp_path: Path) -> None:
    store = opened(tmp_path / "store")

    def use(number: int) -> bytes:
        store.put(f"{number}", b"%d" % number * number)
        return bytes(store.get(f"{number}"))

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(use, range(200))) == [b"%d" % number * number for number in range(200)]
    assert len(store.list("")) == 200


def test_a_killed_agent_is_replaced(opened: Callable[..., Any], tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("a", b"1")
    killed = agent()
    os.kill(killed, signal.SIGKILL)
    assert store.get("a") == b"1"
    assert agent() != killed


def test_uploads_under_way_survive_the_death_of_the_agent(proxied: Callable[..., Any], tmp_path: Path) -> None:
    store, proxy = proxied()
    files, digests = [], []
    for name in ("one", "two", "three"):
        data = random.Random(name).randbytes(20 * MB)
        (tmp_path / name).write_bytes(data)
        digests.append(xxhash.xxh3_128_hexdigest(data))
        files.append(Sending(str(tmp_path / name), name))
    store.put("start", b"")
    answers: list[Any] = []
    with proxy.outage("hang"):
        threads = [threading.Thread(target=lambda file=file: answers.append(store.send([file]))) for file in files]
        for thread in threads:
            thread.start()
        proxy.wait_for(3, method="POST")
        os.kill(agent(), signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert sorted(answer[0] for answer in answers) == sorted(digests)
    assert store.fetch([Fetching("two", str(tmp_path / "back"))]) == [digests[1]]


def test_an_agent_that_dies_again_and_again_is_given_up(
    opened: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    store = opened(tmp_path)
    monkeypatch.setattr(agent_link, "_CODE", "import sys; sys.exit('no luck today')")
    with pytest.raises(StoreUnreachableError, match=r"died 4 times.*no luck today"):
        store.put("a", b"1")
    monkeypatch.undo()
    store.put("a", b"1")


def test_an_agent_that_stands_still_is_replaced(opened: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    store = opened(tmp_path / "store")
    (tmp_path / "file").write_bytes(b"x")
    store.put("a", b"1")
    stopped = agent()
    monkeypatch.setattr(agent_link, "_PING_EVERY_S", 0.05)
    begin = agent_link.AgentLink.__init__

    def begin_with_patience(self: Any, environ: Any) -> None:
        monkeypatch.setattr(agent_link, "_PING_EVERY_S", 10.0)  # the next agent may take its time to start
        begin(self, environ)

    monkeypatch.setattr(agent_link.AgentLink, "__init__", begin_with_patience)
    os.kill(stopped, signal.SIGSTOP)
    assert store.send([Sending(str(tmp_path / "file"), "file")]) == [xxhash.xxh3_128_hexdigest(b"x")]
    assert not is_alive(stopped)


def test_a_small_request_does_not_wait_for_ever(opened: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    store = opened(tmp_path)
    store.put("a", b"1")
    os.kill(agent(), signal.SIGSTOP)
    monkeypatch.setattr(agent_client, "_GRACE_S", 0.2 - store._spec.options.timeout_s)
    with pytest.raises(StoreUnreachableError, match="no answer to 'get'"):
        store.get("a")
    os.kill(agent(), signal.SIGCONT)
    monkeypatch.undo()
    assert store.get("a") == b"1"


@pytest.mark.parametrize(
    ("point", "use"),
    [
        ("store.before_create", lambda store, files: create_once(store, "x", b"unique")),
        ("store.after_create", lambda store, files: create_once(store, "x", b"unique")),
        ("store.file_sent:5", lambda store, files: len(store.send(files)) - len(files) or None),
        ("store.part_sent:2", lambda store, files: len(store.send(files)) - len(files) or None),
    ],
)
def test_crash_points_kill_the_agent_and_nothing_is_lost(
    bucket_of: Callable[..., Any], tmp_path: Path, monkeypatch: Any, point: str, use: Any
) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH", point)
    files = []
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(random.Random(number).randbytes(17 * MB if number == 0 else 10_000))
        files.append(Sending(str(tmp_path / f"{number}"), f"files/{number}"))
    store = bucket_of("seaweedfs")
    assert use(store, files) is None
    assert agent_client._agents.deaths == 1
    monkeypatch.delenv("HOLDFAST_CRASH")


@pytest.mark.parametrize("kind", ["seaweedfs", "moto"])
def test_parts_that_a_dead_agent_left_are_given_up(
    bucket_of: Callable[..., Any], tmp_path: Path, monkeypatch: Any, kind: str
) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH", "store.part_sent:2")
    (tmp_path / "big").write_bytes(bytes(30 * MB))
    store = bucket_of(kind)
    store.send([Sending(str(tmp_path / "big"), "trial/big")])
    assert store.abort_stale("other/") == 0
    poll(lambda: store.abort_stale("trial/") == 1, "the unfinished upload to be found")
    assert store.abort_stale("") == 0
    assert store.stat("trial/big").size == 30 * MB


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_at_once_and_its_parent_is_unharmed(bucket_of: Callable[..., Any], tmp_path: Path) -> None:
    store = bucket_of("seaweedfs")
    store.put("a", b"1")
    pid = agent()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.put("a", b"2")
        except ForkedStorageError as error:
            code = 0 if str(os.getppid()) in str(error) else 2
            store.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put("a", b"3")
    assert store.get("a") == b"3"
    assert agent() == pid


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_may_connect_anew(opened: Callable[..., Any], tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("a", b"1")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = agent_client.connect(tmp_path)
            mine.put("b", mine.get("a"))
            mine.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("b") == b"1"


DRIVER = """
import os, sys, threading, time
from holdfast.storage import agent_client
store = agent_client.connect(sys.argv[1])
thread = threading.Thread(target=store.put, args=("a", b"1"))  # the thread that starts the agent ends
thread.start()
thread.join()
store.put("a", b"2")
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(agent_client.agent_pid(), child, flush=True)
time.sleep(60)
"""


def test_the_agent_dies_with_its_driver_whoever_else_lives(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, env=environ)
    assert driver.stdout is not None
    pid, child = map(int, driver.stdout.readline().split())
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        driver.send_signal(signal.SIGCONT)
        assert is_alive(pid)
        driver.kill()
        driver.wait()
        poll(lambda: not is_alive(pid), "the agent to follow its driver")
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        driver.stdout.close()
