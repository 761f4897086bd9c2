"""What works but cannot be what was meant is pointed out once: in the output of fit(), or as a warning without one."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import holdfast as tune
from holdfast.controller.advice import LARGE_REPORT_BYTES
from holdfast.messages.warn import ExperimentWarning


@pytest.fixture
def fit(make_tuner, caplog):
    """Runs an experiment without a display; the results, what was warned of, and what the log says."""

    def run(trainable, space=None, **fields):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ExperimentWarning)
            grid = make_tuner(trainable, space, **fields).fit()
        texts = [str(each.message) for each in caught if issubclass(each.category, ExperimentWarning)]
        ours = os.path.dirname(tune.__file__)
        assert not any(each.filename.startswith(ours) for each in caught), "a warning points to the user's own line"
        return grid, texts, caplog.text

    return run


def report_well(config):
    for _ in range(3):
        tune.report({"loss": 1.0, "name": "a"})


def test_all_is_well_and_nothing_is_said(fit):
    _, texts, output = fit(report_well, num_samples=3, metric="loss", mode="min")
    assert (texts, output) == ([], "")


def test_a_function_that_neither_reports_nor_returns_is_pointed_out(fit):
    def train(config):
        pass

    _, texts, output = fit(train, num_samples=5)
    (text,) = texts
    assert "train has reported nothing and returned nothing in 5 of 5 trials (train_" in text
    assert "tune.report({'loss': loss})" in text
    assert output == ""


def test_a_function_that_returns_or_yields_is_not_pointed_out(fit):
    def returns(config):
        return {"loss": 1}

    def yields(config):
        yield {"loss": 1}

    for function in (returns, yields):
        assert fit(function, if_exists="new")[1] == []


def test_trials_that_failed_are_not_called_silent(fit):
    def train(config):
        raise RuntimeError("no")

    assert fit(train)[1] == []


def test_a_class_has_always_reported(fit):
    class Train(tune.Trainable):
        def step(self):
            return {}

    assert fit(Train, stop={"training_iteration": 2})[1] == []


@pytest.mark.parametrize(("value", "kind"), [("0.5", "str"), ([0.5], "list"), ({"a": 1}, "dict")])
def test_a_metric_that_is_no_number_is_pointed_out(fit, value, kind):
    def train(config):
        for _ in range(3):
            tune.report({"loss": value})

    _, texts, output = fit(train, num_samples=3, metric="loss", mode="min")
    (text,) = texts
    assert f"The metric 'loss' is a {kind} in train_" in text
    assert "not a number" in text
    assert output == ""


def test_a_metric_that_is_always_nan_is_pointed_out_with_its_trials(fit):
    def train(config):
        for step in range(3):
            bad = config["x"] < 2 or (config["x"] == 2 and step)
            tune.report({"eval": {"loss": float("nan") if bad else 1}})

    grid, texts, output = fit(train, {"x": tune.grid_search([0, 1, 2, 3])}, metric="eval/loss", mode="min")
    (text,) = texts
    first, second = grid[0].trial_id, grid[1].trial_id
    assert f"'eval/loss' was NaN in every report of 2 of 4 trials (train_{first}, train_{second})" in text
    assert output == ""


def test_a_metric_without_a_mode_is_pointed_out(fit):
    _, texts, output = fit(report_well, metric="loss")
    (text,) = texts
    assert "TuneConfig(metric='loss') has no mode" in text
    assert "get_best_result() needs mode='min' or mode='max'" in text
    assert output == ""


def test_a_mode_without_a_metric_is_pointed_out(fit):
    (text,) = fit(report_well, mode="min")[1]
    assert "TuneConfig(mode='min') has no metric: nothing is compared" in text


def test_what_a_searcher_assumes_without_a_metric_is_said(fit):
    def train(config):
        return config["x"]

    space = {"x": tune.uniform(0, 1)}
    (text,) = fit(train, space, mode="min", search_alg="optuna")[1]
    assert "TuneConfig(mode='min') has no metric: it is assumed to be '_metric'" in text


def test_a_large_report_is_pointed_out_with_its_largest_values(fit):
    def train(config):
        for _ in range(2):
            tune.report({"loss": 1.0, "losses": [0.5] * 200_000, "text": "x" * 200_000})

    _, texts, output = fit(train, num_samples=2)
    (text,) = texts
    assert "has reported 2.0 MB at once; the largest values are 'losses' (1.8 MB), 'text' (0.2 MB)" in text
    assert "checkpoint" in text
    assert output == ""


def test_a_report_below_the_limit_is_not_pointed_out(fit):
    def train(config):
        tune.report({"text": "x" * (LARGE_REPORT_BYTES - 1000)})

    assert fit(train)[1] == []


def test_a_relative_path_that_exists_where_fit_was_called_is_named(make_tuner, tmp_path, monkeypatch):
    def train(config):
        try:
            Path("data", "train.csv").read_text()
        except FileNotFoundError as error:
            if config["wrap"]:
                raise RuntimeError("the data cannot be read") from error
            raise

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").touch()
    for result in make_tuner(train, {"wrap": tune.grid_search([True, False])}).fit():
        text = str(result.error)
        assert f"'data/train.csv' exists in {tmp_path}, where fit() was called" in text
        assert "TUNE_ORIG_WORKING_DIR" in text
        assert "HOLDFAST_CHDIR_TO_TRIAL_DIR=0" in text
        assert "where fit() was called" in result.error.traceback


def test_a_path_that_exists_nowhere_is_the_trials_own_matter(make_tuner, tmp_path, monkeypatch):
    def train(config):
        Path(config["path"]).read_text()

    monkeypatch.chdir(tmp_path)
    paths = ["nowhere.csv", str(tmp_path / "nowhere.csv")]
    for result in make_tuner(train, {"path": tune.grid_search(paths)}).fit():
        assert "where fit() was called" not in str(result.error)


def test_the_way_out_works(make_tuner, tmp_path, monkeypatch):
    def train(config):
        with open(os.path.join(os.environ["TUNE_ORIG_WORKING_DIR"], "data.csv")) as file:
            return {"text": file.read()}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("here")
    (result,) = make_tuner(train).fit()
    assert result.metrics["text"] == "here"


SILENT = """
import sys
import holdfast as tune

