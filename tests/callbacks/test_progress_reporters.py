"""The public reporters, and what becomes of one that the user gives."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from progress_world import World

from holdfast.display.base import PlainDisplay
from holdfast.display.display import Ending, RunSummary, make_display
from holdfast.display.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter, ReporterDisplay
from holdfast.views.trials import ExperimentInfo, TrialList


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric_columns": "loss"}, "CLIReporter.metric_columns must be a list"),
        ({"metric_columns": [1]}, "metric_columns"),
        ({"parameter_columns": {"lr": 3}}, "parameter_columns"),
        ({"max_progress_rows": 0}, "max_progress_rows"),
        ({"max_error_rows": -1}, "max_error_rows"),
        ({"max_column_length": 1}, "max_column_length"),
        ({"max_report_frequency": -1}, "max_report_frequency"),
        ({"infer_limit": 1.5}, "infer_limit"),
        ({"mode": "minimum"}, r"\['min', 'max'\]"),
        ({"metric": ["a", "b"]}, "metric"),
        ({"sort_by_metric": 1}, "sort_by_metric"),
        ({"print_intermediate_tables": "yes"}, "print_intermediate_tables"),
        ({"total_samples": -1}, "total_samples"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CLIReporter(**arguments)


def test_a_column_cannot_be_added_twice() -> None:
    reporter = CLIReporter(metric_columns=["loss"], parameter_columns={"lr": "rate"})
    with pytest.raises(ValueError, match="not there yet"):
        reporter.add_metric_column("loss")
    with pytest.raises(ValueError, match="There are: lr"):
        reporter.add_parameter_column("lr", "again")
    reporter.add_metric_column("accuracy", "acc")
    reporter.add_parameter_column("wd")
    options = reporter.options()
    assert options.metric_columns == {"loss": "loss", "accuracy": "acc"}
    assert options.parameter_columns == {"lr": "rate", "wd": "wd"}
    assert options.infer_metrics is False


def test_metrics_are_inferred_unless_columns_are_given() -> None:
    reporter = CLIReporter()
    reporter.add_metric_column("accuracy")
    assert reporter.options().infer_metrics is True


def test_setup_fills_in_only_what_the_user_left_open() -> None:
    reporter = CLIReporter(metric="accuracy", mode="max")
    reporter.setup(0.0, 30, "loss", "min", more="things")
    options = reporter.options()
    assert (options.metric, options.mode, options.total) == ("accuracy", "max", 30)


def test_both_reporters_take_the_arguments_of_the_other() -> None:
    reporter = JupyterNotebookReporter(False, metric_columns=["loss"], sort_by_metric=True)
    assert reporter.options().overwrite is False
    with pytest.raises(ValueError, match="overwrite"):
        JupyterNotebookReporter(overwrite="no")  # type: ignore[arg-type]


def test_should_report_keeps_its_distance_but_not_at_the_end() -> None:
    reporter = CLIReporter(max_report_frequency=1000)
    assert [reporter.should_report([]), reporter.should_report([]), reporter.should_report([], done=True)] == [
        True,
        False,
        True,
    ]
    eager = CLIReporter(max_report_frequency=0)
    assert eager.should_report([])
    assert eager.should_report([])


def trials_of(world: World) -> Sequence[Any]:
    from pathlib import Path

    return TrialList(world.state, ExperimentInfo(root=Path("/data/x"), name="x", trainable_name="train"))


def test_report_prints_counts_best_table_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for loss in (0.5, 0.25, 0.75):
        world.report(world.launch(), loss=loss, accuracy=1.0)
    world.fail(2)
    reporter = CLIReporter(sort_by_metric=True, max_progress_rows=2)
    reporter.setup(None, 10, "loss", "min")
    reporter.report(trials_of(world), True, "Memory: fine")
    out = capsys.readouterr().out
    assert "3/10 trials (2 running, 1 failed)" in out
    assert "Memory: fine" in out
    assert "Current best trial: train_ab_00001 with loss=0.25" in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("train")]
    assert rows == ["train_ab_00001", "train_ab_00000"]
    assert "1 more trials not shown" in out
    assert "Number of errored trials: 1" in out
    assert "error file: /data/x/" in out


def test_a_base_reporter_without_report_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="must define report"):
        ProgressReporter().report([], False)


def test_a_built_in_reporter_configures_the_display() -> None:
    reporter = CLIReporter(metric_columns=["loss"], max_progress_rows=7, metric="accuracy", mode="max")
    display = make_display(1, io.StringIO(), notebook=False, reporter=reporter)
    assert isinstance(display, PlainDisplay)
    assert display.options.max_progress_rows == 7
    assert display.options.objective(World().facts) == ("accuracy", "max")


class Counting(ProgressReporter):
    """Remembers what it was asked and told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.settings: tuple[Any, ...] = ()

    def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **kwargs):  # type: ignore[no-untyped-def]
        self.settings = (start_time, total_samples, metric, mode)

    def should_report(self, trials: Sequence[Any], done: bool = False) -> bool:
        return done or any(trial.status == "TERMINATED" for trial in trials)

    def report(self, trials: Sequence[Any], done: bool, *sys_info: str) -> None:
        assert sys_info == ("Resources in use: 0/8 CPU",)
        self.told.append((len(trials), done))


