"""Properties of search spaces that hold for every seed and every bound."""

import json
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.space import (
    Rng,
    VariantPlan,
    choice,
    extract_objects,
    flatten_dict,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qrandint,
    quniform,
    randint,
    randn,
    restore_objects,
    unflatten_dict,
    uniform,
)

repeatable = settings(deadline=None, derandomize=True)
seeds = st.integers(0, 2**128)
floats = st.floats(-1e6, 1e6)
positive = st.floats(1e-9, 1e9)
ints = st.integers(-(10**12), 10**12)
steps = st.integers(1, 50)


def ordered(values):
    return st.tuples(values, values).map(sorted)


def with_room(values):
    return ordered(values).map(lambda pair: (pair[0], pair[1] + 1))


domains = st.one_of(
    ordered(floats).map(lambda b: uniform(*b)),
    ordered(positive).map(lambda b: loguniform(*b)),
    with_room(ints).map(lambda b: randint(*b)),
    with_room(st.integers(1, 10**15)).map(lambda b: lograndint(*b)),
    st.tuples(ordered(st.integers(-100, 100)), st.sampled_from([0.1, 0.25, 0.3, 3.0, 1e-3])).map(
        lambda a: quniform(a[0][0] * a[1], a[0][1] * a[1], a[1])
    ),
    st.tuples(with_room(st.integers(-100, 100)), steps).map(lambda a: qrandint(a[0][0] * a[1], a[0][1] * a[1], a[1])),
    st.tuples(with_room(st.integers(1, 100)), steps).map(lambda a: qlograndint(a[0][0] * a[1], a[0][1] * a[1], a[1])),
    st.lists(st.integers() | st.text() | st.booleans(), min_size=1).map(choice),
    st.tuples(floats, st.floats(0, 1e6)).map(lambda a: randn(*a)),
)

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text("abcxyz_", min_size=1, max_size=4)
trees = st.recursive(leaves, lambda below: st.dictionaries(keys, below, min_size=1, max_size=3), max_leaves=8)
spaces = st.recursive(
    leaves | domains | st.lists(st.integers(), min_size=1, max_size=3).map(grid_search),
    lambda below: st.dictionaries(keys, below, max_size=3) | st.lists(below, max_size=3),
    max_leaves=6,
).flatmap(lambda node: st.dictionaries(keys, st.just(node), min_size=1, max_size=2))


@repeatable
@given(seeds, st.integers(-(2**62), 2**62), st.integers(1, 2**62))
def test_integers_and_floats_are_those_of_numpy(seed, low, span):
    ours, numpys = Rng(seed), np.random.default_rng(seed)
    assert ours.integers(low, low + span) == numpys.integers(low, low + span)
    assert ours.random() == numpys.random()
    assert ours.integers(0, 7) == numpys.integers(0, 7)


@repeatable
@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=6))
def test_sequences_of_numbers_seed_as_in_numpy(seed):
    assert Rng(seed).random() == np.random.default_rng(seed).random()


@repeatable
@given(domains, seeds)
def test_every_sample_is_valid_and_repeatable(domain, seed):
    values = domain.sample(size=5, random_state=seed)
    assert all(domain.is_valid(value) for value in values)
    assert values == domain.sample(size=5, random_state=seed)


@repeatable
@given(trees.filter(lambda tree: isinstance(tree, dict)))
def test_unflatten_undoes_flatten(tree):
    assert unflatten_dict(flatten_dict(tree)) == tree


@repeatable
@given(spaces, st.integers(0, 2**64), st.integers(1, 3))
def test_a_plan_is_complete_plain_and_enterable_at_every_mark(space, seed, num_samples):
    plan = VariantPlan(space, seed=seed, num_samples=num_samples)
    found, mark = [], None
    while len(found) < 60 and (variant := plan.next(mark)) is not None:
        assert json.loads(json.dumps(variant.config)) == variant.config
        found.append(variant)
        mark = variant.mark
    assert plan.total == len(found) or len(found) == 60
    again = VariantPlan(space, seed=seed, num_samples=num_samples)
    for earlier, later in reversed(list(zip([None, *(v.mark for v in found)], found, strict=False))):
        assert again.next(earlier) == later


@repeatable
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.data())
def test_cells_of_a_grid_are_numbered_in_mixed_radix(sizes, data):
    space = {f"g{i}": grid_search(range(size)) for i, size in enumerate(sizes)}
    plan = VariantPlan(space, seed=0, num_samples=2)
    cell = data.draw(st.integers(0, prod(sizes) - 1))
    variant = plan.next([0, cell - 1]) if cell else plan.next(None)
    number = sum(variant.config[f"g{i}"] * prod(sizes[:i]) for i in range(len(sizes)))
    assert number == cell
    assert plan.total == 2 * prod(sizes)


@repeatable
@given(st.recursive(leaves | st.builds(object), lambda b: st.lists(b) | st.dictionaries(keys, b), max_leaves=8))
def test_objects_come_back_where_they_were(tree):
    plain, objects = extract_objects({"root": tree})
    json.dumps(plain)
    assert restore_objects(plain, objects) == {"root": tree}
