"""The default searcher: its settings, and that it satisfies the interface of proposers."""

import random

import numpy as np
import pytest

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search import BasicVariantGenerator, Proposal, Proposer
from holdfast.space import Rng, grid_search, uniform

SPACE = {"x": uniform(0, 1), "g": grid_search([1, 2])}


def propose(proposer: Proposer, after=None) -> Proposal | None:
    return proposer.next(after)


def test_it_proposes_the_variants_of_a_space():
    plan = BasicVariantGenerator().plan(SPACE, num_samples=2, seed=3)
    first = propose(plan)
    assert plan.total == 4
    assert first.config == {"x": Rng([3, 0, 0]).random(), "g": 1}
    assert propose(plan, first.mark).config["g"] == 2


@pytest.mark.parametrize("make", [lambda: 7, lambda: random.Random(7), lambda: np.random.default_rng(7)])
def test_its_own_random_state_wins_over_the_seed_of_the_experiment(make):
    one, other = (BasicVariantGenerator(random_state=make()).plan(SPACE, 1, seed=seed) for seed in (1, 2))
    assert one.next(None) == other.next(None)
    assert one.next(None) != BasicVariantGenerator().plan(SPACE, 1, seed=1).next(None)


def test_a_generator_is_asked_once():
    generator = np.random.RandomState(7)
    searcher = BasicVariantGenerator(random_state=generator)
    state = generator.get_state()[2]
    assert searcher.plan(SPACE, 1, seed=1).next(None) == searcher.plan(SPACE, 1, seed=1).next(None)
    assert generator.get_state()[2] == state


def test_it_passes_its_settings_on():
    searcher = BasicVariantGenerator(points_to_evaluate=[{"x": 0.5}], max_concurrent=3, constant_grid_search=True)
    plan = searcher.plan(SPACE, num_samples=2, seed=1)
    assert searcher.max_concurrent == 3
    assert [plan.next(mark).config["x"] for mark in (None, [0, 0])] == [0.5, 0.5]
    assert plan.next([0, 1]).config["x"] == plan.next([1, 0]).config["x"] != 0.5


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_concurrent": -1}, InvalidInputError),
        ({"max_concurrent": 1.5}, InvalidTypeError),
        ({"max_concurrent": True}, InvalidTypeError),
        ({"constant_grid_search": 1}, InvalidTypeError),
        ({"points_to_evaluate": {"x": 1}}, InvalidTypeError),
        ({"random_state": -1}, InvalidInputError),
        ({"random_state": "seed"}, InvalidTypeError),
    ],
)
def test_impossible_settings_are_refused(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        BasicVariantGenerator(**settings)
