"""Checkpoints are damaged between a kill and the restore: a trial falls back to an older one, and says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from experiments import Plan
from lab import Lab, mostly_slow, until

from holdfast.checkpoints.names import MANIFEST
from holdfast.core import events as ev
from holdfast.core.state import State, Status

PLAN = Plan(trials=2, steps=24, every=3, pause_s=0.01)


def delete_all(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def delete_a_file(checkpoint: Path) -> None:
    (checkpoint / "state.json").unlink()


def cut_a_file(checkpoint: Path) -> None:
    with open(checkpoint / "sub" / "weights.bin", "r+b") as file:
        file.truncate(100)


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "sub" / "weights.bin"
    data = path.read_bytes()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])


def flip_a_bit_of_the_manifest(checkpoint: Path) -> None:
    path = checkpoint / MANIFEST
    data = path.read_bytes()
    path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])


def delete_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def add_a_file(checkpoint: Path) -> None:
    (checkpoint / "sub" / "stranger").write_text("who is this?")


def use_an_older_one(checkpoint: Path) -> None:
    """As a careless person would, to make the error go away."""
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name("checkpoint_000000"), checkpoint)


DAMAGES = [
    delete_all,
    delete_a_file,
    cut_a_file,
    flip_a_bit,
    flip_a_bit_of_the_manifest,
    delete_the_manifest,
    add_a_file,
    use_an_older_one,
]


def run_until_killed(lab: Lab, checkpoints: int = 3) -> State:
    """Kill the driver when every trial has so many checkpoints, all committed, and waits before its next step."""
    hold = lab.folder / "hold"
    hold.touch()
    driver = lab.start(msgspec.structs.replace(PLAN, hold=str(hold), hold_at=checkpoints * PLAN.every + 1))

    def far_enough() -> bool:
        trials = lab.state().trials if lab.journal_bytes() else []
        return len(trials) == PLAN.trials and all(len(trial.committed()) >= checkpoints for trial in trials)

    until(far_enough, lambda: driver.output)
    driver.kill()
    lab.check_no_process_left()
    hold.unlink()
    return lab.state()


def newest(lab: Lab, state: State, n: int) -> Path:
    record = state.trials[n].latest()
    assert record is not None
    return lab.dir_of(state.trials[n].id) / f"checkpoint_{record.index:06d}"


@pytest.mark.parametrize("damage", mostly_slow(DAMAGES, flip_a_bit))
def test_a_trial_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before_it(
    lab: Lab, damage: Callable[[Path], None]
) -> None:
    state = run_until_killed(lab)
    victims = {n: newest(lab, state, n) for n in range(PLAN.trials)}
    for checkpoint in victims.values():
        damage(checkpoint)
    output = lab.run(PLAN).must_finish()
    history = lab.history()
    for n, checkpoint in victims.items():
        assert f"{checkpoint.name} cannot be used" in output
        index = int(checkpoint.name[-6:])
        (rejected,) = [e for e in history if isinstance(e, ev.CheckpointRejected) and (e.n, e.index) == (n, index)]
        restart = next(e for e in history[history.index(rejected) :] if isinstance(e, ev.TrialStarted) and e.n == n)
        assert restart.source == (n, index - 1)
        assert restart.rows == index * PLAN.every
        assert str(lab.root) not in rejected.reason
    lab.check_finished(PLAN)


def test_a_trial_without_a_good_checkpoint_ends_in_error_instead_of_starting_from_scratch(lab: Lab) -> None:
    """One trial keeps its checkpoints and finishes; the other says what is wrong with each of its own."""
    state = run_until_killed(lab)
    victim = state.trials[1]
    for checkpoint in lab.dir_of(victim.id).glob("checkpoint_*"):
        flip_a_bit(checkpoint)
    driver = lab.run(PLAN)
    assert driver.process.returncode == 0
    assert "fit() has returned, errors: 1" in driver.output
    after = lab.state()
    assert [trial.status for trial in after.trials] == [Status.TERMINATED, Status.ERROR]
    trial = after.trials[1]
    assert trial.cause == ev.Cause.DAMAGED
    assert trial.error is not None
    assert "every checkpoint of this trial is damaged" in trial.error.message
    assert "restart_errored=True" in trial.error.message
    assert trial.error.message.count("sub/weights.bin") == len(trial.checkpoints)
    assert trial.attempt == victim.attempt

    lab.run(Plan(restore={"restart_errored": True})).must_finish()
    lab.check_finished(PLAN)


@pytest.mark.slow
def test_a_trial_whose_checkpoints_were_repaired_goes_on_from_the_newest(lab: Lab) -> None:
    """The error message says that resume_errored=True does it; so it must."""
    state = run_until_killed(lab)
    checkpoints = sorted(lab.dir_of(state.trials[0].id).glob("checkpoint_*"))
    for checkpoint in checkpoints:
        shutil.copytree(checkpoint, lab.folder / "backup" / checkpoint.name)
        cut_a_file(checkpoint)
    assert "errors: 1" in lab.run(PLAN).output
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)
        shutil.copytree(lab.folder / "backup" / checkpoint.name, checkpoint)
    lab.run(Plan(restore={"resume_errored": True})).must_finish()
    lab.check_finished(PLAN)
    requeued = next(e for e in lab.history() if isinstance(e, ev.TrialRequeued))
    restart = next(e for e in lab.history() if isinstance(e, ev.TrialStarted) and e.n == 0 and e.at >= requeued.at)
    assert restart.rows == len(checkpoints) * PLAN.every
