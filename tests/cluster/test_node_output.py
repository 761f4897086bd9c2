"""What a node keeps of output that its network cannot take as fast as it is printed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engines.cluster import handshake, node_output
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.node_output import KEPT_LOG_BYTES, WINDOW_BYTES, NodeOutput
from holdfast.engines.cluster.received_output import ReceivedOutput
from holdfast.engines.link import SocketLink
from holdfast.storage import trial_logs

MB = 1024 * 1024
LIMIT = 10 * MB
LINES = b"".join(b"%09d\n" % k for k in range(MB // 10))


class Slow:
    """A porter's output, and a driver that reads nothing until it is told to."""

    def __init__(
        self, top: Path, limit: int = LIMIT, link: SocketLink | None = None, driver: SocketLink | None = None
    ) -> None:
        (top / say.LOGS).mkdir(parents=True)
        self.top = top
        self.log = top / say.LOGS / "worker-1.log"
        self.words: list[say.PorterWord] = []
        if link is None or driver is None:
            link, driver = map(SocketLink, socket.socketpair())
        self.link, self._driver = link, driver
        self.output = NodeOutput(self.link, str(top), limit)
        self.output.watch(1, str(self.log))

    def prints(self, *parts: bytes, to: str = "") -> None:
        """One look of the porter's follows."""
        with open(self.top / to if to else self.log, "ab") as log:
            for part in parts:
                log.write(part)
        self.output.bound()
        self.output.send()

    def on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.top.rglob("*") if path.is_file())

    def take(self) -> list[say.PorterWord]:
        """What the driver finds when it reads once."""
        return [say.decode_word(payload) for payload in self._driver.receive() or []]

    def read(self) -> bytes:
        """What the driver reads of the worker's log."""
        while True:
            self.link.flush()
            self.output.send()
            words = self.take()
            if not words and not self.link.waiting and not self.output.is_behind:
                break
            self.output.was_read(sum(len(word.data) for word in words if isinstance(word, say.Printed | say.Appended)))
            self.words.extend(words)
        return b"".join(word.data for word in self.words if isinstance(word, say.Printed))

    def close(self) -> None:
        self.output.close()
        self.link.close()
        self._driver.close()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    slow = Slow(tmp_path)
    yield slow
    slow.close()


