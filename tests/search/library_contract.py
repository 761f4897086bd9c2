"""What every searcher that stands on a library must do besides the contract of searchers. They run all of ``CHECKS``.

A searcher is asked and told as a driver does it; see ``holdfast.testing.searcher_contract``.
"""

from __future__ import annotations

import math
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from search_world import EVERY_DOMAIN, MODEL

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.search.replayable import Asked, Completed, ResultTold, Suggested
from holdfast.search.searcher import Searcher, can_snapshot
from holdfast.search.spaces import Filler
from holdfast.space.objects import extract_objects, is_marker
from holdfast.testing.searcher_contract import (
    SearcherHarness,
    assert_exact_resume,
    assert_within,
    live,
    score,
    trial_name,
)

NOT_NUMBERS = [math.nan, math.inf, -math.inf, None, "text", [1.0], {}, 10**400, "absent"]
"""Values of a metric from which nothing can be learned."""

NUMBERS = {"x": tune.uniform(-1, 1), "deep": {"y": tune.uniform(0, 10)}, "list": [7, tune.uniform(2, 3)], "kept": "me"}


@dataclass(frozen=True)
class Case:
    """A searcher, and what it can do."""

    kind: type[Searcher]
    library: str
    """The module without which it cannot be made."""

    extra: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Those that make it quick."""

    space_argument: str = "space"
    lacks: frozenset[str] = frozenset()
    """Names of ``EVERY_DOMAIN`` that it refuses."""

    has_choices: bool = True
    trials: int = 14
    """How many trials of a history it is told again."""

    every: int = 1
    """After every so manyth step of it the memory is taken."""

    ahead: int = 10_000
    """How many steps are compared after that."""

    def make(self, **arguments: Any) -> Any:
        if "space" in arguments:
            arguments[self.space_argument] = arguments.pop("space")
        return self.kind(**{**self.arguments, **arguments})

    def adapter(
        self, space: Mapping[str, Any] = NUMBERS, mode: str = "min", seed: int = 7, **arguments: Any
    ) -> SearcherHarness:
        return SearcherHarness(self.make(**arguments), space, mode=mode, seed=seed)


def ask(adapter: SearcherHarness) -> dict[str, Any]:
    """A new trial's config."""
    (answer,) = adapter.hear(Asked(1))
    assert isinstance(answer, Suggested), answer
    adapter.hear(answer.n)
    return adapter.configs[answer.n]


def run(adapter: SearcherHarness, trials: int) -> list[dict[str, Any]]:
    """So many trials, one after the other."""
    configs = []
    for _ in range(trials):
        configs.append(ask(adapter))
        adapter.hear(Completed(trial_name(adapter.created - 1), score(configs[-1]), False))
    return configs


# --- what it suggests


def suggests_values_of_every_domain_that_it_has(case: Case) -> None:
    space = {key: value for key, value in EVERY_DOMAIN.items() if key not in case.lacks}
    for config in run(case.adapter(space), 6):
        assert_within(space, config)


def refuses_domains_that_it_lacks_and_names_their_place(case: Case) -> None:
    for name in case.lacks:
        with pytest.raises(InvalidInputError, match=f"'deep/{name}"):
            case.adapter({"deep": {name: EVERY_DOMAIN[name]}})
        with pytest.raises(InvalidInputError, match=f"'{name}"):
            case.make(space={name: EVERY_DOMAIN[name]}, metric="loss", mode="min")


def refuses_grids_and_functions_and_names_their_place(case: Case) -> None:
    for wrong in (tune.grid_search([1, 2]), tune.sample_from(lambda config: 1)):
        with pytest.raises(InvalidInputError, match="'a/b'"):
            case.adapter({"a": {"b": wrong}, "x": tune.uniform(0, 1)})


def fills_nested_spaces_and_keeps_constants(case: Case) -> None:
    for config in run(case.adapter(), 3):
        assert config.keys() == NUMBERS.keys()
        assert (config["kept"], config["list"][0], list(config["deep"])) == ("me", 7, ["y"])
        assert 0 <= config["deep"]["y"] <= 10
        assert 2 <= config["list"][1] <= 3


