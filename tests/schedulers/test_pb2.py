"""Population based bandits: what they choose, and that they choose it again."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from table import Population, Script, Table, assert_exact_resume, assert_never_hangs, play

from holdfast.core import events as ev
from holdfast.errors import TuneError
from holdfast.schedulers import PB2, create_scheduler
from holdfast.schedulers.pb2 import MAX_POINTS, PB2Observation, PB2Point, choose
from holdfast.space.rng import Rng


def pb2(**settings: Any) -> PB2:
    known = {"time_attr": "training_iteration", "perturbation_interval": 1, "hyperparam_bounds": {"x": [0.0, 10.0]}}
    return PB2(**{**known, "quantile_fraction": 0.5, **settings})


def gaining(best: float, steps: int = 12) -> list[Script]:
    """Trials that gain most per step if x is ``best``."""

    def score(config: Any, step: int) -> float:
        return step * (10 - abs(config["x"] - best))

    return [Script(score, steps=steps, config={"x": float(x)}) for x in (1, 4, 6, 9)]


def chosen(table: Table) -> list[Any]:
    return [e.config["x"] for e in table.events(ev.TrialReconfigured) if e.donor is not None]


# --- its arguments


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, "must be specified"),
        (None, "must be specified"),
        ({"x": [1]}, "size 2"),
        ({"x": [1, 2, 3]}, "size 2"),
        ({"x": 3}, "size 2"),
        ({"x": lambda: 3}, "size 2"),
        ({"net": {"x": [2, 1]}}, "'net/x'.*above"),
        ({"x": ["a", "b"]}, "finite numbers"),
        ({"x": [0, float("inf")]}, "finite numbers"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, words):
    with pytest.raises(TuneError, match=words):
        pb2(hyperparam_bounds=bounds)


def test_it_can_be_made_by_name():
    made = create_scheduler("pb2", metric="loss", mode="min", hyperparam_bounds={"x": (0, 1)})
    assert (type(made), made.metric) == (PB2, "loss")
    assert not made.works_with_searchers


def test_without_numpy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(RuntimeError, match="pip install numpy"):
        pb2()


# --- the model


def learnt(best: float, count: int, drift: float = 0.0) -> list[PB2Point]:
    rng = Rng([5])
    points = []
    for i in range(count):
        x, time = rng.uniform(0, 10), 1.0 + i // 4
        points.append(PB2Point(time, time, [x, 3.0], -(((x - best - drift * time) / 10) ** 2)))
    return points


def test_it_chooses_where_the_gain_was_largest():
    points = learnt(7.0, 80)
    values = choose(points, PB2Observation(21.0, 21.0, None), [(0, 10), (3, 3)], [], 1.0, Rng([1]))
    assert values[0] == pytest.approx(7.0, abs=1.5)
    assert values[1] == 3.0


def test_what_was_good_long_ago_counts_less():
    values = choose(
        learnt(1.0, 120, drift=0.25), PB2Observation(31.0, 31.0, None), [(0, 10), (3, 3)], [], 1.0, Rng([1])
    )
    assert values[0] > 6.0


def test_those_who_choose_at_the_same_time_choose_differently():
    points, now, bounds = learnt(5.0, 6), PB2Observation(3.0, 3.0, None), [(0.0, 10.0), (0.0, 10.0)]
    batch: list[list[float]] = []
    for _ in range(4):
        batch.append(choose(points, now, bounds, batch, 1.0, Rng([1])))
    distances = [max(abs(a - b) for a, b in zip(x, y, strict=True)) for x in batch for y in batch if x is not y]
    assert min(distances) > 1.0


def test_choices_stay_within_bounds_and_follow_from_the_seed():
    points = learnt(5.0, 10)
    for seed in range(20):
        values = choose(points, PB2Observation(4.0, 1e9, None), [(2, 9), (-1, 4)], [], 1.0, Rng([seed]))
        assert 2 <= values[0] <= 9
        assert -1 <= values[1] <= 4
        assert values == choose(points, PB2Observation(4.0, 1e9, None), [(2, 9), (-1, 4)], [], 1.0, Rng([seed]))


@pytest.mark.parametrize("points", [[PB2Point(1.0, 0.0, [5.0], 0.0)], [PB2Point(1.0, 0.0, [5.0], 1.0)] * 5])
def test_points_that_teach_nothing_do_no_harm(points):
    assert 0 <= choose(points, PB2Observation(1.0, 0.0, None), [(0, 10)], [], 1.0, Rng([1]))[0] <= 10


# --- at the table


@pytest.mark.parametrize("synch", [False, True])
def test_trials_move_to_what_gains_most(synch):
    table = play(lambda: pb2(synch=synch), Population(gaining(best=8.0), slots=4))
    late = chosen(table)[-4:]
    assert len(late) == 4
    assert sum(late) / 4 > 5.5
    assert all(0 <= x <= 10 for x in chosen(table))


def test_before_anything_is_known_a_copy_has_the_values_of_its_donor():
    table = play(lambda: pb2(synch=True), Population(gaining(best=8.0, steps=2), slots=4))
    assert chosen(table)[0] in (6.0, 9.0)


def test_an_int_stays_an_int_and_other_values_stay_as_they_are():
    scripts = [
        Script(lambda config, step: step * config["net"]["x"], steps=8, config={"net": {"x": x, "kind": "cnn"}})
        for x in (1, 5, 9)
    ]
    table = play(lambda: pb2(hyperparam_bounds={"net": {"x": [0, 10]}}, synch=True), Population(scripts, slots=3))
    configs = [e.config["net"] for e in table.events(ev.TrialReconfigured)]
    assert all(type(net["x"]) is int and net["kind"] == "cnn" for net in configs)
    assert len({net["x"] for net in configs}) > 1


def test_missing_values_are_drawn_within_the_bounds():
    population = Population([Script([1]), Script([1]), Script([1])])
    table = play(lambda: pb2(hyperparam_bounds={"x": [3, 5]}), population)
    drawn = [trial.config["x"] for trial in table.state.trials]
    assert all(3 <= x <= 5 for x in drawn)
    assert len(set(drawn)) == 3
    assert table.state.trials[0].params == ("n", "x")


def test_a_custom_function_has_the_last_word():
    table = play(
        lambda: pb2(custom_explore_fn=lambda config: {**config, "x": 2.5}), Population(gaining(8.0, steps=4), slots=4)
    )
    assert set(chosen(table)) == {2.5}


def test_only_the_most_recent_points_are_remembered():
    scheduler = pb2()
    scheduler._points.extend(PB2Point(float(i), 0.0, [1.0], 0.0) for i in range(MAX_POINTS + 5))
    assert len(scheduler._points) == MAX_POINTS
    again = pb2()
    again.set_state(scheduler.get_state())
    assert list(again._points) == list(scheduler._points)


@pytest.mark.parametrize("synch", [False, True])
def test_a_scheduler_that_was_rebuilt_goes_on_as_before(synch):
    scripts = gaining(best=8.0, steps=4)
    table = assert_exact_resume(lambda: pb2(synch=synch), Population(scripts, slots=2), prefixes=range(1, 200, 4))
    assert len(set(chosen(table))) > 1


def test_random_populations_come_to_an_end():
    assert_never_hangs(lambda: pb2(require_attrs=False), range(60), max_trials=6, max_steps=6)
