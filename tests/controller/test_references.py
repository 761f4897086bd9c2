"""References to objects in the memory of a cluster are refused where nobody can read them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as tune
from holdfast.controller import experiment, references, renewed_values
from holdfast.controller.loading import load_experiment
from holdfast.core.state import State, Status
from holdfast.errors import InvalidInputError

SESSION = references.session
SPEC: Any = SimpleNamespace(references=["param_space: data", "with_parameters: big"], session="job/worker")


def _object_ref_deserializer(value: Any) -> Any:
    """Named like Ray's own: that is how a stored reference is known."""
    return Reference(value)


class Reference:
    """What ``ray.put`` returns, as far as picklers see."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return _object_ref_deserializer, (self.value,)


Reference.__name__, Reference.__module__ = "ObjectRef", "ray"


@dataclasses.dataclass
class Box:
    value: Any


@pytest.fixture(autouse=True)
def in_session(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The session in which the references were made; another one when called."""
    monkeypatch.setattr(references, "is_joined_here", lambda: True)

    def enter(name: str) -> None:
        for module in (references, experiment, renewed_values):
            monkeypatch.setattr(module, "session", lambda: name)

    enter("job/worker")
    return enter


def read(config: dict[str, Any], extra: Any = None) -> None:
    tune.report({"x": 1})


def closure() -> Any:
    reference = Reference(1)

    def train(config: dict[str, Any]) -> None:
        tune.report({"x": reference.value})

    return train


def sampled(reference: Any) -> Any:
    return tune.sample_from(lambda config: {"inner": (reference, config["k"])} if config["k"] else reference)


CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "dataclass": (lambda: (read, {"data": Box(Reference(1))}), "param_space"),
    "partial": (lambda: (read, {"data": functools.partial(print, Reference(1))}), "param_space"),
    "deque": (lambda: (read, {"data": collections.deque([Reference(1)])}), "param_space"),
    "frozenset": (lambda: (read, {"data": frozenset([Reference(1)])}), "param_space"),
    "option": (lambda: (read, {"data": tune.choice([Box(Reference(1)), Box(Reference(2))])}), "param_space"),
    "sample_from": (lambda: (read, {"k": 0, "data": sampled(Reference(1))}), "param_space"),
    "parameter": (lambda: (tune.with_parameters(read, extra=Box(Reference(1))), {}), "trainable"),
    "closure": (lambda: (closure(), {}), "trainable"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_reference_is_found_wherever_it_is(tmp_path: Path, in_session: Any, case: str) -> None:
    make, argument = CASES[case]
    trainable, space = make()
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    tune.Tuner(trainable, param_space=space, run_config=config)
    path = str(tmp_path / "e")
    load_experiment(path)  # in the same session
    in_session("another")
    name = {"param_space": "data", "parameter": "extra"}.get(argument if case != "parameter" else case, "train")
    with pytest.raises(InvalidInputError, match=f"^'{name}.*' of this experiment are or hold.*{argument}=") as raised:
        load_experiment(path)
    assert "Nothing was started" in str(raised.value)
    trainable, space = make()
    load_experiment(path, trainable if argument == "trainable" else None, space if argument == "param_space" else None)


def test_what_only_names_no_reference_is_not_refused(tmp_path: Path, in_session: Any) -> None:
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    space = {"data": Box(1), "f": tune.sample_from(lambda config: Box(config["k"])), "k": 1}
    tune.Tuner(tune.with_parameters(read, extra=Box(2)), param_space=space, run_config=config)
    in_session("another")
    load_experiment(str(tmp_path / "e"))


def needs_new(config: dict[str, Any]) -> None:
    value = config["data"] if config["k"] == 0 else config["data"]["inner"][0]
    if value.value == "dead":
        raise OSError("the owner of the object has died")
    tune.report({"value": value.value, "u": config["u"]})


def test_a_value_that_a_function_has_made_is_made_again(tmp_path: Path, in_session: Any) -> None:
    def space(value: str) -> dict[str, Any]:
        data = sampled(Reference(value))
        return {"k": tune.grid_search([0, 1]), "u": tune.uniform(0, 1), "data": data}

    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    before = tune.Tuner(needs_new, param_space=space("dead"), run_config=config).fit()
    assert before.num_errors == 2
    in_session("another")
    path = str(tmp_path / "e")
    results = tune.Tuner.restore(path, param_space=space("new"), restart_errored=True).fit()
    assert [result.metrics and result.metrics["value"] for result in results] == ["new", "new"]
    assert [result.metrics and result.metrics["u"] for result in results] == [each.config["u"] for each in before]
    kept = load_experiment(path, param_space=space("newer"))
    state: Any = State()
    state.trials = [SimpleNamespace(status=Status.PENDING, final=False, config=each) for each in stored(kept)]
    renewed_values.renew_values(kept, state, 7)
    again = [kept.objects[key] for each in stored(kept) for _, key in renewed_values._own_values(each, ())]
    assert [reference.value for reference in again] == ["newer", "newer"]


def test_a_value_that_a_function_has_made_is_refused_if_the_space_is_not_given(tmp_path: Path, in_session: Any) -> None:
    """The function made the reference itself, so only its values hold any."""
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    space = {"k": 0, "u": 1, "data": tune.sample_from(lambda config: _object_ref_deserializer("dead"))}
    tune.Tuner(needs_new, param_space=space, run_config=config).fit()
    loaded = load_experiment(str(tmp_path / "e"))
    state: Any = State()
    state.trials = [SimpleNamespace(status=Status.PENDING, final=False, config=each) for each in stored(loaded)]
    renewed_values.renew_values(loaded, state, 7)  # in the same session
    in_session("another")
    with pytest.raises(InvalidInputError, match=r"^'data' of this experiment are.*param_space=\.\.\."):
        renewed_values.renew_values(loaded, state, 7)
    state.trials[0].status, state.trials[0].final = Status.TERMINATED, True
    renewed_values.renew_values(loaded, state, 7)


def stored(loaded: experiment.Experiment) -> list[dict[str, Any]]:
    """Configs as they are in the journal."""
    from holdfast.controller.opening import open_state

    return [trial.config for trial in open_state(loaded.root.path, loaded.spec.retention).state.trials]


def test_every_process_and_every_cluster_is_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first driver of each new cluster has the same job, the same worker, and the same numbers of objects."""
    name = "session_1"
    context = SimpleNamespace(get_job_id=lambda: "01000000", get_session_name=lambda: name)
    fake = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    here = SESSION()
    assert SESSION() == here
    name = "session_2"
    assert SESSION() != here
    code = (
        "import sys; from types import SimpleNamespace as N; from holdfast.controller import references as r;"
        "c = N(get_job_id=lambda: '01000000', get_session_name=lambda: 'session_1');"
        "sys.modules['ray'] = N(get_runtime_context=lambda: c); r.is_joined_here = lambda: True; print(r.session())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("session_1/01000000/")
    assert done.stdout.strip() != here


@pytest.mark.parametrize("engine", ["local", tune.LocalEngine()])
def test_a_restore_on_this_machine_names_the_references(engine: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"'data', 'big' of this experiment are or hold.*engine='local'"):
        references.check_references(SPEC, "root", {}, engine)
    with pytest.raises(InvalidInputError, match=r"^'big' of this"):
        references.check_references(SPEC, "root", {"param_space": {}}, engine)
    references.check_references(SPEC, "root", {"param_space": {}, "trainable": read}, engine)
    references.check_references(SPEC, "root", {}, "ray")


def test_an_experiment_on_this_machine_is_refused_before_it_is_written(tmp_path: Path) -> None:
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), engine="local")
    with pytest.raises(InvalidInputError, match="'data' of this experiment are or hold references"):
        tune.Tuner(lambda config: None, param_space={"data": Reference(1), "x": 1}, run_config=config)
    assert list(tmp_path.iterdir()) == []
