"""Functions in a space: what they see, what they may return, and the grids that values bring along."""

import copy
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from holdfast.space import (
    RecursiveDependencyError,
    VariantPlan,
    choice,
    grid_search,
    randint,
    restore_objects,
    sample_from,
    uniform,
)


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


def test_functions_see_values_drawn_before_them_whatever_the_order():
    space = {
        "a": sample_from(lambda c: c["b"] + 1),
        "b": sample_from(lambda c: c["n"]["c"] * 2),
        "n": {"c": randint(1, 9)},
        "z": sample_from(lambda: 7),
    }
    config = plan(space).next(None).config
    assert config["b"] == 2 * config["n"]["c"]
    assert config["a"] == config["b"] + 1
    assert config["z"] == 7


def test_functions_see_the_cell_of_the_grid():
    space = {"g": grid_search([1, 2, 3]), "y": sample_from(lambda c: c["g"] ** 2)}
    assert [c["y"] for c in configs(plan(space))] == [1, 4, 9]


def test_functions_may_read_a_list_that_they_are_part_of():
    space = {"l": [uniform(1, 2), sample_from(lambda c: c["l"][0] * 2), sample_from(lambda c: sum(c["l"][:2]))]}
    first, second, third = plan(space).next(None).config["l"]
    assert second == 2 * first
    assert third == first + second


def test_functions_may_use_the_config_as_a_dict():
    def everything(config):
        assert "x" in config
        assert config.get("nothing", 3) == 3
        assert dict(config["d"]) == {**config["d"]} == config["d"].copy() == {"k": 1}
        assert list(config["d"].items()) == [("k", 1)]
        assert list(config["d"].values()) == [1]
        return config.get("x") + config["l"][1]["v"] + len(config["l"] + [1])

    config = (
        plan({"x": choice([10]), "d": {"k": 1}, "l": [1, {"v": 5}], "y": sample_from(everything)}).next(None).config
    )
    assert config["y"] == 18


def test_a_function_may_go_through_all_other_values():
    def count(config):
        assert {**config} == dict(config) == copy.deepcopy(config) == pickle.loads(pickle.dumps(config))
        return sorted(config), sum(config.values())

    variant = plan({"b": sample_from(count), "c": sample_from(lambda: 3), "a": choice([2])}).next(None)
    assert restore_objects(variant.config, {}) == {"a": 2, "b": (["a", "c"], 5), "c": 3}


def test_functions_that_go_through_each_other_are_circular():
    space = {"a": sample_from(lambda c: len(c.values())), "b": sample_from(lambda c: len({**c}))}
    with pytest.raises(RecursiveDependencyError, match="'a', 'b'"):
        plan(space).next(None)


def test_what_a_function_does_to_its_config_stays_with_it():
    def greedy(config):
        config["x"] = 0
        config["d"]["k"] = 0
        return 1

    assert plan({"x": 1, "d": {"k": 1}, "y": sample_from(greedy)}).next(None).config == {"x": 1, "d": {"k": 1}, "y": 1}


def test_a_function_written_for_a_spec_works_with_one_warning():
    space = {
        "n": {"x": choice([4])},
        "y": sample_from(lambda spec: spec.config.n.x * 2),
        "z": sample_from(lambda spec: spec["config"]["n"]["x"]),
    }
    p = plan(space, num_samples=3)
    with pytest.warns(DeprecationWarning, match=r"config\['x'\]") as caught:
        found = configs(p)
    assert found == [{"n": {"x": 4}, "y": 8, "z": 4}] * 3
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_value_named_config_is_read_as_itself():
    assert plan({"config": 3, "y": sample_from(lambda c: c["config"] + c.config)}).next(None).config["y"] == 6


def test_legacy_expressions_are_evaluated():
    space = {
        "x": choice([3]),
        "y": {"eval": "spec.config.x * 2"},
        "z": {"eval": "random.random() + sum([np.pi for _ in range(2)])"},
    }
    config = plan(space).next(None).config
    assert config["y"] == 6
    assert type(config["z"]) is float
    assert config == plan(space).next(None).config


def test_functions_that_wait_for_each_other_are_named():
    space = {"a": sample_from(lambda c: c["b"]), "b": sample_from(lambda c: c["a"]), "c": uniform(0, 1)}
    with pytest.raises(RecursiveDependencyError, match="'a', 'b'"):
        plan(space).next(None)


def test_a_function_that_waits_for_itself_is_named_even_if_it_catches_everything():
    def stubborn(config):
        try:
            return config["a"]
        except Exception:
            return 1

    with pytest.raises(RecursiveDependencyError, match="'a'"):
        plan({"a": sample_from(stubborn)}).next(None)


def test_a_function_that_returns_itself_for_ever_is_stopped():
    def again():
        return sample_from(again)

    with pytest.raises(RecursiveDependencyError, match="20 passes"):
        plan({"a": sample_from(again)}).next(None)


def test_a_grid_that_brings_along_itself_for_ever_is_stopped():
    def again():
        return grid_search([sample_from(again)])

    with pytest.raises(RecursiveDependencyError, match="20 times"):
        plan({"a": sample_from(again)}).next(None)


