"""Searchers in the style of Ray Tune's base classes run as they are, and find the helpers that they import."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from holdfast.compat.tune.search import (
    UNDEFINED_METRIC_MODE,
    UNDEFINED_SEARCH_SPACE,
    ConcurrencyLimiter,
    Searcher,
)
from holdfast.compat.tune.search.sample import Categorical, Float, Integer, LogUniform, Quantized
from holdfast.compat.tune.search.variant_generator import format_vars, generate_variants, parse_spec_vars
from holdfast.compat.tune.utils.util import flatten_dict, is_nan_or_inf, unflatten_dict, validate_warmstart

import holdfast as tune


def train(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": (config["x"] - 2) ** 2 + config["net"]["width"], "tag": config["kind"]}


class NearTheBest(Searcher):
    """Draws near the best point that it knows; converts the space as adapters of libraries do."""

    def __init__(
        self, space: Any = None, metric: str | None = None, mode: str | None = None, points: Any = None
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        if isinstance(space, dict) and space:
            _resolved, domains, grids = parse_spec_vars(space)
            if domains or grids:
                space = self.convert_search_space(space)
        self._space, self._points = space, list(points or [])
        self._live: dict[str, dict[str, Any]] = {}
        self._best: tuple[float, dict[str, Any]] | None = None
        self._rng = random.Random(7)
        if space:
            self._check()

    def _check(self) -> None:
        validate_warmstart(list(self._space), [flatten_dict(point) for point in self._points], None)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        if self._space:
            return False
        self._space = self.convert_search_space(config)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        self._check()
        return True

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> dict[str, tuple[float, float, Any]]:
        _resolved, domains, grids = parse_spec_vars(spec)
        if grids:
            raise ValueError("no grids here")

        def converted(domain: Any) -> Any:
            assert not domain.is_grid()
            assert not domain.is_function()
            sampler, step = domain.get_sampler(), None
            if isinstance(sampler, Quantized):
                step, sampler = sampler.q, sampler.get_sampler()
            if isinstance(domain, Categorical):
                return ("option", domain.categories)
            kind = "int" if isinstance(domain, Integer) else "float"
            assert isinstance(domain, Float | Integer)
            return (f"log{kind}" if isinstance(sampler, LogUniform) else kind, domain.lower, domain.upper, step)

        return {"/".join(path): converted(domain) for path, domain in domains}

    def suggest(self, trial_id: str) -> Any:
        if not self._space:
            raise RuntimeError(UNDEFINED_SEARCH_SPACE.format(cls=type(self).__name__, space="space"))
        if not self._metric or not self._mode:
            raise RuntimeError(
                UNDEFINED_METRIC_MODE.format(cls=type(self).__name__, metric=self._metric, mode=self._mode)
            )
        point = flatten_dict(self._points.pop(0)) if self._points else {k: self._draw(k) for k in self._space}
        self._live[trial_id] = point
        return unflatten_dict(point)

    def _draw(self, name: str) -> Any:
        kind, *rest = self._space[name]
        if kind == "option":
            return self._rng.choice(rest[0])
        low, high = rest[0], rest[1]
        if self._best is not None:
            middle, reach = self._best[1][name], (high - low) / 4
            low, high = max(low, middle - reach), min(high, middle + reach)
        return int(self._rng.uniform(low, high)) if kind.endswith("int") else self._rng.uniform(low, high)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        point = self._live.pop(trial_id)
        if error or not result or is_nan_or_inf(result[self.metric]):
            return
        value = result[self.metric] if self.mode == "min" else -result[self.metric]
        if self._best is None or value < self._best[0]:
            self._best = value, point

    def save(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "wb") as file:
            pickle.dump(self.__dict__.copy(), file)

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            self.__dict__.update(pickle.load(file))


class AllVariants(Searcher):
    """Goes through ``generate_variants``, two live trials at most; without ``save``."""

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__(metric="loss", mode="min")
        self._rest = [(format_vars(chosen), config) for chosen, config in generate_variants(space, random_state=3)]
        self.tags: dict[str, str] = {}
        self._live: set[str] = set()
        self.ended: list[str] = []

    def suggest(self, trial_id: str) -> Any:
        if not self._rest:
            return Searcher.FINISHED
        if len(self._live) >= 2:
            return None
        self.tags[trial_id], config = self._rest.pop(0)
        self._live.add(trial_id)
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._live.discard(trial_id)
        self.ended.append(trial_id)


SPACE = {
    "x": tune.quniform(0, 4, 0.5),
    "lr": tune.loguniform(1e-4, 1e-1),
    "net": {"width": tune.randint(1, 9)},
    "kind": tune.choice(["a", "b"]),
}


def run(storage: Path, searcher: Any, num_samples: int, space: dict[str, Any], name: str = "exp") -> tune.ResultGrid:
    config = tune.RunConfig(name=name, storage_path=storage, verbose=0, engine=tune.LocalEngine(cpus=2))
    tuning = tune.TuneConfig(search_alg=searcher, num_samples=num_samples, metric="loss", mode="min")
    return tune.Tuner(train, param_space=space, tune_config=tuning, run_config=config).fit()


def test_a_searcher_that_converts_the_space_and_learns(tmp_path: Path) -> None:
    searcher = NearTheBest(points=[{"x": 1.0, "lr": 0.01, "net": {"width": 4}, "kind": "b"}])
    grid = run(tmp_path, searcher, 6, SPACE)
    assert not grid.errors
    assert grid[0].config == {"x": 1.0, "lr": 0.01, "net": {"width": 4}, "kind": "b"}
    assert searcher._best is not None
    assert searcher._best[0] == pytest.approx(grid.get_best_result().metrics["loss"])
    assert not searcher._live


def test_a_searcher_that_goes_through_variants_and_waits(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([1, 2]), "net": {"width": tune.grid_search([3, 4])}, "kind": "k"}
    searcher = AllVariants(space)
    grid = run(tmp_path, searcher, -1, {})
    assert sorted((r.config["x"], r.config["net"]["width"]) for r in grid) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert sorted(searcher.tags.values()) == ["width=3,x=1", "width=3,x=2", "width=4,x=1", "width=4,x=2"]
    assert len(searcher.ended) == 4


class OfTheFirstVersions(Searcher):
    """Counts; its methods have the arguments that they had in Ray Tune 1."""

    def __init__(self, **older: Any) -> None:
        super().__init__(metric="loss", mode="min", **older)
        self.count, self.told = 0, 0

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any]) -> bool:  # type: ignore[override]
        self.space = config
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.count += 1
        return {"x": self.count, "net": {"width": 1}, "kind": "k"}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told += 1


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_searcher_whose_methods_have_older_arguments(tmp_path: Path, is_limited: bool) -> None:
    searcher = OfTheFirstVersions()
    given = ConcurrencyLimiter(searcher, max_concurrent=2) if is_limited else searcher
    assert len(run(tmp_path, given, 3, {"more": 5})) == 3
    assert (searcher.told, searcher.space) == (3, {"more": 5})


def test_older_arguments_of_searchers_are_ignored_with_a_hint() -> None:
    with pytest.warns(DeprecationWarning, match=r"max_concurrent=2 and use_early_stopped_trials=True.*Limiter") as told:
        OfTheFirstVersions(max_concurrent=2, use_early_stopped_trials=True)
    assert [warning.filename for warning in told] == [__file__]


def test_a_space_is_taken_apart() -> None:
    constants, domains, grids = parse_spec_vars(
        {"a": 1, "b": [2, tune.uniform(0, 1)], "c": {"d": tune.grid_search([1, 2])}, "e": tune.sample_from(lambda: 1)}
    )
    assert constants == [(("a",), 1), (("b", 0), 2)]
    assert [path for path, _ in domains] == [("b", 1), ("e",)]
    assert [domain.is_function() for _, domain in domains] == [False, True]
    assert [(path, domain.is_grid(), domain.categories) for path, domain in grids] == [(("c", "d"), True, [1, 2])]


def test_variants_of_one_seed_are_the_same() -> None:
    space = {"x": tune.uniform(0, 1), "y": tune.grid_search([1, 2]), "o": (1, 2)}
    one, two = (list(generate_variants(space, random_state=5)) for _ in range(2))
    assert one == two
    assert one[0][1]["o"] == (1, 2)
    assert one[0][0][("x",)] != one[1][0][("x",)]
    same = list(generate_variants(space, constant_grid_search=True, random_state=5))
    assert same[0][0][("x",)] == same[1][0][("x",)]


@pytest.mark.parametrize(
    ("points", "rewards", "error"),
    [({"a": 1}, None, TypeError), ([3], None, TypeError), ([[1, 2]], None, ValueError), ([[1]], [1, 2], ValueError)],
)
def test_points_that_do_not_fit_are_refused(points: Any, rewards: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        validate_warmstart(["a"], points, rewards)


def test_our_searchers_convert_spaces_too() -> None:
    optuna = pytest.importorskip("optuna")
    from holdfast.search import OptunaSearch

    space = {"x": tune.uniform(0, 1), "n": tune.randint(1, 5), "k": tune.choice(["a", "b"])}
    converted = OptunaSearch.convert_search_space(space)
    assert converted["x"] == optuna.distributions.FloatDistribution(0, 1)
    assert converted["n"] == optuna.distributions.IntDistribution(1, 4)
    assert OptunaSearch(converted, metric="m", mode="min").suggest("t").keys() == space.keys()
    with pytest.raises(ValueError, match="no distribution for 'z'"):
        OptunaSearch.convert_search_space({"z": tune.randn(0, 1)})
