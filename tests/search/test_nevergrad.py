"""NevergradSearch, with the real Nevergrad."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from library_contract import NUMBERS, Case, ask, every_check, keep

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search import create_searcher
from holdfast.search.nevergrad import NevergradSearch
from holdfast.search.replayable import Asked, Completed, NotNow
from holdfast.testing.searcher_contract import assert_exact_resume, live, score, trial_name

CASE = Case(NevergradSearch, "nevergrad", "nevergrad", {"optimizer_kwargs": {"budget": 100}}, every=3)


def import_libraries() -> None:
    global ng
    ng = pytest.importorskip("nevergrad")


@every_check
def test_keeps_the_contract_of_searchers(check: Any, tmp_path: Path):
    keep(CASE, check, tmp_path)


@pytest.mark.parametrize("optimizer", ["CMA", "TwoPointsDE", "PSO", "RandomSearch", "ScrHammersleySearch", "MetaModel"])
def test_every_optimizer_continues_exactly(optimizer: str):
    history = live(CASE.adapter(optimizer=optimizer), score, 10)
    assert_exact_resume(lambda: CASE.adapter(optimizer=optimizer), history, every=7)


@pytest.mark.parametrize("optimizer", ["Powell", "NelderMead", "SQP"])
def test_optimizers_that_run_in_a_thread_of_their_own_continue_exactly_too(optimizer: str):
    adapter = CASE.adapter(optimizer=optimizer)
    history = live(adapter, score, 8, slots=1)
    assert adapter.searcher.get_state()["_stored"] == b""
    assert_exact_resume(lambda: CASE.adapter(optimizer=optimizer), history, every=5)


def test_an_optimizer_that_wants_each_result_at_once_is_asked_for_one_trial_at_a_time():
    adapter = CASE.adapter(optimizer="Powell")
    ask(adapter)
    assert adapter.hear(Asked(1)) == [NotNow()]
    (answer,) = adapter.hear(Completed(trial_name(0), None, True))
    assert answer.n == 1


def test_the_valley_is_found():
    adapter = CASE.adapter({"x": tune.uniform(-5, 5), "k": tune.randint(0, 10)}, optimizer="OnePlusOne")
    found = []
    for n in range(60):
        config = ask(adapter)
        found.append((config["x"] - 1.3) ** 2 + abs(config["k"] - 7))
        adapter.hear(Completed(trial_name(n), {"loss": found[-1]}, False))
    assert sum(found[40:]) / 20 < sum(found[:20]) / 20
    assert min(found) < 1.1


POINT = {"w": 1.5, "h": 2}
PARAMETERS = {"w": lambda: ng.p.Scalar(lower=0, upper=9), "h": lambda: ng.p.Choice([1, 2])}


def parameters() -> dict[str, Any]:
    return {name: make() for name, make in PARAMETERS.items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: NevergradSearch("OnePlusOne", space=ng.p.Dict(**parameters()), **more),
        lambda **more: NevergradSearch(
            ng.optimizers.CMA, {"budget": 20}, space=ng.p.Instrumentation(**parameters()), **more
        ),
        lambda **more: NevergradSearch(ng.optimizers.OnePlusOne, space=parameters(), **more),
        lambda **more: NevergradSearch(ng.optimizers.OnePlusOne(parametrization=ng.p.Dict(**parameters())), **more),
    ],
)
def test_spaces_of_nevergrads_own_are_searched_as_they_are(make: Any):
    def answers() -> list[Any]:
        search = make(metric="m", mode="max", points_to_evaluate=[POINT])
        assert search.set_search_properties(None, None, {"constant": 1}, seed=3)
        told = []
        for n in range(6):
            told.append(search.suggest(str(n)))
            search.on_trial_complete(str(n), {"m": told[-1]["w"]} if n % 3 else None)
        return told

    expected = answers()
    assert expected[0] == POINT
    assert all(0 <= config["w"] <= 9 and config["h"] in (1, 2) for config in expected)
    assert answers() == expected


def test_an_instance_over_an_array_gets_names():
    search = NevergradSearch(
        ng.optimizers.OnePlusOne(parametrization=2, budget=9), space=["w", "h"], metric="m", mode="min"
    )
    assert search.suggest("a").keys() == {"w", "h"}
    search.on_trial_complete("a", {"m": 1.0})
    assert type(search.suggest("b")["w"]) is float


def test_a_user_who_seeded_the_parametrization_is_obeyed():
    def first(own: int, experiment: int) -> Any:
        space = ng.p.Dict(**parameters())
        space.random_state.seed(own)
        search = NevergradSearch("RandomSearch", space=space, metric="m", mode="min")
        search.set_search_properties(None, None, {}, seed=experiment)
        return [search.suggest(str(n)) for n in range(4)]

    assert first(1, 5) == first(1, 6)
    assert first(1, 5) != first(2, 5)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"optimizer": "Miracle"}, InvalidInputError),
        ({"optimizer": 5}, InvalidTypeError),
        ({"space": 5}, InvalidInputError),
        ({"optimizer": lambda: ng.optimizers.CMA(parametrization=2)}, InvalidInputError),
        ({"optimizer": lambda: ng.optimizers.CMA(parametrization=2), "space": ["a"]}, InvalidInputError),
        ({"optimizer": lambda: ng.optimizers.CMA(parametrization=2), "space": NUMBERS}, InvalidInputError),
        (
            {"optimizer": lambda: ng.optimizers.CMA(parametrization=1), "optimizer_kwargs": {"budget": 3}},
            InvalidInputError,
        ),
        ({"optimizer_kwargs": {"magic": 3}, "space": NUMBERS, "metric": "m", "mode": "min"}, InvalidInputError),
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any], error: type[Exception]):
    if callable(wrong.get("optimizer")):
        wrong = {**wrong, "optimizer": wrong["optimizer"]()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error):
            NevergradSearch(**wrong).suggest("a")


def test_it_is_found_by_name_and_chooses_an_optimizer_itself():
    search = create_searcher("nevergrad", patience=1)
    assert isinstance(search, NevergradSearch)
    search.set_search_properties("loss", "min", NUMBERS, seed=1)
    assert search.suggest("a").keys() == {"x", "deep/y", "list/1"}
