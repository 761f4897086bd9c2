from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.stage import Stage
from holdfast.config import Environment, RunConfig, TuneConfig
from holdfast.config.resources import with_resources
from holdfast.controller import trial_setup
from holdfast.controller.driver import make_info
from holdfast.controller.experiment import create_experiment
from holdfast.controller.trial_setup import TrialSetup
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.errors import InvalidInputError
from holdfast.space import grid_search


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


class Asked:
    """A cluster whose largest node has 8 CPUs."""

    def __init__(self) -> None:
        self.cpus: list[float] = []

    def check_request(self, request: Any, bundles: Any, strategy: str = "PACK") -> None:
        self.cpus.append(request["CPU"])
        if request["CPU"] > 8:
            raise InvalidInputError("too large")


def check_on_cluster(tmp_path: Path, space: dict[str, Any], search_alg: Any = None) -> Asked:
    trainable = with_resources(train, lambda config: {"CPU": config["c"]})
    config = RunConfig(name="exp", storage_path=str(tmp_path))
    experiment = create_experiment(trainable, space, TuneConfig(search_alg=search_alg), config, Environment.read())
    engine: Any = Asked()
    TrialSetup(experiment, make_info(experiment)).check_cluster(engine)
    return engine


def test_the_requests_of_all_planned_configurations_are_compared_with_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        check_on_cluster(tmp_path, {"c": grid_search([1, 64])})
    assert check_on_cluster(tmp_path, {"c": grid_search([1, 2, 8])}).cpus == [1, 2, 8]


def test_not_more_are_looked_at_than_can_be_in_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_setup, "MAX_CHECKED", 2)
    assert check_on_cluster(tmp_path, {"c": grid_search([1, 2, 64])}).cpus == [1, 2]


def test_one_configuration_is_looked_at_if_some_may_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_setup, "was_started", lambda root: True)
    assert check_on_cluster(tmp_path, {"c": grid_search([1, 64])}).cpus == [1]
