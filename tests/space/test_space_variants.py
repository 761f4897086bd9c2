"""Variants: their order, random access by mark, objects, and points to evaluate."""

import json
import random
import warnings

import numpy as np
import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.space import (
    Rng,
    VariantPlan,
    choice,
    grid_search,
    loguniform,
    restore_objects,
    sample_from,
    uniform,
)


class Dataset:
    """Something that is not plain data."""


def plan(space, num_samples=1, seed=42, **options):
    return VariantPlan(space, seed=seed, num_samples=num_samples, **options)


def variants(of, limit=10_000):
    found, mark = [], None
    while len(found) < limit and (variant := of.next(mark)) is not None:
        found.append(variant)
        mark = variant.mark
    return found


def configs(of, limit=10_000):
    return [variant.config for variant in variants(of, limit)]


def test_the_first_grid_by_path_varies_fastest():
    space = {"a": grid_search([1, 2]), "b": {"c": grid_search([10, 20])}, "l": [grid_search(["x", "y"]), 3]}
    p = plan(space)
    assert [(c["a"], c["b"]["c"], c["l"][0]) for c in configs(p)] == [
        (1, 10, "x"),
        (2, 10, "x"),
        (1, 20, "x"),
        (2, 20, "x"),
        (1, 10, "y"),
        (2, 10, "y"),
        (1, 20, "y"),
        (2, 20, "y"),
    ]
    assert p.total == 8
    assert [v.mark for v in variants(p)] == [[0, cell] for cell in range(8)]


def test_evaluated_lists_what_the_search_chose():
    space = {"b": {"c": grid_search([10])}, "a": choice([5]), "l": [grid_search(["x"]), 3], "fixed": 1}
    assert plan(space).next(None).evaluated == {"a": 5, "b/c": 10, "l/0": "x"}


def test_a_chosen_dict_is_evaluated_leaf_by_leaf():
    space = {"opt": choice([{"name": "sgd", "lr": uniform(2, 2), "more": {}}])}
    assert plan(space).next(None).evaluated == {"opt/name": "sgd", "opt/lr": 2.0, "opt/more": {}}


def test_samples_repeat_the_whole_grid_and_redraw_random_values():
    p = plan({"g": grid_search([1, 2]), "x": uniform(0, 1)}, num_samples=3)
    found = configs(p)
    assert p.total == len(found) == 6
    assert [c["g"] for c in found] == [1, 2] * 3
    assert len({c["x"] for c in found}) == 6


def test_constant_grid_search_draws_once_a_sample():
    p = plan({"g": grid_search([1, 2]), "x": uniform(0, 1)}, num_samples=3, constant_grid_search=True)
    xs = [c["x"] for c in configs(p)]
    assert xs[0] == xs[1]
    assert xs[2] == xs[3]
    assert len(set(xs)) == 3


def test_constant_grid_search_still_lets_functions_see_the_cell():
    space = {"g": grid_search([1, 2]), "x": uniform(0, 1), "y": sample_from(lambda c: c["g"] + c["x"])}
    found = configs(plan(space, constant_grid_search=True))
    assert found[1]["y"] - found[0]["y"] == pytest.approx(1)


def test_random_values_come_from_the_stream_of_the_cell():
    p = plan({"g": grid_search([1, 2]), "x": uniform(0, 1)}, num_samples=3, seed=9)
    assert configs(p)[3]["x"] == Rng([9, 1, 1]).random()


def test_a_space_without_variables_is_repeated():
    p = plan({"x": 1}, num_samples=2)
    assert configs(p) == [{"x": 1}, {"x": 1}]
    assert p.next(None).evaluated == {}


def test_minus_one_goes_on_for_ever():
    p = plan({"x": uniform(0, 1)}, num_samples=-1)
    assert p.total is None
    assert len(configs(p, limit=50)) == 50
    assert p.next([10**9, 0]).mark == [10**9 + 1, 0]


