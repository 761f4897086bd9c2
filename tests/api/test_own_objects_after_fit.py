"""After a run the user's own searcher, scheduler and stop rule know what they were told, and no later run is misled."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from holdfast.search import ConcurrencyLimiter, Repeater, Searcher, SobolSearch
from holdfast.search.nevergrad import NevergradSearch
from holdfast.search.optuna import OptunaSearch
from holdfast.search.zoopt import ZOOptSearch
from holdfast.stopper import Stopper

Make = Callable[..., tune.Tuner]


def train(config: dict[str, Any]) -> None:
    for step in (1, 2):
        tune.report({"loss": config["x"] * step})


def fail(config: dict[str, Any]) -> None:
    tune.report({"loss": config["x"]})
    raise ValueError("no")


class Counting(Searcher):
    """Suggests 0, 1, 2, ... and remembers what became of each."""

    def __init__(self) -> None:
        super().__init__("loss", "min")
        self.next = 0
        self.told: dict[str, float] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.next += 1
        return {"x": self.next - 1}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told[trial_id] = (result or {}).get("loss", -1)

    def save(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "wb") as file:
            pickle.dump(self.__dict__, file)

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            self.__dict__ = pickle.load(file)


class Counts(FIFOScheduler):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.results = 0
        self.seen = seen

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        self.results += 1
        self.seen.append(trial.trial_id)
        return self.CONTINUE


class Rows(Stopper):
    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.rows += 1
        return False

    def stop_all(self) -> bool:
        return False


def test_the_users_objects_hold_the_final_memory(make_tuner: Make) -> None:
    seen: list[str] = []
    searcher, scheduler, stop = Counting(), Counts(seen), Rows()
    grid = make_tuner(train, {}, search_alg=searcher, scheduler=scheduler, stop=stop, num_samples=3).fit()
    assert sorted(searcher.told.values()) == [0, 2, 4]
    assert set(searcher.told) == {result.metrics["trial_id"] for result in grid}
    assert scheduler.results == stop.rows == len(seen) == 6
    assert scheduler.seen is seen, "a list that the user passed in is filled, not replaced"


def test_they_hold_it_too_when_fit_raises(make_tuner: Make) -> None:
    searcher, scheduler = Counting(), Counts([])
    failing = tune.FailureConfig(fail_fast="raise")
    with pytest.raises(ValueError, match="no"):
        make_tuner(fail, {}, search_alg=searcher, scheduler=scheduler, failure_config=failing).fit()
    assert list(searcher.told.values()) == [0]
    assert scheduler.results == 1


def test_a_second_fit_counts_nothing_twice(make_tuner: Make) -> None:
    searcher, scheduler, stop = Counting(), Counts([]), Rows()
    tuner = make_tuner(train, {}, search_alg=searcher, scheduler=scheduler, stop=stop, num_samples=2)
    tuner.fit()
    tuner.fit()
    assert (searcher.next, len(searcher.told), scheduler.results, stop.rows) == (2, 2, 4, 4)


@pytest.mark.parametrize("runs", [False, True], ids=["get_results", "fit"])
def test_objects_given_to_a_restore_hold_it_too(make_tuner: Make, root: Path, runs: bool) -> None:
    used = Counting()
    make_tuner(train, {}, search_alg=used, scheduler=Counts([]), stop=Rows(), num_samples=2).fit()
    for searcher in (used, Counting()):  # the one that ran has a memory already
        scheduler, stop = Counts([]), Rows()
        again = tune.Tuner.restore(
            root,
            train,
            tune_config=tune.TuneConfig(search_alg=searcher, scheduler=scheduler),
            run_config=tune.RunConfig(stop=stop),
        )
        again.fit() if runs else again.get_results()
        assert (searcher.next, len(searcher.told), scheduler.results, stop.rows) == (2, 2, 4, 4)


def test_what_a_searcher_saves_continues_in_another_experiment(make_tuner: Make, tmp_path: Path) -> None:
    first, path = Counting(), str(tmp_path / "searcher.pkl")
    make_tuner(train, {}, search_alg=first, num_samples=2).fit()
    first.save(path)
    second = Counting()
    second.restore(path)
    grid = make_tuner(train, {}, search_alg=second, num_samples=2, name="next").fit()
    assert sorted(result.config["x"] for result in grid) == [2, 3]
    assert len(second.told) == 4


def test_the_inner_searcher_learns_as_well(make_tuner: Make, tmp_path: Path) -> None:
    inner = Counting()
    limiter = ConcurrencyLimiter(inner, max_concurrent=1)
    make_tuner(train, {}, search_alg=limiter, num_samples=2).fit()
    assert limiter.searcher is inner
    assert len(inner.told) == 2


CONTINUING: dict[str, tuple[str, Callable[[], Searcher]]] = {
    "sobol": ("holdfast", lambda: SobolSearch(seed=3)),
    "optuna": ("optuna", lambda: OptunaSearch(seed=3)),
    "optuna with its own metric": ("optuna", lambda: OptunaSearch(metric="loss", mode="min", seed=3)),
    "limited optuna": ("optuna", lambda: ConcurrencyLimiter(OptunaSearch(seed=3), max_concurrent=1)),
    "nevergrad": ("nevergrad", lambda: NevergradSearch("OnePlusOne")),
    "zoopt": ("zoopt", lambda: ZOOptSearch(budget=20)),
}


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "the same object"])
@pytest.mark.parametrize(("library", "make"), CONTINUING.values(), ids=CONTINUING)
def test_our_own_searchers_continue_where_they_were(
    make_tuner: Make, tmp_path: Path, library: str, make: Callable[[], Searcher], is_saved: bool
) -> None:
    pytest.importorskip(library)

    def configs(searcher: Searcher, num_samples: int, name: str) -> list[float]:
        more = {"metric": "loss", "mode": "min", "max_concurrent_trials": 1, "seed": 5}
        space = {"x": tune.uniform(0, 1)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "max_concurrent_trials=1 is set twice")
            grid = make_tuner(train, space, search_alg=searcher, num_samples=num_samples, name=name, **more).fit()
        return [result.config["x"] for result in grid]

    first = make()
    one = configs(first, 2, "one")
    first.save(str(tmp_path / "memory"))
    second = make() if is_saved else first
    if is_saved:
        second.restore(str(tmp_path / "memory"))
    assert one + configs(second, 2, "two") == configs(make(), 4, "whole")


def test_a_scheduler_or_a_stop_rule_may_serve_two_experiments(make_tuner: Make) -> None:
    """Its memory is about the trials of one: the second begins without it, and with what the user has set since."""
    scheduler, stop = AsyncHyperBandScheduler(max_t=4, grace_period=1), Rows()
    for name in ("one", "two"):
        fields = {"scheduler": scheduler, "stop": [stop], "metric": "loss", "mode": "min"}
        make_tuner(train, {"x": tune.grid_search([1, 2])}, name=name, **fields).fit()
    counts = Counts([])
    for name, expected in (("three", 2), ("four", 102)):
        make_tuner(train, {"x": 1}, scheduler=counts, name=name).fit()
        assert counts.results == expected
        counts.results = 100


class Unsaved(Counting):
    save = Searcher.save
    restore = Searcher.restore


def test_a_last_batch_that_is_not_full_is_told_to_the_searcher(make_tuner: Make) -> None:
    inner = Unsaved()
    limiter = ConcurrencyLimiter(inner, max_concurrent=2, batch=True)
    make_tuner(train, {}, search_alg=limiter, num_samples=3).fit()
    assert len(inner.told) == 3


def test_a_wrapper_keeps_the_memory_of_a_searcher_that_cannot_save() -> None:
    limiter = ConcurrencyLimiter(Unsaved(), max_concurrent=2)
    limiter.suggest("a")
    other = ConcurrencyLimiter(Unsaved(), max_concurrent=2)
    other.set_state(limiter.get_state())
    assert other.suggest("b") == {"x": 1}


class SavesNothing(Counting):
    def save(self, checkpoint_path: str) -> None:
        pass


class SavesNever(Counting):
    def save(self, checkpoint_path: str) -> None:
        raise NotImplementedError


WRAPPERS: dict[str, Callable[[Searcher], Searcher]] = {
    "alone": lambda searcher: searcher,
    "limited": lambda searcher: ConcurrencyLimiter(searcher, max_concurrent=1),
    "in batches": lambda searcher: ConcurrencyLimiter(searcher, max_concurrent=2, batch=True),
    "repeated": lambda searcher: Repeater(searcher, repeat=2, set_index=False),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("kind", [SavesNothing, SavesNever])
def test_a_searcher_with_a_save_that_does_nothing_is_told_everything_again(
    crashed: Callable[..., None], root: Path, wrap: Callable[[Searcher], Searcher], kind: type[Counting]
) -> None:
    crashed(train, {}, after=3, search_alg=wrap(kind()), num_samples=4, engine=tune.LocalEngine(cpus=1))
    inner = kind()
    again = tune.TuneConfig(search_alg=wrap(inner), num_samples=4)
    grid = tune.Tuner.restore(str(root), train, tune_config=again).fit()
    suggested = 2 if isinstance(wrap(kind()), Repeater) else 4
    assert sorted({result.config["x"] for result in grid}) == list(range(suggested))
    assert (inner.next, len(inner.told)) == (suggested, suggested)


@pytest.mark.parametrize("kind", [SavesNothing, SavesNever])
def test_a_wrapper_keeps_the_attributes_of_a_searcher_whose_save_does_nothing(
    tmp_path: Path, kind: type[Counting]
) -> None:
    limiter = ConcurrencyLimiter(kind(), max_concurrent=2)
    limiter.suggest("a")
    limiter.save(str(tmp_path / "memory"))
    other = ConcurrencyLimiter(kind(), max_concurrent=2)
    other.restore(str(tmp_path / "memory"))
    assert other.suggest("b") == {"x": 1}
