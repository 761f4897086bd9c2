"""Flat keys, variables of a space, and values that are not plain data."""

import enum
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from holdfast.errors import InvalidInputError
from holdfast.space import (
    choice,
    extract_objects,
    find_variables,
    flatten_dict,
    grid_search,
    is_marker,
    restore_objects,
    sample_from,
    unflatten_dict,
    uniform,
)


class Dataset:
    """Something that is not plain data."""


def test_flat_keys_join_nested_ones_and_empty_dicts_vanish():
    assert flatten_dict({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a/b": 1, "d": [1]}
    assert flatten_dict({"a": {"b": 1}}, delimiter=".") == {"a.b": 1}
    assert flatten_dict({"a": [1, {"b": 2}]}, flatten_list=True) == {"a/0": 1, "a/1/b": 2}


def test_a_key_with_the_delimiter_is_refused_on_request():
    assert flatten_dict({"a/b": 1}) == {"a/b": 1}
    with pytest.raises(InvalidInputError, match="a/b"):
        flatten_dict({"a/b": 1}, prevent_delimiter=True)


def test_unflatten_undoes_flatten():
    nested = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None}
    assert unflatten_dict(flatten_dict(nested)) == nested


@pytest.mark.parametrize("flat", [{"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}])
def test_a_key_cannot_be_a_value_and_a_dict(flat):
    with pytest.raises(InvalidInputError, match="'a"):
        unflatten_dict(flat)


def test_variables_are_found_at_any_depth_in_path_order():
    space = {"b": uniform(0, 1), "a": {"z": [1, grid_search([1, 2])]}, "c": {"eval": "1"}, "d": 5, "e": {"eval": 1}}
    assert [slot.path for slot in find_variables(space)] == [("a", "z", 1), ("b",), ("c",)]
    assert find_variables({"d": 5, "l": [1, (2, 3)]}) == []


def test_list_positions_are_ordered_as_numbers():
    space = {"l": [uniform(0, 1) for _ in range(12)]}
    assert [slot.path[1] for slot in find_variables(space)] == list(range(12))


def test_objects_are_replaced_by_markers_and_come_back():
    data, other = Dataset(), Dataset()
    space = {"lr": 0.1, "data": data, "deep": {"l": [1, other]}}
    plain, objects = extract_objects(space)
    assert plain["data"] == {"__object__": "data", "type": f"{__name__}.Dataset"}
    assert is_marker(plain["deep"]["l"][1])
    assert objects == {"data": data, "deep/l/1": other}
    assert restore_objects(plain, objects) == space
    assert space["data"] is data


def test_options_of_choices_and_grids_are_named_by_their_index():
    first, second = Dataset(), Dataset()
    plain, objects = extract_objects({"c": choice([1, first]), "g": grid_search([second, {"x": first}])})
    assert objects == {"c/1": first, "g/0": second, "g/1/x": first}
    assert plain["c"].categories == [1, {"__object__": "c/1", "type": f"{__name__}.Dataset"}]
    assert plain["g"]["grid_search"][0]["__object__"] == "g/0"


def test_a_space_written_anew_replaces_the_option_of_the_same_index():
    plain, _ = extract_objects({"data": grid_search([Dataset(), Dataset()])})
    new = [Dataset(), Dataset()]
    _, objects = extract_objects({"data": grid_search(new)})
    config = {"data": plain["data"]["grid_search"][1]}
    assert restore_objects(config, objects)["data"] is new[1]


def test_a_missing_object_is_named():
    plain, _ = extract_objects({"train": {"data": Dataset()}})
    with pytest.raises(InvalidInputError, match=r"param_space=.*'train/data' \(a .*Dataset\)"):
        restore_objects(plain, {})


def test_keys_with_slashes_do_not_share_a_name():
    first, second = Dataset(), Dataset()
    plain, objects = extract_objects({"a/b": first, "a": {"b": second}})
    assert restore_objects(plain, objects) == {"a/b": first, "a": {"b": second}}


def test_numpy_numbers_are_tagged_plain_data():
    space = {"a": np.float64(0.5), "b": np.int32(3), "c": choice(np.arange(3)), "d": np.bool_(True), "e": np.str_("x")}
    plain, objects = extract_objects(space)
    assert objects == {}
    assert [plain[key]["value"] for key in "abde"] == [0.5, 3, True, "x"]
    assert [type(plain[key]["value"]) for key in "abde"] == [float, int, bool, str]
    assert [option["value"] for option in plain["c"].categories] == [0, 1, 2]
    restored = restore_objects({key: plain[key] for key in "abde"}, {})
    assert [type(restored[key]) for key in "abde"] == [np.float64, np.int32, np.bool_, np.str_]


def test_arrays_enums_and_named_tuples_are_objects():
    class Kind(enum.IntEnum):
        A = 1

    Point = namedtuple("Point", "x y")
    space = {"a": np.zeros(2), "b": Kind.A, "c": Point(1, 2), "d": b"bytes", "e": 1j, "f": np.complex128(1), "g": len}
    plain, objects = extract_objects(space)
    assert sorted(objects) == list("abcdg")
    assert restore_objects(plain, objects)["b"] is Kind.A


def test_ordered_dicts_and_tuples_are_tagged_plain_data():
    plain, objects = extract_objects({"m": OrderedDict(a=(1, 2)), "c": choice([(1, 2)])})
    two = {"__exact__": "tuple", "value": [1, 2]}
    assert plain["m"] == {"__exact__": "OrderedDict", "value": {"a": two}, "keys": {}}
    assert plain["c"].categories == [two]
    assert objects == {}
    assert restore_objects(plain["m"], {}) == OrderedDict(a=(1, 2))


def test_domains_without_objects_are_kept_as_they_are():
    space = {"a": uniform(0, 1), "b": choice([1, 2]), "c": sample_from(lambda: 1)}
    plain, _ = extract_objects(space)
    assert all(plain[key] is space[key] for key in space)


def test_extracting_twice_changes_nothing():
    plain, _ = extract_objects({"a": Dataset(), "g": grid_search([Dataset()])})
    again, objects = extract_objects(plain)
    assert again == plain
    assert objects == {}
