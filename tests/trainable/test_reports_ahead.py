"""Reports that need not wait: when a trial runs ahead, how far, and what is kept of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_wire import FROM_WORKER, TIMEOUT_S, Driver, kinds

from holdfast import Checkpoint, report
from holdfast.core.observations import Report, Returned, Stopped
from holdfast.journal.frames import decode_header
from holdfast.trainable import session
from holdfast.trainable.spool_writer import Spool, SpoolFolder, SpoolOwner, spool_path
from holdfast.trainable.worker_messages import Decision, Quit, encoded

Start = Callable[..., Driver]

FIRST = SpoolOwner(0, 0, 1)
"""The attempt of a ``Driver``."""

LEFT = SpoolOwner(1, 5, 2)


@pytest.fixture(autouse=True)
def always_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, reports follow one another at once."""
    monkeypatch.setattr(session, "MAX_SPOOL_INTERVAL_S", TIMEOUT_S)


def many(config: dict[str, Any]) -> None:
    for step in range(1, config["steps"] + 1):
        report({"step": step})


def begun(worker: Driver, config: dict[str, Any], ahead: int = 4) -> None:
    """Let a trial run ahead: its first report is answered so."""
    (worker.root / ".holdfast").mkdir(exist_ok=True)
    worker.launch(config)
    worker.next()
    worker.send(Decision(1, ahead=ahead))


def ordinals(worker: Driver, count: int) -> list[int]:
    return [worker.next().ordinal for _ in range(count)]


def answered_alone(worker: Driver, ordinal: int) -> None:
    """The trial waits for this answer, which is its last."""
    assert is_waiting(worker)
    worker.decide(ordinal)
    assert isinstance(worker.next(), Returned)


def is_waiting(worker: Driver) -> bool:
    worker.sock.settimeout(0.2)
    try:
        worker.next()
    except TimeoutError:
        return True
    finally:
        worker.sock.settimeout(TIMEOUT_S)
    return False


def test_a_trial_runs_ahead_as_far_as_it_may_and_goes_on_when_half_is_answered(driver: Start) -> None:
    worker = driver(many)
    begun(worker, {"steps": 8})
    assert ordinals(worker, 4) == [2, 3, 4, 5]
    assert is_waiting(worker)
    worker.send(Decision(2, ahead=4))
    assert is_waiting(worker)
    worker.send(Decision(3, ahead=4))
    assert ordinals(worker, 2) == [6, 7]
    worker.send(Decision(7, ahead=4))
    assert ordinals(worker, 1) == [8]
    assert is_waiting(worker), "the attempt has ended before the driver had everything"
    worker.send(Decision(8))
    assert isinstance(worker.next(), Returned)


def test_what_ran_ahead_is_kept_until_it_has_arrived(driver: Start) -> None:
    worker = driver(many)
    begun(worker, {"steps": 4})
    ordinals(worker, 3)
    assert [kept.metrics for kept in SpoolFolder(worker.root).read(FIRST, after=1)] == [{"step": n} for n in (2, 3, 4)]
    assert [kept.ordinal for kept in SpoolFolder(worker.root).read(FIRST, after=3)] == [4]
    worker.send(Decision(4))
    worker.next()
    assert not SpoolFolder(worker.root).owners()


def test_what_was_not_answered_when_the_driver_left_stays(driver: Start) -> None:
    worker = driver(many)
    begun(worker, {"steps": 9})
    ordinals(worker, 4)
    worker.send(Quit())
    assert isinstance(worker.next(), Stopped)
    worker.thread.join(TIMEOUT_S)
    assert [kept.ordinal for kept in SpoolFolder(worker.root).read(FIRST, after=1)] == [2, 3, 4, 5]


def other_metrics(config: dict[str, Any]) -> None:
    report({"step": 1})
    report({"other": 2})


def done(config: dict[str, Any]) -> None:
    report({"step": 1, "done": False})
    report({"step": 2, "done": True})


def saving(config: dict[str, Any]) -> None:
    report({"step": 1})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state").touch()
        report({"step": 2}, checkpoint=Checkpoint.from_directory(folder))


@pytest.mark.parametrize("train", [other_metrics, done, saving])
def test_a_report_on_which_something_may_be_decided_waits(driver: Start, train: Callable[..., None]) -> None:
    worker = driver(train)
    begun(worker, {})
    assert worker.next().ordinal == 2
    assert not SpoolFolder(worker.root).owners()
    answered_alone(worker, 2)