def test_the_variant_after_a_mark_does_not_depend_on_what_was_asked_before():
    space = {
        "g": grid_search([1, 2]),
        "x": uniform(0, 1),
        "f": sample_from(lambda c: grid_search([c["x"], random.random()])),
    }
    in_order = variants(plan(space, num_samples=3))
    fresh = plan(space, num_samples=3)
    marks = [None, *(v.mark for v in in_order)]
    for position in (7, 0, 11, 3, 3, 12):
        expected = in_order[position] if position < 12 else None
        assert fresh.next(marks[position]) == expected
        assert plan(space, num_samples=3).next(json.loads(json.dumps(marks[position]))) == expected


def test_a_grid_of_a_billion_cells_is_entered_anywhere():
    p = plan({f"g{i}": grid_search(range(10)) for i in range(9)})
    assert p.total == 10**9
    variant = p.next([0, 123_456_788])
    assert [variant.config[f"g{i}"] for i in range(9)] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert p.next([0, 10**9 - 2]).config == {f"g{i}": 9 for i in range(9)}
    assert p.next([0, 10**9 - 1]) is None


@pytest.mark.parametrize("mark", [[], [0], [3, 0], [0, 2], [-1, 0], ["0", 0]])
def test_a_mark_of_another_search_is_refused(mark):
    with pytest.raises(InvalidInputError, match="mark"):
        plan({"g": grid_search([1, 2])}, num_samples=3).next(mark)


def test_the_order_of_keys_does_not_matter():
    one = {"b": uniform(0, 1), "a": uniform(0, 1), "c": choice([{"x": uniform(0, 1), "w": uniform(0, 1)}])}
    other = {"c": choice([{"w": uniform(0, 1), "x": uniform(0, 1)}]), "a": uniform(0, 1), "b": uniform(0, 1)}
    assert plan(one).next(None).config == plan(other).next(None).config


def test_other_seeds_give_other_values():
    space = {"x": loguniform(1e-4, 1)}
    assert plan(space, seed=1).next(None).config != plan(space, seed=2).next(None).config


def test_configs_share_nothing_with_the_space_or_each_other():
    space = {"d": {"l": [1]}, "c": choice([{"m": [1]}]), "g": grid_search([[1]])}
    p = plan(space, num_samples=2)
    first, second = variants(p)
    first.config["d"]["l"].append(2)
    first.config["c"]["m"].append(2)
    first.config["g"].append(2)
    assert second.config == {"d": {"l": [1]}, "c": {"m": [1]}, "g": [1]}
    assert p.next(None).config == second.config
    assert first.evaluated["g"] == [1]


def test_tuples_are_spaces_and_stay_tuples():
    found = variants(plan({"t": (grid_search([1, 2]), 3), "c": choice([(1, 2)])}))
    assert [restore_objects(variant.config, {}) for variant in found] == [
        {"t": (1, 3), "c": (1, 2)},
        {"t": (2, 3), "c": (1, 2)},
    ]
    assert found[0].evaluated.keys() == {"t/0", "c"}


def test_keys_may_be_numbers():
    variant = plan({"layers": {1: choice([5]), 2: grid_search([6])}, 3: uniform(0, 1)}).next(None)
    config = restore_objects(variant.config, {})
    assert config["layers"] == {1: 5, 2: 6}
    assert type(config[3]) is float
    assert variant.evaluated.keys() == {"layers/1", "layers/2", "3"}


# Objects


def test_configs_hold_markers_and_functions_see_objects():
    sets = [Dataset(), Dataset()]
    sets[0].rows, sets[1].rows = 10, 20
    space = {
        "data": grid_search(sets),
        "rows": sample_from(lambda c: c["data"].rows),
        "all": sample_from(lambda c: c["data"]),
    }
    p = plan(space)
    found = variants(p)
    assert [v.config["rows"] for v in found] == [10, 20]
    assert found[1].config["data"] == {"__object__": "data/1", "type": f"{__name__}.Dataset"}
    assert found[1].config["all"] == found[1].config["data"]
    assert found[1].evaluated["data"] == found[1].config["data"]
    assert found[1].raw == ()
    assert restore_objects(found[1].config, p.objects)["data"] is sets[1]


