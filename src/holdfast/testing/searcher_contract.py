"""What every searcher must do, as functions that take a factory of searchers.

Each check gets ``make``: a function that returns a new searcher, always with the same arguments. The searcher is asked
and told as a driver does it; some trials fail or report nonsense, and it is rebuilt again and again. ``CHECKS`` is all
of them; give them to ``pytest.mark.parametrize``. ``space`` is for a searcher that needs another search space than
``SPACE``, ``trials`` for one that thinks long.

Owns the rules of exact resume that ``search.searcher.Searcher`` states. Must never judge how good a searcher is.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle

from holdfast.search.replayable import (
    Answer,
    Asked,
    Completed,
    Item,
    NoMoreSuggestions,
    Paused,
    ReplayableSearcher,
    ResultTold,
    Suggested,
    Unpaused,
)
from holdfast.search.searcher import Searcher, can_snapshot
from holdfast.search.spaces import Filler, domains_of
from holdfast.space import uniform
from holdfast.space.domains import Float, Integer
from holdfast.space.naming import trial_id
from holdfast.space.nested import flatten_dict, get_at

MakeSearcher = Callable[[], Searcher]
Space = Mapping[str, Any]
History = list[Item | int]
"""What a searcher was asked and told, in order; a number is that of a trial which came into being."""

Score = Callable[[dict[str, Any]], dict[str, Any]]
"""Config -> the last result of its trial."""

SPACE = {"x": uniform(-5, 5), "y": uniform(0, 1), "kept": "me"}
NONSENSE: list[Any] = [math.nan, math.inf, -math.inf, None, "text", [1.0], {}]
"""Values of a metric from which nothing can be learned."""

TRIALS = 14


class SearcherHarness:
    """A searcher as a driver has it: a copy of the user's object, asked and told in an order that can be repeated.

    Args:
        searcher: The user's object, which is copied.
        space: The search space.
        metric: The experiment's.
        mode: The experiment's.
        seed: The experiment's.
        limit: How many trials there may be.
    """

    def __init__(
        self,
        searcher: Searcher,
        space: Mapping[str, Any],
        metric: str | None = "loss",
        mode: str | None = "min",
        seed: int = 7,
        limit: int | None = None,
    ) -> None:
        self.searcher: Any = pickle.loads(cloudpickle.dumps(searcher))
        taken = self.searcher.set_search_properties(metric, mode, dict(space), seed=seed, num_samples=limit or -1)
        assert taken, "set_search_properties returned False: the searcher does not take this experiment's space"
        self.adapter = ReplayableSearcher(self.searcher, trial_name, limit)
        self.filler = Filler(space, type(searcher).__name__)
        self.configs: dict[int, dict[str, Any]] = {}
        self.created = 0

    def hear(self, told: Item | int) -> list[Answer]:
        """One step of a history; what the searcher answers."""
        if isinstance(told, int):
            self.adapter.claim(told)
            self.created = told + 1
            return []
        answers = self.adapter.hear(told)
        for answer in answers:
            if isinstance(answer, Suggested):
                self.configs[answer.n] = self.filler.config(answer.values)
        return answers

    def get_state(self) -> bytes:
        """All that is remembered."""
        return self.adapter.get_state(self.created)

    def set_state(self, state: bytes, created: int, later: list[Item]) -> None:
        """Remember it, and hear what happened since."""
        self.adapter.set_state(state, created, later)
        self.created = created


def trial_name(n: int) -> str:
    """The id of a trial, by its number."""
    return trial_id("cafe5", n)


def score(config: Mapping[str, Any]) -> dict[str, Any]:
    """A result that depends on every number of a config."""
    numbers = [value for value in flatten_dict(config, flatten_list=True).values() if isinstance(value, int | float)]
    return {"loss": sum((value - 0.3) ** 2 for value in numbers), "training_iteration": 3}


def live(
    harness: SearcherHarness, score: Score, trials: int, slots: int = 4, seed: int = 1, with_results: bool = False
) -> History:
    """Run so many trials, some of which fail or report nonsense, and write down what the searcher heard."""
    rng = random.Random(seed)
    history: History = []
    running: list[int] = []
    owed, ended = 0, False

    def tell(told: Item | int) -> None:
        nonlocal owed, ended
        history.append(told)
        for answer in harness.hear(told):
            if isinstance(answer, Suggested):
                tell(answer.n)
                running.append(answer.n)
                owed -= 1
            ended = ended or isinstance(answer, NoMoreSuggestions)

    while True:
        if not ended and not owed and len(running) < slots and len(harness.configs) < trials:
            owed = 1
            tell(Asked(1))
            continue
        if not running:
            return history
        n = running.pop(rng.randrange(len(running)))
        result, config = score(harness.configs[n]), {"config": harness.configs[n]}
        if with_results:
            tell(ResultTold(trial_name(n), {**result, "training_iteration": 1, **config}))
        tell(_end_of(n, result, config, rng.random()))


def _end_of(n: int, result: dict[str, Any], config: dict[str, Any], chance: float) -> Completed:
    if chance < 0.06:
        return Completed(trial_name(n), None, True)
    if chance < 0.12:
        return Completed(trial_name(n), {**dict.fromkeys(result, math.nan), **config}, False)
    if chance < 0.18:
        return Completed(trial_name(n), {**dict.fromkeys(result, math.inf), **config}, False)
    return Completed(trial_name(n), {**result, **config}, False)


def retold(harness: SearcherHarness, history: History) -> list[list[Answer]]:
    """The answers of a searcher that is told a history."""
    return [harness.hear(told) for told in history]


def assert_exact_resume(
    make: Callable[[], SearcherHarness], history: History, every: int = 1, ahead: int = 10_000
) -> None:
    """A searcher that remembers any part of a history and is told the rest answers the same.

    Args:
        make: A new harness.
        history: From ``live``.
        every: Take the memory at every so manyth step.
        ahead: How many steps to compare after that.
    """
    expected = retold(make(), history)
    assert retold(make(), history) == expected, "told the same again, it answers differently"
    first = make()
    for step, told in enumerate(history):
        first.hear(told)
        if step % every:
            continue
        state, created = first.get_state(), first.created
        rest, answers = history[step + 1 :], expected[step + 1 :]
        second = make()
        second.set_state(state, created, [])
        assert second.adapter.unclaimed() == first.adapter.unclaimed()
        assert retold(second, rest[:ahead]) == answers[:ahead], f"with its memory of step {step} it answers differently"
        later = [each for each in rest[:5] if not isinstance(each, int)]
        third = make()
        third.set_state(state, created, later)
        for each in rest[:5]:
            if isinstance(each, int):
                third.hear(each)
        assert retold(third, rest[5 : 5 + ahead]) == answers[5 : 5 + ahead], f"after step {step}, and more was told"


def assert_within(space: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Every value is of its domain, and every constant is there."""
    domains = domains_of(space, "a test")
    filled = Filler(space, "a test").config(dict.fromkeys(domains, "x"))
    assert flatten_dict(filled).keys() <= flatten_dict(config).keys() | domains.keys()
    for path, domain in domains.items():
        value = get_at(config, tuple(int(part) if part.isdigit() else part for part in path.split("/")))
        assert domain.is_valid(value), f"{path}={value!r} is not within its domain"
        if isinstance(domain, Integer):
            assert type(value) is int, f"{path}={value!r} is no int"
        if isinstance(domain, Float):
            assert type(value) is float, f"{path}={value!r} is no float"


