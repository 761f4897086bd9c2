"""Every searcher, real and fake, keeps the rules of ``search.searcher.Searcher``.

Those that stand on a library do more, which ``tests/search/library_contract.py`` checks; HEBO needs an environment of
its own, and has the checks there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as tune
from holdfast.search import ConcurrencyLimiter, Repeater, Searcher, create_searcher
from holdfast.testing.searcher_contract import CHECKS, SPACE
from simulator.fake_search import WIDTHS, StoredTellTale, TellTale

MIXED = {**SPACE, "layers": tune.randint(1, 9), "act": tune.choice(["relu", "tanh"]), "deep": {"z": tune.uniform(0, 1)}}
OF_STORIES = {"lr": tune.uniform(0, 1), "width": tune.choice(list(WIDTHS))}

SEARCHERS: dict[str, tuple[str, Callable[[], Searcher], dict[str, Any]]] = {
    "sobol": ("scipy", lambda: create_searcher("sobol"), MIXED),
    "dehb": ("holdfast", lambda: create_searcher("dehb", max_t=9), MIXED),
    "optuna": ("optuna", lambda: create_searcher("optuna"), MIXED),
    "hyperopt": ("hyperopt", lambda: create_searcher("hyperopt", n_initial_points=4), MIXED),
    "bayesopt": ("bayes_opt", lambda: create_searcher("bayesopt", random_search_steps=3), SPACE),
    "bohb": ("numpy", lambda: create_searcher("bohb"), MIXED),
    "nevergrad": ("nevergrad", lambda: create_searcher("nevergrad", optimizer_kwargs={"budget": 100}), MIXED),
    "ax": ("ax.api", lambda: create_searcher("ax", method="random_search"), MIXED),
    "zoopt": ("zoopt", lambda: create_searcher("zoopt", budget=20, parallel_num=4), MIXED),
    "two at once": ("optuna", lambda: ConcurrencyLimiter(create_searcher("optuna"), 2), MIXED),
    "in batches": ("optuna", lambda: ConcurrencyLimiter(create_searcher("optuna"), 3, batch=True), MIXED),
    "twice each": ("optuna", lambda: Repeater(create_searcher("optuna"), repeat=2), MIXED),
    "the simulator's": ("holdfast", lambda: StoredTellTale(3, 40), OF_STORIES),
    "the simulator's, told again": ("holdfast", lambda: TellTale(3, 40), OF_STORIES),
}
"""Name -> the library that it needs, how it is made, and a space that it has."""

TRIALS = {"bayesopt": 5, "ax": 6, "nevergrad": 6}
"""For those that think long."""

NAMES = [pytest.param(name, marks=pytest.mark.slow if name in TRIALS else ()) for name in SEARCHERS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:::ax", "ignore:::botorch", "ignore:::linear_operator", "ignore:::pyro")
def test_a_searcher(name: str, check: Callable[..., None]) -> None:
    library, make, space = SEARCHERS[name]
    pytest.importorskip(library, exc_type=ImportError)
    check(make, space=space, **({"trials": TRIALS[name]} if name in TRIALS else {}))