def searches_within_the_options_of_choices(case: Case) -> None:
    if not case.has_choices:
        return
    kinds = set()
    for config in run(case.adapter(MODEL), 12):
        assert_within(MODEL, config)
        kinds.add(config["model"]["kind"] if isinstance(config["model"], dict) else type(config["model"]))
    assert len(kinds) > 1


def options_may_be_objects(case: Case) -> None:
    """Objects are markers, dicts, when a searcher sees a space."""
    if not case.has_choices:
        return
    space, objects = extract_objects({"f": tune.choice([math.sin, math.cos, len]), "x": tune.uniform(0, 1), "g": abs})
    configs = run(case.adapter(space), 6)
    assert all(is_marker(config["f"]) and config["f"]["__object__"] in objects for config in configs)
    assert all(config["g"] == space["g"] for config in configs)


def a_space_with_one_point_is_not_searched(case: Case) -> None:
    space = {"x": tune.uniform(4, 4), "c": tune.choice(["only"]), "k": 5}
    assert run(case.adapter(space), 3) == [{"x": 4.0, "c": "only", "k": 5}] * 3


def its_own_space_is_filled_whole(case: Case) -> None:
    searcher = case.make(space=NUMBERS, metric="loss", mode="min")
    assert not searcher.set_search_properties("loss", "min", {"other": tune.uniform(0, 1)}, seed=1)
    assert searcher.set_search_properties(None, None, {"constant": 1}, seed=1)
    assert_within(NUMBERS, searcher.suggest("a"))
    alone = case.make(space=NUMBERS, metric="loss", mode="min")
    assert_within(NUMBERS, alone.suggest("a"))


# --- points


def tries_given_points_first(case: Case) -> None:
    points = [
        {"x": 0.5, "deep": {"y": 1.5}, "list": [7, 2.5]},
        {"x": 0.25, "deep/y": 2.5},
        {"list": [7, 2.25]},
    ]
    first, second, third, fourth = run(case.adapter(points_to_evaluate=points), 4)
    assert first == {"x": 0.5, "deep": {"y": 1.5}, "list": [7, 2.5], "kept": "me"}
    assert (second["x"], second["deep"]["y"]) == (0.25, 2.5)
    assert third["list"] == [7, 2.25]
    for config in (second, third, fourth):
        assert_within(NUMBERS, config)


def points_may_name_options(case: Case) -> None:
    if not case.has_choices:
        return
    points = [{"model": {"kind": "tree", "depth": 4, "parts": [0.5, 7]}, "x": 0.5}, {"model": "nothing"}]
    first, second, _ = run(case.adapter(MODEL, points_to_evaluate=points), 3)
    assert first == points[0]
    assert second["model"] == "nothing"


def a_point_outside_of_its_domain_is_tried_all_the_same(case: Case) -> None:
    with pytest.warns(UserWarning, match="not within"):
        adapter = case.adapter(points_to_evaluate=[{"x": 99.0}])
    first, *others = run(adapter, 3)
    assert first["x"] == 99.0
    for config in others:
        assert_within(NUMBERS, config)


def refuses_points_with_unknown_keys(case: Case) -> None:
    with pytest.raises(InvalidInputError, match="'unknown'"):
        case.adapter(points_to_evaluate=[{"unknown": 1}])


# --- what it is told


def survives_results_that_are_no_numbers(case: Case) -> None:
    for mode in ("min", "max"):
        adapter = case.adapter(mode=mode)
        for n, value in enumerate(NOT_NUMBERS):
            assert_within(NUMBERS, ask(adapter))
            result = {"other": 1, "training_iteration": 1} if value == "absent" else {"loss": value}
            adapter.hear(Completed(trial_name(n), result, False))
        for result, error in ((None, False), (None, True), ({"loss": 1.0}, True)):
            assert_within(NUMBERS, ask(adapter))
            adapter.hear(Completed(trial_name(adapter.created - 1), result, error))
        for config in run(adapter, 4):
            assert_within(NUMBERS, config)