def test_reports_that_are_apart_wait_for_their_answers(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_SPOOL_INTERVAL_S", 0.0)
    worker = driver(many)
    begun(worker, {"steps": 2})
    worker.next()
    answered_alone(worker, 2)


def changing(config: dict[str, Any]) -> None:
    report({"step": 1})
    report({"step": 2})
    report({"other": 3})
    report({"other": 4})
    report({"other": 5})


def test_after_a_report_that_waited_a_trial_runs_ahead_again_and_all_of_it_is_kept(driver: Start) -> None:
    worker = driver(changing)
    begun(worker, {})
    assert ordinals(worker, 2) == [2, 3]
    assert is_waiting(worker)
    worker.send(Decision(3, ahead=4))
    assert ordinals(worker, 2) == [4, 5]
    kept = SpoolFolder(worker.root).read(FIRST, after=3)
    assert [(report.ordinal, report.metrics, report.passed) for report in kept] == [
        (4, {"other": 4}, True),
        (5, {"other": 5}, True),
    ]
    answered_alone(worker, 5)


def test_an_answer_that_takes_the_permission_back_is_heard(driver: Start) -> None:
    worker = driver(many)
    begun(worker, {"steps": 7})
    ordinals(worker, 4)
    worker.decide(5)
    assert ordinals(worker, 1) == [6]
    assert is_waiting(worker)
    worker.decide(6)
    worker.next()
    worker.decide(7)
    assert isinstance(worker.next(), Returned)


def test_a_trial_that_is_told_to_stop_while_it_is_ahead_unwinds_and_the_next_one_starts_clean(driver: Start) -> None:
    worker = driver(many)
    begun(worker, {"steps": 9})
    ordinals(worker, 4)
    worker.decide(4, "stop")
    worker.decide(5, "stop")
    assert isinstance(worker.next(), Stopped)
    assert kinds(worker.attempt({"steps": 2}, n=1)) == ["Report", "Report", "Returned"]


def test_a_trial_that_cannot_keep_its_reports_waits_for_answers(driver: Start) -> None:
    worker = driver(many)
    (worker.root / ".holdfast").mkdir()
    (worker.root / ".holdfast" / "ahead").touch()  # a file where a folder should be
    begun(worker, {"steps": 2})
    assert worker.next().ordinal == 2
    answered_alone(worker, 2)


def test_a_spool_does_not_grow_for_ever(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_SPOOL_BYTES", 100)
    worker = driver(many)
    begun(worker, {"steps": 50}, ahead=64)
    largest = 0
    for ordinal in range(2, 51):
        worker.next()
        largest = max(largest, os.path.getsize(spool_path(worker.root, FIRST)))
        worker.send(Decision(ordinal, ahead=64))
    assert isinstance(worker.next(), Returned)
    assert largest < 200


class Alarm(Exception):
    """Raised by a signal handler of the trial."""


def alarmed(config: dict[str, Any]) -> None:
    for step in range(1, 7):
        with contextlib.suppress(Alarm):
            report({"step": step})


@pytest.mark.parametrize("sent", [True, False])
def test_after_an_exception_in_the_middle_of_a_report_a_trial_waits_for_answers(
    driver: Start, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """Whether the report was sent is not known to the trial: it counts if it was."""
    send = session.Session.send

    def alarm_at_the_third(self: session.Session, message: Any) -> None:
        third = FROM_WORKER.decode(message.payload).ordinal == 3
        if not third or sent:
            send(self, message)
        if third:
            raise Alarm

    monkeypatch.setattr(session.Session, "send", alarm_at_the_third)
    worker = driver(alarmed)
    begun(worker, {}, ahead=64)
    assert ordinals(worker, 3 if sent else 2) == ([2, 3, 4] if sent else [2, 4])
    assert is_waiting(worker)
    for ordinal in (4, 5):
        worker.send(Decision(ordinal, ahead=64))
        worker.next()
        assert is_waiting(worker)
    worker.decide(6)
    assert isinstance(worker.next(), Returned)


# --- the file


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Reports 3 to 7 of an attempt whose process was killed."""
    (tmp_path / ".holdfast").mkdir()
    spool = Spool(str(tmp_path), LEFT)
    for ordinal in range(3, 8):
        assert spool.add(ordinal, encoded(Report(5, 2, 1, ordinal, 0.1, {"step": ordinal})).payload)
    return Path(spool_path(tmp_path, LEFT))


@pytest.mark.parametrize(("after", "found"), [(0, []), (1, []), (2, [3, 4, 5, 6, 7]), (5, [6, 7]), (7, []), (9, [])])
def test_only_what_follows_without_a_gap_is_read(left: Path, tmp_path: Path, after: int, found: list[int]) -> None:
    assert [kept.ordinal for kept in SpoolFolder(tmp_path).read(LEFT, after)] == found


def whole_reports(data: bytes, length: int) -> int:
    """How many of the five reports are in the first bytes of a spool."""
    header = decode_header(data)
    assert header is not None
    return max(0, length - header.end) // ((len(data) - header.end) // 5)


def test_a_torn_end_is_left_out(left: Path, tmp_path: Path) -> None:
    data = left.read_bytes()
    for length in range(len(data)):
        left.write_bytes(data[:length])
        assert len(SpoolFolder(tmp_path).read(LEFT, after=2)) == whole_reports(data, length)


def test_nothing_behind_a_damaged_byte_is_believed(left: Path, tmp_path: Path) -> None:
    data = left.read_bytes()
    for at in range(len(data)):
        left.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert len(SpoolFolder(tmp_path).read(LEFT, after=2)) == whole_reports(data, at)


@pytest.mark.parametrize("other", [LEFT._replace(attempt=3), LEFT._replace(epoch=2), LEFT._replace(n=6)])
def test_a_spool_of_somebody_else_is_not_believed(left: Path, tmp_path: Path, other: SpoolOwner) -> None:
    os.rename(left, spool_path(tmp_path, other))
    assert SpoolFolder(tmp_path).read(other, after=2) == []
    assert SpoolFolder(tmp_path).owners() == [other]
    SpoolFolder(tmp_path).forget([LEFT, other])
    assert SpoolFolder(tmp_path).owners() == []
