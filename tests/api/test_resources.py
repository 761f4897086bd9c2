"""Requests for resources, and what users attach to trainables."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import pytest

from holdfast.config.registry import trainable_name
from holdfast.config.resources import (
    PlacementGroupFactory,
    flat_request,
    request_from_dict,
    resources_of,
    with_parameters,
    with_resources,
)
from holdfast.errors import TuneError

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


class FakeTrainable:
    """Stands for the public Trainable class, which is known by this attribute."""

    _holdfast_trainable = True

    def __init__(self, config: dict[str, Any]) -> None:
        self.setup(config)

    def setup(self, config: dict[str, Any], **kwargs: Any) -> None:
        self.got = {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        return None


class Model(FakeTrainable):
    """A user's model."""

    def setup(self, config: dict[str, Any], data: Any = None, scale: int = 1) -> None:
        self.got = {"config": config, "data": data, "scale": scale}


class Greedy(FakeTrainable):
    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        return PlacementGroupFactory([{"CPU": config["n"]}])


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train."""
    return {"config": config}


def train_with(config: dict[str, Any], data: Any, *, scale: int = 1) -> Any:
    return config, data, scale


class Holder:
    def method(self, config: dict[str, Any]) -> int:
        return 7


# --- requests


def test_request_sums_its_bundles() -> None:
    request = PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 0.5, "licence": 1}], "SPREAD")
    assert request.required_resources == {"CPU": 3.0, "GPU": 0.5, "licence": 1.0}
    assert flat_request(request) == request.required_resources
    assert request.bundles == [{"CPU": 1.0}, {"CPU": 2.0, "GPU": 0.5, "licence": 1.0}]
    assert request.strategy == "SPREAD"
    assert request.head_cpus == 1.0
    assert not request.head_bundle_is_empty


def test_standard_names_are_read_in_any_case_and_zeros_vanish() -> None:
    request = PlacementGroupFactory([{"cpu": 1, "Gpu": 0, "MEMORY": 5, "Licence": 2, "none": None}])
    assert request.bundles == [{"CPU": 1.0, "memory": 5.0, "Licence": 2.0}]


def test_bundles_cannot_be_changed_from_outside() -> None:
    given = [{"CPU": 1}]
    request = PlacementGroupFactory(given)
    given[0]["CPU"] = 5
    request.bundles[0]["CPU"] = 9
    assert request.required_resources == {"CPU": 1.0}


@pytest.mark.parametrize("bundles", [[], [{}], [{"CPU": 0}], [{}, {"GPU": 0}]])
def test_zero_bundles_are_refused(bundles: Any) -> None:
    with pytest.raises(ValueError, match="zero bundles"):
        PlacementGroupFactory(bundles)


def test_empty_first_bundle_is_allowed_if_others_follow() -> None:
    request = PlacementGroupFactory([{}, {"CPU": 2}])
    assert request.head_bundle_is_empty
    assert request.head_cpus == 0.0
    assert request.bundles == [{"CPU": 2.0}]
    assert request != PlacementGroupFactory([{"CPU": 2}])
    assert request == eval(repr(request))


@pytest.mark.parametrize("bundles", [{"CPU": 1}, "CPU", None, 3])
def test_bundles_must_be_a_list(bundles: Any) -> None:
    with pytest.raises(ValueError, match="list of bundles"):
        PlacementGroupFactory(bundles)


@pytest.mark.parametrize("bundle", [["CPU"], "CPU", 1])
def test_bundle_must_be_a_dict(bundle: Any) -> None:
    with pytest.raises(ValueError, match="must be a dict"):
        PlacementGroupFactory([bundle])


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, "1", True, [1]])
def test_amount_must_be_a_number(amount: Any) -> None:
    with pytest.raises(ValueError, match="amount of the resource CPU must be a number >= 0"):
        PlacementGroupFactory([{"cpu": amount}])


def test_names_must_be_strings_and_given_once() -> None:
    with pytest.raises(ValueError, match="must be a str"):
        PlacementGroupFactory([{3: 1}])  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="CPU is given twice"):
        PlacementGroupFactory([{"cpu": 1, "CPU": 2}])


def test_requests_are_equal_and_hash_by_value() -> None:
    left = PlacementGroupFactory([{"CPU": 1, "GPU": 1}], "PACK", "name", lifetime="detached")
    right = PlacementGroupFactory([{"gpu": 1.0, "cpu": 1.0}], "PACK", "name", lifetime="detached")
    assert left == right
    assert hash(left) == hash(right)
    assert left != PlacementGroupFactory([{"CPU": 1, "GPU": 1}], "PACK", "name")
    assert left != PlacementGroupFactory([{"CPU": 1, "GPU": 1}], "SPREAD", "name", lifetime="detached")
    assert left != "PACK"
    assert pickle.loads(pickle.dumps(left)) == left
    assert eval(repr(left)) == left


def test_requests_with_unhashable_arguments_still_hash() -> None:
    assert len({PlacementGroupFactory([{"CPU": 1}], labels={"a": 1}), ONE_CPU}) == 2


def test_dict_becomes_a_request_of_one_process() -> None:
    request = request_from_dict({"cpu": 2, "GPU": 0.5, "memory": 100, "licence": 1})
    assert request.bundles == [{"CPU": 2.0, "GPU": 0.5, "memory": 100.0, "licence": 1.0}]
    nested = request_from_dict({"cpu": 1, "custom_resources": {"licence": 2}})
    assert nested.required_resources == {"CPU": 1.0, "licence": 2.0}


def test_dict_without_amounts_means_one_cpu() -> None:
    assert request_from_dict({}) == ONE_CPU
    assert request_from_dict({"cpu": 0, "custom_resources": None}) == ONE_CPU


def test_custom_resources_are_a_dict_of_new_names() -> None:
    with pytest.raises(ValueError, match="custom_resources must be a dict"):
        request_from_dict({"custom_resources": "licence"})
    with pytest.raises(ValueError, match="CPU is given twice"):
        request_from_dict({"cpu": 1, "custom_resources": {"CPU": 1}})


# --- with_resources and resources_of


def test_default_is_one_cpu() -> None:
    for trainable in (train, Model, FakeTrainable, functools.partial(train), Holder().method):
        assert resources_of(trainable, {}) == ONE_CPU


def test_function_carries_its_resources_and_keeps_working() -> None:
    wrapped = with_resources(train, {"cpu": 2, "gpu": 1})
    assert flat_request(resources_of(wrapped, {})) == {"CPU": 2.0, "GPU": 1.0}
    assert wrapped({"x": 1}) == {"config": {"x": 1}}
    assert wrapped.__name__ == "train"
    assert trainable_name(wrapped) == "train"
    assert inspect.signature(wrapped) == inspect.signature(train)
    assert resources_of(train, {}) == ONE_CPU, "the original stays as it is"


def test_request_object_is_taken_as_it_is() -> None:
    request = PlacementGroupFactory([{}, {"GPU": 1}])
    assert resources_of(with_resources(train, request), {}) is request
    assert resources_of(with_resources(Model, request), {}) is request


def test_resources_may_depend_on_the_config() -> None:
    by_object = lambda config: PlacementGroupFactory([{"CPU": config["n"]}])  # noqa: E731
    by_dict = lambda config: {"cpu": config["n"]}  # noqa: E731
    for rule in (by_object, by_dict):
        for trainable in (train, Model):
            assert resources_of(with_resources(trainable, rule), {"n": 3}).head_cpus == 3.0


def test_function_of_the_config_that_returns_nonsense_is_refused() -> None:
    for trainable in (train, Model):
        with pytest.raises(ValueError, match="got 'many'"):
            resources_of(with_resources(trainable, lambda config: "many"), {})


def test_class_carries_its_resources_and_stays_a_class_of_its_kind() -> None:
    wrapped = with_resources(Model, {"gpu": 1})
    assert issubclass(wrapped, Model)
    assert wrapped.__name__ == "Model"
    assert wrapped.__doc__ == "A user's model."
    assert wrapped.default_resource_request({}) == PlacementGroupFactory([{"GPU": 1}])
    assert resources_of(Model, {}) == ONE_CPU


def test_class_says_itself_what_it_needs() -> None:
    assert resources_of(Greedy, {"n": 4}).head_cpus == 4.0
    assert resources_of(with_resources(Greedy, {"cpu": 1}), {"n": 4}).head_cpus == 1.0


def test_class_may_ask_with_a_dict() -> None:
    class Dicty(FakeTrainable):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return {"cpu": 2}

    assert resources_of(Dicty, {}).head_cpus == 2.0


def test_partial_of_a_wrapped_function_keeps_its_resources() -> None:
    wrapped = functools.partial(with_resources(train_with, {"cpu": 3}), data=1)
    assert resources_of(wrapped, {}).head_cpus == 3.0


@pytest.mark.parametrize("resources", [None, 3, "cpu", [{"cpu": 1}]])
def test_resources_of_another_kind_are_refused(resources: Any) -> None:
    with pytest.raises(ValueError, match=r"with_resources\(\) takes a dict"):
        with_resources(train, resources)


@pytest.mark.parametrize("trainable", [Holder().method, print, [].append])
def test_bound_methods_and_builtins_must_be_wrapped_first(trainable: Any) -> None:
    with pytest.raises(RuntimeError, match="Wrap it in a regular function") as caught:
        with_resources(trainable, {"cpu": 1})
    assert isinstance(caught.value, TuneError)


@pytest.mark.parametrize("trainable", [3, "name", None, dict, Holder])
def test_what_is_no_trainable_is_refused(trainable: Any) -> None:
    with pytest.raises(ValueError, match=r"with_resources\(\) only works with"):
        with_resources(trainable, {"cpu": 1})
    with pytest.raises(ValueError, match=r"with_parameters\(\) only works with"):
        with_parameters(trainable, data=1)


def test_resources_per_trial_are_used_when_the_trainable_does_not_ask() -> None:
    assert resources_of(train, {}, resources_per_trial={"cpu": 2}).head_cpus == 2.0
    request = PlacementGroupFactory([{"GPU": 1}])
    assert resources_of(Model, {}, resources_per_trial=request) is request


def test_resources_from_two_sides_are_refused() -> None:
    for trainable in (Greedy, with_resources(train, {"cpu": 2})):
        with pytest.raises(TuneError, match=r"have been automatically set.*clear the `resources_per_trial` option"):
            resources_of(trainable, {"n": 1}, resources_per_trial={"cpu": 2})


# --- with_parameters


def test_function_gets_its_parameters_as_keywords() -> None:
    data = [1, 2, 3]
    wrapped = with_parameters(train_with, data=data, scale=2)
    config, got, scale = wrapped({"x": 1})
    assert (config, scale) == ({"x": 1}, 2)
    assert got is data
    assert wrapped._holdfast_parameters == {"data": data, "scale": 2}
    assert wrapped.__name__ == "train_with"
    assert list(inspect.signature(wrapped).parameters) == ["config"]
    assert "train_with with data, scale" in repr(wrapped)


def test_older_functions_still_get_their_further_arguments() -> None:
    def old(config: dict[str, Any], reporter: Any, data: Any = None, checkpoint_dir: Any = None) -> Any:
        return reporter, data, checkpoint_dir

    wrapped = with_parameters(old, data=1)
    assert wrapped({}, "reporter", checkpoint_dir="d") == ("reporter", 1, "d")
    assert list(inspect.signature(wrapped).parameters) == ["config", "reporter", "checkpoint_dir"]


def test_class_gets_its_parameters_in_setup() -> None:
    data = object()
    wrapped = with_parameters(Model, data=data, scale=3)
    model = wrapped({"x": 1})
    assert isinstance(model, Model)
    assert model.got == {"config": {"x": 1}, "data": data, "scale": 3}
    assert wrapped.__name__ == "Model"
    assert wrapped._holdfast_parameters == {"data": data, "scale": 3}
    assert Model({"x": 2}).got["data"] is None


def test_partial_and_callable_object_keep_their_names() -> None:
    wrapped = with_parameters(functools.partial(train_with, scale=5), data=1)
    assert wrapped({}) == ({}, 1, 5)
    assert trainable_name(wrapped) == "train_with"

    class Callable:
        def __call__(self, config: dict[str, Any], data: Any) -> Any:
            return data

    bare = Callable()
    assert with_parameters(bare, data=4)({}) == 4
    assert trainable_name(with_parameters(bare, data=4)) == trainable_name(bare) == "DEFAULT"
    assert "Callable" not in trainable_name(with_parameters(lambda config, d: d, d=1))
    assert trainable_name(with_parameters(lambda config, d: d, d=1)) == "lambda"


def test_chosen_name_is_kept() -> None:
    def fn(config: dict[str, Any]) -> None: ...

    fn._name = "chosen"  # type: ignore[attr-defined]
    assert trainable_name(with_resources(fn, {"cpu": 1})) == "chosen"


@pytest.mark.parametrize("order", ["parameters first", "resources first"])
def test_parameters_and_resources_combine_in_any_order(order: str) -> None:
    for trainable in (train_with, Model):
        if order == "parameters first":
            wrapped = with_resources(with_parameters(trainable, data=1), {"cpu": 2})
        else:
            wrapped = with_parameters(with_resources(trainable, {"cpu": 2}), data=1)
        wrapped = with_parameters(wrapped, scale=4)
        assert resources_of(wrapped, {}).head_cpus == 2.0
        assert wrapped._holdfast_parameters == {"data": 1, "scale": 4}
        result = wrapped({"x": 0})
        got = result if isinstance(result, tuple) else tuple(result.got.values())
        assert got == ({"x": 0}, 1, 4)


def test_later_parameter_replaces_an_earlier_one_and_leaves_it_alone() -> None:
    for trainable in (train_with, Model):
        first = with_parameters(trainable, data=1)
        second = with_parameters(first, data=2)
        assert first._holdfast_parameters == {"data": 1}
        assert second._holdfast_parameters == {"data": 2}


def test_users_subclass_of_a_wrapped_class_can_be_wrapped_again() -> None:
    base = with_parameters(Model, data=1)

    class Special(base):  # type: ignore[misc, valid-type]
        pass

    model = with_parameters(Special, scale=2)({})
    assert model.got == {"config": {}, "data": 1, "scale": 2}


def test_parameter_that_the_function_does_not_take_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"got 'data', but train takes no argument.*def train\(config, data\)"):
        with_parameters(train, data=1)
    assert with_parameters(lambda config, **rest: rest, data=1)({}) == {"data": 1}


def test_config_itself_cannot_be_attached() -> None:
    with pytest.raises(ValueError, match="cannot attach 'config'"):
        with_parameters(train, config={})


def test_function_without_a_readable_signature_is_taken_on_trust() -> None:
    assert with_parameters(min, default=3)([]) == 3


def test_generators_stay_generators() -> None:
    def steps(config: dict[str, Any], n: int) -> Any:
        yield from range(n)

    assert list(with_parameters(steps, n=3)({})) == [0, 1, 2]


def test_wrapped_trainables_travel_to_another_process() -> None:
    # Classes and functions of this file are not importable there, as with a user's script.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        payload = cloudpickle.dumps(
            [
                with_resources(with_parameters(train_with, data=[1], scale=2), {"cpu": 2}),
                with_resources(with_parameters(Model, data=[1], scale=2), lambda config: {"cpu": 2}),
            ]
        )
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    program = (
        "import sys, cloudpickle\n"
        "from holdfast.config.resources import resources_of\n"
        "function, cls = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "print(function({'x': 1}), cls({'x': 1}).got, function.__name__, cls.__name__,\n"
        "      resources_of(function, {}).head_cpus, resources_of(cls, {}).head_cpus)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=payload, capture_output=True, check=True, timeout=60)
    assert done.stdout.decode().strip() == (
        "({'x': 1}, [1], 2) {'config': {'x': 1}, 'data': [1], 'scale': 2} train_with Model 2.0 2.0"
    )
