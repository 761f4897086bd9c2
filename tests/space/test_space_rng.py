"""The generator: NumPy's numbers without NumPy, and independent streams."""

import random

import numpy as np
import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.space import Rng, choice, loguniform, randint, randn, uniform
from holdfast.space.rng import as_random_source, seed_from

SEEDS = [0, 1, 42, 2**32 - 1, 2**32, 2**70 + 5, 2**200, [1, 2, 3], [42, 0, 0], [1, 2, 3, 4, 5, 6], [2**40, 3, 2**33]]
SPANS = [1, 2, 3, 100, 2**31 + 7, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**62 + 2**61 + 1, 2**63]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_gives_the_numbers_of_numpy(seed):
    ours, numpys, pick = Rng(seed), np.random.default_rng(seed), random.Random(7)
    for _ in range(200):
        kind = pick.randrange(3)
        if kind == 0:
            assert ours.random() == numpys.random()
        elif kind == 1:
            assert ours.uniform(-3, 7.5) == numpys.uniform(-3, 7.5)
        else:
            low, span = pick.choice([0, -5, -(2**63)]), pick.choice(SPANS)
            assert ours.integers(low, low + span) == numpys.integers(low, low + span)


def test_the_numbers_of_seed_42_are_these():
    assert Rng(42).uniform(0, 1) == 0.7739560485559633
    assert uniform(0, 1).sample(random_state=42) == 0.7739560485559633
    assert randint(0, 100).sample(random_state=42) == 8
    assert loguniform(1e-3, 1).sample(random_state=42) == 0.2098302729986613
    assert choice("abcd").sample(random_state=42) == "a"


def test_normal_deviates_have_the_mean_and_spread_asked_for():
    rng = Rng(5)
    values = [rng.normal(3.0, 2.0) for _ in range(20_000)]
    assert abs(np.mean(values) - 3.0) < 0.05
    assert abs(np.std(values) - 2.0) < 0.05


def test_ranges_beyond_64_bits_are_covered():
    rng = Rng(1)
    values = [rng.integers(-(10**30), 10**30) for _ in range(200)]
    assert all(-(10**30) <= value < 10**30 for value in values)
    assert max(values) > 5 * 10**29
    assert min(values) < -5 * 10**29


def test_an_empty_range_is_refused():
    with pytest.raises(InvalidInputError, match=r"integers\(3, 3\)"):
        Rng(0).integers(3, 3)


@pytest.mark.parametrize("seed", ["abc", 1.5, [1, "b"], object()])
def test_a_seed_that_is_no_number_is_refused(seed):
    with pytest.raises(InvalidTypeError, match="seed"):
        Rng(seed)


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidInputError, match="-1"):
        Rng(-1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: Rng(3),
        lambda: random.Random(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
        lambda: np.int64(3),
        lambda: [3, 4],
    ],
)
@pytest.mark.parametrize("domain", [uniform(2, 5), randint(2, 5), loguniform(1, 5), choice([2, 3, 4]), randn(3, 0.01)])
def test_every_kind_of_random_state_is_reproducible(make, domain):
    first = domain.sample(size=20, random_state=make())
    assert first == domain.sample(size=20, random_state=make())
    assert all(1 <= value <= 5 and type(value) in (int, float) for value in first)


def test_without_a_random_state_entropy_is_fresh():
    assert uniform(0, 1).sample() != uniform(0, 1).sample()


def test_sampling_leaves_global_random_state_alone():
    random_before, numpy_before = random.getstate(), np.random.get_state()
    for domain in (uniform(0, 1), randint(0, 9), choice([1, 2]), randn()):
        domain.sample(size=3)
        domain.sample(size=3, random_state=1)
    assert random.getstate() == random_before
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_before, strict=True))


def test_a_numpy_generator_gives_the_same_draw_as_its_seed():
    generator = np.random.default_rng(42)
    assert uniform(0, 1).sample(random_state=generator) == uniform(0, 1).sample(random_state=42)


def test_a_seed_can_be_taken_from_a_generator():
    assert seed_from(7) == 7
    assert seed_from(np.int32(7)) == 7
    for make in (random.Random, np.random.default_rng, np.random.RandomState, Rng):
        assert seed_from(make(5)) == seed_from(make(5))
    generator = np.random.default_rng(5)
    assert seed_from(generator) != seed_from(generator)


@pytest.mark.parametrize("value", [None, True, "x", [1], 1.5])
def test_a_seed_cannot_be_taken_from_anything_else(value):
    with pytest.raises(InvalidTypeError):
        seed_from(value)


def test_choice_picks_each_option_sometimes():
    rng = Rng(0)
    assert {rng.choice("abc") for _ in range(50)} == set("abc")
    assert as_random_source(rng) is rng