def check_it_suggests_values_of_the_space(make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS) -> None:
    harness = SearcherHarness(make(), space)
    live(harness, score, trials)
    assert harness.configs, "it has suggested nothing"
    for config in harness.configs.values():
        assert_within(space, config)


def check_it_survives_results_that_are_no_numbers(
    make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS
) -> None:
    results: Iterator[dict[str, Any]] = itertools.cycle([*({"loss": value} for value in NONSENSE), {"other": 1}])
    for mode in ("min", "max"):
        harness = SearcherHarness(make(), space, mode=mode)
        live(harness, lambda config: {"training_iteration": 1, **next(results)}, trials, with_results=True)
        for config in harness.configs.values():
            assert_within(space, config)


def check_a_failed_trial_may_run_again_and_succeed(
    make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS
) -> None:
    harness = SearcherHarness(make(), space)
    live(harness, score, 3)
    name, result = trial_name(0), {**score(harness.configs[0]), "config": harness.configs[0]}
    for told in (Completed(name, None, True), Paused(name), Unpaused(name), Completed(name, result, False)):
        harness.hear(told)
    live(harness, score, trials)
    for config in harness.configs.values():
        assert_within(space, config)


def check_the_same_seed_gives_the_same_search(make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS) -> None:
    first, second = SearcherHarness(make(), space), SearcherHarness(make(), space)
    live(first, score, trials)
    live(second, score, trials)
    assert first.configs == second.configs


def check_it_leaves_global_generators_alone(make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS) -> None:
    numpy: Any = sys.modules.get("numpy")
    harness = SearcherHarness(make(), space)
    random.seed(5)
    if numpy is not None:
        numpy.random.seed(5)
    live(harness, score, trials)
    assert random.random() == random.Random(5).random(), "it has used the generator of the module `random`"
    if numpy is not None:
        assert numpy.random.random() == numpy.random.RandomState(5).random(), "it has used NumPy's global generator"


def check_it_suggests_the_same_when_it_is_told_everything_again(
    make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS
) -> None:
    harness = SearcherHarness(make(), space)
    history = live(harness, score, trials, with_results=True)
    again = SearcherHarness(make(), space)
    retold(again, history)
    assert again.configs == harness.configs


def check_it_suggests_the_same_with_its_memory(make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS) -> None:
    """From ``get_state`` or ``save`` at any step, and what happened later; nothing to do for one that has neither."""
    if not can_snapshot(make()):
        return
    history = live(SearcherHarness(make(), space), score, trials, with_results=True)
    assert_exact_resume(lambda: SearcherHarness(make(), space), history, every=5, ahead=12)


def check_it_is_saved_to_and_restored_from_a_file(
    make: MakeSearcher, space: Space = SPACE, trials: int = TRIALS
) -> None:
    """Nothing to do for one that has no ``save`` and ``restore`` of its own."""
    kind = type(make())
    if kind.save is Searcher.save or kind.restore is Searcher.restore:
        return
    first, second = SearcherHarness(make(), space), SearcherHarness(make(), space)
    live(first, score, 3)
    with tempfile.TemporaryDirectory(prefix="holdfast-searcher-") as folder:
        first.searcher.save(os.path.join(folder, "memory"))
        second.searcher.restore(os.path.join(folder, "memory"))
    assert second.searcher.suggest("next") == first.searcher.suggest("next")


CHECKS: list[Callable[..., None]] = [
    check_it_suggests_values_of_the_space,
    check_it_survives_results_that_are_no_numbers,
    check_a_failed_trial_may_run_again_and_succeed,
    check_the_same_seed_gives_the_same_search,
    check_it_leaves_global_generators_alone,
    check_it_suggests_the_same_when_it_is_told_everything_again,
    check_it_suggests_the_same_with_its_memory,
    check_it_is_saved_to_and_restored_from_a_file,
]
