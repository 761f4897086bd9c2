"""The steps of "How to Enable Fault Tolerance in Ray Tune".

Most of its blocks are included from a file that the guide does not print: those are written anew here after what the
text says of them. The two that it prints are transcribed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guide_scripts import DEADLINE_S, SOURCE, Machine, steps_of, until_saved

import holdfast

# A training loop that saves and loads; it waits at step 5 while HANG is set, until it is
# killed, or told that the driver is about to end.
TRAINABLE = """
import os
import time

from holdfast.compat import tune

def trainable(config):
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    with open(os.path.expanduser("~/starts"), "a") as file:
        file.write(f"{start}\\n")
    for step in range(start + 1, 9):
        while step == 5 and "HANG" in os.environ and not tune.should_checkpoint():
            time.sleep(0.1)
        if step == 4 and os.path.exists(os.path.expanduser("~/fails")):
            if os.path.exists(os.path.expanduser("~/fails once")):
                os.unlink(os.path.expanduser("~/fails"))
            raise RuntimeError("an ephemeral error")
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
"""

INITIAL = """
from fault_tolerance import trainable
from holdfast.compat import tune

tuner = tune.Tuner(
    trainable,
    param_space={"num_epochs": 8},
    run_config=tune.RunConfig(
        storage_path=<storage>,
        name="tune_fault_tolerance_guide",
    ),
)
tuner.fit()
"""

RESTORED = """
import os
from fault_tolerance import trainable
from holdfast.compat import tune

tuner = tune.Tuner.restore(
    os.path.expanduser("~/ray_results/tune_fault_tolerance_guide"),
    trainable=trainable,
    <options>
)
tuner.fit()
"""

HOME = 'os.path.expanduser("~/ray_results")'


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """With the training loop in a module."""
    (machine.home / "fault_tolerance.py").write_text(TRAINABLE)
    return machine


@pytest.fixture
def place(machine: Machine) -> Path:
    return machine.home / "ray_results" / "tune_fault_tolerance_guide"


def interrupt(machine: Machine, script: str, signum: int) -> None:
    """Run a script until its trial hangs at step 5, then send a signal to it."""
    (machine.home / "interrupted.py").write_text(f"import os\n{script}")
    with (machine.home / "interrupted.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "interrupted.py"],
            cwd=machine.home,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "HANG": "1"},
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )
    try:
        place = machine.home / "ray_results" / "tune_fault_tolerance_guide"
        until_saved(place, lambda result: result.checkpoint.to_dict()["step"] == 4, process)
        process.send_signal(signum)
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("signum", "last"), [(signal.SIGKILL, 4), (signal.SIGINT, 5)], ids=["killed", "Ctrl+C"])
def test_an_interrupted_experiment_is_restored_from_where_it_left_off(
    machine: Machine, place: Path, signum: int, last: int
) -> None:
    interrupt(machine, INITIAL.replace("<storage>", HOME), signum)
    machine.run(RESTORED, options="")
    assert machine.starts() == [0, last]
    assert steps_of(place) == [list(range(1, 9))]


def test_restoring_is_not_for_going_on_with_what_has_terminated(machine: Machine, place: Path) -> None:
    machine.run(f"import os\n{INITIAL}", storage=HOME)
    machine.run(RESTORED, options="resume_unfinished=True, restart_errored=True")
    assert machine.starts() == [0]


def test_a_new_experiment_can_start_at_a_checkpoint_of_an_old_one(machine: Machine, place: Path) -> None:
    machine.run(f"import os\n{INITIAL}", storage=HOME)
    ran = machine.run(
        """
        from holdfast.compat import tune

        def go_on(config):
            with config["start"].as_directory() as directory:
                step = tune.Checkpoint(directory).to_dict()["step"]
            tune.report({"step": step + 1})

        (old,) = tune.ResultGrid.from_path("<place>")
        tuner = tune.Tuner(go_on, param_space={"start": old.checkpoint}, run_config=tune.RunConfig(name="new"))
        print("went on at", [result.metrics["step"] for result in tuner.fit()])
        """,
        place=str(place),
    )
    assert "went on at [9]" in ran.out


# As the guide has it, but for names that it leaves out.
FROM_BUCKET = """
from fault_tolerance import trainable
from holdfast.compat import tune

