"""The blocks of "Tune Checkpointing", the oldest of the guides: classes with ``_train``, and ``tune.run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guide_scripts import SOURCE, Machine, checkpoints_in, until_saved

import holdfast

# The class of the guide, with a model in the place of TensorFlow's: a saver that writes `save.index`, and returns a
# prefix as TensorFlow's does. Corrected: a quote after `mean_accuracy`, quotes around `save`. Left out by the guide:
# the imports, the session. `_train` is that of its second block, with `accuracy` and
# `detect_instance_preemption` defined.
MY_CLASS = """
import os
import pathlib
import time
from holdfast.compat import tune
from holdfast.compat.tune import Trainable

HOME = pathlib.Path.home()

class Saver:
    def save(self, sess, prefix):
        pathlib.Path(prefix + ".index").write_text(str(sess.steps))
        return prefix

    def restore(self, sess, prefix):
        sess.steps = int(pathlib.Path(prefix + ".index").read_text())

class Session:
    steps = 0

    def run(self):
        self.steps += 1
        while self.steps == int(os.environ.get("HANG_AT", "0")):
            time.sleep(0.1)
        return self.steps / 100

class MyClass(Trainable):
    def _setup(self, config):
        self.saver = Saver()
        self.sess = Session()

    def _train(self):
        # training code
        accuracy = self.sess.run()

        result = {"mean_accuracy": accuracy}

        if self.detect_instance_preemption():
            result.update(should_checkpoint=True)

        (HOME / "steps").open("a").write(f"{self.sess.steps}\\n")
        if self.sess.steps == int(os.environ.get("CRASH_AT", "0")) and not (HOME / "crashed").exists():
            (HOME / "crashed").touch()
            os._exit(1)
        result["done"] = self.sess.steps == 25
        return result

    def _save(self, checkpoint_dir):
        return self.saver.save(self.sess, os.path.join(checkpoint_dir, "save"))

    def _restore(self, checkpoint_prefix):
        self.saver.restore(self.sess, checkpoint_prefix)

    def detect_instance_preemption(self):
        return self.sess.steps == int(os.environ.get("PREEMPTED_AT", "0"))

my_trainable = MyClass
"""

# What a script needs around the calls of the guide: the class, and a place for the results where the call has none.
FREQUENCY = """
from my_class import my_trainable, tune

tune.run(
    my_trainable,
    checkpoint_freq=10,
    max_failures=5,
)
"""

AT_END = """
from my_class import my_trainable, tune

tune.run(
    my_trainable,
    checkpoint_freq=10,
    checkpoint_at_end=True,
    max_failures=5,
)
"""

RESUME = """
from my_class import my_trainable, tune

tune.run(
    my_trainable,
    checkpoint_freq=10,
    local_dir="~/path/to/results",
    resume=True
)
"""


@pytest.fixture
def machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """With the class of the guide in a module."""
    (machine.home / "my_class.py").write_text(MY_CLASS)
    monkeypatch.setenv("HOLDFAST_STORAGE", str(machine.home / "results"))
    return machine


def steps(machine: Machine) -> list[int]:
    """Every step that was trained, in order."""
    return [int(line) for line in (machine.home / "steps").read_text().split()]


def the_experiment(machine: Machine) -> Path:
    (spec,) = machine.home.glob("results/*/.holdfast/spec.json")
    return spec.parents[1]


def test_with_a_frequency_a_crash_costs_the_steps_since_the_last_checkpoint(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_AT", "14")
    machine.run(FREQUENCY)
    assert steps(machine) == [*range(1, 15), *range(11, 26)]
    assert len(checkpoints_in(the_experiment(machine))) == 2  # of steps 10 and 20


def test_a_checkpoint_at_the_end_is_one_more(machine: Machine) -> None:
    machine.run(AT_END)
    assert steps(machine) == list(range(1, 26))
    assert len(checkpoints_in(the_experiment(machine))) == 3  # of steps 10, 20 and 25


def test_a_result_can_ask_for_a_checkpoint(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREEMPTED_AT", "13")
    monkeypatch.setenv("CRASH_AT", "14")
    machine.run(FREQUENCY)
    assert steps(machine) == [*range(1, 15), *range(14, 26)]
    assert len(checkpoints_in(the_experiment(machine))) == 3  # of steps 10, 13 and 20


def test_the_name_of_the_key_is_there_too(machine: Machine) -> None:
    from holdfast.compat import tune

    assert tune.result.SHOULD_CHECKPOINT == "should_checkpoint"


def test_the_last_block_run_twice_as_written_resumes(machine: Machine) -> None:
    """The first run is killed between two checkpoints, with everything that it has started."""
    (machine.home / "first.py").write_text(RESUME)
    log = (machine.home / "first.log").open("wb")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HANG_AT": "14"}
    first = subprocess.Popen(
        [sys.executable, "first.py"], cwd=machine.home, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    place = machine.home / "path" / "to" / "results"
    try:
        until_saved(place / "MyClass", lambda result: result.metrics["training_iteration"] == 13, first)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        log.close()
    machine.run(RESUME)
    assert steps(machine) == [*range(1, 14), *range(11, 26)]
    assert [path.name for path in place.iterdir()] == ["MyClass"]
    (result,) = holdfast.ResultGrid.from_path(str(place / "MyClass"))
    assert [row["training_iteration"] for row in result.metrics_history] == list(range(1, 26))

    third = machine.run(RESUME.replace("checkpoint_freq=10,", "checkpoint_freq=10, num_samples=7,"))
    assert "num_samples=7" in third.err  # changed, ignored, and said
    assert len(steps(machine)) == 13 + 15


def test_another_name_is_another_experiment(machine: Machine) -> None:
    machine.run(RESUME)
    machine.run(RESUME.replace("resume=True", 'resume=True, name="another"'))
    place = machine.home / "path" / "to" / "results"
    assert sorted(path.name for path in place.iterdir()) == ["MyClass", "another"]
    assert steps(machine) == [*range(1, 26)] * 2


def test_what_was_given_to_resume_and_is_no_setting_is_refused_before_anything_starts(machine: Machine) -> None:
    ran = machine.run(RESUME.replace("resume=True", 'resume="SOMETIMES"'), fails=True)
    assert "Invalid resume setting" in ran.err
    assert not (machine.home / "steps").exists()


def test_a_prompt_without_a_terminal_is_an_error_at_once(machine: Machine) -> None:
    ran = machine.run(RESUME.replace("resume=True", 'resume="PROMPT"'), fails=True)
    assert "PROMPT" in ran.err
    assert not (machine.home / "steps").exists()


def test_the_local_setting_with_nothing_to_resume_names_the_place(machine: Machine) -> None:
    ran = machine.run(RESUME.replace("resume=True", 'resume="LOCAL"'), fails=True)
    assert "path/to/results" in ran.err


def test_the_remote_setting_resumes_from_the_upload_directory(machine: Machine, bucket: str, tmp_path: Path) -> None:
    remote = RESUME.replace("resume=True", 'upload_dir="<bucket>/runs", resume=<resume>')
    machine.run(remote, bucket=bucket, resume='"AUTO"')
    assert steps(machine) == list(range(1, 26))
    elsewhere = Machine(tmp_path / "another")
    (elsewhere.home / "my_class.py").write_text(MY_CLASS)
    elsewhere.run(remote, bucket=bucket, resume='"REMOTE"')
    assert not (elsewhere.home / "steps").exists()  # it was finished
    without = machine.run(RESUME.replace("resume=True", 'resume="REMOTE"'), fails=True)
    assert "upload_dir" in without.err
