"""``holdfast logs``: what trials printed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter

import holdfast as tune
from holdfast.cli.logs import LogReader
from holdfast.controller.file_sync import LogUploads
from holdfast.storage.trial_logs import FOLDER, OLDER, STREAMS, make_head, settle, shorten

Command = Callable[..., Any]

DEADLINE_S = 60.0

SCRIPT = """
import sys, time
from pathlib import Path
import holdfast as tune

def train(config):
    here = Path(sys.argv[1])
    print("begins", config["x"])
    while not (here / f"go-{config['x']}").exists():
        time.sleep(0.01)
    print("ends", config["x"])
    return {"loss": 1.0}

tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1])},
    run_config=tune.RunConfig(name="exp", storage_path=sys.argv[1], verbose=0, engine=tune.LocalEngine(cpus=2)),
).fit()
"""


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    """Two trials that have ended and one that has not started."""
    writer = RootWriter(tmp_path / "exp").open()
    for x in range(3):
        writer.create({"x": x})
    for n in range(2):
        writer.start(n)
        writer.end(n)
    writer.finish()
    (writer.path / FOLDER).mkdir(parents=True, exist_ok=True)
    return writer


def log_of(writer: RootWriter, n: int) -> Path:
    return writer.path / FOLDER / f"{writer.trial(n).id}.log"


def name_of(writer: RootWriter, n: int) -> str:
    return f"train_{writer.trial(n).id}"


def printed(writer: RootWriter, n: int, text: str, attempt: int = 1, at: float = 1.0) -> None:
    with log_of(writer, n).open("ab") as file:
        file.write(make_head(writer.trial(n).id, attempt, at) + text.encode())


def test_all_trials_are_shown_with_their_names(root: RootWriter, holdfast: Command) -> None:
    printed(root, 1, "c\n")
    printed(root, 0, "a\nb")
    one, two = name_of(root, 0), name_of(root, 1)
    assert holdfast("logs", root.path) == (0, f"{one} | a\n{one} | b\n{two} | c\n", "")


def test_one_trial_is_shown_bare_by_number_id_or_name(root: RootWriter, holdfast: Command) -> None:
    printed(root, 0, "a\n")
    printed(root, 1, "c\n")
    for word in ("1", root.trial(1).id, name_of(root, 1)):
        assert holdfast("logs", root.path, word) == (0, "c\n", "")


def test_an_unknown_trial_is_refused(root: RootWriter, holdfast: Command) -> None:
    answer = holdfast("logs", root.path, "nobody")
    assert answer.code == 2
    assert "nobody" in answer.err


def test_the_tail_is_that_of_each_trial(root: RootWriter, holdfast: Command) -> None:
    printed(root, 0, "".join(f"{i}\n" for i in range(100)))
    printed(root, 1, "only\n")
    one, two = name_of(root, 0), name_of(root, 1)
    assert holdfast("logs", root.path, "--tail", 2).out == f"{one} | 98\n{one} | 99\n{two} | only\n"
    assert holdfast("logs", root.path, "0", "--tail", 1).out == "99\n"
    assert holdfast("logs", root.path, "--tail", -1).code == 2


def test_a_later_attempt_says_so(root: RootWriter, holdfast: Command) -> None:
    printed(root, 0, "first\n")
    printed(root, 0, "third\n", attempt=3, at=2.0)
    assert holdfast("logs", root.path, "0").out == "first\n--- attempt 3 ---\nthird\n"


def test_a_trial_that_printed_nothing_says_so(root: RootWriter, holdfast: Command) -> None:
    code, out, err = holdfast("logs", root.path, "2")
    assert (code, out) == (0, "")
    assert err == f"holdfast: {name_of(root, 2)} has printed nothing.\n"
    assert "has printed anything" in holdfast("logs", root.path).err


def test_what_a_killed_driver_left_is_shown(root: RootWriter, holdfast: Command) -> None:
    head = make_head(root.trial(0).id, 1, 1.0)
    (root.path / FOLDER / "worker-7.log").write_bytes(head + b"cut off")
    assert holdfast("logs", root.path, "0").out == "cut off\n"


def test_a_move_that_was_cut_short_shows_nothing_twice(root: RootWriter, holdfast: Command) -> None:
    text = make_head(root.trial(0).id, 1, 1.0) + b"one\ntwo\n"
    (root.path / FOLDER / "worker-7.log").write_bytes(text)
    log_of(root, 0).write_bytes(text[:-2])
    assert holdfast("logs", root.path, "0").out == "one\ntwo\n"


def test_logs_of_workers_that_name_no_trial_are_shown_by_their_own_names(root: RootWriter, holdfast: Command) -> None:
    (root.path / FOLDER / "worker-7.log").write_bytes(b"of an earlier version\n")
    assert holdfast("logs", root.path).out == "worker-7 | of an earlier version\n"


def test_what_was_dropped_is_told_and_the_rest_is_in_order(root: RootWriter, holdfast: Command) -> None:
    printed(root, 0, "".join(f"{i:06d}\n" for i in range(2000)))
    shorten(str(log_of(root, 0)), 4096)
    with log_of(root, 0).open("a") as file:
        file.write("newest\n")
    dropped, *lines = holdfast("logs", root.path, "0").out.splitlines()
    assert "older output was dropped" in dropped
    assert lines[-2:] == ["001999", "newest"]
    assert lines[:-1] == [f"{i:06d}" for i in range(int(lines[0]), 2000)]


def test_files_in_trials_directories_are_shown(root: RootWriter, holdfast: Command) -> None:
    (root.path / FOLDER / STREAMS).write_text('["stdout", "stderr", "../../outside"]')
    (root.trial_dir(0)).mkdir(exist_ok=True)
    (root.trial_dir(0) / "stdout").write_text("out\n")
    (root.trial_dir(0) / "stderr").write_text("err\n")
    (root.path.parent / "outside").write_text("secret\n")
    assert holdfast("logs", root.path, "0").out == "out\nerr\n"


def test_nothing_but_files_is_read(root: RootWriter, holdfast: Command, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(make_head(root.trial(0).id, 1, 1.0) + b"secret\n")
    log_of(root, 0).symlink_to(secret)
    os.mkfifo(log_of(root, 1))
    (root.path / FOLDER / "worker-1.log").symlink_to("/dev/zero")
    assert list(LogReader([str(root.path / FOLDER)]).read(final=True)) == []
    assert "secret" not in holdfast("logs", root.path).out


def test_codes_for_the_terminal_are_shown_as_escapes(root: RootWriter, holdfast: Command) -> None:
    printed(root, 0, "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\x00 tab\there\n")
    assert holdfast("logs", root.path, "0").out == "\\x1b[31mred\\x1b]0;title\\x07\\x9b2J\\u202e\\x00 tab     here\n"


# --- following


def texts(reader: LogReader, **options: Any) -> list[str]:
    return [line.text for line in reader.read(**options)]


def test_a_reader_follows_through_moves_appends_and_cuts(tmp_path: Path) -> None:
    worker, trial = tmp_path / "worker-1.log", tmp_path / "ab_00001.log"
    reader = LogReader([str(tmp_path)])

    def prints(path: Path, text: str) -> None:
        with path.open("ab") as file:
            file.write(text.encode())

    prints(worker, make_head("ab_00001", 1, 1.0).decode() + "one\ntw")
    assert texts(reader) == ["one"]
    prints(worker, "o\nthree\n")
    assert texts(reader) == ["two", "three"]
    settle(str(worker), None)
    prints(trial, "late\n")
    assert texts(reader) == ["late"]
    prints(worker, make_head("ab_00001", 2, 2.0).decode() + "again\n")
    assert texts(reader) == ["again"]
    settle(str(worker), None)
    assert texts(reader) == []
    prints(worker, make_head("ab_00001", 3, 3.0).decode())
    numbers = [f"{i:06d}" for i in range(4000)]
    prints(worker, "".join(f"{number}\n" for number in numbers[:3000]))
    assert texts(reader) == numbers[:3000]
    prints(worker, "".join(f"{number}\n" for number in numbers[3000:3900]))
    shorten(str(worker), 16384)
    prints(worker, "".join(f"{number}\n" for number in numbers[3900:]))
    assert texts(reader) == numbers[3000:]
    settle(str(worker), 16384)
    assert texts(reader) == []
    assert (tmp_path / ("ab_00001.log" + OLDER)).exists()
    prints(trial, "no end")
    assert texts(reader) == []
    assert texts(reader, final=True) == ["no end"]


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)]) as process:
        yield process
        process.kill()


def follow(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    deadline = time.monotonic() + DEADLINE_S
    logs = tmp_path / "exp" / FOLDER
    while not (logs.exists() and sum(b"begins" in log.read_bytes() for log in logs.glob("worker-*.log")) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    command = [sys.executable, "-m", "holdfast", "logs", str(tmp_path / "exp"), "-f", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_live_experiment_is_followed_to_its_end(tmp_path: Path, experiment: subprocess.Popen[bytes]) -> None:
    with follow(tmp_path) as reader:
        assert reader.stdout is not None
        first = {reader.stdout.readline().partition(" | ")[2] for _ in range(2)}
        assert first == {"begins 0\n", "begins 1\n"}
        (tmp_path / "go-1").touch()
        assert reader.stdout.readline().endswith(" | ends 1\n")
        (tmp_path / "go-0").touch()
        rest = reader.stdout.read()
        assert rest.endswith(" | ends 0\n")
        assert rest.count("\n") == 1
        assert reader.wait(DEADLINE_S) == 0
    assert experiment.wait(DEADLINE_S) == 0


def test_one_who_follows_may_leave(tmp_path: Path, experiment: subprocess.Popen[bytes]) -> None:
    with follow(tmp_path, "1", "--tail", "1") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "begins 1\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(DEADLINE_S) == 130
    for x in range(2):
        (tmp_path / f"go-{x}").touch()
    assert experiment.wait(DEADLINE_S) == 0


# --- in a store


def speak(config: dict[str, Any]) -> dict[str, float]:
    print("said by", config["x"])
    return {"loss": config["x"]}


def run_in_store(address: str, name: str, **settings: Any) -> None:
    tune.Tuner(
        speak,
        param_space={"x": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(name=name, storage_path=address, verbose=0, **settings),
    ).fit()


@pytest.mark.slow
def test_output_is_in_the_store_too(bucket: str, cache: Path, tmp_path: Path, holdfast: Command) -> None:
    run_in_store(bucket, "exp")
    shutil.rmtree(cache)
    url = f"{bucket}/exp"
    lines = holdfast("logs", url).out
    assert [line.partition(" | ")[2] for line in lines.splitlines()] == ["said by 0", "said by 1"]
    assert holdfast("logs", url, "1").out == "said by 1\n"
    copied = tmp_path / "copied"
    assert holdfast("copy", url, copied).code == 0
    assert holdfast("logs", copied).out == lines
    back = f"{bucket}/back"
    assert holdfast("copy", copied, back).code == 0
    assert holdfast("logs", back).out == lines
    for place in (url, copied, back):
        assert holdfast("verify", place).code == 0


@pytest.mark.slow
def test_files_in_trials_directories_are_in_the_store_too(bucket: str, cache: Path, holdfast: Command) -> None:
    run_in_store(bucket, "exp", log_to_file=True)
    shutil.rmtree(cache)
    assert holdfast("logs", f"{bucket}/exp", "1").out == "said by 1\n"


def test_a_driver_on_another_machine_keeps_what_the_one_before_it_uploaded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    keys = []
    for epoch, root in ((1, first), (2, second)):
        (root / FOLDER).mkdir(parents=True)
        (root / FOLDER / "ab_00001.log").write_bytes(make_head("ab_00001", epoch, float(epoch)) + b"text\n")
        (root / FOLDER / "worker-1.log").write_bytes(make_head("ab_00002", epoch, float(epoch)) + b"text\n")
        (root / FOLDER / "worker-2.log").write_bytes(make_head("ab_00003", epoch, float(epoch)))
        uploads = LogUploads(root, epoch)
        keys += [sending.key for sending in uploads.changed()]
        assert uploads.changed() == []
        with (root / FOLDER / "worker-1.log").open("ab") as file:
            file.write(b"more\n")
        (again,) = uploads.changed()
        assert Path(again.path).read_bytes().endswith(b"text\nmore\n")
        assert Path(again.path) != root / FOLDER / "worker-1.log", "what changes cannot be uploaded"
        uploads.close()
        assert not Path(again.path).exists()
    names = ("ab_00001.log", "worker-1.log")
    assert keys == [f"{FOLDER}/e{epoch}/{name}" for epoch in (1, 2) for name in names]
