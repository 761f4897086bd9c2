"""References to objects in the memory of a cluster are refused where nobody can read them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller import references
from holdfast.errors import InvalidInputError

SPEC: Any = SimpleNamespace(references=["param_space: data", "with_parameters: big"], session="job/worker")
Reference = type("ObjectRef", (), {"__module__": "ray._raylet"})


@pytest.fixture(autouse=True)
def in_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session in which the references were made."""
    monkeypatch.setattr(references, "is_joined_here", lambda: True)
    monkeypatch.setattr(references, "session", lambda: "job/worker")


@pytest.mark.parametrize("engine", ["local", tune.LocalEngine()])
def test_a_restore_on_this_machine_names_the_references(engine: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"'data', 'big' of this experiment are references.*engine='local'"):
        references.check_references(SPEC, "root", param_space=None, trainable=None, engine=engine)
    with pytest.raises(InvalidInputError, match=r"^'big' of this"):
        references.check_references(SPEC, "root", param_space={}, trainable=None, engine=engine)
    references.check_references(SPEC, "root", param_space={}, trainable=lambda config: None, engine=engine)
    references.check_references(SPEC, "root", param_space=None, trainable=None, engine="ray")


def test_an_experiment_on_this_machine_is_refused_before_it_is_written(tmp_path: Path) -> None:
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), engine="local")
    with pytest.raises(InvalidInputError, match="'data' of this experiment are references"):
        tune.Tuner(lambda config: None, param_space={"data": Reference(), "x": 1}, run_config=config)
    assert list(tmp_path.iterdir()) == []
