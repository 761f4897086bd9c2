"""How a driver ends when it is asked to: real signals to real processes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from api_trainables import noop
from experiment_tools import history, json_rows, lines, statuses, wait_until

import holdfast as tune

restore = tune.Tuner.restore

SLOW = """
def train(config):
    step = start_step()
    while True:
        step += 1
        if step % 4 == 0 or tune.should_checkpoint():
            save(step)
        else:
            tune.report({"step": step})
        DIR.joinpath(f"{tune.get_context().get_trial_id()}.{step}").touch()
        time.sleep(0.02)
"""

RUN = """
grid = tune.Tuner(
    train, tune_config=tune.TuneConfig(num_samples=3), run_config=config(verbose=1, stop={"training_iteration": 400})
).fit()
print("statuses:", [result.status for result in grid])
print("after fit")
"""


def running(driver, tmp_path, count=2, step=6):
    """Wait until some trials have come this far."""
    driver.wait_until(lambda: len(list(tmp_path.glob(f"*_0000?.{step}"))) >= count, f"{count} trials at step {step}")


@pytest.mark.parametrize("group", [False, True], ids=["driver", "terminal"])
def test_ctrl_c_ends_in_order_and_fit_returns(drivers, root, tmp_path, group):
    driver = drivers.start(SLOW + RUN)
    running(driver, tmp_path)
    driver.signal(signal.SIGINT, group=group)
    code, output = driver.end()
    assert code == 0, output
    assert "after fit" in output
    assert f'Tuner.restore("{root}")' in output
    assert "statuses: ['PENDING', 'PENDING', 'PENDING']" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 0)])
def test_other_signals_end_in_order_too(drivers, root, tmp_path, number, code):
    driver = drivers.start(SLOW + RUN)
    running(driver, tmp_path)
    driver.signal(number)
    found, output = driver.end()
    assert found == code, output
    assert f'Tuner.restore("{root}")' in output
    assert ("after fit" in output) == (code == 0)


def test_the_last_checkpoint_is_taken_within_the_grace(drivers, root, tmp_path):
    """A preemption notice: what was trained since the last regular checkpoint is not lost."""
    driver = drivers.start(SLOW + RUN)
    running(driver, tmp_path, step=6)
    driver.signal(signal.SIGTERM)
    assert driver.end()[0] == 143
    before = [result for result in restore(root).get_results() if result.metrics_history]
    assert len(before) == 2
    for result in before:
        step = int(Path(result.checkpoint.path, "step").read_text())
        assert step == result.metrics["step"]
        assert result.metrics["should_checkpoint"] is True


def test_no_step_is_trained_twice_after_a_graceful_end(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    for step in range(start_step() + 1, 41):
        save(step) if tune.should_checkpoint() or step % 10 == 0 else tune.report({"step": step})
        note({"dir": str(DIR)}, "diary", f"{tune.get_context().get_trial_id()} {step}")
        DIR.joinpath(f"{tune.get_context().get_trial_id()}.{step}").touch()
        if step == 13:
            wait_for(DIR / "go")
        time.sleep(0.01)
tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=2), run_config=config()).fit()
"""
    )
    running(driver, tmp_path, step=13)
    driver.signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert driver.end()[0] == 143
    grid = restore(root).fit()
    assert [history(result, "step") for result in grid] == [list(range(1, 41))] * 2
    assert [[row["step"] for row in json_rows(result)] for result in grid] == [list(range(1, 41))] * 2
    diary = lines(tmp_path / "diary")
    assert len(diary) == len(set(diary))


def test_class_trainables_save_when_the_driver_ends(drivers, root, tmp_path):
    driver = drivers.start(
        """
class Slow(Counter):
    def step(self):
        time.sleep(0.02)
        return super().step()
tune.Tuner(Slow, param_space={"dir": str(DIR), "steps": 10**6}, run_config=config()).fit()
"""
    )
    running(driver, tmp_path, count=1, step=5)
    driver.signal(signal.SIGTERM)
    assert driver.end()[0] == 143
    (before,) = restore(root).get_results()
    assert before.checkpoint is not None
    (tmp_path / "go").touch()
    tuner = restore(root)
    tuner._experiment.settings.run_config.stop = {"step": before.metrics["step"] + 2}
    (result,) = tuner.fit()
    assert history(result, "step") == list(range(1, before.metrics["step"] + 3))
    assert result.metrics["iterations_since_restore"] == 2