tuner = tune.Tuner.restore(
    path="<bucket>/tune_fault_tolerance_guide", trainable=trainable
)
tuner.fit()
"""


def test_it_can_be_restored_from_a_bucket(machine: Machine, bucket: str) -> None:
    (machine.home / "fails").touch()
    machine.run(INITIAL, storage=f'"{bucket}"')
    (machine.home / "fails").unlink()
    machine.run(FROM_BUCKET, bucket=bucket)  # errored trials are left as they are unless that is asked for
    assert machine.starts() == [0]
    machine.run(FROM_BUCKET.replace("trainable=trainable", "trainable=trainable, resume_errored=True"), bucket=bucket)
    assert machine.starts() == [0, 3]
    assert steps_of(f"{bucket}/tune_fault_tolerance_guide") == [list(range(1, 9))]


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ("resume_unfinished=True, resume_errored=False, restart_errored=False", [0]),
        ("resume_errored=True", [0, 3]),
        ("restart_errored=True", [0, 0]),
    ],
)
def test_errored_trials_are_left_resumed_or_restarted(
    machine: Machine, place: Path, options: str, starts: list[int]
) -> None:
    (machine.home / "fails").touch()
    machine.run(f"import os\n{INITIAL}", storage=HOME)
    (machine.home / "fails").unlink()
    machine.run(RESTORED, options=options)
    assert machine.starts() == starts


AUTO_RESUME = """
import os
from fault_tolerance import trainable
from holdfast.compat import tune

storage_path = os.path.expanduser("~/ray_results")
exp_name = "tune_fault_tolerance_guide"
path = os.path.join(storage_path, exp_name)

if tune.Tuner.can_restore(path):
    tuner = tune.Tuner.restore(path, trainable=trainable, resume_errored=True)
else:
    tuner = tune.Tuner(
        trainable,
        param_space={"num_epochs": 8},
        run_config=tune.RunConfig(storage_path=storage_path, name=exp_name),
    )
tuner.fit()
"""


def test_one_script_launches_first_and_resumes_then(machine: Machine, place: Path) -> None:
    interrupt(machine, AUTO_RESUME, signal.SIGKILL)
    machine.run(AUTO_RESUME)
    assert machine.starts() == [0, 4]
    machine.run(AUTO_RESUME)
    assert machine.starts() == [0, 4]
    assert steps_of(place) == [list(range(1, 9))]


# Large models, tuned over by reference. The third block, about datasets of Ray, is the same with other objects: Ray's
# data library is not part of holdfast, so they are rows here.
REFERENCES = """
import os
import sys
from holdfast.compat import ray, tune

def train_fn(config):
    model = ray.get(config["model_ref"])
    rows = ray.get(config["datasets"]["train"])
    if os.path.exists(os.path.expanduser("~/fails")):
        raise RuntimeError("an ephemeral error")
    tune.report({"size": len(model), "rows": len(rows)})

ds_1 = ray.put([{"x": i, "y": 2 * i} for i in range(128)])
ds_2 = ray.put([{"x": i, "y": 3 * i} for i in range(64)])

param_space = {
    "model_ref": ray.put("m" * 1000),
    "datasets": {"train": tune.grid_search([ds_1, ds_2])},
}
path = os.path.expanduser("~/ray_results/references")
"""

REFERENCES_BEGIN = """
tuner = tune.Tuner(
    train_fn,
    param_space=param_space,
    run_config=tune.RunConfig(storage_path=os.path.dirname(path), name="references"),
)
results = tuner.fit()
"""

REFERENCES_RESTORED = """
tuner = tune.Tuner.restore(path, trainable=train_fn, param_space=param_space, resume_errored=True)
results = tuner.fit()
print([(result.metrics["size"], result.metrics["rows"]) for result in results])
"""


def test_references_to_objects_are_given_again_to_a_restored_experiment(machine: Machine) -> None:
    (machine.home / "fails").touch()
    machine.run(REFERENCES + REFERENCES_BEGIN)
    (machine.home / "fails").unlink()
    without = machine.run(
        REFERENCES + "results = tune.Tuner.restore(path, trainable=train_fn, resume_errored=True).fit()\n"
        "print([str(result.error) for result in results])"
    )
    assert "model_ref" in without.out
    assert "param_space=" in without.out
    assert "[(1000, 128), (1000, 64)]" in machine.run(REFERENCES + REFERENCES_RESTORED).out


TRIAL_FAILURES = """
import os
from fault_tolerance import trainable
from holdfast.compat import tune

tuner = tune.Tuner(
    trainable,
    param_space={"num_epochs": 8},
    run_config=tune.RunConfig(
        storage_path=os.path.expanduser("~/ray_results"),
        name="trial_fault_tolerance",
        failure_config=tune.FailureConfig(max_failures=3),
    ),
)
tuner.fit()
"""


def test_a_trial_is_tried_again_up_to_three_times_from_its_checkpoint(machine: Machine) -> None:
    (machine.home / "fails").touch()
    (machine.home / "fails once").touch()
    machine.run(TRIAL_FAILURES)
    assert machine.starts() == [0, 3]
    assert steps_of(machine.home / "ray_results" / "trial_fault_tolerance") == [list(range(1, 9))]


def test_after_three_retries_a_trial_has_errored(machine: Machine) -> None:
    (machine.home / "fails").touch()
    machine.run(TRIAL_FAILURES)
    assert machine.starts() == [0, 3, 3, 3]
    (result,) = holdfast.ResultGrid.from_path(str(machine.home / "ray_results" / "trial_fault_tolerance"))
    assert (result.status, "ephemeral" in str(result.error)) == ("ERROR", True)
