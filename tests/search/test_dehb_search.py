"""DEHBSearch: budgets and brackets, evolution, and that it continues exactly where it was."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from holdfast.errors import InvalidInputError, UsageError
from holdfast.schedulers.hb_dehb import BUDGET_KEY
from holdfast.search import create_searcher
from holdfast.search.dehb import DEHBSearch, bracket_of, budgets, share_of
from holdfast.search.parameters import value_at
from holdfast.search.replayable import Asked, Completed, Item, ReplayableSearcher
from holdfast.search.searcher import can_snapshot, hears_results
from holdfast.search.spaces import Filler
from holdfast.space.domains import Categorical
from holdfast.space.rng import Rng

SQUARE = {"x": uniform(0, 1), "y": uniform(0, 1)}


def made(space: Any = None, **settings: Any) -> DEHBSearch:
    return DEHBSearch(space or SQUARE, **{"metric": "loss", "mode": "min", "max_t": 9, "seed": 1, **settings})


def go_on(
    search: DEHBSearch, count: int, loss: Callable[[dict[str, Any]], Any], first: int = 0
) -> list[dict[str, Any]]:
    """One trial after the other."""
    tried = []
    for n in range(first, first + count):
        config = search.suggest(f"t{n}")
        assert isinstance(config, dict)
        search.on_trial_complete(f"t{n}", {"loss": loss(config)})
        tried.append(config)
    return tried


def distance(config: dict[str, Any]) -> float:
    return (config["x"] - 0.3) ** 2 + (config["y"] - 0.6) ** 2


# --- budgets and brackets


def test_budgets_go_down_from_the_largest_one():
    assert budgets(81, 1, 3) == [1, 3, 9, 27, 81]
    assert budgets(100, 10, 3) == [11, 33, 100]
    assert budgets(10, 1, 3) == [1, 3, 10]
    assert budgets(10, 1, 4) == [2, 10]  # 10 / 4 / 4 would be below 1
    assert budgets(8, 3, 2) == [4, 8]
    assert budgets(5, 5, 3) == [5]
    assert budgets(4, 1, 1.5) == [1, 2, 3, 4]
    assert budgets(1.0, 0.25, 2) == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"max_t": 0}, "max_t"),
        ({"max_t": math.nan}, "max_t"),
        ({"grace_period": 0}, "grace_period"),
        ({"grace_period": 10}, "grace_period"),
        ({"reduction_factor": 1}, "reduction_factor"),
    ],
)
def test_budgets_that_cannot_be_are_refused(settings, name):
    with pytest.raises(InvalidInputError, match=name):
        made(**settings)


@pytest.mark.parametrize("seed", ["a", 1.5, -1])
def test_seeds_that_are_none_are_refused(seed):
    with pytest.raises(UsageError, match=r"^seed must"):
        DEHBSearch(seed=seed)


def test_brackets_are_those_of_hyperband():
    assert [bracket_of(k, 5, 3).sizes for k in range(5)] == [
        [81, 27, 9, 3, 1],
        [34, 11, 3, 1],
        [15, 5, 1],
        [8, 2],
        [5],
    ]
    assert [bracket_of(k, 3, 3).sizes for k in range(4)] == [[9, 3, 1], [5, 1], [3], [9, 3, 1]]
    assert [bracket_of(k, 3, 3).promotes for k in range(4)] == [True, True, True, False]


def test_trials_go_through_the_brackets():
    tried = go_on(made(), 44, distance)
    one_round = [1] * 9 + [3] * 3 + [9] + [3] * 5 + [9] + [9] * 3
    assert [config[BUDGET_KEY] for config in tried] == 2 * one_round


def test_the_first_time_round_the_best_ones_go_up_unchanged():
    tried = go_on(made(), 13, distance)
    lowest, middle, top = tried[:9], tried[9:12], tried[12]
    best = sorted(lowest, key=distance)[:3]
    assert [{**config, BUDGET_KEY: 3} for config in best] == middle
    assert top == {**best[0], BUDGET_KEY: 9}


def test_from_then_on_they_are_offspring():
    tried = go_on(made(), 35, distance)
    again = tried[22:]
    known = [(config["x"], config["y"]) for config in tried[:22]]
    assert all((config["x"], config["y"]) not in known for config in again)
    # Crossover: half of the values come from the member whose place is wanted.
    inherited = [config for config in again if config["x"] in {x for x, _ in known}]
    assert inherited


def test_while_a_bracket_waits_the_next_one_begins():
    search = made()
    suggested = [search.suggest(f"t{n}") for n in range(14)]
    assert [config[BUDGET_KEY] for config in suggested] == [1] * 9 + [3] * 5
    for n in range(9):
        search.on_trial_complete(f"t{n}", {"loss": n})
    # The first one has something to try again, and is older.
    assert search.suggest("t14") == {**suggested[0], BUDGET_KEY: 3}


def test_a_better_one_takes_the_place_of_a_worse_one_and_only_then():
    search = made(max_t=1)
    go_on(search, 10, lambda config: 5.0)
    before = [member.place for member in search._populations[0]]
    go_on(search, 10, lambda config: 6.0, first=10)
    assert [member.place for member in search._populations[0]] == before
    go_on(search, 10, lambda config: 4.0, first=20)
    assert all(member.score == -4.0 for member in search._populations[0])


def test_larger_is_better_if_the_mode_says_so():
    search = made(mode="max")
    tried = go_on(search, 12, lambda config: config["x"])
    assert sorted(config["x"] for config in tried[9:]) == sorted(config["x"] for config in tried[:9])[-3:]


# --- results of all kinds


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high", [1], {}, object(), ...])
def test_a_result_that_cannot_be_compared_is_the_worst(value):
    search = made()
    bad = {"t0", "t4", "t7"}
    lowest = [search.suggest(f"t{n}") for n in range(9)]
    for n in range(9):
        result = {"loss": value if f"t{n}" in bad else distance(lowest[n])}
        search.on_trial_complete(f"t{n}", {} if value is ... and f"t{n}" in bad else result)
    good = [config for n, config in enumerate(lowest) if f"t{n}" not in bad]
    promoted = [search.suggest(f"u{n}") for n in range(3)]
    assert promoted == [{**config, BUDGET_KEY: 3} for config in sorted(good, key=distance)[:3]]


def test_failures_end_a_rung_like_everything_else():
    search = made()
    for n in range(60):
        assert isinstance(search.suggest(f"t{n}"), dict)
        search.on_trial_complete(f"t{n}", None, error=True)
    assert len(search._brackets) <= 1
    assert all(member is None for members in search._populations for member in members)


def test_what_has_failed_is_not_tried_on_a_larger_budget():
    search = made()
    lowest = [search.suggest(f"t{n}") for n in range(9)]
    for n in range(9):
        search.on_trial_complete(f"t{n}", {"loss": 1.0} if n == 5 else None, error=n != 5)
    middle = [search.suggest(f"u{n}") for n in range(3)]
    assert middle[0] == {**lowest[5], BUDGET_KEY: 3}
    assert not [config for config in middle[1:] if config["x"] in {low["x"] for low in lowest}]


def test_a_failed_trial_that_is_run_again_counts_after_all():
    search = made()
    go_on(search, 1, lambda config: 3.0)
    search.suggest("again")
    search.on_trial_complete("again", {"loss": 1.0}, error=True)
    search.on_trial_complete("again", {"loss": 0.5})
    search.on_trial_complete("again", {"loss": 0.1})  # twice is too often
    assert [member.score for member in search._populations[0] if member] == [-3.0, -0.5]
    assert len(search._brackets[0].ended) == 2


def test_trials_that_it_does_not_know_are_ignored():
    search = made()
    search.on_trial_complete("nobody", {"loss": 1.0})
    search.on_trial_complete("nobody", None, error=True)
    assert go_on(search, 3, distance) == go_on(made(), 3, distance)


def test_metrics_may_be_nested():
    search = made(metric="test/loss")
    search.suggest("a")
    search.on_trial_complete("a", {"test/loss": 2.0})
    search.suggest("b")
    search.on_trial_complete("b", {"test": {"loss": 3.0}})
    assert [member.score for member in search._populations[0] if member] == [-2.0, -3.0]


# --- spaces

EVERYTHING = {
    "uniform": uniform(-1, 1),
    "quniform": quniform(0, 1, 0.25),
    "loguniform": loguniform(1e-4, 1),
    "qloguniform": qloguniform(0.5, 8, 0.5),
    "randn": randn(10, 2),
    "qrandn": qrandn(0, 1, 0.5),
    "randint": randint(0, 5),
    "qrandint": qrandint(0, 12, 3),
    "lograndint": lograndint(1, 1000),
    "qlograndint": qlograndint(10, 100, 10),
    "choice": choice(["a", "b", None, 3, True]),
    "nested": {"deep": {"x": uniform(0, 1)}, "constant": 7},
    "list": [randint(0, 3), {"y": uniform(2, 3)}],
    "kind": choice([{"name": "sgd", "momentum": uniform(0, 1)}, {"name": "adam"}, loguniform(1e-6, 1e-5)]),
}


def test_every_domain_can_be_searched():
    search, filler = DEHBSearch(max_t=9), Filler(EVERYTHING, "DEHBSearch")
    assert search.set_search_properties("loss", "min", EVERYTHING, seed=3)
    whole = Categorical([EVERYTHING])
    kinds = set()
    for n in range(150):
        suggested = search.suggest(f"t{n}")
        budget = suggested.pop(BUDGET_KEY)
        config = filler.config(suggested)
        assert whole.is_valid(config), config
        kinds.add(type(config["kind"]).__name__)
        search.on_trial_complete(f"t{n}", {"loss": abs(config["uniform"]) / budget})
    assert kinds == {"dict", "float"}


def test_a_space_of_constants_is_tried_on_all_budgets():
    search = DEHBSearch(max_t=9)
    assert search.set_search_properties("loss", "min", {"a": 1}, seed=3)
    tried = go_on(search, 25, lambda config: 1.0)
    assert {config[BUDGET_KEY] for config in tried} == {1, 3, 9}


def test_its_own_space_comes_with_its_constants():
    config = made({"a": {"x": uniform(0, 1), "fixed": 3}}).suggest("t0")
    assert config["a"]["fixed"] == 3
    assert 0 <= config["a"]["x"] < 1


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name not in ("nested", "list", "kind")])
def test_a_value_has_a_place_and_the_place_the_value(name):
    domain = EVERYTHING[name]
    rng = Rng(5)
    for _ in range(50):
        value = domain.categories.index(domain.draw(rng)) if name == "choice" else domain.draw(rng)
        share = share_of(domain, value)
        assert 0 <= share <= 1
        assert value_at(domain, share) == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("value", [grid_search([1, 2]), sample_from(lambda: 1), choice([grid_search([1]), 2])])
def test_grids_and_functions_are_refused(value):
    with pytest.raises(InvalidInputError, match="DEHBSearch cannot search over"):
        made({"x": value}).suggest("a")


def test_the_key_of_the_budget_is_taken():
    with pytest.raises(InvalidInputError, match=BUDGET_KEY):
        made({BUDGET_KEY: uniform(0, 1)}).suggest("a")


# --- points


def test_points_are_tried_first_as_they_were_written():
    points = [{"x": 0.123456789, "y": 0.5}, {"x": 0.25}]
    search = made(points_to_evaluate=points)
    first, second = go_on(search, 2, lambda config: 0.0)
    assert first == {"x": 0.123456789, "y": 0.5, BUDGET_KEY: 1}
    assert (second["x"], second[BUDGET_KEY]) == (0.25, 1)
    assert 0 <= second["y"] < 1
    promoted = go_on(search, 10, distance, first=2)[7:]
    assert first | {BUDGET_KEY: 3} in promoted  # no rounding on the way up


def test_points_of_nested_spaces_and_of_options():
    space = {"a": {"x": uniform(0, 1)}, "kind": choice([{"name": "sgd", "m": uniform(0, 1)}, {"name": "adam"}])}
    point = {"a": {"x": 0.5}, "kind": {"name": "sgd", "m": 0.25}}
    search = made(space, points_to_evaluate=[point])
    assert search.suggest("t0") == {**point, BUDGET_KEY: 1}
    assert search._jobs["t0"].place == pytest.approx([0.5, 0.25, 0.25])


def test_a_point_outside_of_its_domain_is_tried_and_not_learned_from():
    search = made(points_to_evaluate=[{"x": 5.0}])
    with pytest.warns(UserWarning, match="not within"):
        assert search.suggest("t0")["x"] == 5.0
    search.on_trial_complete("t0", {"loss": 0.0})
    assert not any(search._populations[0])


def test_a_point_with_an_unknown_key_is_refused():
    with pytest.raises(InvalidInputError, match="'z'"):
        made(points_to_evaluate=[{"z": 1}]).suggest("t0")


def test_points_that_were_evaluated_elsewhere_are_members_of_the_largest_budget():
    for early in (True, False):
        search = made()
        if not early:
            search.suggest("t0")
        search.add_evaluated_point({"x": 0.25, "y": 0.75}, 3.0)
        search.add_evaluated_point({"x": 0.1, "y": 0.1}, 1.0, error=True)
        search.add_evaluated_point({"x": 0.1, "y": 0.1}, 1.0, pruned=True)
        search.add_evaluated_point({"x": 0.1, "y": 0.1}, math.nan)
        search.add_evaluated_point({"x": 0.1}, 1.0)
        search.add_evaluated_point({"x": 7.0, "y": 0.1}, 1.0)
        search.suggest("t1")
        (member,) = [member for member in search._populations[-1] if member is not None]
        assert (member.place, member.score) == (pytest.approx([0.25, 0.75]), -3.0)


def test_the_best_of_many_evaluated_points_are_kept():
    search = made()
    for value in range(10, 0, -1):
        search.add_evaluated_point({"x": value / 20, "y": 0.5}, float(value))
    search.suggest("t0")
    assert sorted(-member.score for member in search._populations[-1]) == [1.0, 2.0, 3.0, 4.0]


# --- settings


def test_one_metric_and_one_mode_are_needed():
    with pytest.raises(InvalidInputError, match=r"\['min', 'max'\]"):
        DEHBSearch(mode="least")
    with pytest.raises(InvalidInputError, match="one `metric`"):
        DEHBSearch(metric=["a", "b"], mode=["min", "max"])
    with pytest.raises(InvalidInputError, match="needs a metric and a mode"):
        DEHBSearch(SQUARE).suggest("a")
    with pytest.raises(InvalidInputError, match="no search space"):
        DEHBSearch(metric="loss", mode="min").suggest("a")
    search = DEHBSearch()
    assert search.set_search_properties(None, "min", SQUARE)
    assert search.metric == "_metric"


def test_a_space_of_its_own_excludes_another():
    assert not made().set_search_properties(None, None, {"z": uniform(0, 1)}, seed=1)
    assert made().set_search_properties(None, None, {"z": 1}, seed=1)


def test_it_is_made_by_name_and_hears_only_ends():
    search = create_searcher("dehb", max_t=9, gamma=0.2)
    assert isinstance(search, DEHBSearch)
    assert can_snapshot(search)
    assert not hears_results(search)


# --- the same facts, the same suggestions


def test_the_seed_decides_and_nothing_else():
    random.seed(1)
    first = go_on(made(seed=3), 60, distance)
    random.seed(2)
    assert go_on(made(seed=3), 60, distance) == first
    assert go_on(made(seed=4), 60, distance) != first
    own = DEHBSearch(max_t=9)
    own.set_search_properties("loss", "min", SQUARE, seed=3)
    assert go_on(own, 60, distance) == first


def story(search: DEHBSearch, seed: int, count: int = 70) -> Iterator[Item]:
    """Questions and results in a random order, some of them bad; the searcher itself says what was suggested."""
    rng, asked, running = Rng(seed), 0, []
    adapter = ReplayableSearcher(search, lambda n: f"t{n}", None)
    for _ in range(count):
        if not running or (len(running) < 6 and rng.random() < 0.5):
            item: Item = Asked(1)
            running.append((f"t{asked}", adapter.hear(item)[0].values))
            asked += 1
        else:
            trial_id, config = running.pop(rng.integers(0, len(running)))
            chance = rng.random()
            loss = math.nan if chance < 0.1 else distance(config)
            item = Completed(trial_id, None if chance > 0.95 else {"loss": loss}, chance > 0.9)
            adapter.hear(item)
        yield item


@pytest.mark.parametrize("seed", range(4))
def test_it_goes_on_exactly_wherever_it_was_interrupted(seed):
    def new_searcher() -> ReplayableSearcher:
        search = DEHBSearch(max_t=9, points_to_evaluate=[{"x": 0.5}])
        search.set_search_properties("loss", "min", SQUARE, seed=seed)
        return ReplayableSearcher(search, lambda n: f"t{n}", None)

    items = list(story(new_searcher().searcher, seed))
    undisturbed = new_searcher()
    answers = [undisturbed.hear(item) for item in items]
    for k in range(0, len(items), 3):
        told = new_searcher()
        for item in items[:k]:
            told.hear(item)
        restored = new_searcher()
        restored.set_state(told.get_state(0), 0, [])
        assert [told.hear(item) for item in items[k:]] == answers[k:]
        assert [restored.hear(item) for item in items[k:]] == answers[k:]


def test_its_memory_can_be_kept_in_a_file(tmp_path):
    search = made()
    go_on(search, 30, distance)
    search.save_to_dir(str(tmp_path))
    other = made()
    other.restore_from_dir(str(tmp_path))
    assert go_on(other, 30, distance, first=30) == go_on(search, 30, distance, first=30)


def test_its_memory_does_not_grow_with_the_trials():
    search = made()
    go_on(search, 100, distance)
    before = len(repr(search.get_state()))
    go_on(search, 400, distance, first=100)
    assert len(repr(search.get_state())) < 2 * before


# --- it finds something


def sphere(config: dict[str, Any], budget: float) -> float:
    """Small budgets are biased."""
    return sum((config[f"x{i}"] - 0.3) ** 2 for i in range(4)) + (1 - budget / 27) * 0.1 * math.sin(20 * config["x0"])


def branin(config: dict[str, Any], budget: float) -> float:
    x, y, bias = config["x"], config["y"], 1 - budget / 27
    b, c, t = 5.1 / (4 * math.pi**2) - 0.01 * bias, 5 / math.pi - 0.1 * bias, 1 / (8 * math.pi) + 0.05 * bias
    return (y - b * x * x + c * x - 6) ** 2 + 10 * (1 - t) * math.cos(x) + 10


def best_of_dehb(space: dict[str, Any], loss: Any, total: int, seed: int) -> float:
    search = DEHBSearch(space, "loss", "min", max_t=27, seed=seed)
    used, best = 0.0, math.inf
    while used < total:
        trial_id = str(used)
        config = search.suggest(trial_id)
        assert isinstance(config, dict)
        value = loss(config, config[BUDGET_KEY])
        search.on_trial_complete(trial_id, {"loss": value})
        used += config[BUDGET_KEY]
        best = min(best, value) if config[BUDGET_KEY] == 27 else best
    return best


def best_of_random(space: dict[str, Any], loss: Any, total: int, seed: int) -> float:
    rng = Rng([seed, 1])
    configs = ({name: domain.draw(rng) for name, domain in space.items()} for _ in range(total // 27))
    return min(loss(config, 27) for config in configs)


@pytest.mark.parametrize(
    ("space", "loss"),
    [({f"x{i}": uniform(0, 1) for i in range(4)}, sphere), ({"x": uniform(-5, 10), "y": uniform(0, 15)}, branin)],
)
def test_it_beats_random_search_with_the_same_budget(space, loss):
    total = 27 * 100
    wins = sum(best_of_dehb(space, loss, total, seed) < best_of_random(space, loss, total, seed) for seed in range(10))
    assert wins >= 8
