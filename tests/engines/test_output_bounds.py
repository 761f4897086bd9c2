"""What trials print: whose it is, where it is kept, and how much of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_harness import LocalDriver, wait_until

from holdfast.core.observations import Died, Returned
from holdfast.engines import output_bounds
from holdfast.engines.attempt_log import AttemptLog
from holdfast.storage import trial_logs
from holdfast.storage.trial_logs import (
    CONTINUED_TEXT,
    CUT_TEXT,
    OLDER,
    make_head,
    parse_head,
    settle,
    settle_all,
    shorten,
)

Drive = Callable[..., LocalDriver]
LIMIT = 64 * 1024


def numbered(lines: int, start: int = 0) -> str:
    return "".join(f"line {i:06d} {'x' * 50}\n" for i in range(start, start + lines))


def kept_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_each_trial_of_a_warm_worker_has_its_own_output(drive: Drive) -> None:
    driver = drive()
    for n in range(3):
        driver.ran(n, f"report()\nprint('out {n}')\nprint('err {n}', file=sys.stderr)\nos.system('echo child {n}')")
    driver.ran(3, "report()")
    assert len({driver.pid_of(n) for n in range(4)}) == 1
    assert [driver.printed(n) for n in range(3)] == [f"out {n}\nerr {n}\nchild {n}\n" for n in range(3)]
    assert driver.printed(3) == ""


def test_a_silent_trial_has_no_file(drive: Drive) -> None:
    driver = drive()
    for n in range(3):
        driver.ran(n, "report()")
    driver.engine.close()
    assert list(driver.logs.iterdir()) == []


def test_every_attempt_begins_with_a_line_of_its_own(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report()\nprint('first')")
    driver.ran(0, "report()", attempt=2)
    driver.ran(0, "report()\nos.write(1, b'third')", attempt=3)
    driver.ran(0, "report()\nprint('fourth')", attempt=4)
    driver.engine.close()
    lines = (driver.logs / "trial_0.log").read_text().splitlines()
    assert [line.split(" at ")[0].rstrip() for line in lines] == [
        "--- trial_0 attempt 1",
        "first",
        "--- trial_0 attempt 3",
        "third",
        "--- trial_0 attempt 4",
        "fourth",
    ]


def test_the_output_of_a_killed_worker_goes_to_its_trial(drive: Drive) -> None:
    driver = drive()
    end = driver.ran(0, "report()\nprint('last words')\nos.kill(os.getpid(), signal.SIGKILL)")
    assert isinstance(end, Died)
    assert end.output == "last words"
    assert driver.printed(0) == "last words\n"
    assert not [file for file in driver.logs.iterdir() if file.name.startswith("worker-")]


def test_a_trial_that_takes_the_output_away_does_not_silence_the_next(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report()\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nos.close(2)")
    driver.ran(1, "report()\nprint('here', flush=True)\nos.write(2, b'and here\\n')")
    assert driver.pid_of(0) == driver.pid_of(1)
    assert driver.printed(1) == "here\nand here\n"


def test_what_a_crash_left_in_a_workers_file_is_moved_by_the_next_driver(tmp_path: Path) -> None:
    (tmp_path / "worker-3.log").write_bytes(make_head("ab_00001", 2, 5.0) + b"cut off")
    (tmp_path / "worker-4.log").write_bytes(make_head("ab_00002", 1, 5.0))
    (tmp_path / "worker-5.log").write_bytes(b"")
    (tmp_path / "worker-6.log").write_bytes(b"nobody's\n")
    (tmp_path / "ab_00001.log").write_bytes(make_head("ab_00001", 1, 4.0) + b"before\n")
    settle_all(str(tmp_path), LIMIT)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ab_00001.log", "worker-6.log"]
    text = (tmp_path / "ab_00001.log").read_bytes()
    assert text == make_head("ab_00001", 1, 4.0) + b"before\n" + make_head("ab_00001", 2, 5.0) + b"cut off"


@pytest.mark.parametrize("copied", [0, 1, 127, 128, 131])
def test_a_move_that_was_cut_short_is_finished_and_doubles_nothing(tmp_path: Path, copied: int) -> None:
    old, new = make_head("ab_00001", 1, 4.0) + b"before\n", make_head("ab_00001", 2, 5.0) + b"after\n"
    (tmp_path / "worker-3.log").write_bytes(new)
    (tmp_path / "ab_00001.log").write_bytes(old + new[:copied])
    settle(str(tmp_path / "worker-3.log"), LIMIT)
    text = (tmp_path / "ab_00001.log").read_bytes()
    assert text.count(b"after") == 1
    assert text.startswith(old)
    assert text.endswith(new)


def test_names_that_would_lead_elsewhere_do_not(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker-1.log").write_bytes(make_head("../../outside", 1, 1.0) + b"text\n")
    (logs / "worker-2.log").write_bytes(b"--- ../../outside attempt 1 at 1.000000 --- \ntext\n")
    (tmp_path / "secret").write_text("secret")
    (logs / "worker-3.log").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "worker-4.log")
    settle_all(str(logs), LIMIT)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["secret"]
    assert all(file.name.startswith(("id-", "worker-")) for file in logs.iterdir())


def test_a_file_is_cut_to_its_newest_lines_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "worker-1.log"
    log.write_bytes(make_head("ab_00001", 1, 1.0) + numbered(5000).encode())
    assert shorten(str(log), LIMIT)
    older = (tmp_path / ("worker-1.log" + OLDER)).read_text()
    note, kept = older.splitlines()[1], older.split("\n", 2)[2]
    assert note.startswith(CUT_TEXT)
    assert f" {len(kept):,} bytes from before the cut " in note
    assert f"limit: {LIMIT:,} bytes" in note
    assert older.endswith(numbered(1, 4999))
    assert len(older) <= LIMIT // 2 + 1024
    assert log.stat().st_size < 1024
    assert parse_head(log.read_bytes()) is not None
    assert not shorten(str(log), LIMIT)


def test_who_has_the_file_open_goes_on_in_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        writer.write(numbered(1000).encode())
        shorten(str(log), LIMIT)
        writer.write(b"and on\n")
    assert log.read_bytes().endswith(b"---\nand on\n")
    assert log.stat().st_size < 1024


def test_what_is_printed_right_after_a_cut_stands_below_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text(numbered(1000))
    ftruncate = os.ftruncate

    def print_after(fd: int, length: int) -> None:
        ftruncate(fd, length)
        with log.open("a") as writer:
            writer.write("and on\n")

    monkeypatch.setattr(os, "ftruncate", print_after)
    assert shorten(str(log), LIMIT)
    assert log.read_text() == f"{CONTINUED_TEXT} log{OLDER} ---\nand on\n"


def test_of_two_that_cut_a_log_at_once_the_second_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver's thread and its loop both look at the size before they wait for the lock.
    log = tmp_path / "log"
    log.write_text(numbered(1000))
    take_lock = trial_logs.lock

    def cut_before(fd: int, **options: float) -> bool:
        monkeypatch.setattr(trial_logs, "lock", take_lock)
        assert shorten(str(log), LIMIT)
        return take_lock(fd, **options)

    monkeypatch.setattr(trial_logs, "lock", cut_before)
    assert not shorten(str(log), LIMIT)
    assert (tmp_path / ("log" + OLDER)).read_text().endswith(numbered(1, 999))


def test_without_a_limit_nothing_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(numbered(1000))
    assert not shorten(str(log), None)
    assert log.read_text() == numbered(1000)


@pytest.mark.parametrize("to_file", [None, ("stdout", "stdout")])
def test_a_trial_that_prints_without_end_cannot_fill_the_disk(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, to_file: tuple[str, str] | None
) -> None:
    monkeypatch.setattr(output_bounds, "LOOK_S", 0.01)
    driver = drive(setup={"max_output_bytes": LIMIT, "log_to_file": to_file})
    place = driver.logs
    redirect = ""
    if to_file:
        place = driver.logs.parent / "trial_0"
        redirect = "os.makedirs(setup.root + '/trial_0')\nos.dup2(os.open(setup.root + '/trial_0/stdout', 1090), 1)\n"
    code = f"""
{redirect}report()
i = 0
while not os.path.exists(config["stop"]):
    i += 1
    os.write(1, b"%09d " % i + b"x" * 4000 + b"\\n")
