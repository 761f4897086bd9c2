"""Fixtures for tests of the public interface with real experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_trainables import Crash, Crashed
from experiment_tools import Drivers

import holdfast as tune
from holdfast.controller.clock import RealClock


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Where experiments are stored."""
    return tmp_path / "storage"


@pytest.fixture
def root(storage: Path) -> Path:
    """The root of the experiment that ``run_config()`` names."""
    return storage / "exp"


@pytest.fixture
def run_config(storage: Path) -> Callable[..., tune.RunConfig]:
    """Makes a quiet RunConfig for a small engine; any field can be given."""

    def make(**fields: Any) -> tune.RunConfig:
        known = {"name": "exp", "storage_path": storage, "verbose": 0, "engine": tune.LocalEngine(cpus=2)}
        return tune.RunConfig(**{**known, **fields})

    return make


@pytest.fixture
def make_tuner(run_config: Callable[..., tune.RunConfig]) -> Callable[..., tune.Tuner]:
    """Makes a Tuner: ``make_tuner(train, space, num_samples=2, stop={...})``; fields go to the config that has them."""

    def make(trainable: Any, space: Any = None, **fields: Any) -> tune.Tuner:
        mine = {key: fields.pop(key) for key in list(fields) if hasattr(tune.TuneConfig(), key)}
        return tune.Tuner(
            trainable, param_space=space, tune_config=tune.TuneConfig(**mine), run_config=run_config(**fields)
        )

    return make


@pytest.fixture
def crashed(make_tuner: Callable[..., tune.Tuner], tmp_path: Path) -> Callable[..., None]:
    """Runs an experiment whose driver ends by an exception after some results; trials get ``dir`` in their config."""

    def run(trainable: Any, space: dict[str, Any], after: int, **fields: Any) -> None:
        callbacks = [*fields.pop("callbacks", ()), Crash(tmp_path, after)]
        with pytest.raises(Crashed):
            make_tuner(trainable, {"dir": str(tmp_path), **space}, callbacks=callbacks, **fields).fit()

    return run


@pytest.fixture
def time_begins(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Makes the driver's clock stand still until a condition holds: a slow start uses up no budget."""

    def arrange(condition: Callable[[], bool]) -> None:
        class Waiting(RealClock):
            def __init__(self, not_before: float = 0.0) -> None:
                super().__init__(not_before)
                self._held: float | None = super().now()

            def now(self) -> float:
                if self._held is not None and condition():
                    self._base -= super().now() - self._held
                    self._held = None
                return super().now() if self._held is None else self._held

        monkeypatch.setattr("holdfast.controller.driver.RealClock", Waiting)

    return arrange


@pytest.fixture
def drivers(tmp_path: Path, storage: Path) -> Iterator[Drivers]:
    """Starts drivers in processes of their own; see ``Drivers.start``."""
    started = Drivers(tmp_path, storage)
    yield started
    started.close()