def ignores_trials_that_it_does_not_know(case: Case) -> None:
    adapter, other = case.adapter(), case.adapter()
    strangers: list[Any] = [
        Completed("nobody", {"loss": 1.0}, False),
        Completed("nobody", None, True),
        ResultTold("nobody", {"loss": 1.0, "training_iteration": 1}),
    ]
    for told in strangers:
        assert adapter.hear(told) == []
    adapter.searcher.on_pause("nobody")
    adapter.searcher.on_unpause("nobody")
    assert run(adapter, 4) == run(other, 4)


def a_failed_trial_may_run_again_and_succeed(case: Case) -> None:
    adapter = case.adapter()
    config = ask(adapter)
    adapter.hear(Completed(trial_name(0), None, True))
    adapter.hear(Completed(trial_name(0), score(config), False))
    adapter.hear(Completed(trial_name(0), score(config), False))
    for each in run(adapter, 3):
        assert_within(NUMBERS, each)


def max_is_the_opposite_of_min(case: Case) -> None:
    low, high = case.adapter(mode="min"), case.adapter(mode="max")
    for n in range(6):
        config = ask(low)
        assert ask(high) == config
        loss = score(config)["loss"]
        low.hear(Completed(trial_name(n), {"loss": loss, "training_iteration": 1}, False))
        high.hear(Completed(trial_name(n), {"loss": -loss, "training_iteration": 1}, False))


def learns_from_points_that_were_evaluated_elsewhere(case: Case) -> None:
    searcher = case.make()
    point = {"x": 0.3, "deep": {"y": 3.0}, "list": [7, 2.5]}
    try:
        searcher.add_evaluated_point(point, 0.1)
    except NotImplementedError:
        return
    assert searcher.set_search_properties("loss", "min", NUMBERS, seed=1)
    searcher.add_evaluated_point({"x": 0.2, "deep/y": 4.0, "list/1": 2.1}, 0.2)
    searcher.add_evaluated_point(point, math.nan)
    searcher.add_evaluated_point(point, 1.0, error=True)
    with pytest.warns(UserWarning, match="evaluated elsewhere"):
        searcher.add_evaluated_point({"x": 0.2}, 0.2)
    with pytest.warns(UserWarning, match="evaluated elsewhere"):
        searcher.add_evaluated_point({**point, "x": 77.0}, 0.2)
    filler = Filler(NUMBERS, "a test")
    for n in range(3):
        config = filler.config(searcher.suggest(str(n)))
        assert_within(NUMBERS, config)
        searcher.on_trial_complete(str(n), score(config))


# --- its arguments


def needs_a_metric_and_a_mode(case: Case) -> None:
    for metric, mode in ((None, None), ("loss", None)):
        with pytest.raises(InvalidInputError, match="without a valid `metric`"):
            case.make().set_search_properties(metric, mode, NUMBERS)
    searcher = case.make()
    assert searcher.set_search_properties(None, "min", NUMBERS)
    assert searcher.metric == "_metric"
    for mode in ("best", ["min", "max"]):
        with pytest.raises(InvalidInputError, match=r"\['min', 'max'\]"):
            case.make(metric="loss", mode=mode)


def needs_something_to_search(case: Case) -> None:
    with pytest.raises(InvalidInputError, match="has no search space"):
        case.make().set_search_properties("loss", "min", {"x": 1})
    with pytest.raises(InvalidInputError, match="has no search space"):
        case.make(metric="loss", mode="min").suggest("a")
    for space in ({"x": 1}, {}):
        with pytest.raises(InvalidInputError):
            case.make(space=space, metric="loss", mode="min").suggest("a")


def a_missing_library_is_named_with_its_extra(case: Case) -> None:
    with without(case.library), pytest.raises(ImportError, match=rf"holdfast\[{case.extra}\]"):
        case.make()


@contextmanager
def without(library: str) -> Iterator[None]:
    """As if the library were not installed."""
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == library}
    try:
        sys.modules.update(dict.fromkeys([library, *hidden]))  # type: ignore[arg-type]
        yield
    finally:
        sys.modules.pop(library, None)
        sys.modules.update(hidden)


