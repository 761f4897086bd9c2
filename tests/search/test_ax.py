"""AxSearch, with the real Ax. Its Gaussian process takes seconds to think, so most tests stay before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from library_contract import NUMBERS, Case, ask, every_check, keep, run

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search.ax import AxSearch
from holdfast.search.replayable import Asked, Completed, NotNow
from holdfast.testing.searcher_contract import assert_exact_resume, live, score, trial_name

pytestmark = pytest.mark.filterwarnings("ignore")  # its libraries deprecate one another

CASE = Case(
    AxSearch, "ax", "ax", {"method": "random_search"}, lacks=frozenset({"randn", "qrandn"}), trials=8, every=4, ahead=5
)


def import_libraries() -> None:
    pytest.importorskip("ax.api", exc_type=ImportError)


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


@pytest.mark.slow
def test_the_gaussian_process_continues_exactly():
    def make() -> Any:
        return Case(AxSearch, "ax", "ax", {"initialization_budget": 2}).adapter({"x": tune.uniform(-5, 5)})

    history = live(make(), score, 4, slots=1)
    assert_exact_resume(make, history, every=4, ahead=3)


def test_it_waits_for_results_that_it_needs():
    adapter = Case(AxSearch, "ax", "ax", {"initialization_budget": 2}).adapter()
    ask(adapter), ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]


def trials_of(adapter: Any) -> list[str]:
    return [trial.status.name for trial in adapter.searcher._client._experiment.trials.values()]


def test_metrics_with_constraints_are_told_too():
    adapter = CASE.adapter(outcome_constraints=["val/speed >= 3"])
    for n, speed in enumerate((4.0, None, math.nan)):
        ask(adapter)
        adapter.hear(Completed(trial_name(n), {"loss": 1.0, "val/speed": speed}, False))
    assert trials_of(adapter) == ["COMPLETED", "FAILED", "FAILED"]
    data = adapter.searcher._client._experiment.lookup_data().df
    assert set(data["metric_name"]) == {"loss", "val/speed"}


def test_constraints_between_parameters_are_kept():
    space = {"x": tune.uniform(0, 1), "deep": {"y": tune.uniform(0, 1)}}
    for config in run(CASE.adapter(space, parameter_constraints=["x + deep/y <= 0.8"]), 8):
        assert config["x"] + config["deep"]["y"] <= 0.8 + 1e-6
    with pytest.raises(InvalidInputError, match="'k'"):
        CASE.adapter({"k": tune.qrandint(0, 10, 5), **space}, parameter_constraints=["k + x <= 3"])


def client() -> Any:
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    made = Client()
    made.configure_experiment([RangeParameterConfig(name="x", bounds=(0.0, 1.0), parameter_type="float")])
    made.configure_optimization(objective="-loss")
    return made


def test_a_client_with_an_experiment_brings_space_metric_and_mode():
    def answers() -> list[Any]:
        search = AxSearch(ax_client=client(), points_to_evaluate=[{"x": 0.25}])
        assert (search.metric, search.mode) == ("loss", "min")
        assert not search.set_search_properties("loss", "min", NUMBERS)
        assert search.set_search_properties(None, None, {"constant": 1}, seed=3)
        told = []
        for n in range(4):
            told.append(search.suggest(str(n)))
            search.on_trial_complete(str(n), {"loss": told[-1]["x"]} if n != 2 else None)
        return told

    expected = answers()
    assert expected[0] == {"x": 0.25}
    assert answers() == expected
    with pytest.raises(InvalidInputError, match="Leave them out"):
        AxSearch(ax_client=client(), mode="max")
    with pytest.raises(InvalidInputError, match="set up already"):
        AxSearch(NUMBERS, ax_client=client())


def test_a_client_without_an_experiment_gets_ours():
    from ax.api.client import Client

    search = AxSearch(NUMBERS, "loss", "min", ax_client=Client(random_seed=1))
    assert search.suggest("a").keys() == NUMBERS.keys()


def test_the_older_client_works_as_long_as_ax_has_it():
    service = pytest.importorskip("ax.service.ax_client", exc_type=ImportError)
    with pytest.raises(InvalidInputError, match="create_experiment"):
        AxSearch(ax_client=service.AxClient())
    old = service.AxClient(verbose_logging=False)
    parameter = {"name": "x", "type": "range", "bounds": [0.0, 1.0], "value_type": "float"}
    old.create_experiment(parameters=[parameter], objectives={"m": service.ObjectiveProperties(minimize=False)})
    search = AxSearch(ax_client=old, points_to_evaluate=[{"x": 0.25}])
    assert (search.metric, search.mode) == ("m", "max")
    for n in range(3):
        assert 0 <= search.suggest(str(n))["x"] <= 1
        search.on_trial_complete(str(n), {"m": 1.0} if n else None)


def test_parameters_as_the_older_client_writes_them_are_a_space():
    space = [
        {"name": "x", "type": "range", "bounds": [0.1, 1.0], "log_scale": True},
        {"name": "k", "type": "range", "bounds": [1, 3]},
        {"name": "c", "type": "choice", "values": ["a", "b"]},
        {"name": "f", "type": "fixed", "value": 5},
    ]
    config = AxSearch(space, "m", "max", method="random_search").suggest("a")
    assert 0.1 <= config["x"] <= 1
    assert config["k"] in (1, 2, 3)
    assert config["c"] in "ab"
    assert config["f"] == 5


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"magic": 1}, InvalidInputError),
        ({"space": 5}, InvalidInputError),
        ({"space": [{"name": "x", "type": "dream"}]}, InvalidInputError),
        ({"ax_client": 5}, InvalidTypeError),
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        AxSearch(**wrong)
