"""Who says ``reuse_actors=False`` gets a process for each trial; who says nothing shares warm ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as tune

SEEN: list[int] = []


def train(config: dict[str, Any]) -> dict[str, Any]:
    import test_isolation  # the module of the process, whichever way this function was stored

    test_isolation.SEEN.append(config["x"])
    return {"seen": len(test_isolation.SEEN)}


@pytest.mark.parametrize(
    ("fields", "processes", "seen"), [({}, 1, [1, 2, 3]), ({"reuse_actors": False}, 3, [1, 1, 1])], ids=["left", "said"]
)
def test_module_globals_of_one_trial_are_seen_by_the_next_only_in_a_shared_process(
    run_config: Callable[..., tune.RunConfig], fields: dict[str, Any], processes: int, seen: list[int]
) -> None:
    engine = tune.LocalEngine(cpus=1)
    space = {"x": tune.grid_search([1, 2, 3])}
    config = tune.TuneConfig(**fields)
    grid = tune.Tuner(train, param_space=space, tune_config=config, run_config=run_config(engine=engine)).fit()
    assert len({result.metrics["pid"] for result in grid}) == processes
    assert [result.metrics["seen"] for result in grid] == seen


def test_the_default_is_false_and_not_the_same_as_saying_so() -> None:
    assert tune.TuneConfig().reuse_actors is False
    assert not tune.TuneConfig().own_processes
    said = tune.TuneConfig(reuse_actors=False)
    assert said.own_processes
    assert pickle.loads(pickle.dumps(said)).own_processes
    assert not tune.TuneConfig(reuse_actors=True).own_processes
    later = tune.TuneConfig()
    later.reuse_actors = False
    assert later.own_processes
