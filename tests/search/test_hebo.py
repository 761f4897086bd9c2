"""HEBOSearch, with the real HEBO. Its Gaussian process takes seconds to think, so most tests stay before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from library_contract import NUMBERS, Case, ask, every_check, keep, run

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.search.hebo import HEBOSearch
from holdfast.search.replayable import Asked, Completed, NotNow
from holdfast.testing.searcher_contract import assert_exact_resume, live, trial_name

pytest.importorskip("hebo", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # its libraries deprecate one another

CASE = Case(HEBOSearch, "hebo", "hebo", {"rand_sample": 1000, "max_concurrent": 3})


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


@pytest.mark.slow
def test_the_gaussian_process_continues_exactly():
    space = {"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-5, 1)}

    def make() -> Any:
        return CASE.adapter(space, rand_sample=2, max_concurrent=1)

    def score(config: dict[str, Any]) -> dict[str, float]:
        return {"loss": (config["x"] - 1.3) ** 2 + 0.1 * config["lr"]}

    history = live(make(), score, 4, slots=1)
    assert_exact_resume(make, history, every=6, ahead=2)


def test_as_many_points_are_proposed_together_as_are_free():
    adapter = CASE.adapter(max_concurrent=3)
    for _ in range(3):
        ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]
    assert adapter.hear(Completed(trial_name(1), {"loss": 1.0}, False))[0].n == 3


def test_known_rewards_are_learned_from_and_not_tried():
    points = [{"x": 0.5, "deep": {"y": 1.0}, "list": [7, 2.5]}, {"x": 0.25, "deep/y": 2.0, "list/1": 2.1}]
    adapter = CASE.adapter(points_to_evaluate=points, evaluated_rewards=[1.0, 2.0])
    assert adapter.searcher._optimizer.y.ravel().tolist() == [1.0, 2.0]
    assert ask(adapter)["x"] not in (0.5, 0.25)
    with pytest.raises(InvalidInputError, match="evaluated_rewards"):
        CASE.make(points_to_evaluate=points, evaluated_rewards=[1.0])


def test_a_design_space_of_hebos_own_is_searched_as_it_is():
    from hebo.design_space.design_space import DesignSpace

    design = [{"name": "x", "type": "num", "lb": 0, "ub": 1}, {"name": "c", "type": "cat", "categories": ["a", "b"]}]
    search = HEBOSearch(DesignSpace().parse(design), "m", "max", [{"x": 0.5, "c": "b"}], random_state_seed=1)
    assert search.suggest("0") == {"x": 0.5, "c": "b"}
    search.on_trial_complete("0", {"m": 1.0})
    config = search.suggest("1")
    assert 0 <= config["x"] <= 1
    assert config["c"] in "ab"


@pytest.mark.parametrize(
    "wrong",
    [{"max_concurrent": 0}, {"space": 5}, {"magic": 1, "space": NUMBERS, "metric": "m", "mode": "min"}],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        HEBOSearch(**wrong).suggest("a")


def test_torchs_generator_is_left_alone():
    import torch

    adapter = CASE.adapter()
    torch.manual_seed(5)
    run(adapter, 3)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert after == torch.rand(1)
