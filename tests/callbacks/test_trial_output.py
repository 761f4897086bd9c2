"""Lines that trials print, as the driver finds them in their files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from progress_world import World
from rich.console import Console

from holdfast.core import events as ev
from holdfast.display.base import PlainDisplay
from holdfast.display.display import RunSummary
from holdfast.display.live import LiveDisplay, NotebookDisplay
from holdfast.display.trial_output import (
    BYTES_PER_LOOK,
    LINES_PER_S,
    MOST_LINES,
    SUMMARY_S,
    OutputLine,
    TrialOutput,
)
from holdfast.storage import trial_logs
from holdfast.storage.trial_logs import make_head, settle, shorten
from holdfast.views.trials import ExperimentInfo, trial_dirname


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """Trials whose files are written by the test, and the reader of them."""

    def __init__(self, root: Path, files: tuple[str, str] | None = None, **facts: Any) -> None:
        self.root = root
        self.clock = Clock()
        self.logs = root / trial_logs.FOLDER
        self.logs.mkdir(parents=True)
        self.running: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self.info = ExperimentInfo(root=root, name="exp", trainable_name="train")
        self.output = TrialOutput(self.info, lambda: dict(self.running), files, self.clock)
        self.world = World(self.output.feed, **facts)

    def next_driver(self, files: tuple[str, str] | None) -> None:
        self.output = TrialOutput(self.info, lambda: dict(self.running), files, self.clock)
        self.world.feed = self.output.feed

    def trial_dir(self, n: int) -> Path:
        path = self.root / trial_dirname(self.info, self.world.state.trials[n])
        path.mkdir(exist_ok=True)
        return path

    def start(self, n: int | None = None, name: str = "") -> int:
        if n is None:
            n = self.world.launch(name=name)
        else:
            self.world.start(n)
        trial = self.world.state.trials[n]
        path = self.logs / f"worker-{n}.log"
        path.write_bytes(make_head(trial.id, trial.attempt, float(trial.attempt)))
        self.running[n, trial.attempt] = [(str(path), 0)]
        return n

    def prints(self, n: int, text: str | bytes) -> None:
        with (self.logs / f"worker-{n}.log").open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def ends(self, n: int) -> None:
        settle(str(self.logs / f"worker-{n}.log"), None)
        del self.running[n, self.world.state.trials[n].attempt]

    def finishes(self, n: int) -> None:
        self.ends(n)
        self.world.finish(n)

    def take(self, **options: Any) -> list[OutputLine]:
        return self.output.take(self.world.state, **options)

    def texts(self, **options: Any) -> list[str]:
        return [line.text for line in self.take(**options)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_lines_are_told_once_and_with_their_trial(machine: Machine) -> None:
    one, two = machine.start(), machine.start()
    machine.prints(one, "a\nb\n")
    machine.prints(two, "c\n")
    assert sorted(machine.take()) == [(one, "a"), (one, "b"), (two, "c")]
    assert machine.take() == []
    machine.prints(one, "d\n")
    assert machine.take() == [(one, "d")]


def test_an_unfinished_line_is_told_when_it_is_finished_or_its_attempt_ends(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "one ")
    assert machine.take() == []
    machine.prints(n, "line\nand the re")
    assert machine.texts() == ["one line"]
    machine.prints(n, "st")
    machine.finishes(n)
    assert machine.texts() == ["and the rest"]


def test_a_progress_bar_is_told_in_its_last_state(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "\r 10%|#  |")
    assert machine.take() == []
    machine.prints(n, "\r 50%|## |\r")
    assert machine.take() == []
    machine.prints(n, "\r100%|###|\nwindows line\r\n")
    assert machine.texts() == ["100%|###|", "windows line"]


def test_a_trial_that_ended_between_two_looks_is_heard(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "brief\n")
    machine.finishes(n)
    silent = machine.start()
    machine.finishes(silent)
    assert machine.take() == [(n, "brief")]


def test_each_later_attempt_is_announced_and_nothing_is_told_twice(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "first\n")
    assert machine.texts() == ["first"]
    machine.prints(n, "more\n")
    machine.ends(n)
    machine.world.stumble(n)
    machine.start(n)
    machine.prints(n, "second\n")
    assert machine.texts() == ["more", "--- attempt 2 ---", "second"]
    machine.prints(n, "last\n")
    machine.finishes(n)
    assert machine.texts() == ["last"]


def test_attempts_that_ended_between_two_looks_are_told_apart(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "first\n")
    machine.ends(n)
    machine.world.stumble(n)
    machine.start(n)
    machine.prints(n, "second\n")
    machine.finishes(n)
    assert machine.texts() == ["first", "--- attempt 2 ---", "second"]


@pytest.mark.parametrize("files", [None, ("out.txt", "err.txt")], ids=["logs", "log_to_file"])
def test_what_a_former_drivers_attempt_printed_is_not_told_as_new(
    tmp_path: Path, files: tuple[str, str] | None
) -> None:
    """It was killed with its workers; the next driver moves their output to the trials' files when it opens."""
    machine = Machine(tmp_path)
    one, two = machine.start(), machine.start()
    for n in (one, two):
        machine.prints(n, "start 1\n")
    assert machine.texts() == ["start 1", "start 1"]
    machine.next_driver(files)
    for n in (one, two):
        (machine.trial_dir(n) / "out.txt").write_text("start 1\n")
        machine.ends(n)
        attempt = machine.world.state.trials[n].attempt
        machine.world.add(ev.AttemptInterrupted(machine.world.at, n, attempt, ev.Cause.DRIVER_LOST))
    assert machine.texts() == []
    machine.world.fail(two)  # its checkpoints cannot be used: it ends without another attempt
    assert machine.texts() == []
    if files is None:
        machine.start(one)
        machine.prints(one, "start 5\n")
        assert machine.texts() == ["--- attempt 2 ---", "start 5"]
        machine.prints(one, "end\n")
        machine.finishes(one)
    assert machine.texts(final=True) == ([] if files else ["end"])