def test_trials_that_do_not_save_are_not_waited_for_longer_than_the_grace(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    save(1)
    DIR.joinpath("here").touch()
    while True:
        time.sleep(0.01)
tune.Tuner(train, run_config=config(failure_config=tune.FailureConfig(grace_s=0.5))).fit()
"""
    )
    driver.wait_for(tmp_path / "here")
    driver.signal(signal.SIGTERM)
    assert driver.end()[0] == 143
    (result,) = restore(root).get_results()
    assert (result.status, result.metrics["step"]) == ("PENDING", 1)


def test_trials_that_never_save_are_not_waited_for_at_all(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    tune.report({"step": 1})
    DIR.joinpath("here").touch()
    while True:
        time.sleep(0.01)
tune.Tuner(train, run_config=config(failure_config=tune.FailureConfig(grace_s=3600))).fit()
"""
    )
    driver.wait_for(tmp_path / "here")
    driver.signal(signal.SIGTERM)
    assert driver.end()[0] == 143


def test_a_second_ctrl_c_is_immediate(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    if start_step():
        return {"step": 2}
    save(1)
    DIR.joinpath("here").touch()
    while True:
        time.sleep(0.01)
        if tune.should_checkpoint():
            DIR.joinpath("asked").touch()
try:
    tune.Tuner(train, run_config=config(verbose=1, failure_config=tune.FailureConfig(grace_s=3600))).fit()
except KeyboardInterrupt:
    print("KeyboardInterrupt")
    sys.exit(130)
"""
    )
    driver.wait_for(tmp_path / "here")
    driver.signal(signal.SIGINT)
    driver.wait_for(tmp_path / "asked")  # two signals at the same instant would be one
    driver.signal(signal.SIGINT)
    code, output = driver.end()
    assert code == 130, output
    assert "KeyboardInterrupt" in output
    assert f'Tuner.restore("{root}", trainable=train).fit()' in output
    (result,) = restore(root).get_results()
    assert (result.status, result.metrics["step"]) == ("PENDING", 1)
    (result,) = restore(root).fit()
    assert history(result, "step") == [1, 2]


def test_ctrl_c_can_be_left_alone(drivers, tmp_path):
    driver = drivers.start(
        SLOW
        + """
try:
    tune.Tuner(train, run_config=config()).fit()
except KeyboardInterrupt:
    print("as usual")
""",
        TUNE_DISABLE_SIGINT_HANDLER="1",
    )
    running(driver, tmp_path, count=1)
    driver.signal(signal.SIGINT)
    code, output = driver.end()
    assert (code, "as usual" in output) == (0, True), output


def test_handlers_of_the_user_are_back_after_the_run(make_tuner):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    make_tuner(noop).fit()
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_handler_of_the_users_own_for_sigusr1_is_left_alone(make_tuner, tmp_path):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))

    class Send(tune.Callback):
        def on_trial_start(self, **info):
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        assert statuses(make_tuner(noop, callbacks=[Send()]).fit()) == ["TERMINATED"]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [1]


def test_no_handlers_are_installed_in_a_thread(make_tuner):
    seen = []
    before = signal.getsignal(signal.SIGTERM)

    class Look(tune.Callback):
        def on_trial_start(self, **info):
            seen.append(signal.getsignal(signal.SIGTERM))

    tuner = make_tuner(noop, callbacks=[Look()])
    thread = threading.Thread(target=tuner.fit)
    thread.start()
    thread.join(60)
    assert seen == [before]


def test_nobody_runs_on_after_the_driver_was_killed(drivers, root, tmp_path):
    driver = drivers.start(
        """
def train(config):
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    DIR.joinpath("pids").write_text(f"{os.getpid()} {child.pid}")
    DIR.joinpath("here").touch()
    time.sleep(600)
tune.Tuner(train, run_config=config()).fit()
"""
    )
    driver.wait_for(tmp_path / "here")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    driver.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of the trial's processes")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_signal_while_nothing_runs_yet_loses_nothing(drivers, root, tmp_path):
    """The driver is told to end in the moment in which its first trial starts."""
    driver = drivers.start(
        """
import signal
class End(tune.Callback):
    def on_trial_start(self, **info):
        os.kill(os.getpid(), signal.SIGTERM)
space = {"dir": str(DIR), "x": tune.grid_search([1, 2])}
tune.Tuner(count, param_space=space, run_config=config(callbacks=[End()])).fit()
"""
    )
    assert driver.end()[0] == 143
    grid = restore(root).get_results()
    assert set(statuses(grid)) <= {"PENDING", "TERMINATED"}
    tuner = restore(root)
    tuner._experiment.settings.run_config.callbacks = []
    assert [history(result, "step") for result in tuner.fit()] == [[1, 2, 3]] * 2
