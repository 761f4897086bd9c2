"""New configs out of old ones."""

from __future__ import annotations

import random

import numpy
import pytest

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.schedulers.explore import explore, explore_with, fill, perturbed_tag, plain, prepare
from holdfast.space.exact import unpack
from holdfast.space.rng import Rng

FACTORS = (1.2, 0.8)


def outcomes(config, mutations, resample_probability=0.0, factors=FACTORS, tries=200):
    mutations = prepare(mutations)
    return [explore(config, mutations, Rng([7, i]), resample_probability, factors) for i in range(tries)]


def values(config, mutations, key="x", **more):
    return {each[key] for each in outcomes(config, mutations, **more)}


def test_an_option_moves_to_its_neighbours_and_not_beyond_the_ends():
    assert values({"x": 2}, {"x": [1, 2, 3]}) == {1, 3}
    assert values({"x": 1}, {"x": [1, 2, 3]}) == {1, 2}
    assert values({"x": 3}, {"x": (1, 2, 3)}) == {2, 3}
    assert values({"x": "b"}, {"x": tune.choice(["a", "b", "c"])}) == {"a", "c"}


def test_an_option_that_is_not_listed_is_chosen_anew():
    assert values({"x": 7}, {"x": [1, 2, 3]}) == {1, 2, 3}
    assert values({"x": 2}, {"x": [1, 2, 3]}, resample_probability=1.0) == {1, 2, 3}


def test_numbers_are_multiplied_by_a_factor():
    assert values({"x": 10.0}, {"x": tune.uniform(0, 1)}) == {12.0, 8.0}
    assert values({"x": 10.0}, {"x": lambda: 3.0}) == {12.0, 8.0}
    assert values({"x": 10.0}, {"x": tune.uniform(0, 1)}, factors=(0.5,)) == {5.0}


def test_an_int_stays_an_int():
    assert values({"x": 4}, {"x": tune.randint(1, 9)}) == {4, 3}
    assert all(type(each["x"]) is int for each in outcomes({"x": 4}, {"x": tune.randint(1, 9)}))
    drawn = outcomes({"x": 4}, {"x": tune.uniform(5, 9)}, resample_probability=1.0)
    assert all(type(each["x"]) is int for each in drawn)


def test_resampling_draws_from_the_domain():
    drawn = values({"x": 100.0}, {"x": tune.uniform(0, 1)}, resample_probability=1.0)
    assert len(drawn) > 100
    assert all(0 <= value < 1 for value in drawn)


def test_what_cannot_be_multiplied_is_drawn_anew():
    assert values({"x": "a"}, {"x": lambda: "b"}) == {"b"}
    assert values({"x": None}, {"x": lambda: 1.5}) == {1.5}
    assert values({"x": True}, {"x": lambda: False}) == {False}


def test_nested_values_are_mutated_and_others_are_left_alone():
    config = {"net": {"width": 10.0, "kind": "cnn"}, "data": {"__object__": "data", "type": "a.B"}, "lr": 1}
    mutated = outcomes(config, {"net": {"width": tune.uniform(0, 1)}})
    assert {each["net"]["width"] for each in mutated} == {12.0, 8.0}
    assert all({**each, "net": config["net"]} == config for each in mutated)
    assert config["net"]["width"] == 10.0


def test_the_same_random_numbers_give_the_same_config():
    mutations = {"a": tune.loguniform(1e-4, 1), "b": [1, 2, 3], "c": lambda: random.random() + numpy.random.rand()}
    config = {"a": 0.1, "b": 1, "c": 0.5}
    first = outcomes(config, mutations, resample_probability=0.5)
    assert first == outcomes(config, mutations, resample_probability=0.5)
    assert len({each["c"] for each in first}) > 50


def test_global_random_numbers_are_left_as_they_were():
    random.seed(3)
    numpy.random.seed(3)
    expected = random.random(), numpy.random.rand()
    random.seed(3)
    numpy.random.seed(3)
    outcomes({"x": "a"}, {"x": lambda: random.random() + numpy.random.rand()}, tries=1)
    assert (random.random(), numpy.random.rand()) == expected


