"""Which engine an experiment gets: what the settings, an initialised Ray and the environment say."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast as tune
from holdfast.config import Environment, LocalEngine, RayEngine, RunConfig
from holdfast.controller import engine_choice
from holdfast.errors import InvalidInputError


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def test_the_address_in_the_environment_completes_an_engine_that_names_none() -> None:
    environment = Environment(ray_address="10.0.0.7:6379")
    settings = engine_choice._cluster_settings(RayEngine(port=7070), environment)
    assert settings == RayEngine(address="10.0.0.7:6379", port=7070)
    assert engine_choice._cluster_settings("ray", environment) == RayEngine(address="10.0.0.7:6379")
    named = RayEngine(address="10.0.0.8:6379")
    assert engine_choice._cluster_settings(named, environment) == named


@pytest.mark.parametrize("engine", [None, "local", LocalEngine(cpus=1)])
def test_the_environment_alone_sends_no_experiment_to_a_cluster(engine: LocalEngine | str | None) -> None:
    assert engine_choice._cluster_settings(engine, Environment(ray_address="10.0.0.7:6379")) is None


@pytest.mark.usefixtures("with_ray")
def test_a_cluster_that_is_not_named_is_not_joined() -> None:
    with pytest.raises(InvalidInputError, match=r"no cluster was named.*RAY_ADDRESS"):
        engine_choice.check_cluster(RunConfig(engine="ray"), Environment())


@pytest.mark.usefixtures("with_ray")
def test_an_address_where_nobody_listens_is_refused_before_anything_starts(listener: str) -> None:
    engine_choice.check_cluster(RunConfig(engine=RayEngine(address=listener)), Environment())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InvalidInputError, match=f"no Ray cluster at '127.0.0.1:{port}'"):
        engine_choice.check_cluster(RunConfig(engine=RayEngine(address=f"127.0.0.1:{port}")), Environment())


@pytest.mark.usefixtures("with_ray")
def test_no_private_cluster_is_started() -> None:
    for config, environment in (
        (RunConfig(engine=RayEngine(address="local")), Environment()),
        (RunConfig(engine="ray"), Environment(ray_address="local")),
    ):
        with pytest.raises(InvalidInputError, match=r"no cluster is started by accident.*ray start --head"):
            engine_choice.check_cluster(config, environment)


@pytest.mark.usefixtures("with_ray")
def test_an_address_that_this_machine_does_not_have_is_refused(listener: str) -> None:
    engine_choice.check_cluster(RunConfig(engine=RayEngine(address=listener, host="127.0.0.1")), Environment())
    with pytest.raises(InvalidInputError, match=r"RayEngine.host='192.0.2.1' is no address of this machine"):
        engine_choice.check_cluster(RunConfig(engine=RayEngine(address=listener, host="192.0.2.1")), Environment())


def test_an_engine_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=r"pip install 'holdfast\[ray\]'"):
        engine_choice.check_cluster(RunConfig(engine="ray"), Environment())


CLIENT = [RunConfig(engine="ray://10.0.0.7:10001"), RunConfig(engine=RayEngine(address="ray://10.0.0.7:10001"))]


@pytest.mark.parametrize("config", CLIENT)
def test_ray_client_is_refused_with_what_to_do(config: RunConfig) -> None:
    with pytest.raises(InvalidInputError, match=r"ray job submit --address=http://10\.0\.0\.7:8265.*Nothing was"):
        engine_choice.check_cluster(config, Environment())


@pytest.mark.parametrize("engine", ["ray", RayEngine(port=7070)])
def test_ray_client_in_the_environment_is_refused(engine: RayEngine | str) -> None:
    with pytest.raises(InvalidInputError, match="ray job submit"):
        engine_choice.check_cluster(RunConfig(engine=engine), Environment(ray_address="ray://10.0.0.7:10001"))


@pytest.mark.parametrize("engine", [None, "ray"])
def test_a_process_that_is_a_ray_client_is_refused(monkeypatch: pytest.MonkeyPatch, engine: str | None) -> None:
    connected = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: True))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "ray.util.client", connected)
    with pytest.raises(InvalidInputError, match=r"ray\.init\(\) has made this process a Ray Client.*ray job submit"):
        engine_choice.check_cluster(RunConfig(engine=engine), Environment())
    engine_choice.check_cluster(RunConfig(engine="local"), Environment())


def test_a_restore_through_ray_client_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def train(config: dict[str, object]) -> None:
        tune.report({"x": 1})

    tune.Tuner(train, run_config=RunConfig(name="e", storage_path=str(tmp_path), verbose=0)).fit()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    restored = tune.Tuner.restore(str(tmp_path / "e"), trainable=train, run_config=CLIENT[0])
    with pytest.raises(InvalidInputError, match="ray job submit"):
        restored.fit()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
