"""Trials that report as fast as they can: all of it counts, rules are obeyed to the step, and trials end."""

import os
import random
import signal
import threading
import time

import pytest

import holdfast as tune


def run(train, tmp_path, trials=1, **config):
    run_config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, **config)
    tuner = tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=trials, seed=1), run_config=run_config)
    return tuner.fit()


def test_every_report_counts_once_and_in_order(tmp_path):
    def train(config):
        for step in range(3000):
            tune.report({"step": step})

    for result in run(train, tmp_path, trials=2):
        assert [row["step"] for row in result.metrics_history] == list(range(3000))
        assert result.metrics["training_iteration"] == 3000
    assert os.listdir(tmp_path / "exp" / ".holdfast" / "ahead") == []


def test_what_a_later_driver_keeps_is_left_alone_and_the_rest_removed(tmp_path):
    """A driver that was taken over, and does not know it yet, must not take its successor's spools away."""

    def train(config):
        return {"a": 1}

    run(train, tmp_path)
    folder = tmp_path / "exp" / ".holdfast" / "ahead"
    folder.mkdir()
    for name in ("1-0-1.hfr", "1-7-1.hfr", "2-0-2.hfr", "3-0-2.hfr"):
        (folder / name).write_bytes(b"")
    tune.Tuner.restore(str(tmp_path / "exp"), train).fit()
    assert os.listdir(folder) == ["3-0-2.hfr"]


@pytest.mark.parametrize("stop", [{"training_iteration": 40}, lambda trial_id, result: result["step"] >= 40])
def test_a_trial_is_stopped_at_the_very_step(tmp_path, stop):
    def train(config):
        for step in range(1, 1000):
            tune.report({"step": step})
            with open(tmp_path / "returned", "a") as file:
                file.write(f"{step}\n")

    (result,) = run(train, tmp_path, stop=stop)
    assert result.metrics["step"] == 40
    assert len((tmp_path / "returned").read_text().split()) == 39


def test_a_function_that_yields_its_last_result_among_many(tmp_path):
    def train(config):
        for step in range(500):
            yield {"step": step}

    (result,) = run(train, tmp_path)
    assert len(result.metrics_history) == 500


def test_trials_that_fail_in_the_middle_of_a_sprint_have_reported_everything_before(tmp_path):
    def train(config):
        for step in range(700):
            tune.report({"step": step})
        raise RuntimeError("the end")

    (result,) = run(train, tmp_path)
    assert "the end" in str(result.error)
    assert len(result.metrics_history) == 700


def test_a_time_limit_by_a_signal_handler_ends_every_trial(tmp_path):
    """It may come at any point of a report, and of what follows the trial's end."""

    class TimeIsUp(Exception):
        pass

    def train(config):
        def end(number, frame):
            raise TimeIsUp

        signal.signal(signal.SIGALRM, end)
        step = 0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.02 * random.random())
            while True:
                step += 1
                tune.report({"step": step})
        except TimeIsUp:
            pass

    assert run(train, tmp_path, trials=60).num_terminated == 60


def test_a_thread_that_still_reports_does_not_keep_its_trial_from_ending(tmp_path):
    def train(config):
        def forever():
            while True:
                tune.report({"a": 1})

        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.05)

    assert run(train, tmp_path, trials=4).num_terminated == 4
