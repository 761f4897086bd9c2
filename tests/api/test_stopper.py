"""Stop criteria: every accepted form, every refusal, and memory that survives a restore exactly."""

from __future__ import annotations

import datetime
import logging
import math
import pickle
from typing import Any

import msgspec
import pytest

from holdfast.errors import InvalidInputError, TuneError
from holdfast.stopper import (
    CombinedStopper,
    DictStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    can_snapshot,
    resolve_stopper,
)


class Counting(Stopper):
    """A user's stopper without state methods."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen.append(trial_id)
        return False

    def stop_all(self) -> bool:
        return len(self.seen) >= 3


def through_storage(stopper: Any, fresh: Any) -> Any:
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(stopper.get_state()))
    fresh.set_state(state)
    assert fresh.get_state() == stopper.get_state()
    return fresh


def test_no_criterion_stops_nothing() -> None:
    stopper = resolve_stopper(None)
    assert isinstance(stopper, NoopStopper)
    assert not stopper("t", {"x": math.inf})
    assert not stopper.stop_all()
    assert through_storage(stopper, NoopStopper()).get_state() == {}


def test_dict_stops_when_any_metric_reaches_its_bound() -> None:
    stopper = resolve_stopper({"acc": 0.9, "training_iteration": 10})
    assert not stopper("t", {"acc": 0.89, "training_iteration": 9})
    assert stopper("t", {"acc": 0.9, "training_iteration": 1})
    assert stopper("t", {"acc": 0.1, "training_iteration": 10})
    assert not stopper.stop_all()


def test_dict_reaches_nested_metrics_with_slashes() -> None:
    stopper = resolve_stopper({"eval/top/acc": 0.5})
    assert stopper("t", {"eval": {"top": {"acc": 0.5}}})
    assert stopper("t", {"eval/top": {"acc": 0.5}})
    assert stopper("t", {"eval": {"top/acc": 0.6}})
    assert stopper("t", {"eval/top/acc": 0.6})
    assert not stopper("t", {"eval": {"top": {"acc": 0.4}}})


def test_dict_accepts_a_flag_as_bound() -> None:
    stopper = resolve_stopper({"done": True})
    assert stopper("t", {"done": True})
    assert not stopper("t", {"done": False})


def test_check_searches_the_users_metrics_before_the_filled_in_ones() -> None:
    stopper = DictStopper({"training_iteration": 5, "time/total": 2})
    assert stopper.check({}, {"training_iteration": 5})
    assert not stopper.check({"training_iteration": 1}, {"training_iteration": 5, "time": {"total": 1}})
    assert stopper.check({"training_iteration": 1}, {"time": {"total": 2}})


def test_dict_value_inside_a_dict_is_refused_with_the_flat_spelling() -> None:
    with pytest.raises(ValueError, match="Stopping criteria is now flattened by default") as caught:
        resolve_stopper({"eval": {"acc": 0.9}})
    assert '"eval/acc"' in str(caught.value)
    assert isinstance(caught.value, TuneError)


@pytest.mark.parametrize("bound", ["10", None, [1], math.nan])
def test_dict_bound_that_is_no_number_is_refused(bound: Any) -> None:
    with pytest.raises(ValueError, match="'x' must be a number"):
        resolve_stopper({"x": bound})


def test_dict_key_that_is_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="named by a metric"):
        resolve_stopper({3: 1})


def test_dict_bound_may_be_larger_than_any_float() -> None:
    assert not resolve_stopper({"x": 10**400})("t", {"x": 1})


def test_absent_metric_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    stopper = resolve_stopper({"acc": 1, "loss": 1})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not stopper("t", {"other": 5})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "'acc'" in messages[0]
    assert "other" in messages[0]
    assert "'loss'" in messages[1]


def test_value_that_cannot_be_compared_stops_nothing_and_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopper = resolve_stopper({"acc": 1})
    with caplog.at_level(logging.WARNING):
        assert not stopper("t", {"acc": None})
        assert not stopper("t", {"acc": "high"})
    assert [("None" in r.getMessage(), "compared" in r.getMessage()) for r in caplog.records] == [(True, True)]


def test_nan_reaches_no_bound() -> None:
    assert not resolve_stopper({"acc": 0})("t", {"acc": math.nan})


def test_dict_works_with_numpy_values() -> None:
    np = pytest.importorskip("numpy")
    stopper = resolve_stopper({"acc": np.float32(0.5)})
    assert stopper("t", {"acc": np.float64(0.5)}) is True
    assert type(stopper.criteria["acc"]) is float


def test_function_is_asked_with_trial_and_result() -> None:
    stopper = resolve_stopper(lambda trial_id, result: trial_id == "b" and result["x"] > 1)
    assert isinstance(stopper, FunctionStopper)
    assert stopper("b", {"x": 2}) is True
    assert stopper("a", {"x": 2}) is False
    assert not stopper.stop_all()


def test_bound_method_is_a_function() -> None:
    class Limits:
        limit = 3

        def reached(self, trial_id: str, result: dict[str, Any]) -> bool:
            return bool(result["x"] >= self.limit)

    assert resolve_stopper(Limits().reached)("t", {"x": 3})


def test_builtin_without_signature_is_accepted_as_function() -> None:
    assert isinstance(resolve_stopper(max), FunctionStopper)


def test_function_with_other_arguments_is_refused() -> None:
    def only_result(result: dict[str, Any]) -> bool:
        return True

    with pytest.raises(ValueError, match=r"\(trial_id, result\), but only_result takes"):
        resolve_stopper(only_result)


def test_callable_with_stop_all_must_be_a_stopper() -> None:
    class Almost:
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return True

    with pytest.raises(ValueError, match="not a Stopper subclass"):
        resolve_stopper(Almost())


def test_stopper_class_instead_of_instance_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Give an instance: NoopStopper\(...\)"):
        resolve_stopper(NoopStopper)


@pytest.mark.parametrize("function", [3, NoopStopper()])
def test_function_stopper_needs_a_function(function: Any) -> None:
    with pytest.raises(ValueError, match="FunctionStopper needs a function"):
        FunctionStopper(function)


@pytest.mark.parametrize("stop", [10, "training_iteration", 1.5])
def test_any_other_form_is_refused(stop: Any) -> None:
    with pytest.raises(InvalidInputError, match="`stop` must be a dict") as caught:
        resolve_stopper(stop)
    assert type(stop).__name__ in str(caught.value)


def test_stopper_is_taken_as_it_is() -> None:
    stopper = Counting()
    assert resolve_stopper(stopper) is stopper


def test_list_of_stoppers_is_combined() -> None:
    stopper = resolve_stopper([MaximumIterationStopper(2), Counting()])
    assert isinstance(stopper, CombinedStopper)
    assert [stopper("t", {}) for _ in range(2)] == [False, True]
    assert isinstance(resolve_stopper((NoopStopper(),)), CombinedStopper)
    assert not resolve_stopper([])("t", {})


def test_list_with_anything_else_is_refused() -> None:
    with pytest.raises(ValueError, match="element 1 is"):
        resolve_stopper([NoopStopper(), lambda trial_id, result: True])
    with pytest.raises(ValueError, match="CombinedStopper takes Stopper objects"):
        CombinedStopper(len)  # type: ignore[arg-type]


def test_combined_stops_all_when_one_member_does() -> None:
    counting = Counting()
    stopper = CombinedStopper(NoopStopper(), counting)
    for _ in range(3):
        assert not stopper.stop_all()
        stopper("t", {})
    assert stopper.stop_all()


def test_combined_shows_every_result_to_every_member() -> None:
    counting = Counting()
    stopper = CombinedStopper(MaximumIterationStopper(1), counting)
    assert stopper("a", {})
    assert stopper("b", {})
    assert counting.seen == ["a", "b"]


def test_combined_state_holds_every_members() -> None:
    def fresh() -> CombinedStopper:
        return CombinedStopper(MaximumIterationStopper(3), CombinedStopper(TimeoutStopper(10)))

    stopper = fresh()
    stopper("a", {})
    stopper.advance(4.0)
    restored = through_storage(stopper, fresh())
    assert [restored("a", {}), restored("a", {})] == [False, True]
    assert not restored.stop_all()
    restored.advance(10.0)
    assert restored.stop_all()


def test_combined_state_of_other_length_is_refused() -> None:
    state = CombinedStopper(NoopStopper()).get_state()
    with pytest.raises(ValueError, match="same stoppers in the same order"):
        CombinedStopper(NoopStopper(), NoopStopper()).set_state(state)


def test_only_stoppers_with_state_can_be_snapshotted() -> None:
    assert can_snapshot(resolve_stopper({"x": 1}))
    assert can_snapshot(CombinedStopper(NoopStopper(), TimeoutStopper(1)))
    assert not can_snapshot(Counting())
    assert not can_snapshot(resolve_stopper(lambda trial_id, result: True))
    assert not can_snapshot(CombinedStopper(NoopStopper(), CombinedStopper(Counting())))


def test_stopper_without_state_is_rebuilt_by_replaying_its_results() -> None:
    before, after = Counting(), Counting()
    results = [("a", {"x": 1}), ("b", {"x": 2}), ("a", {"x": 3})]
    for trial_id, result in results:
        before(trial_id, result)
    for trial_id, result in results:
        after(trial_id, result)
    assert after.stop_all() == before.stop_all() is True


def test_maximum_iterations_count_results_per_trial() -> None:
    stopper = MaximumIterationStopper(2)
    assert [stopper(t, {}) for t in "abab"] == [False, False, True, True]
    assert stopper("a", {})
    assert not stopper.stop_all()
    restored = through_storage(stopper, MaximumIterationStopper(2))
    assert not restored("c", {})
    assert restored("b", {})


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True, None])
def test_maximum_iterations_must_be_a_positive_integer(count: Any) -> None:
    with pytest.raises(ValueError, match="max_iter must be an integer >= 1"):
        MaximumIterationStopper(count)


def test_timeout_counts_the_lived_time_it_is_told() -> None:
    stopper = TimeoutStopper(datetime.timedelta(minutes=1))
    assert stopper.budget_s == 60
    stopper.advance(59.5)
    stopper.advance(59.5)
    assert not stopper.stop_all(), "a total that is heard twice counts once"
    assert not stopper("t", {})
    stopper.advance(60)
    assert stopper.stop_all()
    assert stopper.spent_s == 60


def test_timeout_budget_survives_storage_and_pickling() -> None:
    stopper = TimeoutStopper(10)
    stopper.advance(7.25)
    restored = through_storage(stopper, TimeoutStopper(10))
    unpickled = pickle.loads(pickle.dumps(stopper))
    for copy in (restored, unpickled):
        assert copy.spent_s == 7.25
        copy.advance(9.75)
        assert not copy.stop_all()
        copy.advance(10)
        assert copy.stop_all()


def test_timeout_without_a_controller_reads_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stopper = TimeoutStopper(10)
    now[0] = 500.0
    assert not stopper.stop_all(), "time before the first question is nobody's"
    now[0] = 506.0
    dumped = pickle.dumps(stopper)
    now[0] = 510.0
    assert stopper.stop_all()
    # The machine was rebooted meanwhile, so that its clock begins again.
    now[0] = 3.0
    restored = pickle.loads(dumped)
    assert restored.spent_s == 6.0
    assert not restored.stop_all()
    now[0] = 7.0
    assert restored.stop_all()


def test_timeout_stops_reading_the_clock_once_it_is_driven(monkeypatch: pytest.MonkeyPatch) -> None:
    stopper = TimeoutStopper(10)
    stopper.stop_all()
    stopper.advance(1)
    monkeypatch.setattr("time.monotonic", lambda: pytest.fail("read the clock"))
    assert not stopper.stop_all()
    assert stopper.get_state() == {"spent_s": 1.0}


@pytest.mark.parametrize("timeout", ["60", None, -1, math.nan, True, [1]])
def test_timeout_of_another_kind_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"TimeoutStopper needs seconds >= 0 or a datetime\.timedelta"):
        TimeoutStopper(timeout)


@pytest.mark.parametrize("lived", [-0.1, math.nan])
def test_lived_time_never_runs_backwards(lived: float) -> None:
    stopper = TimeoutStopper(1)
    with pytest.raises(ValueError, match="seconds >= 0"):
        stopper.advance(lived)
    stopper.advance(5)
    stopper.advance(2)
    assert stopper.spent_s == 5


def test_retry_does_not_count_repeated_results_twice() -> None:
    stopper = CombinedStopper(MaximumIterationStopper(4), NoopStopper())
    assert [stopper("t", {}) for _ in range(3)] == [False] * 3
    stopper.rewind("t", 1)
    assert [stopper("t", {}) for _ in range(3)] == [False, False, True]
