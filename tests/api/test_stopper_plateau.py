"""Stoppers that end what no longer moves."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from holdfast.stopper import ExperimentPlateauStopper, MaximumIterationStopper, TrialPlateauStopper


def through_storage(stopper: Any, fresh: Any) -> Any:
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(stopper.get_state()))
    fresh.set_state(state)
    assert fresh.get_state() == stopper.get_state()
    return fresh


def test_trial_plateau_stops_after_grace_when_the_metric_rests() -> None:
    stopper = TrialPlateauStopper("loss", std=0.01, num_results=3, grace_period=5)
    assert [stopper("t", {"loss": 1.0}) for _ in range(5)] == [False] * 4 + [True]
    assert not stopper("other", {"loss": 1.0})
    assert not stopper.stop_all()


def test_trial_plateau_looks_at_the_last_results_only() -> None:
    stopper = TrialPlateauStopper("m/loss", std=0.01, num_results=2, grace_period=0)
    answers = [stopper("t", {"m": {"loss": value}}) for value in (5, 3, 1, 1.0)]
    assert answers == [False, False, False, True]


def test_trial_plateau_needs_a_deviation_below_the_limit() -> None:
    # The population's standard deviation of 0 and 2 is exactly 1.
    exact = TrialPlateauStopper("x", std=1.0, num_results=2, grace_period=0)
    wider = TrialPlateauStopper("x", std=1.0001, num_results=2, grace_period=0)
    assert [exact("t", {"x": v}) for v in (0, 2)] == [False, False]
    assert [wider("t", {"x": v}) for v in (0, 2)] == [False, True]


@pytest.mark.parametrize(("mode", "good", "bad"), [("min", 0.1, 0.9), ("max", 0.9, 0.1)])
def test_trial_plateau_threshold_spares_bad_trials(mode: str, good: float, bad: float) -> None:
    stopper = TrialPlateauStopper("x", num_results=2, grace_period=0, metric_threshold=0.5, mode=mode)
    assert [stopper("good", {"x": good}) for _ in range(2)] == [False, True]
    assert [stopper("bad", {"x": bad}) for _ in range(2)] == [False, False]


def test_trial_plateau_threshold_of_zero_needs_a_mode_too() -> None:
    for mode in (None, "best"):
        with pytest.raises(ValueError, match=r"\['min', 'max'\]"):
            TrialPlateauStopper("x", metric_threshold=0, mode=mode)
    with pytest.raises(ValueError, match=r"\['min', 'max'\]"):
        TrialPlateauStopper("x", mode="best")


@pytest.mark.parametrize("hole", [{}, {"x": None}, {"x": math.nan}, {"x": math.inf}, {"x": "1"}, {"x": 10**400}])
def test_trial_plateau_does_not_stop_over_missing_values(hole: dict[str, Any]) -> None:
    stopper = TrialPlateauStopper("x", num_results=2, grace_period=0)
    assert [stopper("t", r) for r in ({"x": 1}, hole, {"x": 1}, {"x": 1})] == [False, False, False, True]


def test_trial_plateau_checks_its_numbers() -> None:
    with pytest.raises(ValueError, match="num_results must be an integer >= 1"):
        TrialPlateauStopper("x", num_results=0)
    with pytest.raises(ValueError, match="grace_period must be an integer >= 0"):
        TrialPlateauStopper("x", grace_period=-1)


def test_trial_plateau_memory_survives_storage() -> None:
    def fresh() -> TrialPlateauStopper:
        return TrialPlateauStopper("x", std=0.1, num_results=3, grace_period=4)

    stopper = fresh()
    for result in ({"x": 0.1}, {}, {"x": 1 / 3}):
        stopper("t", result)
    restored = through_storage(stopper, fresh())
    tail = [{"x": 1 / 3}, {"x": 1 / 3}, {"x": 2}, {"x": 1 / 3}]
    assert [restored("t", r) for r in tail] == [stopper("t", r) for r in tail] == [False, True, False, False]


def test_experiment_plateau_stops_all_when_the_best_rest() -> None:
    stopper = ExperimentPlateauStopper("loss", std=0.01, top=3)
    answers = [stopper(f"t{i}", {"loss": value}) for i, value in enumerate((5.0, 1.0, 4.0, 1.0, 9.0, 1.001))]
    assert answers == [False] * 5 + [True]
    assert stopper.stop_all()


def test_experiment_plateau_prefers_large_values_in_mode_max() -> None:
    stopper = ExperimentPlateauStopper("acc", std=0.01, top=2, mode="max")
    assert [stopper("t", {"acc": v}) for v in (0.1, 0.1)] == [False, True]
    assert [stopper("t", {"acc": v}) for v in (0.5, 0.2, 0.5)] == [False, False, True]


def test_experiment_plateau_lasts_longer_than_patience() -> None:
    stopper = ExperimentPlateauStopper("x", top=2, patience=2)
    assert [stopper("t", {"x": 1.0}) for _ in range(4)] == [False, False, False, True]


def test_experiment_plateau_patience_begins_anew_after_progress() -> None:
    stopper = ExperimentPlateauStopper("x", top=2, patience=1)
    values = (1.0, 1.0, 0.0, 0.0, 0.0)
    assert [stopper("t", {"x": v}) for v in values] == [False, False, False, False, True]


@pytest.mark.parametrize("hole", [{}, {"x": math.nan}, {"x": None}])
def test_experiment_plateau_ignores_missing_values(hole: dict[str, Any]) -> None:
    stopper = ExperimentPlateauStopper("x", top=2)
    assert [stopper("t", r) for r in ({"x": 1.0}, hole, {"x": 1.0})] == [False, False, True]


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        ({"top": 1}, "top must be an integer >= 2"),
        ({"top": "10"}, "top must be an integer >= 2"),
        ({"patience": -1}, "patience must be an integer >= 0"),
        ({"patience": 0.5}, "patience must be an integer >= 0"),
        ({"std": 0.0}, "std must be a float > 0"),
        ({"std": "0.1"}, "std must be a float > 0"),
        ({"std": -1.0}, "std must be a float > 0"),
        ({"mode": "best"}, r"\['min', 'max'\]"),
    ],
)
def test_experiment_plateau_checks_its_arguments(arguments: dict[str, Any], keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        ExperimentPlateauStopper("x", **arguments)


def test_experiment_plateau_memory_survives_storage() -> None:
    def fresh() -> ExperimentPlateauStopper:
        return ExperimentPlateauStopper("x", top=2, patience=2, std=0.5)

    stopper = fresh()
    for value in (0.1, 0.2, 0.3):
        stopper("t", {"x": value})
    restored = through_storage(stopper, fresh())
    assert not restored.stop_all()
    assert restored("t", {"x": 7}) == stopper("t", {"x": 7}) is True


def test_values_near_the_largest_float_do_not_raise() -> None:
    stopper = TrialPlateauStopper("x", num_results=2, grace_period=0)
    assert [stopper("t", {"x": v}) for v in (1.7e308, 1.7e308, -1.7e308)] == [False, False, False]


def test_attempt_that_loses_nothing_changes_nothing() -> None:
    stoppers: list[Any] = [
        MaximumIterationStopper(9),
        TrialPlateauStopper("x", num_results=3),
        ExperimentPlateauStopper("x", top=3),
    ]
    for stopper in stoppers:
        for value in (1.0, 2.0):
            stopper("t", {"x": value})
        before = stopper.get_state()
        stopper.rewind("t", 2)
        stopper.rewind("t", 7)
        assert stopper.get_state() == before


def test_trial_plateau_is_not_made_of_repeated_results() -> None:
    stopper = TrialPlateauStopper("x", std=0.1, num_results=2, grace_period=0)
    assert [stopper("t", {"x": v}) for v in (5, 3)] == [False, False]
    stopper.rewind("t", 1)
    assert [stopper("t", {"x": v}) for v in (3, 3)] == [False, True]
    stopper.rewind("t", 0)
    assert not stopper("t", {"x": 5})


def test_experiment_plateau_is_not_made_of_repeated_results() -> None:
    stopper = ExperimentPlateauStopper("x", std=0.1, top=2)
    assert not stopper("a", {"x": 1.0})
    stopper.rewind("a", 0)
    assert not stopper("a", {"x": 1.0})
    assert stopper("b", {"x": 1.0})
    stopper.rewind("b", 0)
    assert not stopper.stop_all()
    assert stopper("c", {"x": 1.0})
