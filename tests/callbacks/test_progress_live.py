"""The frame that is repainted on a terminal."""

from __future__ import annotations

import io
import os
import pty
import sys
from typing import Any

import pytest
from progress_world import World, boom
from rich.console import Console

from holdfast.core.state import UNIT
from holdfast.display.base import PlainDisplay, Throttle
from holdfast.display.display import Ending, RunSummary, make_display
from holdfast.display.experiment_facts import DisplayOptions
from holdfast.display.live import Frame, LiveDisplay
from holdfast.display.tracker import ProgressTracker


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def console(width: int, height: int = 50) -> Console:
    return Console(file=io.StringIO(), record=True, width=width, height=height, force_terminal=True, highlight=False)


def busy_world(feed: Any, **facts: Any) -> World:
    world = World(feed, **facts)
    world.state.used = {}
    for i in range(40):
        n = world.launch({"lr": 0.001 * i, "layers": i, "net": {"width": 2**i}, "optimiser": "adam"})
        world.report(n, loss=1.0 / (i + 1), accuracy=0.5, val={"loss": 0.25}, extra=1.0)
        if i % 10 == 9:
            world.fail(n, boom(line=17 + i // 20))
        elif i % 2:
            world.finish(n)
    world.at += 30
    return world


def painted(width: int, height: int = 50, options: DisplayOptions | None = None, **facts: Any) -> list[str]:
    options = options or DisplayOptions()
    tracker = ProgressTracker()
    world = busy_world(tracker.feed, **facts)
    frame = Frame(options)
    frame.notes = ["storage is slow"]
    screen = console(width, height)
    view = tracker.view(world.state, world.facts, options, world.at, 0.3)
    screen.print(frame.render(view, world.facts, width, height))
    return screen.export_text().splitlines()


def is_header(line: str) -> bool:
    return line.split()[:2] in (["#", "Trial"], ["Trial", "Status"])


@pytest.mark.parametrize("width", [80, 140])
def test_the_frame_shows_what_matters_at_any_width(width: int) -> None:
    lines = painted(width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("lr-search  /data/lr-search")
    for part in (
        "20/100 trials",
        "20 running, 60 pending, 16 done, 4 failed",
        "Best loss=0.025 by train_ab_00039",
        "20/8 CPU in use",
        "durable 0.3 s behind",
        "RUNNING",
        "Failed 2 trials: ValueError at /home/me/train.py:17",
        "Failed 2 trials: ValueError at /home/me/train.py:18",
        "Note: storage is slow",
        "more running",
    ):
        assert part in text, part
    header = next(line for line in lines if is_header(line))
    assert {"Status", "lr", "Iter", "loss"} <= set(header.split())


def test_a_wide_terminal_shows_more_columns() -> None:
    wide = next(line for line in painted(140) if is_header(line)).split()
    narrow = next(line for line in painted(60) if is_header(line)).split()
    assert set(narrow) < set(wide)
    assert {"accuracy", "val/loss", "extra"} <= set(wide)


def test_the_table_is_limited_by_rows_and_by_the_height_of_the_terminal() -> None:
    rows = [line for line in painted(140) if line.lstrip("0123456789 ").startswith("train_ab")]
    assert len(rows) == 20
    low = painted(140, height=24)
    assert len(low) <= 23


def test_columns_and_rows_follow_the_options() -> None:
    options = DisplayOptions(
        metric_columns={"val/loss": "validation"},
        infer_metrics=False,
        parameter_columns={"net/width": "width"},
        max_progress_rows=5,
        max_column_length=8,
    )
    lines = painted(140, options=options)
    header = next(line for line in lines if is_header(line)).split()
    assert header == ["#", "Trial", "Status", "loss", "width", "Iter", "Time", "..dation", "Place"]
    assert sum(line.startswith("..") and "ab" in line for line in lines) + sum("_000" in line for line in lines) >= 5


def test_inferred_metrics_are_limited() -> None:
    header = next(line for line in painted(140, options=DisplayOptions(infer_limit=1)) if is_header(line))
    assert "accuracy" in header
    assert "extra" not in header


def test_an_open_ended_search_shows_no_bar_and_no_guess() -> None:
    text = "\n".join(painted(80, total=None))
    assert "20 trials ended, 30 s" in text
    assert " left" not in text


def test_square_brackets_in_names_are_not_markup() -> None:
    assert painted(80, name="[red]x[/red]")[0].startswith("[red]x[/red]")


def test_the_terminal_is_repainted_at_most_four_times_a_second() -> None:
    clock, screen = Clock(), console(80)
    display = LiveDisplay(io.StringIO(), console=screen, clock=clock)
    world = busy_world(display.feed)
    display.start(world.facts)
    frames = 0
    try:
        for _ in range(1000):
            clock.now += 0.01
            before = len(screen.file.getvalue())  # type: ignore[attr-defined]
            display.update(world.state, world.facts, world.at)
            frames += len(screen.file.getvalue()) > before  # type: ignore[attr-defined]
    finally:
        display.close()
    assert 35 <= frames <= 41


def test_work_takes_at_most_a_twentieth_of_the_time() -> None:
    clock = Clock()
    throttle = Throttle(0.25, clock)
    spent = 0.0

    def work() -> None:
        nonlocal spent
        spent += 2.0
        clock.now += 2.0

    while clock.now < 1000:
        if throttle.ready():
            throttle.run(work)
        clock.now += 0.1
    assert 0.04 < spent / clock.now <= 0.052


def test_the_end_leaves_one_summary_and_the_streams_as_they_were() -> None:
    screen = console(80)
    display = LiveDisplay(io.StringIO(), console=screen)
    world = busy_world(display.feed)
    before = sys.stdout, sys.stderr
    display.start(world.facts)
    assert sys.stdout is not before[0]
    display.update(world.state, world.facts, world.at)
    display.note("checkpoint_000003 of train_ab_00001 is damaged; it goes on from checkpoint_000002")
    screen.export_text(clear=True)
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED, reason="SIGINT"))
    assert (sys.stdout, sys.stderr) == before
    text = screen.export_text()
    assert text.count("lr-search was interrupted (SIGINT)") == 1
    assert text.count("Note: checkpoint_000003") == 1
    assert 'Resume with: Tuner.restore("/data/lr-search").fit()' in text.splitlines()
    assert screen.file.getvalue().rindex("\x1b[?25h") > screen.file.getvalue().rindex("\x1b[?25l")  # type: ignore[attr-defined]


def test_the_call_to_resume_stays_in_one_piece_on_a_narrow_terminal() -> None:
    screen = console(40)
    display = LiveDisplay(io.StringIO(), console=screen)
    root = "/very/long/path" * 10
    world = World(display.feed, root=root)
    display.start(world.facts)
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED))
    assert f'Tuner.restore("{root}")' in screen.export_text()


