"""Progress as lines: few of them, and the ones that matter last."""

from __future__ import annotations

import io
import itertools
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from progress_world import World, boom

from holdfast.core import events as ev
from holdfast.display.base import MAX_LINES, MAX_QUEUED, PlainDisplay, SilentDisplay
from holdfast.display.display import Ending, RunSummary, make_display
from holdfast.display.experiment_facts import DisplayOptions
from holdfast.display.restore_calls import restore_call
from holdfast.views.trials import ExperimentInfo


class Run:
    """A world that is shown by a plain display."""

    def __init__(self, verbose: int = 1, options: DisplayOptions | None = None, **facts: Any) -> None:
        self.stream = io.StringIO()
        self.display = PlainDisplay(self.stream, options, verbose)
        self.world = World(self.display.feed, **facts)
        self.display.start(self.world.facts)
        self.update()

    def update(self) -> None:
        self.display.update(self.world.state, self.world.facts, self.world.at, 0.3)

    def end(self, outcome: str = Ending.FINISHED, reason: str = "") -> list[str]:
        summary = RunSummary(at=self.world.at, outcome=outcome, reason=reason)
        self.display.end(self.world.state, self.world.facts, summary)
        return self.lines

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def drive(run: Run, trials: int, failing: int, kinds: int, seconds: float) -> None:
    every = trials // failing
    for i in range(trials):
        run.world.at += seconds
        n = run.world.launch()
        run.world.report(n, loss=1.0 / (i + 1))
        if i % every == 0:
            run.world.fail(n, boom(f"bad value {i}", line=17 + i // every % kinds))
        else:
            run.world.finish(n)
        run.update()


@pytest.mark.parametrize("seconds", [0.001, 0.1, 10.0, 3600.0])
def test_at_most_forty_lines_however_many_trials_and_failures(seconds: float) -> None:
    run = Run(total=5000)
    drive(run, 5000, 100, kinds=30, seconds=seconds)
    for i in range(50):
        run.display.note(f"storage is slow ({i})")
    lines = run.end()
    assert len(lines) <= MAX_LINES
    assert "".join(lines[-15:]).count("/home/me/train.py:") == 7
    assert any("and 23 other kinds" in line for line in lines[-15:])


def test_every_reserve_of_the_budget_can_be_used_at_once() -> None:
    run = Run(total=20_000, resumed=True)
    for i in range(20):
        run.display.note(f"note {i}")
    drive(run, 1000, 100, kinds=100, seconds=20_000.0)
    lines = run.end(Ending.INTERRUPTED)
    assert len(lines) == MAX_LINES


def test_a_failure_is_shown_once_with_the_users_file_and_line() -> None:
    run = Run()
    drive(run, 100, 3, kinds=1, seconds=0.01)
    lines = run.end()
    assert "\n".join(lines).count("/home/me/train.py:17") == 1
    assert any("/home/me/train.py:17" in line for line in lines[-15:])
    assert any("ValueError in line 17 of train.py" in line for line in lines)
    assert len(lines) <= 12


def test_a_retried_failure_says_that_it_is_retried() -> None:
    run = Run()
    n = run.world.launch()
    run.world.stumble(n)
    run.update()
    assert run.lines[-1].startswith("train_ab_00000 failed and is retried: ValueError in line 17 of train.py")
    run.world.start(n)
    run.world.report(n, loss=1.0)
    run.world.finish(n)
    assert any("retried once" in line for line in run.end())


def test_progress_lines_grow_rarer() -> None:
    run = Run(total=None)
    shown_at = []
    run.world.launch()
    for _ in range(4000):
        run.world.at += 1
        before = len(run.lines)
        run.update()
        if len(run.lines) > before:
            shown_at.append(run.world.at - 1000)
    gaps = [b - a for a, b in itertools.pairwise(shown_at)]
    assert shown_at[0] == 5
    assert gaps == sorted(gaps)
    assert len(shown_at) == 9


def test_start_says_what_runs_and_where() -> None:
    lines = Run(resumed=True).lines
    assert lines[0] == "holdfast: lr-search, 100 trials, minimising loss, local engine, resumed"
    assert lines[1] == "Results: /data/lr-search"


def test_interruption_gives_the_exact_call_to_resume() -> None:
    run = Run()
    run.world.launch()
    lines = run.end(Ending.INTERRUPTED, "SIGINT")
    assert "lr-search was interrupted (SIGINT)" in lines[-4]
    assert lines[-3] == "On resume, 1 trial will start again from the beginning, because it has saved no checkpoint."
    assert lines[-1] == 'Resume with: Tuner.restore("/data/lr-search").fit()'


def test_the_call_to_resume_can_be_pasted_whatever_the_path() -> None:
    for path in ('/a "b"/c', "/back\\slash", "s3://bucket/x?y=1", "/ünï", "/new\nline", os.fsdecode(b"/\xff")):
        got: list[str] = []
        tuner = type("Tuner", (), {"restore": staticmethod(got.append)})
        eval(restore_call(path), {"Tuner": tuner})
        assert got == [path]
        assert restore_call(path).startswith('Tuner.restore("')


def test_failed_trials_can_be_tried_again_by_pasting_a_call() -> None:
    run = Run()
    run.world.fail(run.world.launch())
    last = run.end()[-1]
    assert 'Tuner.restore("/data/lr-search", resume_errored=True).fit()' in last


def test_trials_that_lack_an_object_are_tried_again_with_the_space() -> None:
    run = Run()
    run.world.fail(run.world.launch(), ev.ErrorFacts("MissingObjectError", "the value of 'data'", "", ""))
    assert 'Tuner.restore("/data/lr-search", param_space=..., resume_errored=True).fit()' in run.end()[-1]


def test_an_error_of_the_driver_is_told_with_the_way_out() -> None:
    run = Run()
    run.world.launch()
    lines = run.end(Ending.FAILED, "RuntimeError: callback broke")
    assert "ended with an error: RuntimeError: callback broke" in lines[2]
    assert 'Tuner.restore("/data/lr-search")' in lines[-1]


def test_best_result_and_its_parameters_are_in_the_summary() -> None:
    run = Run()
    n = run.world.launch({"lr": 0.01, "net": {"width": 64}})
    run.world.report(n, loss=0.25)
    run.world.finish(n)
    assert "Best: loss=0.25 by train_ab_00000 (lr=0.01, net={'width': 64})" in run.end()


def test_error_file_is_named_when_it_is_known() -> None:
    info = ExperimentInfo(root=Path("/data/lr-search"), name="lr-search", trainable_name="train")
    run = Run(info=info)
    run.world.fail(run.world.launch())
    line = next(line for line in run.end() if "train.py:17" in line)
    assert "traceback in /data/lr-search/train_ab_00000_0_" in line
    assert line.endswith("error.txt)")


def test_a_failure_on_a_cluster_names_the_machine() -> None:
    run = Run(engine="ray")
    n = run.world.launch()
    run.world.report(n, loss=1.0)
    run.world.fail(n)
    run.update()
    assert run.lines[-1].startswith("train_ab_00000 on host failed: ValueError")
    assert any("first train_ab_00000 on host" in line for line in run.end())


def test_control_codes_in_user_text_cannot_reach_the_terminal() -> None:
    run = Run(name="a\x1b[2Jb")
    run.world.fail(run.world.launch(name="t\x1b]0;x\x07"), boom("first\nsecond\x1b[31m"))
    run.display.note("line one\nline two\x1b[5m")
    run.update()
    text = "\n".join(run.end())
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "first second\\x1b[31m" in text
    assert "Note: line one line two\\x1b[5m" in text


def test_verbose_two_adds_a_line_for_each_end_and_three_for_each_result() -> None:
    for verbose, expected in ((1, 0), (2, 2), (3, 4)):
        run = Run(verbose)
        for ends in (run.world.finish, run.world.fail):
            n = run.world.launch()
            run.world.report(n, loss=0.5, accuracy=0.75)
            ends(n)
        before = len(run.lines)
        run.update()
        told = [line for line in run.lines[before:] if "failed: ValueError" not in line]
        assert len(told) == expected
    assert told[0] == "train_ab_00000 reports loss=0.5, accuracy=0.75"
    assert told[1] == "train_ab_00000 TERMINATED: 1 iteration in 0.5 s; loss=0.5, accuracy=0.75; lr=0.1"
    assert "train_ab_00001 ERROR: 1 iteration in 0.5 s; ValueError at /home/me/train.py:17" in told[3]


def test_queued_lines_are_limited_between_two_updates() -> None:
    run = Run(verbose=3)
    n = run.world.launch()
    for _ in range(MAX_QUEUED + 70):
        run.world.report(n, loss=1.0)
    before = len(run.lines)
    run.update()
    assert len(run.lines) - before == MAX_QUEUED + 1
    assert run.lines[-1] == "... 70 more of these lines left out"


def test_tables_are_printed_on_request() -> None:
    run = Run(options=DisplayOptions(print_tables=True, table_period_s=5.0))
    run.world.report(run.world.launch(), loss=0.5)
    run.world.at += 6
    run.update()
    assert any(line.split() == ["#", "Trial", "Status", "loss", "lr", "Iter", "Time", "Place"] for line in run.lines)


def test_trouble_and_lag_are_part_of_the_progress() -> None:
    run = Run()
    run.world.launch()
    run.world.facts.memory.storage_trouble[0] = "no space left on device"
    run.world.at += 6
    run.update()
    assert "durable 0.3 s behind" in run.lines[-1]
    assert "Waiting for storage: no space left on device" in run.lines[-1]


def test_repeated_notes_are_shown_once() -> None:
    run = Run()
    for _ in range(10):
        run.display.note("storage is slow")
    assert sum("storage is slow" in line for line in run.lines) == 1


def test_a_closed_stream_does_not_end_the_experiment() -> None:
    run = Run()
    run.stream.close()
    run.display.note("hello")
    run.display.end(run.world.state, run.world.facts, RunSummary(at=run.world.at))


def test_a_stream_that_knows_only_ascii_gets_escapes() -> None:
    raw = io.BytesIO()
    display = PlainDisplay(io.TextIOWrapper(raw, encoding="ascii"))
    display.start(World(name="größe").facts)
    assert b"gr\\xf6\\xdfe" in raw.getvalue()


def test_silence_still_tells_how_to_resume(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    display = make_display(0)
    assert isinstance(display, SilentDisplay)
    world = World(display.feed)
    world.launch()
    display.start(world.facts)
    display.update(world.state, world.facts, world.at)
    with caplog.at_level(logging.WARNING, "holdfast"):
        display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED, reason="SIGTERM"))
    assert 'Tuner.restore("/data/lr-search")' in caplog.text
    assert capsys.readouterr().out == ""


def test_silence_does_not_count_trials_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    SilentDisplay().end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.FAILED, reason="no space"))
    assert "lr-search ended with an error (no space). Resume with: " in caplog.text


def test_silence_says_nothing_about_a_good_end(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    SilentDisplay().end(world.state, world.facts, RunSummary(at=world.at))
    assert caplog.text == ""


def test_a_process_that_died_is_described_without_a_line() -> None:
    run = Run()
    run.world.fail(run.world.launch(), ev.ErrorFacts(message="signal 9"), cause=ev.Cause.OUT_OF_MEMORY)
    run.update()
    assert run.lines[-1] == "train_ab_00000 failed: out of memory: signal 9"
