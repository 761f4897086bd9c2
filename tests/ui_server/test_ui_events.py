"""Event streams: what changes is told once, also to those who were away, and also by the next driver."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, many_trials
from ui_clients import LiveServer

from holdfast.results.full_pass import Loading
from holdfast.ui import watch
from holdfast.ui.catalogue import MAX_OPEN, Catalogue
from holdfast.ui.source import Source
from holdfast.ui.watch import MAX_QUESTIONS, MAX_REMEMBERED, MAX_TRIALS, Busy, ChangeLog, FollowedExperiment

Serve = Callable[..., LiveServer]


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    """An experiment with a live driver, which is this process."""
    writer = RootWriter(tmp_path / "exp").open()
    for n in range(3):
        writer.create({"lr": 0.1})
        writer.start(n)
    return writer


def test_changes_are_told_with_the_number_of_the_record(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    stream = server.stream(f"{path}/events")
    assert server.get(path)["live"] is True
    root.report(1, {"loss": 3.0})
    event = stream.next()
    assert event is not None
    assert event.kind == "change"
    assert event.data == {"record": event.id, "trials": ["abcde_00001"], "more": False, "sentences": []}
    assert event.id == server.get(path)["record"] == root.journal.position.next_seq - 1
    root.error(0, type="ValueError", message="too large")
    event = stream.next()
    assert event is not None
    assert event.data["trials"] == ["abcde_00000"]
    (sentence,) = event.data["sentences"]
    assert sentence["kind"] == "TrialErrored"
    assert "too large" in sentence["text"]


def test_a_stream_goes_on_after_the_last_event(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    stream = server.stream(f"{path}/events")
    root.report(0, {"loss": 3.0})
    first = stream.next()
    assert first is not None
    stream.close()
    root.report(1, {"loss": 3.0})
    server.until(lambda: server.get(path)["record"] > first.id)
    root.report(2, {"loss": 3.0})
    for header in ({"Last_Event_ID": str(first.id)}, {}):
        query = "" if header else f"?after={first.id}"
        again = server.stream(f"{path}/events{query}", **header)
        seen: set[str] = set()
        while seen != {"abcde_00001", "abcde_00002"}:
            event = again.next()
            assert event is not None
            assert event.id > first.id
            seen |= set(event.data["trials"])


def test_a_stream_that_was_away_for_too_long_is_told_to_reload(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    for unknown in (1, 10**9):
        event = server.stream(f"{path}/events", Last_Event_ID=str(unknown)).next()
        assert event is not None
        assert (event.data["more"], event.data["trials"]) == (True, [])
        assert event.id == server.get(path)["record"]


def test_a_bad_last_event_is_refused(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    for bad in ("x", "-1", "1.5", "9" * 30, "\u0661"):
        reply = server.request(f"{path}/events", Last_Event_ID=bad.encode().decode("latin-1"))
        assert reply.status == 400, bad


def test_a_driver_that_dies_is_told_without_a_record(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    stream = server.stream(f"{path}/events")
    root.report(0, {"loss": 1.0})
    assert stream.next() is not None
    record = server.get(path)["record"]
    root.die()
    event = stream.next()
    assert event is not None
    assert event.id == record
    facts = server.get(path)
    assert (facts["state"], facts["live"]) == ("interrupted", False)


DRIVER = """
import sys, time
from pathlib import Path
import holdfast as tune