while os.fstat(1).st_size > {LIMIT // 2}:  # what is printed in the moment of a cut may be lost
    time.sleep(0.01)
subprocess.run(["sh", "-c", "echo the end of it"], check=True)
"""
    stop = tmp_path / "stop"
    driver.code(0, code, stop=str(stop))
    driver.metrics(0)
    log = place / ("stdout" if to_file else "worker-0.log")
    older = log.with_name(log.name + OLDER)
    wait_until(older.exists, "the file is cut")
    first = older.stat().st_mtime_ns
    wait_until(lambda: older.stat().st_mtime_ns != first, "and cut again")
    stop.touch()
    assert isinstance(driver.end_of(0), Returned)
    name = "stdout" if to_file else "trial_0.log"
    older, newest = place / (name + OLDER), place / name

    def is_kept() -> bool:
        """Whether the last line is the end of either file: one may be cut between the two looks."""
        return any(path.read_text().endswith("the end of it\n") for path in (newest, older))

    wait_until(is_kept, "the last line is kept")
    assert CUT_TEXT in older.read_text()
    assert kept_bytes(place) <= 2 * LIMIT


def test_a_trials_attempts_together_are_bounded(tmp_path: Path) -> None:
    for attempt in range(1, 20):
        log = tmp_path / "worker-1.log"
        log.write_bytes(make_head("ab_00001", attempt, float(attempt)) + numbered(200, attempt * 1000).encode())
        settle(str(log), LIMIT)
    assert kept_bytes(tmp_path) <= LIMIT + 4096
    assert (tmp_path / "ab_00001.log").read_text().endswith(numbered(1, 19199))


def test_output_of_the_processs_start_belongs_to_its_first_attempt(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker-1.log"
    saved = os.dup(1), os.dup(2)
    try:
        log = AttemptLog(str(path))
        log.open()
        os.write(2, b"while starting\n")
        log.begin("ab_00001", 1)
        os.write(1, b"while running\n")
        log.end()
    finally:
        for fd, number in zip(saved, (1, 2), strict=True):
            os.dup2(fd, number)
            os.close(fd)
    text = (tmp_path / trial_logs.log_name("ab_00001")).read_text()
    assert text.splitlines()[1:] == ["while starting", "while running"]