def test_a_plan_accepts_a_space_whose_objects_were_taken_out_and_written_anew():
    space = {"data": choice([Dataset()]), "same": sample_from(lambda c: c["data"])}
    old = plan(space)
    new = Dataset()
    p = VariantPlan(old.space, seed=42, num_samples=1, objects={"data/0": new})
    variant = p.next(None)
    assert variant == old.next(None)
    assert restore_objects(variant.config, p.objects)["same"] is new


def test_a_function_that_needs_a_missing_object_names_it():
    old = plan({"data": Dataset(), "rows": sample_from(lambda c: c["data"].rows)})
    with pytest.raises(InvalidInputError, match="param_space"):
        VariantPlan(old.space, seed=1, num_samples=1, objects={}).next(None)


def test_objects_that_functions_return_stay_and_are_listed():
    space = {"n": {"a": sample_from(lambda: {"k": [np.zeros(2), 1]})}, "b": sample_from(lambda: choice([Dataset()]))}
    variant = plan(space).next(None)
    assert variant.raw == ("n/a/k/0", "b")
    assert isinstance(variant.config["b"], Dataset)


def test_numbers_that_functions_return_keep_their_types():
    space = {"a": sample_from(lambda: np.float64(0.5)), "b": sample_from(lambda: (np.int64(1), 2))}
    variant = plan(space).next(None)
    config = restore_objects(variant.config, {})
    assert config == {"a": 0.5, "b": (1, 2)}
    assert type(config["a"]) is np.float64
    assert type(config["b"][0]) is np.int64
    assert variant.raw == ()


# Points to evaluate


def test_points_come_first_and_may_leave_keys_out():
    p = plan({"x": uniform(0, 1), "n": {"y": uniform(0, 1)}}, num_samples=3, points_to_evaluate=[{"n": {"y": 0.5}}, {}])
    found = variants(p)
    assert len(found) == p.total == 3
    assert found[0].config["n"]["y"] == 0.5
    assert found[0].evaluated == {"n/y": 0.5, "x": found[0].config["x"]}
    assert len({v.config["n"]["y"] for v in found}) == 3


def test_points_may_fix_grids():
    space = {
        "grid_1": grid_search(["a", "b", "c", "d"]),
        "grid_2": grid_search(["x", "y", "z"]),
        "n": {"random": uniform(2, 10), "dependent": sample_from(lambda c: -c["n"]["random"])},
    }
    points = [{"grid_1": "b"}, {"grid_2": "z"}, {"grid_1": "a", "grid_2": "y"}, {"n": {"random": 8.0}}]
    found = configs(plan(space, num_samples=6, points_to_evaluate=points))
    assert len(found) == 3 + 4 + 1 + 12 + 2 * 12
    assert [c["grid_2"] for c in found[:3]] == ["x", "y", "z"]
    assert {c["grid_1"] for c in found[:3]} == {"b"}
    assert {c["n"]["dependent"] for c in found[8:20]} == {-8.0}
    no_function = {key: space[key] for key in ("grid_1", "grid_2")}
    assert plan(no_function, num_samples=6, points_to_evaluate=points[:3]).total == 3 + 4 + 1 + 3 * 12


def test_all_points_are_used_even_if_there_are_more_than_samples():
    p = plan({"x": uniform(0, 9)}, num_samples=1, points_to_evaluate=[{"x": 1}, {"x": 2}])
    assert [c["x"] for c in configs(p)] == [1, 2]
    assert p.total == 2


def test_points_may_choose_an_option_that_is_a_space():
    space = {"opt": choice([{"name": "sgd", "lr": uniform(0, 1)}, {"name": "adam"}])}
    p = plan(space, points_to_evaluate=[{"opt": {"name": "sgd", "lr": 0.5}}])
    assert p.next(None).config == {"opt": {"name": "sgd", "lr": 0.5}}


