from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.checkpoints.stage import Stage
from holdfast.config import Environment, RunConfig, TuneConfig
from holdfast.controller.driver import make_info
from holdfast.controller.experiment import create_experiment
from holdfast.controller.trial_setup import TrialSetup
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply


def train(config: dict[str, Any]) -> None:
    pass


def equip(tmp_path: Path, *events: ev.AnyEvent) -> tuple[TrialSetup, State]:
    """The kit of a new experiment, and a state that these events add up to."""
    config = RunConfig(name="exp", storage_path=str(tmp_path))
    experiment = create_experiment(train, {}, TuneConfig(), config, Environment.read())
    state = State()
    for event in (ev.EpochStarted(1.0, 1, "w", "h", 1), *events):
        apply(state, event, Retention())
    return TrialSetup(experiment, make_info(experiment)), state


def test_a_driver_that_slept_while_another_took_over_spares_the_stages_of_attempts_it_does_not_know(
    tmp_path: Path,
) -> None:
    kit, state = equip(
        tmp_path,
        ev.TrialCreated(2.0, 0, "t0", {}, "0"),
        ev.TrialStarted(3.0, 0, 1),
        ev.AttemptInterrupted(4.0, 0, 1, "driver_lost"),
        ev.TrialStarted(5.0, 0, 2),
    )
    home = kit.directory(state, 0)
    left_behind = [Stage(home, "t0", attempt).new_directory() for attempt in (1, 2)]
    successors = Stage(home, "t0", 3).new_directory()
    memory = DriverMemory()
    kit.tidy(state, memory, {0})
    assert successors.is_dir()
    assert not any(path.exists() for path in left_behind)
    assert memory.untidy == {0}


def test_stages_of_attempts_that_the_journal_has_lost_go_when_attempts_of_these_numbers_start(tmp_path: Path) -> None:
    kit, state = equip(tmp_path, ev.TrialCreated(2.0, 0, "t0", {}, "0"))
    lost = Stage(kit.directory(state, 0), "t0", 1).new_directory()
    memory = DriverMemory()
    kit.tidy(state, memory, {0})
    assert lost.is_dir()
    apply(state, ev.TrialStarted(3.0, 0, 1), Retention())
    kit.run_message(state, memory, 0)
    assert not lost.exists()
    assert not memory.untidy