def train(config):
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(start + 1, 7):
        gate = Path(config["dir"], f"go{step}")
        while not gate.exists():
            time.sleep(0.01)
        tune.report({"loss": 1 / step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

where = sys.argv[1]
if __name__ == "__main__":
    if Path(where, "exp", ".holdfast").exists():
        tuner = tune.Tuner.restore(f"{where}/exp", trainable=train)
    else:
        tuner = tune.Tuner(
            train,
            param_space={"dir": where},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(name="exp", storage_path=where, verbose=0),
        )
    tuner.fit()
"""


@pytest.mark.slow
def test_a_killed_and_resumed_driver_is_followed_by_the_same_stream(tmp_path: Path, serve: Serve) -> None:
    script = tmp_path / "train.py"
    script.write_text(DRIVER)

    def drive() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path)], start_new_session=True)

    driver = drive()
    try:
        root = tmp_path / "exp"
        while not (root / ".holdfast" / "journal").exists() or not any((root / ".holdfast" / "journal").iterdir()):
            assert driver.poll() is None
        server = serve(root)
        path = server.only()
        stream = server.stream(f"{path}/events")
        (tmp_path / "go1").touch()
        (tmp_path / "go2").touch()

        def iteration() -> Any:
            (row,) = server.get(f"{path}/trials")["rows"] or [{"iteration": 0}]
            return row["iteration"]

        stream.until(lambda event: iteration() == 2)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        stream.until(lambda event: server.get(path)["state"] == "interrupted")
        driver = drive()
        (tmp_path / "go3").touch()
        stream.until(lambda event: iteration() == 3)
        assert server.get(path)["live"] is True
        for step in range(4, 7):
            (tmp_path / f"go{step}").touch()
        stream.until(lambda event: server.get(path)["state"] == "finished")
        (trial,) = server.get(f"{path}/trials")["rows"]
        rows = server.get(f"{path}/trials/{trial['trial_id']}/rows")["rows"]
        assert [row["training_iteration"] for row in rows] == list(range(1, 7))
        assert driver.wait(60) == 0
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def test_a_client_that_does_not_read_costs_the_others_nothing(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    deaf = socket.create_connection((server.host, server.port), timeout=30)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    request = f"GET {path}/events HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    deaf.sendall(request.encode())
    stream = server.stream(f"{path}/events")
    with deaf:
        for step in range(8):
            root.report(step % 3, {"loss": float(step)})
            event = stream.next()
            assert event is not None
        assert server.stop()[0] == 0


def test_too_many_streams_are_refused(root: RootWriter, serve: Serve) -> None:
    server = serve(root.path)
    path = server.only()
    streams = [server.stream(f"{path}/events") for _ in range(64)]
    reply = server.request(f"{path}/events")
    assert reply.status == 503
    assert "64" in reply.error
    streams[0].close()
    server.until(lambda: server.request(path).status == 200)

    def comes_in() -> bool:
        try:
            server.stream(f"{path}/events")
        except AssertionError:
            return False
        return True

    server.until(comes_in)


def test_the_log_of_changes_forgets_in_order_and_says_so() -> None:
    log = ChangeLog()
    log.start(10)
    assert log.since(log.cursor(None))[1] is None
    assert log.since(log.cursor(10))[1] is None
    for n in range(MAX_REMEMBERED + 5):
        log.add(11 + n, [f"t{n}"], [])
    old = log.since(log.cursor(12))[1]
    assert old is not None
    assert old.more
    cursor, recent = log.since(log.cursor(10 + MAX_REMEMBERED))
    assert recent is not None
    assert (recent.more, recent.trials) == (False, [f"t{MAX_REMEMBERED + n}" for n in range(5)])
    assert log.since(cursor)[1] is None
    log.add(5000, [f"t{n}" for n in range(MAX_TRIALS + 1)], [])
    _, many = log.since(cursor)
    assert many is not None
    assert (many.more, len(many.trials)) == (True, MAX_TRIALS)


def test_a_client_that_accepts_nothing_is_dropped(root: RootWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    events = pytest.importorskip(
        "holdfast.ui.event_stream", reason="starlette is not installed: pip install 'holdfast[ui]'"
    )
    monkeypatch.setattr(events, "SEND_S", 0.01)
    watched = FollowedExperiment(str(root.path), Source.open)
    ended: list[bool] = []

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def stream() -> None:
        made = events.EventStream(watched, None, asyncio.Event(), lambda: ended.append(True))
        await asyncio.wait_for(made({"type": "http"}, receive, send), 60)

    with ThreadPoolExecutor(1) as thread:  # in this one a browser of other tests may have a loop of its own
        thread.submit(asyncio.run, stream()).result(90)
    assert ended == [True]
    assert watched.streams == 0
    watched.close()


def test_an_experiment_at_which_nobody_looks_is_closed(root: RootWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "IDLE_S", 0.05)
    watched = FollowedExperiment(str(root.path), Source.open)
    leave = watched.listen(lambda: None)
    assert watched.opened.wait(60)
    assert watched.ask(lambda source: source.record).result(60) > 0
    assert not watched.is_over
    leave()
    deadline = time.monotonic() + 60
    while not watched.is_over:
        assert time.monotonic() < deadline
    with pytest.raises(Busy):
        watched.ask(lambda source: source.record).result(60)


def test_only_so_many_experiments_stay_open(tmp_path: Path) -> None:
    for n in range(MAX_OPEN + 2):
        many_trials(tmp_path / f"exp{n}", 1)
    catalogue = Catalogue(str(tmp_path))
    places = catalogue.places()
    opened = [catalogue.watch(place) for place in places[:MAX_OPEN]]
    assert all(watched.opened.wait(60) for watched in opened)
    leave = opened[0].listen(lambda: None)
    for place in places[MAX_OPEN:]:
        opened.append(catalogue.watch(place))
        assert opened[-1].opened.wait(60)
    leave()
    assert [watched.is_over for watched in opened] == [False, True, True] + [False] * (MAX_OPEN - 1)
    again = catalogue.watch(places[1])
    assert again.ask(lambda source: len(source.history.state.trials)).result(60) == 1


def test_too_many_questions_are_refused(root: RootWriter) -> None:
    gate = threading.Event()

    def slow(path: str, progress: Any) -> Source:
        assert gate.wait(60)
        return Source.open(path, progress)

    watched = FollowedExperiment(str(root.path), slow)
    answers = [watched.ask(lambda source: source.record) for _ in range(MAX_QUESTIONS)]
    with pytest.raises(Busy):
        watched.ask(lambda source: source.record)
    gate.set()
    assert {answer.result(60) for answer in answers} == {root.journal.position.next_seq - 1}
    watched.close()


def test_what_needs_all_reports_does_not_hold_up_others(root: RootWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    watched = FollowedExperiment(str(root.path), Source.open)
    assert watched.opened.wait(60)
    slices = iter([Loading(0, 2), Loading(1, 2), None])
    gate = threading.Event()
    monkeypatch.setattr(Source, "load", lambda self: (gate.wait(60), next(slices))[1])
    full = watched.ask(lambda source: order.append("full"), full=True)
    plain = watched.ask(lambda source: order.append("plain"))
    gate.set()
    plain.result(60)
    full.result(60)
    assert order == ["plain", "full"]
    watched.close()


def test_a_bug_in_following_ends_the_thread_in_words(
    root: RootWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = FollowedExperiment(str(root.path), Source.open)
    assert watched.opened.wait(60)
    monkeypatch.setattr(watch, "POLL_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(Source, "advance", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            watched.ask(lambda source: source.record).result(60)
    assert watched.is_over
    assert "following" in caplog.text