@pytest.mark.parametrize("func", [lambda: 1 / 0, lambda c: c["missing"], lambda c: c.missing, lambda c: c["d"]["k"].x])
def test_a_failing_function_is_named_with_its_place(func):
    with pytest.raises(ValueError, match="Failed to evaluate expression at 'n/f'"):
        plan({"n": {"f": sample_from(func)}, "d": {"k": 1}}).next(None)


def test_a_failing_expression_is_shown():
    with pytest.raises(ValueError, match=r"Failed to evaluate expression at 'y': \(1/0\)"):
        plan({"y": {"eval": "1/0"}}).next(None)


def test_functions_may_return_domains_and_spaces():
    space = {"y": sample_from(lambda: uniform(5, 6)), "z": sample_from(lambda: {"k": randint(0, 3), "c": 1})}
    config = plan(space).next(None).config
    assert 5 <= config["y"] < 6
    assert config["z"]["k"] in (0, 1, 2)
    assert config == plan(space).next(None).config


def test_functions_may_draw_from_global_generators_and_leave_them_as_they_were():
    space = {
        "x": sample_from(lambda _: np.random.uniform()),
        "y": sample_from(lambda: random.random()),
        "z": sample_from(lambda _: np.random.uniform()),
    }
    random.seed(1)
    np.random.seed(1)
    random_before, numpy_before = random.getstate(), np.random.get_state()
    found = variants(plan(space, num_samples=3))
    assert random.getstate() == random_before
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_before, strict=True))
    random.seed(2)
    np.random.seed(2)
    assert plan(space, num_samples=3).next(found[0].mark) == found[1]
    assert len({value for v in found for value in v.config.values()}) == 9


def test_global_generators_are_put_back_after_a_failure():
    before = random.getstate()
    with pytest.raises(ValueError):
        plan({"y": sample_from(lambda: random.random() / 0)}).next(None)
    assert random.getstate() == before


def test_a_function_that_imports_numpy_first_is_reproducible_too():
    """The first call loads NumPy, whose generator then has a random state that nobody seeded."""
    script = (
        "import sys\n"
        "from holdfast.space import VariantPlan, sample_from\n"
        "assert 'numpy' not in sys.modules\n"
        "def draw():\n    import numpy\n    return numpy.random.uniform()\n"
        "plan = VariantPlan({'x': sample_from(draw)}, seed=1, num_samples=2)\n"
        "first = plan.next(None)\n"
        "assert first == plan.next(None)\n"
        "print(first.config['x'])\n"
    )
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in "ab"]
    assert runs[0].stdout == runs[1].stdout


# Grids that values bring along


def test_a_function_may_return_a_grid():
    space = {"n": grid_search([1, 2]), "y": sample_from(lambda c: grid_search(range(c["n"] + 1))), "x": uniform(0, 1)}
    p = plan(space, num_samples=2)
    found = variants(p)
    assert [(v.config["n"], v.config["y"]) for v in found] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)] * 2
    assert [v.mark for v in found][:5] == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [0, 1, 2]]
    assert p.total is None


def test_functions_may_wait_for_a_grid_that_a_function_returned():
    space = {"a": sample_from(lambda c: c["y"] * 10), "y": sample_from(lambda: grid_search([1, 2]))}
    assert configs(plan(space)) == [{"a": 10, "y": 1}, {"a": 20, "y": 2}]


def test_options_may_contain_grids_and_domains():
    space = {"g": grid_search([{"p": grid_search([1, 2]), "u": uniform(3, 3)}, "plain", grid_search(["x", "y"])])}
    p = plan(space)
    assert configs(p) == [
        {"g": {"p": 1, "u": 3.0}},
        {"g": {"p": 2, "u": 3.0}},
        {"g": "plain"},
        {"g": "x"},
        {"g": "y"},
    ]
    assert p.total == 5


def test_a_choice_may_contain_a_grid():
    p = plan({"c": choice([grid_search([1, 2]), 3])}, num_samples=20)
    found = [c["c"] for c in configs(p)]
    assert p.total is None
    assert found.count(1) == found.count(2) > 0
    assert found.count(3) == 20 - found.count(1)
    assert plan({"c": choice([grid_search([1, 2]), grid_search([3, 4])])}, num_samples=3).total == 6


def test_grids_nest_to_any_level():
    space = {"g": sample_from(lambda: grid_search([{"h": sample_from(lambda: grid_search([1, 2]))}, 5]))}
    found = variants(plan(space))
    assert [v.config["g"] for v in found] == [{"h": 1}, {"h": 2}, 5]
    assert [v.mark for v in found] == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1]]


def test_values_inside_a_grid_that_came_along_are_drawn_anew_for_each_option():
    space = {"o": uniform(0, 1), "g": sample_from(lambda: grid_search([uniform(0, 1), uniform(0, 1)]))}
    first, second = configs(plan(space))
    assert first["o"] == second["o"]
    assert len({first["o"], first["g"], second["g"]}) == 3
    first, second = configs(plan(space, constant_grid_search=True))
    assert first["g"] == second["g"] != first["o"]


def test_several_grids_that_came_along_are_combined():
    space = {"b": sample_from(lambda: grid_search([1, 2])), "a": sample_from(lambda: grid_search([3, 4]))}
    assert [(c["a"], c["b"]) for c in configs(plan(space))] == [(3, 1), (4, 1), (3, 2), (4, 2)]