def silent(config):
    pass

def half(config):
    return {{"loss": 1.0}}

def text(config):
    return {{"loss": "1.0"}}

run_config = tune.RunConfig(storage_path=sys.argv[1], engine=tune.LocalEngine(cpus=1))
tune.Tuner({function}, tune_config=tune.TuneConfig({settings}), run_config=run_config).fit()
"""


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [("silent", "", "has reported nothing"), ("half", "metric='loss'", "has no mode")],
)
def test_a_person_at_a_terminal_is_told_once(tmp_path, function, settings, words):
    shown = in_terminal(SILENT.format(function=function, settings=settings), str(tmp_path))
    # While the display is live it paints its notes again and again; what stays is printed after the last frame.
    assert "finished: 1/1 trials" in shown
    last = shown[shown.rindex("\x1b[?25h") :] if words == "has reported nothing" else shown
    assert last.count(words) == 1, shown


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        ("silent", "", "has reported nothing"),
        ("half", "metric='loss'", "has no mode"),
        ("text", "metric='loss', mode='min'", "not a number"),
    ],
)
def test_who_reads_the_output_of_a_script_is_told_once(tmp_path, function, settings, words, verbose):
    script = SILENT.format(function=function, settings=settings).replace("(storage", f"(verbose={verbose}, storage")
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert done.stdout.count(words) == 1, done.stdout


def in_terminal(script, *arguments):
    """What a script writes whose output and errors go to one terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        pieces = []
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        os.close(ours)
    assert process.returncode == 0
    return b"".join(pieces).decode()