def test_output_of_a_worker_that_already_runs_another_attempt_is_not_mistaken(machine: Machine) -> None:
    n = machine.start()
    (machine.logs / f"worker-{n}.log").write_bytes(make_head("ab_00077", 1, 1.0) + b"not mine\n")
    assert machine.take() == []


def test_a_file_that_was_cut_is_read_on(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "x\n" * 5000)
    machine.take()
    shorten(str(machine.logs / f"worker-{n}.log"), 4096)
    machine.clock.now += 100.0
    said = machine.texts()
    assert "older output that was cut (RunConfig.max_output_bytes) of 1 trial: holdfast logs" in said[-1]
    machine.clock.now += 100.0
    machine.prints(n, "after the cut\n")
    assert machine.texts() == ["after the cut"]


def test_a_flood_is_thinned_and_counted(machine: Machine) -> None:
    loud, quiet = machine.start(), machine.start()
    machine.prints(loud, "".join(f"{i}\n" for i in range(1000)))
    machine.prints(quiet, "psst\n")
    lines = machine.take()
    assert len(lines) == MOST_LINES + 1
    assert OutputLine(quiet, "psst") in lines
    assert lines[-1].n == -1
    assert lines[-1].text.startswith("... 901 more lines of 1 trial: holdfast logs ")
    assert lines[-1].text.endswith(" ab_00000")
    machine.clock.now += 1.0
    machine.prints(loud, "y\n" * 100)
    assert len(machine.take()) == int(LINES_PER_S)
    machine.clock.now += SUMMARY_S
    assert machine.texts() == [
        f"... {100 - int(LINES_PER_S)} more lines of 1 trial: holdfast logs {machine.root} ab_00000"
    ]


def test_one_look_reads_a_bounded_amount_however_much_was_printed(machine: Machine) -> None:
    for _ in range(96):
        n = machine.start()
        machine.prints(n, b"z" * 99 + b"\n" + b"y" * 10_000_000)
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", counting)
        machine.take()
    assert read <= BYTES_PER_LOOK + 96 * trial_logs.MAX_HEAD_BYTES
    assert any("MB more" in text for text in machine.texts(final=True))


def test_what_is_left_out_is_told_at_the_end(machine: Machine) -> None:
    n = machine.start()
    machine.prints(n, "y\n" * 200)
    machine.take()
    machine.prints(n, "y\n" * 7)
    assert machine.take() == []
    assert machine.texts(final=True)[0].startswith("... 7 more lines")


def test_files_in_the_trials_directory_are_followed_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ("stdout", "stderr"))
    n = machine.start()
    folder = tmp_path / "train_ab_00000"
    folder.mkdir()
    out, err, log = folder / "stdout", folder / "stderr", str(machine.logs / "worker-0.log")
    out.write_text("of a driver before\n")
    err.touch()
    machine.running[n, 1] = [(str(err), 0), (str(out), out.stat().st_size), (log, 0)]
    with out.open("a") as file:
        file.write("printed\n")
    err.write_text("complained\n")
    assert sorted(machine.texts()) == ["complained", "printed"]
    assert machine.take() == []


# --- the displays


def evil(machine: Machine) -> int:
    n = machine.start(name="na\x1b[2Jme")
    machine.prints(n, "\x1b[31mred\x1b[0m [bold]\x1b[2J\x9b1A\u202e<b>\n")
    return n


def test_a_terminal_gets_colours_and_no_other_codes(machine: Machine) -> None:
    console = Console(file=io.StringIO(), width=200, height=50, force_terminal=True, color_system="standard")
    display = LiveDisplay(io.StringIO(), console=console, clock=machine.clock)
    display.watch(machine.output)
    evil(machine)
    display.start(machine.world.facts)
    display.update(machine.world.state, machine.world.facts, 1001.0)
    display.close()
    said = console.file.getvalue()
    assert "\x1b[31mred\x1b[0m [bold]\\x1b[2J\\x9b1A\\u202e<b>" in said
    assert "na\\x1b[2Jme | " in said
    assert "\x1b[2J" not in said
    assert "\u202e" not in said


def test_a_file_gets_plain_lines(machine: Machine) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.watch(machine.output)
    evil(machine)
    display.update(machine.world.state, machine.world.facts, 1001.0)
    assert "na\\x1b[2Jme | red [bold]\\x1b[2J\\x9b1A\\u202e<b>\n" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_notebook_shows_them_above_its_table(machine: Machine) -> None:
    shown: list[str] = []
    display = NotebookDisplay(publish=lambda html, overwrite: shown.append(html), clock=machine.clock)
    display.watch(machine.output)
    evil(machine)
    display.update(machine.world.state, machine.world.facts, 1001.0)
    lines, _, rest = shown[-1].partition("</pre>")
    assert "red [bold]\\x1b[2J\\x9b1A\\u202e&lt;b&gt;" in lines
    assert "<table>" in rest
    display.end(machine.world.state, machine.world.facts, RunSummary(at=1002.0))
    assert "red [bold]" in shown[-1]
    assert "\x1b" not in "".join(shown)