def test_missing_keys_are_filled_in_and_named():
    mutations = prepare({"lr": tune.uniform(1, 2), "net": {"width": [16, 32], "depth": lambda: 3}, "there": [1]})
    config = {"net": {"width": 8}, "there": None}
    filled, missing = fill(config, mutations, Rng([1]))
    assert missing == ["lr", "net/depth"]
    assert 1 <= filled["lr"] < 2
    assert filled["net"] == {"width": 8, "depth": 3}
    assert filled["there"] is None
    assert config == {"net": {"width": 8}, "there": None}


def test_a_mutation_below_a_value_that_is_no_dict_is_refused():
    with pytest.raises(InvalidInputError, match="no dict"):
        fill({"net": 3}, prepare({"net": {"width": [1]}}), Rng([1]))


@pytest.mark.parametrize("value", [3, 1.5, "abc", None])
def test_a_mutation_that_nothing_can_be_drawn_from_is_refused(value):
    for mutations in ({"x": value}, {"net": {"x": value}}):
        with pytest.raises(InvalidTypeError, match="x"):
            prepare(mutations)


@pytest.mark.parametrize(
    "value", [tune.sample_from(lambda spec: 1), tune.grid_search([1, 2]), [], [object()], tune.choice([object()])]
)
def test_mutations_that_would_not_do_what_they_say_are_refused(value):
    with pytest.raises(InvalidInputError, match="'x'"):
        prepare({"x": value})


def test_mutations_must_be_a_dict():
    with pytest.raises(InvalidTypeError, match="hyperparam_mutations"):
        prepare([1, 2])


def test_values_become_plain_data_or_are_refused():
    value = (1, {"a": numpy.float64(0.5), ("a", 1): {2}}, [numpy.int64(3), 1 << 64])
    assert unpack(plain(value, "x")) == value
    for other in (object(), {object()}, [{"a": object}], {object: 1}):
        with pytest.raises(InvalidInputError):
            plain(other, "x")
    with pytest.raises(InvalidInputError, match="not plain data"):
        outcomes({"x": "a"}, {"x": object})


def test_a_custom_function_sees_objects_and_may_keep_them():
    data = object()
    config = {"lr": 1.0, "data": {"__object__": "data", "type": "builtins.object"}, "more": [{"a": 1}]}
    given = []

    def double(config):
        given.append(config["data"])
        config["lr"] *= 2
        config["also"] = [config["data"]]
        return config

    changed = explore_with(double, config, Rng([1]), {"data": data})
    assert given == [data]
    assert changed == {**config, "lr": 2.0, "also": [config["data"]]}
    assert config["lr"] == 1.0


def test_a_custom_function_draws_the_same_numbers_each_time():
    def jump(config):
        return {"x": random.random(), "y": numpy.random.rand()}

    first = explore_with(jump, {}, Rng([1]), None)
    assert first == explore_with(jump, {}, Rng([1]), None)
    assert first != explore_with(jump, {}, Rng([2]), None)


def test_a_custom_function_must_return_a_config():
    with pytest.raises(InvalidInputError, match="returned None"):
        explore_with(lambda config: config.update(x=1), {"x": 0}, Rng([1]), None)
    with pytest.raises(InvalidInputError, match="custom_explore_fn at 'x' gave"):
        explore_with(lambda config: {"x": object()}, {"x": 0}, Rng([1]), None)
    with pytest.raises(InvalidInputError, match="custom_explore_fn raised KeyError"):
        explore_with(lambda config: config["y"], {"x": 0}, Rng([1]), None)


def test_the_tag_shows_what_is_mutated():
    config = {"lr": 0.12345678, "net": {"width": 8}, "other": 1}
    mutations = prepare({"lr": tune.uniform(0, 1), "net": {"width": [8]}})
    assert perturbed_tag("3_lr=1", config, mutations) == "3_lr=1@perturbed[lr=0.1235,width=8]"
    assert perturbed_tag("3", config, {}) == "3@perturbed[]"
