"""SobolSearch: the n-th configuration depends on the seed and on n, and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import qmc
from search_world import EVERY_DOMAIN, MODEL

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search import create_searcher
from holdfast.search.searcher import can_snapshot
from holdfast.search.sobol import MAX_DIMENSIONS, SobolSearch
from holdfast.space.domains import Domain
from holdfast.space.objects import extract_objects
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live

SQUARE = {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1), "constant": 1}


def configs(search: SobolSearch, space: dict[str, Any], count: int, seed: int = 7) -> list[dict[str, Any]]:
    adapter = SearcherHarness(search, space, None, None, seed=seed)
    live(adapter, lambda config: {"loss": 1.0}, trials=count)
    return [adapter.configs[n] for n in range(count)]


def test_it_is_the_scrambled_sequence() -> None:
    found = configs(SobolSearch(), SQUARE, 8, seed=5)
    expected = qmc.Sobol(2, rng=np.random.default_rng(5)).random(8)
    assert [(config["x"], config["y"]) for config in found] == [tuple(point) for point in expected]
    assert all(config["constant"] == 1 for config in found)


def test_powers_of_two_fill_every_cell_of_a_grid() -> None:
    found = configs(SobolSearch(), SQUARE, 64)
    assert len({(int(config["x"] * 8), int(config["y"] * 8)) for config in found}) == 64


def test_any_number_of_samples_is_the_beginning_of_one_sequence() -> None:
    long = configs(SobolSearch(), EVERY_DOMAIN, 37)
    for count in (1, 3, 16):
        assert configs(SobolSearch(), EVERY_DOMAIN, count) == long[:count]
    assert configs(SobolSearch(), EVERY_DOMAIN, 5, seed=8) != long[:5]
    assert configs(SobolSearch(seed=3), SQUARE, 5, seed=8) == configs(SobolSearch(seed=3), SQUARE, 5, seed=9)


def test_every_domain_can_be_searched() -> None:
    for config in configs(SobolSearch(), EVERY_DOMAIN, 64):
        for key, domain in EVERY_DOMAIN.items():
            assert not isinstance(domain, Domain) or domain.is_valid(config[key]), (key, config[key])
        assert 0 <= config["nested"]["deep"]["er"] <= 1
        assert config["nested"]["list"][1] == 5


def test_without_scrambling_the_first_point_is_a_corner_and_nothing_breaks() -> None:
    found = configs(SobolSearch(scramble=False), {**EVERY_DOMAIN, **SQUARE}, 4)
    assert (found[0]["x"], found[0]["y"]) == (0.0, 0.0)
    assert (found[1]["x"], found[1]["y"]) == (0.5, 0.5)
    assert found[0]["randn"] < 0 < found[1]["randn"]


def test_shares_of_choices_and_whole_numbers_are_even() -> None:
    space = {"c": tune.choice(["a", "b", "c", "d"]), "i": tune.randint(0, 8), "q": tune.qrandint(0, 30, 10)}
    found = configs(SobolSearch(), space, 64)
    assert {sum(config["c"] == each for config in found) for each in "abcd"} == {16}
    assert {sum(config["i"] == each for config in found) for each in range(8)} == {8}
    assert {sum(config["q"] == each for config in found) for each in (0, 10, 20, 30)} == {16}


def test_conditional_spaces_are_searched() -> None:
    found = configs(SobolSearch(), MODEL, 64)
    assert all(MODEL["model"].is_valid(config["model"]) for config in found)
    assert sum(isinstance(config["model"], dict) for config in found) == 32


def test_objects_are_chosen() -> None:
    space, objects = extract_objects({"data": tune.choice([b"train", b"test"])})
    assert {config["data"]["__object__"] for config in configs(SobolSearch(), space, 4)} == objects.keys()


@pytest.mark.parametrize("space", [SQUARE, MODEL, {"constant": 1}])
def test_it_continues_exactly(space: dict[str, Any]) -> None:
    search = SobolSearch(points_to_evaluate=[{"x": 0.25}] if "x" in space else None)
    assert can_snapshot(search)

    def make() -> SearcherHarness:
        return SearcherHarness(search, space, None, None)

    assert_exact_resume(make, live(make(), lambda config: {"loss": 1.0}, trials=12), ahead=12)


def test_memory_survives_in_a_file(tmp_path: Path) -> None:
    one = SobolSearch({"x": tune.uniform(0, 1)})
    for n in range(5):
        one.suggest(str(n))
    one.save(str(tmp_path / "memory"))
    two = SobolSearch()
    two.restore(str(tmp_path / "memory"))
    assert two.suggest("next") == one.suggest("next")


def test_points_come_first() -> None:
    points = [{"x": 0.5, "y": 0.125}, {"y": 0.75}]
    found = configs(SobolSearch(points_to_evaluate=points), SQUARE, 3)
    assert found[0] == {"x": 0.5, "y": 0.125, "constant": 1}
    assert found[1]["y"] == 0.75
    assert found[1]["x"] == configs(SobolSearch(), SQUARE, 3)[1]["x"]


def test_a_space_of_its_own_comes_with_its_constants() -> None:
    search = SobolSearch({"x": tune.uniform(0, 1), "n": {"y": tune.randint(0, 3), "z": 4}})
    assert not search.set_search_properties(None, None, {"y": tune.uniform(0, 1)})
    assert search.set_search_properties("loss", "min", {"other": 1}, seed=1)
    config = search.suggest("a")
    assert config.keys() == {"x", "n"}
    assert config["n"]["z"] == 4
    assert search.metric is None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"space": [1]}, InvalidTypeError, "dict of domains"),
        ({"space": {"x": print}}, InvalidInputError, "param_space"),
        ({"seed": -1}, InvalidInputError, "seed must not be negative, got -1"),
        ({"seed": "a"}, InvalidTypeError, "^seed must be an int .*got 'a'.*seed=42"),
        ({"points_to_evaluate": 3}, InvalidTypeError, "list of dicts"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        SobolSearch(**arguments)


def test_what_cannot_be_searched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="grid_search at 'x'"):
        SearcherHarness(SobolSearch(), {"x": tune.grid_search([1, 2])})
    with pytest.raises(InvalidInputError, match="no search space yet"):
        SobolSearch().suggest("a")
    assert qmc.Sobol.MAXDIM == MAX_DIMENSIONS
    monkeypatch.setattr("holdfast.search.sobol.MAX_DIMENSIONS", 2)
    with pytest.raises(InvalidInputError, match="over 2 parameters, got 3"):
        SearcherHarness(SobolSearch(), {f"x{n}": tune.uniform(0, 1) for n in range(3)})


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.search.sobol.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'holdfast\[sobol\]'"):
        create_searcher("sobol")


def test_scipy_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from holdfast.search.sobol import MAX_DIMENSIONS, SobolSearch; SobolSearch(); "
        "assert 'scipy.stats' not in sys.modules"
    )
    source = str(Path(tune.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=True)