def test_points_may_replace_a_domain_by_another():
    assert 5 <= plan({"x": uniform(0, 1)}, points_to_evaluate=[{"x": uniform(5, 6)}]).next(None).config["x"] < 6


def test_points_may_set_list_elements():
    p = plan({"l": [uniform(0, 1), grid_search([1, 2])]}, points_to_evaluate=[{"l": [0.5, 2]}])
    assert configs(p) == [{"l": [0.5, 2]}]


@pytest.mark.parametrize("point", [{"y": 1}, {"n": {"z": 1}}, {"n": {"x": 0.5, "z": {"w": 1}}}])
def test_a_point_with_a_key_that_the_space_lacks_is_refused(point):
    with pytest.raises(ValueError, match="does not correspond to a valid key"):
        plan({"n": {"x": uniform(0, 1)}}, points_to_evaluate=[point])


@pytest.mark.parametrize(
    ("space", "point"),
    [
        ({"x": uniform(0, 1)}, {"x": 5}),
        ({"x": choice([1, 2])}, {"x": 5}),
        ({"x": grid_search([1, 2])}, {"x": 5}),
        ({"x": 3}, {"x": 5}),
        ({"x": {"y": uniform(0, 1)}}, {"x": 5}),
    ],
)
def test_a_point_outside_its_domain_is_used_with_a_warning(space, point):
    with pytest.warns(UserWarning, match="sets 'x' to 5"):
        p = plan(space, points_to_evaluate=[point])
    assert configs(p) == [{"x": 5}]


def test_a_point_inside_its_domain_gives_no_warning():
    space = {"x": uniform(0, 1), "c": 3, "f": sample_from(lambda: 1), "e": {"eval": "1"}, "t": choice([(1, 2)])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = plan(space, points_to_evaluate=[{"x": 1, "c": 3, "f": "any", "e": "any", "t": (1, 2)}])
    assert restore_objects(p.next(None).config, {}) == {"x": 1, "c": 3, "f": "any", "e": "any", "t": (1, 2)}


def test_an_object_in_a_point_is_the_option_it_names():
    data = [Dataset(), Dataset()]
    p = plan({"data": choice(data), "other": choice([1])}, points_to_evaluate=[{"data": data[1]}])
    assert p.next(None).config["data"]["__object__"] == "data/1"


def test_a_new_object_in_a_point_is_kept_with_the_others():
    new = Dataset()
    with pytest.warns(UserWarning, match="none of|not within"):
        p = plan({"data": choice([Dataset()])}, points_to_evaluate=[{}, {"data": new}])
    assert restore_objects(p.next([0, 0]).config, p.objects) == {"data": new}


@pytest.mark.parametrize("points", [{"x": 1}, [1], "x"])
def test_points_must_be_a_list_of_dicts(points):
    with pytest.raises(InvalidTypeError, match="list of dicts"):
        plan({"x": 1}, points_to_evaluate=points)


# Arguments


@pytest.mark.parametrize("num_samples", [0, -2, 1.5, True, "3"])
def test_an_impossible_number_of_samples_is_refused(num_samples):
    with pytest.raises(InvalidInputError, match="num_samples"):
        plan({}, num_samples=num_samples)


def test_a_space_must_be_a_dict():
    with pytest.raises(InvalidTypeError, match="list"):
        plan([1])


@pytest.mark.parametrize("options", [5, [], {1, 2}])
def test_a_grid_written_as_a_dict_is_checked_too(options):
    with pytest.raises((InvalidInputError, InvalidTypeError), match="grid_search at 'n/g'"):
        plan({"n": {"g": {"grid_search": options}}})


def test_a_dict_with_more_keys_is_no_grid():
    space = {"d": {"grid_search": [1, 2], "other": 1}, "e": {"eval": "1/0", "other": 1}}
    assert configs(plan(space)) == [space]
