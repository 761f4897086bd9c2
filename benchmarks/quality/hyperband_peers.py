"""HyperBand of other libraries, on the same curves, the same draws and the same account of what training costs.

Runs in the environment of the library that it drives: ``python -m benchmarks.quality.hyperband_peers``, with searches
as JSON on standard input, and their times on standard output. Owns how each library is asked and told. Must never
import holdfast, which is not installed there, or choose anything that the library should choose.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from typing import Any, NamedTuple


class Level(NamedTuple):
    """A learner at a rung."""

    level: int
    cost: float  # since the rung before
    score: float


class Problem(NamedTuple):
    """What one dataset is like, and what is looked for."""

    arms: list[list[Level]]  # of each learner, what it shows at every rung
    draws: list[list[int]]  # for each seed, which learners are tried, in order
    target: float
    budget: float
    factor: int


class Search(NamedTuple):
    """One search with one worker."""

    problem: Problem
    seed: int

    @property
    def depth(self) -> int:
        """The last level: all rows."""
        return self.problem.arms[0][-1].level

    @property
    def factor(self) -> int:
        return self.problem.factor

    def learner(self, number: int) -> list[Level]:
        """The one that trial ``number`` trains."""
        return self.problem.arms[self.problem.draws[self.seed][number]]


class Account:
    """What was spent, and whether it is enough."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self.spent = 0.0
        self.found = False

    @property
    def over(self) -> bool:
        return self.found or self.spent > self._search.problem.budget

    def train(self, level: Level) -> None:
        """Train a learner up to a level."""
        self.spent += level.cost
        self.found = level.level == self._search.depth and level.score >= self._search.problem.target

    @property
    def time(self) -> float:
        """When a good learner was found; infinite if none was within the budget."""
        return self.spent if self.found and self.spent <= self._search.problem.budget else math.inf


def optuna_pruner(search: Search) -> float:
    """Optuna's HyperbandPruner: a trial is judged when it reaches a rung, and never resumed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    account = Account(search)
    study = optuna.create_study(
        direction="maximize",
        study_name=f"study {search.seed}",  # which bracket a trial is in follows from this name
        sampler=optuna.samplers.RandomSampler(seed=search.seed),
        pruner=optuna.pruners.HyperbandPruner(
            min_resource=1, max_resource=search.depth, reduction_factor=search.factor
        ),
    )
    while not account.over:
        trial = study.ask()
        state = optuna.trial.TrialState.COMPLETE
        for level in search.learner(trial.number):
            account.train(level)
            trial.report(level.score, level.level)
            if level.level < search.depth and trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        study.tell(trial, level.score if state == optuna.trial.TrialState.COMPLETE else None, state=state)
    return account.time


def syne_tune_synchronous(search: Search) -> float:
    """Syne Tune's synchronous HyperBand: trials pause at a rung until it is full."""
    from syne_tune.optimizer.schedulers.synchronous import SynchronousGeometricHyperbandScheduler

    scheduler = SynchronousGeometricHyperbandScheduler(_space(search), max_resource_level=search.depth, **_same(search))
    return _syne_tune(search, scheduler)


def syne_tune_promotion(search: Search) -> float:
    """Syne Tune's asynchronous HyperBand in several brackets: trials pause at a rung until they are good enough."""
    return _asynchronous(search, "promotion")


def syne_tune_stopping(search: Search) -> float:
    """Syne Tune's asynchronous HyperBand in several brackets: trials end at a rung where they are not good enough."""
    return _asynchronous(search, "stopping")


def _asynchronous(search: Search, kind: str) -> float:
    from syne_tune.optimizer.schedulers import HyperbandScheduler

    brackets = round(math.log(search.depth, search.factor)) + 1
    scheduler = HyperbandScheduler(_space(search), type=kind, brackets=brackets, max_t=search.depth, **_same(search))
    return _syne_tune(search, scheduler)


def _space(search: Search) -> dict[str, Any]:
    from syne_tune.config_space import randint

    return {"arm": randint(0, len(search.problem.arms) - 1)}


def _same(search: Search) -> dict[str, Any]:
    return {
        "metric": "accuracy",
        "mode": "max",
        "searcher": "random",
        "resource_attr": "level",
        "grace_period": 1,
        "reduction_factor": search.factor,
        "random_seed": search.seed,
    }


def _syne_tune(search: Search, scheduler: Any) -> float:
    """What Syne Tune's own loop does, with one worker."""
    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer.scheduler import SchedulerDecision

    account = Account(search)
    scheduler.searcher.get_config = lambda trial_id, **_: {"arm": search.problem.draws[search.seed][int(trial_id)]}
    trials: dict[int, tuple[Any, Iterator[Level]]] = {}
    while not account.over:
        asked = scheduler.suggest(trial_id=len(trials))
        if asked.spawn_new_trial_id:
            n = len(trials)
            trials[n] = (Trial(n, asked.config, datetime.now()), iter(search.learner(n)))
            scheduler.on_trial_add(trial=trials[n][0])
        else:
            n = asked.checkpoint_trial_id
        trial, levels = trials[n]
        for level in levels:
            account.train(level)
            result = {"accuracy": level.score, "level": level.level}
            decision = scheduler.on_trial_result(trial, result)
            if decision != SchedulerDecision.CONTINUE:
                scheduler.on_trial_remove(trial)
                break
        else:
            scheduler.on_trial_complete(trial, result)
    return account.time


SEARCHES: dict[str, Callable[[Search], float]] = {
    "optuna_pruner": optuna_pruner,
    "syne_tune_synchronous": syne_tune_synchronous,
    "syne_tune_promotion": syne_tune_promotion,
    "syne_tune_stopping": syne_tune_stopping,
}


def all_times(problems: list[Problem], who: list[str]) -> dict[str, list[list[float]]]:
    """By library, a list of times for each problem, one for each seed; infinite where nothing was found."""
    cases = [(name, n, seed) for name in who for n, each in enumerate(problems) for seed in range(len(each.draws))]
    _problems[:] = problems  # before processes are forked, which then have them
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        times = iter(list(pool.map(_run, cases)))
    return {name: [[next(times) for _ in each.draws] for each in problems] for name in who}


_problems: list[Problem] = []


def _run(case: tuple[str, int, int]) -> float:
    logging.disable(logging.WARNING)
    name, n, seed = case
    return SEARCHES[name](Search(_problems[n], seed))


def main() -> int:
    given = json.load(sys.stdin)
    problems = [Problem(**each) for each in given["problems"]]
    problems = [each._replace(arms=[[Level(*level) for level in arm] for arm in each.arms]) for each in problems]
    with contextlib.redirect_stdout(sys.stderr):  # Syne Tune prints what could be installed besides
        times = all_times(problems, given["who"])
    json.dump(times, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
