"""``from holdfast.compat import ray``: init, put and get as a tuning script uses them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.compat import ray, tune

SOURCE = str(Path(holdfast.__file__).parent.parent)


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    ray.shutdown()


def run_config(tmp_path: Path, **fields: Any) -> tune.RunConfig:
    return tune.RunConfig(**{"name": "exp", "storage_path": tmp_path, "verbose": 0, **fields})


def measure(config: dict[str, Any]) -> dict[str, Any]:
    return {"size": len(ray.get(config["model"]))}


def test_init_trains_here_and_is_remembered() -> None:
    assert not ray.is_initialized()
    ray.init()
    assert ray.is_initialized()
    with pytest.raises(RuntimeError, match="ignore_reinit_error"):
        ray.init(address=None)
    ray.init(ignore_reinit_error=True)
    ray.shutdown()
    assert not ray.is_initialized()


def test_without_ray_the_address_of_a_cluster_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConnectionError, match=r"10\.0\.0\.1:6379.*pip install 'holdfast\[ray\]'"):
        ray.init(address="10.0.0.1:6379")
    assert not ray.is_initialized()


def test_with_ray_the_address_of_a_cluster_chooses_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.warns(UserWarning, match="cpus ignored"):
        ray.init(address="10.0.0.1:6379", num_cpus=3)
    assert ray.engine() == holdfast.RayEngine(address="10.0.0.1:6379")
    ray.shutdown()
    assert ray.engine() is None


class Cluster:
    """Stands for Ray: it remembers who has joined, and what was put."""

    class ObjectRef:
        def __init__(self, value: object) -> None:
            self.value = value

    ObjectRef.__module__ = "ray._raylet"

    def __init__(self) -> None:
        self.address: str | None = None

    def is_initialized(self) -> bool:
        return self.address is not None

    def init(self, address: str, **settings: Any) -> None:
        self.address = address

    def shutdown(self) -> None:
        self.address = None

    def put(self, value: object) -> ObjectRef:
        return Cluster.ObjectRef(value)

    def get(self, ref: ObjectRef, timeout: float | None = None) -> object:
        return ref.value


def test_on_a_cluster_objects_are_put_by_ray_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of this machine would not be found on another."""
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    ray.init(address="10.0.0.1:6379")
    assert cluster.address is None
    reference = ray.put(b"x")
    assert cluster.address == "10.0.0.1:6379"
    assert type(reference) is Cluster.ObjectRef
    assert ray.get([reference, reference]) == [b"x", b"x"]
    ray.shutdown()
    assert cluster.address is None


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"'num_cpu'.*'num_cpus'"):
        ray.init(num_cpu=3)
    ray.init(include_dashboard=False, log_to_driver=False, _temp_dir="x")


def test_init_says_how_many_cpus_trials_share(tmp_path: Path) -> None:
    ray.init(num_cpus=3)
    tuner = tune.Tuner(measure, run_config=run_config(tmp_path))
    assert tuner._experiment.settings.run_config.engine == holdfast.LocalEngine(cpus=3)


def test_what_is_put_once_is_got_by_every_trial(tmp_path: Path) -> None:
    models = [ray.put(b"x" * size) for size in (10, 20)]
    grid = tune.Tuner(measure, param_space={"model": tune.grid_search(models)}, run_config=run_config(tmp_path)).fit()
    assert [result.metrics["size"] for result in grid] == [10, 20]
    assert ray.get(models) == [b"x" * 10, b"x" * 20]


def test_what_is_no_reference_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ray\.put"):
        ray.get("model")
    with pytest.raises(TypeError, match="already"):
        ray.put(ray.put(1))
    with pytest.raises(AttributeError, match="import ray"):
        _ = ray.remote


DRIVER = """
import os, signal, sys
from holdfast.compat import ray, tune

def measure(config):
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        tune.report({{"size": 0}}, checkpoint=tune.Checkpoint.from_dict({{"step": 1}}))
        if {kill}:
            os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
            signal.pause()
    tune.report({{"size": len(ray.get(config["net"]["model"]))}})

os.environ["DRIVER"] = str(os.getpid())
space = {{"net": {{"model": tune.grid_search([ray.put(b"x" * 10)])}}}}
if sys.argv[1] == "begin":
    run_config = tune.RunConfig(name="exp", storage_path={storage!r}, verbose=0)
    tune.Tuner(measure, param_space=space, run_config=run_config).fit()
else:
    given = {{"param_space": space}} if sys.argv[1] == "again" else {{"run_config": tune.RunConfig(verbose=1)}}
    grid = tune.Tuner.restore({storage!r} + "/exp", measure, resume_errored=True, **given).fit()
    for result in grid:
        print("size", result.metrics.get("size"), "error", result.error)
"""


def test_a_reference_lives_as_long_as_its_driver(tmp_path: Path) -> None:
    """The driver is killed, so that nothing of it can tidy up; a restore without new references says what to give."""

    def run(what: str, kill: bool = False) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(DRIVER.format(kill=kill, storage=str(tmp_path / "storage")))
        environment = {"PYTHONPATH": SOURCE, "TMPDIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, str(script), what], env=environment, capture_output=True, text=True, timeout=120
        )

    assert run("begin", kill=True).returncode == -9
    without = run("without")
    assert "'net/model'" in without.stdout, without.stderr + without.stdout
    assert "param_space=" in without.stdout
    # Displays cut messages, and the last line is what a person pastes: both name what has to be given.
    line = next(line for line in without.stdout.splitlines() if "failed: LostObjectError in line" in line)
    assert "Put it again and pass param_space= with the new reference to Tuner.restore()" in line
    assert "'net/model'" in line
    assert "Retry the failed trials with: Tuner.restore" in without.stdout
    assert ", param_space=..., resume_errored=True).fit()" in without.stdout
    again = run("again")
    assert "size 10 error None" in again.stdout, again.stderr + again.stdout
