"""Every engine, real and fake, keeps the promises of ``engines.base.Engine``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_fakes import simulated_cluster_engine, simulated_engine

from holdfast.config import LocalEngine
from holdfast.engines.base import Engine
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.testing.engine_contract import CHECKS, MakeEngine
from holdfast.testing.scripted import SCRIPTED_RUNNER

EVERY_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


def _local(log_dir: Path) -> Engine:
    return LocalProcessEngine(LocalEngine(cpus=4), log_dir=log_dir, runner=SCRIPTED_RUNNER)


def _local_spawn(log_dir: Path) -> Engine:
    settings = LocalEngine(cpus=4, start="spawn", max_trials_per_worker=1)
    return LocalProcessEngine(settings, log_dir=log_dir, runner=SCRIPTED_RUNNER)


@EVERY_CHECK
@pytest.mark.parametrize("make", [_local, _local_spawn])
def test_the_local_engine(make: Callable[[Path], Engine], check: Callable[[MakeEngine], None], tmp_path: Path) -> None:
    check(lambda: make(tmp_path / "logs"))


@EVERY_CHECK
def test_the_engine_of_the_simulator(check: Callable[[MakeEngine], None]) -> None:
    check(simulated_engine)


@EVERY_CHECK
def test_the_cluster_engine_of_the_simulator(check: Callable[[MakeEngine], None]) -> None:
    check(simulated_cluster_engine)