def test_output_waits_on_disk_and_not_in_memory(slow: Slow) -> None:
    for _ in range(40):
        slow.prints(LINES)
        assert slow.link.unsent() < 2 * WINDOW_BYTES
        assert slow.on_disk() < 2 * LIMIT


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
def test_a_driver_that_does_not_read_keeps_its_node(tmp_path: Path) -> None:
    """The kernel ends a connection on which it may send nothing for longer than the lease."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        far, _ = door.accept()
    handshake.keep_lease(near, 1.0)
    slow = Slow(tmp_path, link=SocketLink(near), driver=SocketLink(far))
    slow.output.follow(1, ["stdout", "stderr"])
    for _ in range(4):
        for name in ("", "stdout", "stderr"):
            slow.prints(LINES, to=name)
    time.sleep(3.0)  # longer than the lease: that is what is tested
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert slow.read() == LINES * 4
    for name in ("stdout", "stderr"):
        parts = [word.data for word in slow.words if isinstance(word, say.Appended) and word.path == name]
        assert b"".join(parts) == LINES * 4
    slow.close()


def test_files_take_turns_however_little_the_driver_reads_at_once(slow: Slow) -> None:
    slow.output.follow(1, ["stdout", "stderr"])
    for name in ("", "stdout", "stderr"):
        slow.prints(LINES, to=name)
    for _ in range(6):
        slow.output.was_read(node_output.PIECE_BYTES)
        slow.output.send()
    words: list[say.PorterWord] = []
    while more := slow.take():
        words += more
    assert {word.path if isinstance(word, say.Appended) else "" for word in words[-3:]} == {"", "stdout", "stderr"}


def test_the_end_of_a_worker_waits_while_the_driver_does_not_read(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    told: list[str] = []
    slow.prints(*[LINES] * 4, b"last\n")
    slow.output.end(1, lambda: told.append("gone"))
    now[0] = 600.0
    slow.output.send()
    assert told == []
    assert slow.read() == LINES * 4 + b"last\n"
    assert told == ["gone"]


def test_the_newest_output_is_kept_below_its_head_and_a_line_says_that_more_was_dropped(slow: Slow) -> None:
    head = trial_logs.make_head("t", 1, 1.0)
    slow.prints(head, b"first\n")
    for _ in range(40):
        slow.prints(LINES)
    slow.prints(b"last\n")
    lines = slow.read().splitlines(keepends=True)
    assert lines[:2] == [head, b"first\n"]
    assert lines[-1] == b"last\n"
    notes = [line for line in lines if line.startswith(trial_logs.CUT_TEXT.encode())]
    assert len(notes) >= 1
    assert b"RunConfig.max_output_bytes" in notes[0]
    newest = lines[lines.index(notes[-1]) + 1 : -1]
    assert {len(line) for line in newest} == {10}  # no part of a line
    assert KEPT_LOG_BYTES < sum(map(len, lines)) < 2 * LIMIT


def test_what_is_kept_belongs_to_the_attempt_that_has_printed_it(slow: Slow, tmp_path: Path) -> None:
    slow.prints(trial_logs.make_head("one", 1, 1.0), *[b"1" * 99 + b"\n"] * 30000)
    slow.prints(trial_logs.make_head("two", 1, 2.0), b"2\n")
    slow.prints(trial_logs.make_head("three", 1, 3.0))
    for _ in range(20):
        slow.prints(*[b"3" * 99 + b"\n"] * 10000)
    received = ReceivedOutput(tmp_path, None, tmp_path)
    received.take(1, slow.read())
    received.settle(1)
    for trial, printed in (("one", "1"), ("three", "3")):
        text = (tmp_path / f"{trial}.log").read_text().splitlines()
        assert {line[0] for line in text if not trial_logs.is_note(line)} == {printed}


def test_nothing_is_dropped_without_a_bound(tmp_path: Path) -> None:
    slow = Slow(tmp_path, limit=0)
    for _ in range(20):
        slow.prints(LINES)
    assert slow.read() == LINES * 20
    slow.prints(b"more\n")
    assert slow.read() == LINES * 20 + b"more\n"
    assert slow.on_disk() < KEPT_LOG_BYTES
    slow.close()


def test_output_that_is_sent_does_not_stay_on_the_node(slow: Slow) -> None:
    for k in range(1, 20):
        slow.prints(LINES)
        assert slow.read() == LINES * k
        assert slow.on_disk() <= KEPT_LOG_BYTES + MB


@pytest.mark.parametrize("patience_s", [0.0, 600.0])
def test_the_end_of_a_worker_waits_for_its_output_but_not_for_ever(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(node_output, "DRAIN_S", patience_s)
    monkeypatch.setattr(node_output, "PAUSE_S", 600.0)
    slow.prints(*[LINES] * 4, b"last\n")
    told: list[str] = []
    slow.output.end(1, lambda: told.append("gone"))
    assert told == ([] if patience_s else ["gone"])
    text = slow.read()
    assert told == ["gone"]
    assert text.endswith(b"last\n")
    assert (trial_logs.CUT_TEXT.encode() in text) == (not patience_s)
    assert (text == LINES * 4 + b"last\n") == bool(patience_s)
    assert not slow.output


def test_files_of_an_attempt_are_sent_up_to_its_end(slow: Slow) -> None:
    (slow.top / "root").mkdir()
    slow.output.follow(1, ["root/stdout"])
    slow.prints(*[LINES] * 4, to="root/stdout")
    slow.output.stop_following(1)
    slow.read()
    slow.prints(b"too late\n", to="root/stdout")
    slow.read()
    assert isinstance(slow.words[-1], say.AllSent)
    parts = [word for word in slow.words if isinstance(word, say.Appended)]
    assert b"".join(part.data for part in parts) == LINES * 4
    assert [part.offset for part in parts] == [sum(len(p.data) for p in parts[:k]) for k in range(len(parts))]


def test_a_file_that_its_trial_empties_does_not_hold_up_the_end(slow: Slow) -> None:
    (slow.top / "root").mkdir()
    slow.output.follow(1, ["root/stdout"])
    slow.prints(*[LINES] * 4, to="root/stdout")
    slow.output.stop_following(1)
    (slow.top / "root/stdout").write_bytes(b"")
    slow.read()
    assert isinstance(slow.words[-1], say.AllSent)


def test_a_file_that_the_driver_has_cut_grows_at_its_end(tmp_path: Path) -> None:
    received = ReceivedOutput(tmp_path, LIMIT, tmp_path)
    received.begin("t/stdout")
    received.append("t/stdout", 0, LINES * 6)
    assert trial_logs.shorten(str(tmp_path / "t/stdout"), LIMIT)
    received.append("t/stdout", 6 * len(LINES), b"next\n")
    assert (tmp_path / "t/stdout").read_bytes().splitlines()[1:] == [b"next"]