def test_closing_after_an_exception_gives_the_terminal_back() -> None:
    screen = console(80)
    display = LiveDisplay(io.StringIO(), console=screen)
    world = World(display.feed)
    before = sys.stdout

    def interrupted() -> None:
        try:
            display.start(world.facts)
            display.update(world.state, world.facts, world.at)
            raise KeyboardInterrupt
        finally:
            display.close()
            display.close()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stdout is before
    assert screen.file.getvalue().endswith("\x1b[2K")  # type: ignore[attr-defined]


def test_the_cursor_stays_visible_so_that_a_kill_leaves_a_usable_terminal() -> None:
    screen = console(80)
    display = LiveDisplay(io.StringIO(), console=screen)
    world = World(display.feed)
    display.start(world.facts)
    try:
        display.update(world.state, world.facts, world.at)
        written = screen.file.getvalue()  # type: ignore[attr-defined]
    finally:
        display.close()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


class Unpaintable(io.StringIO):
    """A terminal that goes away."""

    gone = False

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_terminal_that_fails_makes_room_for_plain_lines() -> None:
    terminal, log = Unpaintable(), io.StringIO()
    display = LiveDisplay(log, console=Console(file=terminal, width=80, force_terminal=True))
    world = World(display.feed)
    before = sys.stdout
    display.start(world.facts)
    display.note("an earlier note")
    terminal.gone = True
    display.update(world.state, world.facts, world.at)
    assert sys.stdout is before
    world.fail(world.launch())
    display.update(world.state, world.facts, world.at)
    display.end(world.state, world.facts, RunSummary(at=world.at))
    text = log.getvalue()
    assert "an earlier note" in text
    assert "the live display failed (OSError" in text
    assert text.count("/home/me/train.py:17") == 1


def test_trials_that_end_are_printed_above_the_frame_at_verbose_two() -> None:
    screen = console(140)
    display = LiveDisplay(io.StringIO(), verbose=2, console=screen)
    world = World(display.feed)
    display.start(world.facts)
    n = world.launch()
    world.report(n, loss=0.5)
    world.finish(n)
    display.update(world.state, world.facts, world.at)
    display.close()
    assert "train_ab_00000 TERMINATED: 1 iteration in 0.5 s; loss=0.5; lr=0.1" in screen.export_text()


def test_a_forked_child_prints_to_the_real_stream_and_leaves_the_terminal_alone() -> None:
    screen = console(80)
    display = LiveDisplay(io.StringIO(), console=screen)
    world = World(display.feed)
    real = sys.stdout
    display.start(world.facts)
    try:
        child = os.fork()
        if child == 0:
            before = screen.file.getvalue()  # type: ignore[attr-defined]
            display.close()
            untouched = screen.file.getvalue() == before  # type: ignore[attr-defined]
            os._exit(0 if sys.stdout is real and untouched else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert sys.stdout is not real
    finally:
        display.close()


def test_a_real_terminal_gets_the_live_display_and_a_file_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb"):
        assert isinstance(make_display(1, terminal, notebook=False), LiveDisplay)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_display(1, terminal, notebook=False), PlainDisplay)
    assert isinstance(make_display(1, io.StringIO(), notebook=False), PlainDisplay)


def test_resources_are_counted_in_whole_units() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    world.facts.memory.capacity = {"CPU": 8 * UNIT, "GPU": 0}
    world.launch()
    view = tracker.view(world.state, world.facts, DisplayOptions(), world.at)
    assert view.resources == (("CPU", 1.0, 8.0),)
