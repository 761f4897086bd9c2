"""The engine for clusters keeps the promises of every engine, and those of one whose workers are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.observations import Died
from holdfast.engines.cluster.cluster_engine import ClusterEngine
from holdfast.engines.cluster.remote_worker import RemoteWorker
from holdfast.testing import elsewhere_contract, engine_contract
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds porters in /proc")]


def _name(check: Callable[..., None]) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("check", engine_contract.CHECKS, ids=_name)
def test_every_engine(
    check: Callable[[engine_contract.MakeEngine], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(Loopback(tmp_path, monkeypatch).make)


@pytest.mark.parametrize("check", elsewhere_contract.CHECKS, ids=_name)
def test_an_engine_whose_workers_are_elsewhere(
    check: Callable[[elsewhere_contract.MakeMachines], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(lambda: Loopback(tmp_path, monkeypatch))


def _twice(engine: ClusterEngine, worker: RemoteWorker, cause: str, detail: str) -> None:
    if worker.key is not None:
        engine._ready.append(Died(*worker.key, cause, detail))
    _gone(engine, worker, cause, detail)


_gone = ClusterEngine.gone


@pytest.mark.parametrize(
    ("check", "method", "broken"),
    [
        (elsewhere_contract.check_a_stage_is_brought_while_its_attempt_runs, "bring", lambda *_: None),
        (elsewhere_contract.check_a_stage_is_lost_with_its_machine, "bring", lambda *_: None),
        (elsewhere_contract.check_a_stage_that_is_not_wanted_is_not_brought, "drop", lambda *_: None),
        (elsewhere_contract.check_a_request_that_no_machine_can_meet_is_refused, "check_request", lambda *_: None),
        (elsewhere_contract.check_the_attempts_of_a_lost_machine_are_told_once, "gone", _twice),
    ],
)
def test_a_broken_engine_is_noticed(
    check: Callable[[elsewhere_contract.MakeMachines], None],
    method: str,
    broken: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClusterEngine, method, broken)
    with pytest.raises((AssertionError, OSError)):
        check(lambda: Loopback(tmp_path, monkeypatch))
