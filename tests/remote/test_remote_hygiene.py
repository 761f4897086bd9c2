"""What an experiment in a store costs when nothing happens, and what code of the user's may do beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from lab import until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab

import holdfast as tune
from holdfast.errors import ForkedStorageError
from servers.fault_proxy import FaultProxy

WATCHED_S = 4.0
CHILD_S = 20.0


@pytest.mark.slow
def test_an_idle_experiment_asks_the_store_for_little(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """Trials that compute for long and report nothing: two requests a second at most, all of them together."""
    lab, proxy = proxied
    hold = lab.folder / "hold"
    hold.touch()
    plan = RemotePlan(trials=4, steps=4, every=2, cpus=4, hold=str(hold), hold_at=3, sync_period=1.0)
    driver = lab.start(plan)
    lab.started(driver, reports=8)
    until(lambda: driver.ended or len(lab.committed_keys()) == 4, lambda: driver.output)
    until(lambda: driver.ended or is_quiet(proxy), lambda: driver.output)
    proxy.forget()
    end = time.monotonic() + WATCHED_S
    until(lambda: time.monotonic() > end, "time stands still", step_s=0.05)
    assert not driver.ended, driver.output
    assert proxy.busiest(1.0) <= 2, [(request.method, request.path) for request in proxy.requests]
    hold.unlink()
    driver.must_finish()
    lab.check_stored()


def is_quiet(proxy: FaultProxy) -> bool:
    """Nothing has been asked for during three rounds of uploads."""
    requests = proxy.requests
    return not requests or time.monotonic() - requests[-1].started > 3.0


def forking(config: dict[str, Any]) -> None:
    """Uses storage itself, as data loaders do, and forks."""
    checkpoint = tune.Checkpoint(config["checkpoint"])
    assert checkpoint.get_metadata() == {"note": "good"}
    child = os.fork()
    if child == 0:
        try:
            checkpoint.get_metadata()
            os._exit(1)
        except ForkedStorageError as error:
            os._exit(0 if "survive a fork" in str(error) else 2)
        finally:
            os._exit(3)
    deadline = time.monotonic() + CHILD_S
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    tune.report({"code": os.waitstatus_to_exitcode(ended[1]), "after": checkpoint.get_metadata()["note"]})


def test_a_fork_that_touches_the_parent_s_storage_is_told_so_at_once(
    lab: RemoteLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    lab.start(RemotePlan(trials=1, steps=2, every=2)).must_finish()
    (key,) = lab.committed_keys()
    tune.Checkpoint(f"{lab.url}/{key}").set_metadata({"note": "good"})
    tuner = tune.Tuner(
        forking,
        param_space={"checkpoint": f"{lab.url}/{key}"},
        run_config=tune.RunConfig(storage_path=f"{lab.url.rpartition('/')[0]}", name="forks", verbose=0),
    )
    (result,) = tuner.fit()
    assert result.error is None, result.error
    assert result.metrics is not None
    assert (result.metrics["code"], result.metrics["after"]) == (0, "good")


def test_a_driver_that_has_finished_leaves_no_process_behind(lab: RemoteLab) -> None:
    plan = RemotePlan(trials=2, steps=2, every=1)
    lab.start(plan).must_finish()
    lab.check_no_process_left()
    lab.check_tidy()
    names = {key.split("/")[1] for key in lab.keys(".holdfast/")}
    assert names == {"marks", "parts", "spec.json", "objects"}, "probes and clocks are removed"
