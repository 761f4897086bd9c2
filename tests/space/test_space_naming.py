"""Names of trials, tags and directories."""

import pytest

from holdfast.errors import InvalidInputError
from holdfast.space.naming import experiment_tag, format_vars, trial_dirname, trial_id, trial_name
from holdfast.space.objects import make_marker


def test_the_tag_lists_values_by_path_with_four_digits():
    assert format_vars({"lr": 0.12345678, "w": "a b/c", "k": True}) == "k=True,lr=0.1235,w=a_b_c"
    assert experiment_tag(3, {"lr": 0.12345678, "w": "a b/c", "k": True}) == "3_k=True,lr=0.1235,w=a_b_c"


def test_the_tag_shows_the_last_part_of_each_path_only():
    assert experiment_tag(0, {"z": 1, "net/width": 64, "net/act": None}) == "0_act=None,width=64,z=1"


def test_a_tag_without_values_is_the_number():
    assert experiment_tag(12, {}) == "12"


def test_unusual_values_become_safe_text():
    assert format_vars({"a": [1, 2], "b": {"x": "y"}, "c": "(x)", "d": -3, "e": -0.5}) == (
        "a=1_2,b=x_y,c=x,d=-3,e=-0.5000"
    )


def test_objects_are_shown_by_class_and_option_not_by_address():
    assert format_vars({"data": make_marker("data/1", Exception())}) == "data=Exception_1"
    assert format_vars({"data": object()}) == "data=object"


def test_trial_ids_have_five_hex_digits_and_a_counter():
    assert trial_id("a1b2c", 0) == "a1b2c_00000"
    assert trial_id("00000", 123456) == "00000_123456"
    for bad in ("xyz12", "a1b2", "A1B2C", "a1b2c3"):
        with pytest.raises(InvalidInputError, match=bad):
            trial_id(bad, 0)


def test_a_directory_is_named_by_trainable_id_tag_and_date():
    name = trial_name("train", trial_id("a1b2c", 1))
    assert name == "train_a1b2c_00001"
    assert trial_dirname(name, "1_lr=0.1", "2024-01-02_03-04-05") == "train_a1b2c_00001_1_lr=0.1_2024-01-02_03-04-05"


def test_the_tag_in_a_directory_name_is_cut():
    assert trial_dirname("t_1", "x" * 500, "D") == f"t_1_{'x' * 130}_D"
    assert trial_dirname("t_1", "abcdef", "D", max_len_identifier=3) == "t_1_abc_D"


def test_slashes_and_brackets_become_underscores():
    assert trial_dirname("my/(fn)_1", "1_a=(2)", "D") == "my__fn__1_1_a=_2__D"


def test_a_directory_name_fits_into_a_file_system():
    for name in ("t" * 100, "ü" * 80):
        dirname = trial_dirname(f"{name}_a1b2c_00001", "é" * 130, "2024-01-02_03-04-05")
        assert len(dirname.encode()) <= 250
        assert dirname.endswith("_2024-01-02_03-04-05")
        assert "a1b2c_00001" in dirname