def test_a_users_reporter_replaces_the_display() -> None:
    reporter, stream = Counting(), io.StringIO()
    display = make_display(1, stream, notebook=False, reporter=reporter)
    world = World(display.feed)
    display.start(world.facts)
    display.update(world.state, world.facts, world.at)
    assert reporter.settings == (1000.0, 100, "loss", "min")
    world.finish(world.launch())
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED))
    assert reporter.told == [(1, True)]
    assert stream.getvalue() == 'Resume with: Tuner.restore("/data/lr-search").fit()\n'


def test_overriding_should_report_alone_keeps_the_built_in_table(capsys: pytest.CaptureFixture[str]) -> None:
    class AtTheEnd(CLIReporter):
        def should_report(self, trials: Sequence[Any], done: bool = False) -> bool:
            return done

    display = make_display(1, io.StringIO(), notebook=False, reporter=AtTheEnd())
    assert isinstance(display, ReporterDisplay)
    world = World(display.feed)
    display.start(world.facts)
    world.report(world.launch(), loss=0.5)
    display.update(world.state, world.facts, world.at)
    assert capsys.readouterr().out == ""
    display.end(world.state, world.facts, RunSummary(at=world.at))
    assert "Current best trial: train_ab_00000 with loss=0.5" in capsys.readouterr().out


def test_a_reporter_that_raises_is_left_alone_and_the_plain_display_takes_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ProgressReporter):
        calls = 0

        def report(self, trials: Sequence[Any], done: bool, *sys_info: str) -> None:
            Broken.calls += 1
            raise RuntimeError("no paper")

    stream = io.StringIO()
    display = make_display(1, stream, notebook=False, reporter=Broken())
    world = World(display.feed)
    display.start(world.facts)
    display.update(world.state, world.facts, world.at)
    world.fail(world.launch())
    display.end(world.state, world.facts, RunSummary(at=world.at))
    assert Broken.calls == 1
    assert "no paper" in caplog.text
    assert stream.getvalue().count("/home/me/train.py:17") == 1


def test_what_is_no_reporter_is_refused() -> None:
    with pytest.raises(TypeError, match="should_report"):
        make_display(1, io.StringIO(), reporter="table")
    with pytest.raises(TypeError, match="CLIReporter"):
        make_display(1, io.StringIO(), reporter=CLIReporter)


def test_a_notebook_reporter_without_a_notebook_falls_back_to_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        display = make_display(1, io.StringIO(), notebook=False, reporter=JupyterNotebookReporter())
    assert isinstance(display, PlainDisplay)
    assert "needs a notebook" in caplog.text
