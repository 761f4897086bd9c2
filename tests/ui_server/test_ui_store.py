"""Experiments in a store: alive, dead, several below a prefix, and a store that does not answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

import store_trials
from test_ui_process import refused
from ui_clients import LiveServer

from holdfast.errors import StoreUnreachableError
from holdfast.results import follow
from holdfast.storage import remote_root
from holdfast.ui import catalogue

Serve = Callable[..., LiveServer]

pytestmark = pytest.mark.slow


def test_an_experiment_in_a_store_is_shown(bucket: str, tmp_path: Path, serve: Serve) -> None:
    store_trials.tuner(f"{bucket}/runs", "one").fit()
    url = store_trials.interrupted(f"{bucket}/runs", tmp_path, "two")
    server = serve(url)
    path = server.only()
    facts = server.get(path)
    assert (facts["path"], facts["state"], facts["read_only"]) == (url, "interrupted", True)
    trial = server.get(f"{path}/trials")["rows"][0]["trial_id"]
    detail = server.get(f"{path}/trials/{trial}")
    assert detail["checkpoints"]
    assert server.get(f"{path}/trials/{trial}/rows")["total"] > 0
    assert server.get(f"{path}/trials/{trial}/log")["truncated"] is False
    reply = server.post(f"{path}/note", {"text": "x"})
    assert reply.status == 409

    both = serve(f"{bucket}/runs")
    found = {each["name"]: each for each in both.experiments()}
    assert {name: each["state"] for name, each in found.items()} == {"one": "finished", "two": "interrupted"}
    assert path.endswith(found["two"]["id"])


def test_a_driver_elsewhere_is_followed_through_the_store(
    bucket: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has a cache of its own, as on another machine: it learns everything from the store."""
    driver = store_trials.driver(bucket, tmp_path, {"HOLDFAST_LOCAL_CACHE_DIR": str(tmp_path / "other cache")})
    try:
        server = serve(f"{bucket}/exp")
        path = server.only()
        assert server.get(path)["live"] is True
        stream = server.stream(f"{path}/events")
        (tmp_path / "go").touch()
        stream.until(lambda event: server.get(path)["state"] == "finished")
        assert server.get(f"{path}/trials")["rows"][0]["iteration"] == store_trials.STEPS
        assert driver.wait(60) == 0
    finally:
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()


IMPATIENT = """
import functools, sys
from holdfast.cli.main import main
from holdfast.storage import agent_client
agent_client.StoreOptions = functools.partial(agent_client.StoreOptions, timeout_s=2.0)
sys.exit(main())
"""
"""The command line, with requests that give up after 2 s instead of 45."""


def test_a_store_that_does_not_answer_is_refused(bucket: str) -> None:
    nobody = "http://127.0.0.1:9"
    code, err = refused(f"{bucket}/exp", program=("-c", IMPATIENT), AWS_ENDPOINT_URL=nobody, AWS_ENDPOINT=nobody)
    assert code == 2
    assert "Traceback" not in err


def test_an_empty_prefix_is_refused(bucket: str) -> None:
    code, err = refused(f"{bucket}/nothing")
    assert code == 2
    assert "There is no experiment" in err


def test_a_server_at_which_nobody_listens_is_given_up_after_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary requests, which go on for 45 s, are not begun."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'holdfast[cloud]'")
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote_root, "FIRST_LOOK_S", 0.3)
    for module, name in ((catalogue, "can_open"), (follow, "open_history")):
        monkeypatch.setattr(module, name, _refuse)
    with pytest.raises(StoreUnreachableError, match="Connection refused"):
        catalogue.Catalogue("s3://bucket/runs")
    with pytest.raises(StoreUnreachableError, match="Connection refused"):
        follow.open_nearest("s3://bucket/runs/exp")


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("an ordinary request was begun")