# --- chance and memory


def the_seed_decides(case: Case) -> None:
    space = {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}
    seed = {"random_state": None} if "random_state" in case.kind.__init__.__code__.co_varnames else {}
    first, second, third = (run(case.adapter(space, seed=number, **seed), 4) for number in (1, 1, 2))
    assert first == second
    assert first != third


def leaves_global_generators_alone(case: Case) -> None:
    numpy = pytest.importorskip("numpy")
    adapter = case.adapter()
    random.seed(5)
    numpy.random.seed(5)
    run(adapter, 4)
    after = random.random(), numpy.random.random()
    random.seed(5)
    numpy.random.seed(5)
    assert after == (random.random(), numpy.random.random())


def continues_exactly_from_its_memory_or_when_told_again(case: Case) -> None:
    points = [{"x": 0.5}]
    history = live(case.adapter(points_to_evaluate=points), score, case.trials, with_results=True)
    assert can_snapshot(case.make())
    assert_exact_resume(lambda: case.adapter(points_to_evaluate=points), history, case.every, case.ahead)


def continues_exactly_with_choices(case: Case) -> None:
    if not case.has_choices:
        return
    history = live(case.adapter(MODEL), score, case.trials)
    assert_exact_resume(lambda: case.adapter(MODEL), history, 3 * case.every, case.ahead)


def is_saved_to_and_restored_from_a_file(case: Case, tmp_path: Path) -> None:
    adapter, other = case.adapter(), case.adapter()
    run(adapter, 3)
    adapter.searcher.save(str(tmp_path / "memory"))
    other.searcher.restore(str(tmp_path / "memory"))
    filler = Filler(NUMBERS, "a test")
    told = filler.config(other.searcher.suggest("next"))
    assert filler.config(adapter.searcher.suggest("next")) == told


def a_restored_searcher_may_go_into_another_experiment(case: Case) -> None:
    adapter = case.adapter()
    run(adapter, 3)
    copy = pickle.loads(cloudpickle.dumps(adapter.searcher))
    assert copy.set_search_properties("loss", "min", NUMBERS, seed=99)
    assert copy.suggest("next") == adapter.searcher.suggest("next")
    assert not copy.set_search_properties("loss", "min", {"z": tune.uniform(0, 1)}, seed=99)


CHECKS: list[Callable[..., None]] = [
    suggests_values_of_every_domain_that_it_has,
    refuses_domains_that_it_lacks_and_names_their_place,
    refuses_grids_and_functions_and_names_their_place,
    fills_nested_spaces_and_keeps_constants,
    searches_within_the_options_of_choices,
    options_may_be_objects,
    a_space_with_one_point_is_not_searched,
    its_own_space_is_filled_whole,
    tries_given_points_first,
    points_may_name_options,
    a_point_outside_of_its_domain_is_tried_all_the_same,
    refuses_points_with_unknown_keys,
    survives_results_that_are_no_numbers,
    ignores_trials_that_it_does_not_know,
    a_failed_trial_may_run_again_and_succeed,
    max_is_the_opposite_of_min,
    learns_from_points_that_were_evaluated_elsewhere,
    needs_a_metric_and_a_mode,
    needs_something_to_search,
    a_missing_library_is_named_with_its_extra,
    the_seed_decides,
    leaves_global_generators_alone,
    continues_exactly_from_its_memory_or_when_told_again,
    continues_exactly_with_choices,
    is_saved_to_and_restored_from_a_file,
    a_restored_searcher_may_go_into_another_experiment,
]


def every_check(function: Callable[..., None]) -> Callable[..., None]:
    """Runs a test, which gets a ``check``, once for each of ``CHECKS``."""
    return pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)(function)


def keep(case: Case, check: Callable[..., None], tmp_path: Path) -> None:
    """Run one of ``CHECKS``."""
    needs_a_place = "tmp_path" in check.__code__.co_varnames[: check.__code__.co_argcount]
    check(case, tmp_path) if needs_a_place else check(case)
