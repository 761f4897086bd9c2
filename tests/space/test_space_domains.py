"""Domains: what each primitive yields, accepts and refuses."""

import pickle
from collections import Counter
from math import inf, nan

import numpy as np
import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.space import (
    Categorical,
    Float,
    Function,
    Integer,
    LogUniform,
    Normal,
    Quantized,
    Uniform,
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


def seen(domain, n=2000):
    return set(domain.sample(size=n, random_state=3))


def test_uniform_stays_below_its_upper_bound():
    values = seen(uniform(-2, 3))
    assert all(-2 <= value < 3 for value in values)
    assert min(values) < -1.9
    assert max(values) > 2.9


def test_uniform_over_two_neighbouring_floats_yields_the_lower():
    upper = np.nextafter(1.0, 2.0)
    assert seen(uniform(1.0, upper)) == {1.0}
    assert seen(uniform(5, 5), 3) == {5.0}


def test_quniform_reaches_both_bounds():
    assert seen(quniform(0, 1, 0.25)) == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_quantized_floats_have_no_rounding_noise():
    assert seen(quniform(0, 1, 0.1)) == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}


def test_loguniform_gives_each_decade_the_same_weight():
    values = loguniform(1e-4, 1).sample(size=8000, random_state=1)
    assert all(1e-4 <= value <= 1 for value in values)
    decades = Counter(int(np.floor(np.log10(value))) for value in values)
    assert all(abs(count - 2000) < 200 for count in decades.values())


def test_qloguniform_is_rounded_and_inclusive():
    values = seen(qloguniform(1, 10, 0.5), 5000)
    assert {1.0, 10.0} <= values
    assert all(value * 2 == int(value * 2) for value in values)


def test_randn_and_qrandn_follow_mean_and_sd():
    assert abs(np.mean(randn(10, 2).sample(size=5000, random_state=1)) - 10) < 0.2
    values = qrandn(10, 2, 0.5).sample(size=5000, random_state=1)
    assert abs(np.std(values) - 2) < 0.2
    assert all(value * 2 == int(value * 2) for value in values)


def test_randint_leaves_the_upper_bound_out():
    assert seen(randint(0, 5)) == {0, 1, 2, 3, 4}


def test_qrandint_includes_the_upper_bound_unless_q_is_one():
    assert seen(qrandint(0, 10, 5)) == {0, 5, 10}
    assert seen(qrandint(0, 3, 1)) == {0, 1, 2}
    assert seen(qrandint(0, 3)) == {0, 1, 2}


def test_qrandint_favours_no_multiple():
    counts = Counter(qrandint(0, 4, 2).sample(size=3000, random_state=1))
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_qrandint_keeps_to_multiples_inside_bounds_that_are_none():
    assert seen(qrandint(1, 11, 5)) == {5, 10}


def test_lograndint_leaves_the_upper_bound_out_and_qlograndint_includes_it():
    assert seen(lograndint(1, 10)) == set(range(1, 10))
    assert seen(qlograndint(10, 100, 10)) == set(range(10, 101, 10))
    assert seen(qlograndint(1, 4, 1)) == {1, 2, 3}


def test_integers_are_python_ints_of_any_size():
    value = randint(10**25, 10**25 + 9).sample(random_state=1)
    assert type(value) is int
    assert 10**25 <= value < 10**25 + 9


def test_choice_keeps_the_type_of_its_options():
    options = [1, "a", None, True, (3, 4), 2.5]
    assert {repr(value) for value in choice(options).sample(size=300, random_state=1)} == set(map(repr, options))


def test_sample_from_takes_the_config_or_nothing():
    assert sample_from(lambda: 5).sample() == 5
    assert sample_from(lambda config: config["x"] + 1).sample(config={"x": 2}) == 3
    assert sample_from(lambda config, i=4: i).sample() == 4
    assert sample_from(lambda *args: len(args)).sample() == 1
    assert sample_from(lambda **kwargs: len(kwargs)).sample() == 0
    assert sample_from(lambda config: 1).sample(size=2) == [1, 1]


@pytest.mark.parametrize("func", [lambda a, b: 1, lambda a, *, b: 1, lambda *, b: 1])
def test_a_sample_from_function_with_more_arguments_is_refused(func):
    with pytest.raises(ValueError, match="takes no argument or one"):
        sample_from(func)


def test_sample_from_needs_a_function():
    with pytest.raises(TypeError, match=r"sample_from needs a function, got 3"):
        sample_from(3)


