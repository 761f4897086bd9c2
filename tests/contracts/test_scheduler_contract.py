"""Every scheduler, real and fake, keeps the rules of ``schedulers.base.TrialScheduler``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.schedulers import FIFOScheduler, PopulationBasedTrainingReplay
from holdfast.search.dehb import DEHBSearch
from holdfast.space.rng import Rng
from holdfast.testing.scheduler_contract import (
    CHECKS,
    check_it_decides_the_same_when_it_is_told_everything_again,
    check_it_decides_the_same_with_its_memory,
)
from simulator.schedulers_under_test import SCHEDULERS

EVERY_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))

SETTINGS: dict[str, dict[str, Any]] = {"dehb": {"searcher": lambda: DEHBSearch(max_t=9, reduction_factor=3)}}
"""What those need that do not do with what the suite offers."""

GIVES_RESOURCES = "changing resources"
NOT_ITS_PROMISE = (
    check_it_decides_the_same_when_it_is_told_everything_again,
    check_it_decides_the_same_with_its_memory,
)
"""What it gives to trials depends on what the machine has, which is not history; told the past, it asks for nothing."""


@EVERY_CHECK
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler(name: str, check: Callable[..., None]) -> None:
    if name == GIVES_RESOURCES and check in NOT_ITS_PROMISE:
        pytest.skip("tests/schedulers/test_resource_changing.py has what it promises instead")
    check(lambda: SCHEDULERS[name](Rng([1])), **SETTINGS.get(name, {}))


@EVERY_CHECK
def test_the_scheduler_without_a_plan(check: Callable[..., None]) -> None:
    check(FIFOScheduler)


@EVERY_CHECK
def test_the_replay_of_a_population(check: Callable[..., None], tmp_path: Path) -> None:
    policy = tmp_path / "pbt_policy_x_00002.txt"
    changes = [["1", "0", 3, 2, {"lr": 1}, {"lr": 2}], ["2", "1", 6, 4, {"lr": 2}, {"lr": 3}]]
    policy.write_text("".join(f"{json.dumps(change)}\n" for change in changes))
    check(lambda: PopulationBasedTrainingReplay(str(policy)), num_samples=1)
