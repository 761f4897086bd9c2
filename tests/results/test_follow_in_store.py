"""An experiment in a store is followed by what its driver uploads, without assembling its journal anew."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import store_trials

from holdfast.results import follow
from holdfast.results.follow import Follower
from holdfast.results.history import open_history
from holdfast.results.report_data import experiment_facts, trial_details
from holdfast.shipping import restore_mirror

DEADLINE_S = 90.0


def check_same(follower: Follower, url: str) -> None:
    """Compare a follower with a new reader of the store."""
    fresh = open_history(url)
    now = time.time()
    expected, found = experiment_facts(fresh, now), follower.facts(now)
    for volatile in ("holder", "durable_lag_s"):
        del expected[volatile], found[volatile]
    assert found == expected
    for trial in fresh.state.trials:
        assert follower.trial(trial.n) == trial_details(fresh, trial)
        assert follower.rows(trial.n) == fresh.rows(trial.n)


def follow_until(follower: Follower, condition: Any) -> bool:
    """Follow; whether everything was ever read again."""
    deadline, reread = time.monotonic() + DEADLINE_S, follower.advance().reread
    while not condition():
        assert time.monotonic() < deadline, follower.facts()
        time.sleep(0.05)
        reread |= follower.advance().reread
    return reread


def test_a_reader_elsewhere_follows_a_driver_that_is_killed_and_resumed(
    bucket: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, elsewhere = f"{bucket}/runs/exp", {"HOLDFAST_LOCAL_CACHE_DIR": str(tmp_path / "driver")}
    driver = store_trials.driver(f"{bucket}/runs", tmp_path, elsewhere)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not store_trials.keys(store_trials.store_of(url), ".hfp"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        follower = Follower.open(url)
        reread = follow_until(follower, lambda: follower.history.state.reports == 2)
        assert follower.facts()["state"] == "running"
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    reread |= follow_until(follower, lambda: follower.facts()["state"] == "interrupted")
    assert follower.history.lost == {0}
    check_same(follower, url)
    (tmp_path / "go").touch()
    monkeypatch.setenv(*next(iter(elsewhere.items())))
    import holdfast as tune

    resumed = tune.Tuner.restore(url, trainable=store_trials.train).fit()
    assert resumed.num_errors == 0
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(cache))
    reread |= follow_until(follower, lambda: follower.facts()["state"] == "finished")
    assert not reread
    check_same(follower, url)
    assert [row["step"] for row in follower.rows(0)] == list(range(store_trials.STEPS))
    assert len(follower.curves) == store_trials.STEPS


def test_a_view_is_extended_part_by_part(bucket: str, cache: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Once a reader has its own copy, nothing is restored or folded again."""
    url, elsewhere = f"{bucket}/runs/exp", {"HOLDFAST_LOCAL_CACHE_DIR": str(tmp_path / "driver")}
    driver = store_trials.driver(f"{bucket}/runs", tmp_path, elsewhere)
    try:
        follower = Follower.open(url)
        (tmp_path / "stay").touch()
        (tmp_path / "go").touch()
        follow_until(follower, lambda: str(follower.history.root).endswith(".view"))
        monkeypatch.setattr(restore_mirror, "_restore", _refuse)
        monkeypatch.setattr(follow, "open_nearest", _refuse)
        (tmp_path / "stay").unlink()
        assert driver.wait(DEADLINE_S) == 0
        assert not follow_until(follower, lambda: follower.facts()["state"] == "finished")
    finally:
        driver.kill()
        driver.wait()


def test_a_driver_on_this_machine_is_followed_without_its_store(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    url = f"{bucket}/runs/exp"
    driver = store_trials.driver(f"{bucket}/runs", tmp_path, {})
    try:
        follower = Follower.open(url)
        monkeypatch.setattr(follow, "open_place", _refuse)
        before = follower.history.state.reports
        (tmp_path / "stay").touch()
        (tmp_path / "go").touch()
        follow_until(follower, lambda: follower.history.state.reports > before)
    finally:
        driver.kill()
        driver.wait()


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("everything was read again")