def test_sizes_give_lists():
    assert isinstance(uniform(0, 1).sample(), float)
    assert len(uniform(0, 1).sample(size=2)) == 2
    with pytest.raises(InvalidInputError, match="size"):
        uniform(0, 1).sample(size=0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: uniform(2, 1), "lower=2 and upper=1"),
        (lambda: randint(2, 1), "lower=2 and upper=1"),
        (lambda: uniform(nan, 1), "NaN"),
        (lambda: uniform(-inf, 1), "finite"),
        (lambda: uniform(-1.7e308, 1.7e308), "finite"),
        (lambda: Float(None, 1).uniform(), "randn"),
        (lambda: Float(None, 1).sample(), "randn"),
        (lambda: Float(None, None).quantized(1), "randn"),
        (lambda: loguniform(0, 1), "lower=0"),
        (lambda: loguniform(-4, -1), "1e-4 rather than -4"),
        (lambda: loguniform(1, inf), "upper=inf"),
        (lambda: lograndint(0, 10), "lower=0"),
        (lambda: lograndint(1, 10**400), "upper="),
        (lambda: randint(3, 3), "upper=4"),
        (lambda: lograndint(3, 3), "upper=4"),
        (lambda: qrandint(3, 3), "upper=4"),
        (lambda: randint(0.5, 3), r"lower must be a whole number, got 0.5"),
        (lambda: quniform(0, 1, 0.3), r"upper=1 is not divisible by q=0.3"),
        (lambda: quniform(0.1, 0.5, 0.25), r"lower=0.1 is not divisible"),
        (lambda: quniform(0, 1, 0), "q must be above 0"),
        (lambda: qrandint(0, 10, -5), "q must be at least 1"),
        (lambda: qrandint(1, 4, 5), "No multiple of q=5"),
        (lambda: randn(0, -1), "sd=-1"),
        (lambda: randn(inf, 1), "mean must be finite"),
        (lambda: choice([]), "empty"),
        (lambda: grid_search([]), "empty"),
    ],
)
def test_impossible_domains_are_refused_with_the_value_in_the_message(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: uniform("1", 2), "'1'"),
        (lambda: uniform(True, 2), "True"),
        (lambda: randint(None, 2), "None"),
        (lambda: quniform(0, 1, "q"), "'q'"),
        (lambda: choice(5), r"choice\(\[5\]\)"),
        (lambda: choice({1, 2}), r"choice\(\[1, 2\]\)"),
        (lambda: grid_search({"a": 1}), r"grid_search\(\['a'\]\)"),
        (lambda: grid_search(5), r"grid_search expected a list of values, got 5"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(build, words):
    with pytest.raises(InvalidTypeError, match=words):
        build()


def test_numpy_numbers_are_accepted_as_bounds():
    assert type(randint(np.int64(1), np.int32(4)).lower) is int
    assert type(uniform(np.float32(1), np.float64(4)).sample(random_state=1)) is float
    assert randint(1.0, 4.0).upper == 4


@pytest.mark.parametrize("build", [loguniform, lograndint])
def test_the_base_of_a_logarithm_is_accepted_with_a_warning(build):
    with pytest.warns(DeprecationWarning, match="base"):
        domain = build(1, 100, 2)
    assert 1 <= domain.sample(random_state=1) < 100


def test_a_domain_has_one_sampler():
    with pytest.raises(ValueError, match="one sampler"):
        Float(1, 2).uniform().loguniform()
    with pytest.raises(ValueError, match="one sampler"):
        Integer(1, 2).loguniform().uniform()
    with pytest.raises(ValueError, match="one sampler"):
        Float(1, 2).quantized(1).uniform()
    with pytest.raises(ValueError, match="quantized once"):
        Float(1, 2).quantized(1).quantized(1)


def test_samplers_can_be_inspected():
    assert isinstance(Float(0, 1).get_sampler(), Uniform)
    assert isinstance(loguniform(1, 2).get_sampler(), LogUniform)
    sampler = qrandn(3, 2, 0.5).get_sampler()
    assert isinstance(sampler, Quantized)
    assert sampler.q == 0.5
    inner = sampler.get_sampler()
    assert isinstance(inner, Normal)
    assert (inner.mean, inner.sd) == (3, 2)


def test_choosing_a_sampler_leaves_the_domain_as_it_was():
    domain = Float(1, 2)
    domain.loguniform()
    assert domain.sampler is None


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (uniform(0, 1), [0, 0.5, 1, np.float32(0.5)], [-0.1, 1.1, "x", None, True, nan]),
        (quniform(0, 1, 0.25), [0, 0.25, 1], [0.3]),
        (randn(), [-1e9, 0, 3], ["x"]),
        (randint(0, 3), [0, 2, 2.0, np.int64(1)], [3, -1, 1.5, "1", True, inf]),
        (qrandint(0, 10, 5), [0, 5, 10], [3, 15]),
        (choice([1, "a", (2, 3), None]), [1, "a", (2, 3), [2, 3], None], [2, "b", (2, 4)]),
        (choice([uniform(0, 1), {"n": randint(0, 3)}]), [0.5, {"n": 2}], [5, {"n": 3}, {"m": 1}]),
        (choice([grid_search([1, 2])]), [1, 2], [3]),
        (choice([np.array([1, 2])]), [], [np.array([1, 2]), 5]),
        (sample_from(lambda: 1), [1, "anything"], []),
    ],
)
def test_is_valid_says_what_a_domain_can_yield(domain, inside, outside):
    assert all(domain.is_valid(value) for value in inside)
    assert not any(domain.is_valid(value) for value in outside)


def test_domains_describe_themselves():
    assert uniform(0, 1).domain_str == "(0.0, 1.0)"
    assert randint(0, 3).domain_str == "(0, 3)"
    assert choice([1, "a"]).domain_str == "[1, 'a']"
    assert sample_from(len).domain_str == "len()"
    assert repr(quniform(0, 1, 0.5)) == "Float(0.0, 1.0).uniform().quantized(0.5)"
    assert repr(choice(["a"])) == "Categorical(['a']).uniform()"
    assert repr(randn(1, 2)) == "Float(-inf, inf).normal(1.0, 2.0)"
    assert repr(Function(len)) == "Function(len())"


def test_categories_can_be_counted_and_indexed():
    domain = Categorical(range(3))
    assert len(domain) == 3
    assert domain[1] == 1


def test_domains_survive_pickling():
    for domain in (uniform(0, 1), qlograndint(10, 100, 10), choice([1, {"x": randn()}])):
        again = pickle.loads(pickle.dumps(domain))
        assert repr(again) == repr(domain)


def test_a_grid_is_plain_data():
    assert grid_search((1, 2)) == {"grid_search": [1, 2]}
    assert grid_search(range(2)) == {"grid_search": [0, 1]}
