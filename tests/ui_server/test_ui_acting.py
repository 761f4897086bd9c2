"""Buttons: a request reaches the live driver and is answered in words; without one it is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from roots import small_experiment
from ui_clients import LiveServer

Serve = Callable[..., LiveServer]

DRIVER = """
import sys, time
import holdfast as tune

def train(config):
    while True:
        tune.report({"loss": config["x"]})
        time.sleep(0.05)

if __name__ == "__main__":
    tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2, max_concurrent_trials=2),
        run_config=tune.RunConfig(name="exp", storage_path=sys.argv[1], verbose=0),
    ).fit()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "train.py"
    script.write_text(DRIVER)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], start_new_session=True)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_live_driver_does_what_it_is_asked_for(tmp_path: Path, serve: Serve, driver: subprocess.Popen[bytes]) -> None:
    root = tmp_path / "exp"
    while not (root / ".holdfast" / "journal").exists() or not any((root / ".holdfast" / "journal").iterdir()):
        assert driver.poll() is None
    server = serve(root)
    path = server.only()
    server.until(lambda: server.get(path)["counts"].get("RUNNING") == 2, "two running trials")
    assert server.get(path)["read_only"] is False
    trial = server.get(f"{path}/trials")["rows"][0]["trial_id"]

    reply = server.post(f"{path}/note", {"text": "<b>looks good</b>"})
    assert (reply.status, reply.json["accepted"]) == (202, True)
    assert server.post(f"{path}/note", {"trial": trial, "text": "look here"}).status == 202
    server.until(lambda: [note["text"] for note in server.get(path)["notes"]] == ["<b>looks good</b>"])
    assert server.get(path)["notes"][0]["time"] > 0
    server.until(lambda: [note["text"] for note in server.get(f"{path}/trials/{trial}")["notes"]] == ["look here"])

    for tags in (["good", "fast"], ["fast", "kept"], []):
        assert server.post(f"{path}/tag", {"trial": trial, "tags": tags}).status == 202
        server.until(lambda tags=tags: sorted(server.get(f"{path}/trials/{trial}")["tags"]) == sorted(tags))

    assert server.post(f"{path}/stop", {"trial": trial}).status == 202
    server.until(lambda: server.get(f"{path}/trials/{trial}")["status"] == "TERMINATED")
    refused = server.post(f"{path}/stop", {"trial": trial})
    assert refused.status == 409
    assert "refused" in refused.error

    assert server.post(f"{path}/samples", {"num_samples": 3}).status == 202
    server.until(lambda: server.get(f"{path}/trials")["total"] == 3, "the third trial")

    reply = server.post(f"{path}/stop", {})
    assert reply.status == 202
    assert "holdfast resume" in reply.json["text"]
    assert driver.wait(60) is not None
    server.until(lambda: server.get(path)["state"] == "interrupted")
    assert server.post(f"{path}/stop", {}).status == 409


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, serve: Serve) -> None:
    server = serve(small_experiment(tmp_path / "exp").die().path)
    path = server.only()
    for name, body in (
        ("note", {}),
        ("note", {"text": ""}),
        ("note", {"text": 5}),
        ("note", {"text": "x", "trial": 7}),
        ("note", {"text": "a\ud800"}),
        ("tag", {"trial": "abcde_00000", "tags": "good"}),
        ("tag", {"trial": "abcde_00000", "tags": ["two words"]}),
        ("tag", {"trial": "abcde_00000"}),
        ("samples", {}),
        ("samples", {"num_samples": "5"}),
        ("samples", {"num_samples": True}),
        ("samples", {"num_samples": -7}),
    ):
        assert server.post(f"{path}/{name}", body).status == 400, (name, body)
    assert server.post(f"{path}/stop", {"trial": "nosuch"}).status == 404
    for name, body in (
        ("note", {"text": "x"}),
        ("stop", {}),
        ("stop", {"trial": "abcde_00003"}),
        ("samples", {"num_samples": 9}),
    ):
        reply = server.post(f"{path}/{name}", body)
        assert reply.status == 409, name
        assert "No driver runs" in reply.error
    assert server.get(path)["read_only"] is True


def test_a_misspelt_field_is_refused_and_named(tmp_path: Path, serve: Serve) -> None:
    """A stop whose trial is misspelt must not stop the experiment."""
    server = serve(small_experiment(tmp_path / "exp").die().path)
    path = server.only()
    reply = server.post(f"{path}/stop", {"trial_id": "abcde_00003"})
    assert reply.status == 400
    assert reply.error == ("There is no field 'trial_id' in this request. Did you mean 'trial'? The fields are: trial.")
    for name in ("note", "tag", "samples"):
        assert "no field 'also'" in server.post(f"{path}/{name}", {"also": 1}).error
    reply = server.post(f"{path}/stop?trial=abcde_00003", {})
    assert (reply.status, reply.error) == (
        400,
        "There is no parameter 'trial' at this address. There are no parameters.",
    )
