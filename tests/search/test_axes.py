"""Domains as libraries see them: every value has a number, and every number a value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_world import EVERY_DOMAIN

import holdfast as tune
from holdfast.errors import InvalidInputError
from holdfast.search.axes import Axis, axis_of
from holdfast.search.spaces import domains_of
from holdfast.space.domains import Categorical, Domain
from holdfast.space.rng import Rng

DOMAINS = domains_of(EVERY_DOMAIN, "a test")


def axis(name: str) -> Axis:
    return axis_of(name, DOMAINS[name], "a test")


def value_of(found: Axis, raw: Any) -> Any:
    """The domain's value, also of a choice."""
    value = found.value(raw)
    return found.domain.categories[value] if isinstance(found.domain, Categorical) else value


@pytest.mark.parametrize("name", DOMAINS)
def test_a_value_comes_back_from_its_number(name: str):
    found = axis(name)
    for n in range(50):
        rng = Rng([5, n])
        value = rng.integers(0, len(found.domain)) if isinstance(found.domain, Categorical) else found.domain.draw(rng)
        raw = found.raw(value)
        assert found.value(raw) == pytest.approx(value)
        assert type(found.value(raw)) is type(value)
        if found.kind != "normal":
            assert found.lower <= raw <= found.upper


@pytest.mark.parametrize("name", DOMAINS)
@given(share=st.floats(0, 1))
def test_every_share_is_a_value_of_the_domain(name: str, share: float):
    found = axis(name)
    raw = found.from_share(share)
    assert found.domain.is_valid(value_of(found, raw))
    if found.kind == "float" and not found.is_fixed:
        assert found.share(raw) == pytest.approx(share, abs=1e-9)
    elif found.kind in ("int", "option"):
        assert found.from_share(found.share(raw)) == raw


@given(raw=st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9)))
def test_numbers_that_a_library_puts_outside_of_the_bounds_are_brought_back(raw: float):
    for name in DOMAINS:
        found = axis(name)
        if found.kind != "normal":
            assert found.domain.is_valid(value_of(found, raw)), name


def test_bounds_are_included_and_quantized_domains_are_counted_in_steps():
    def shown(domain: Domain) -> tuple[Any, ...]:
        found = axis_of("x", domain, "a test")
        return found.kind, found.lower, found.upper, found.log, found.step

    assert shown(tune.randint(2, 9)) == ("int", 2, 8, False, 0)
    assert shown(tune.qrandint(2, 9, 2)) == ("int", 1, 4, False, 2)
    assert shown(tune.qrandint(2, 9, 1)) == ("int", 2, 8, False, 0)
    assert shown(tune.quniform(0, 1, 0.1)) == ("int", 0, 10, False, 0.1)
    assert shown(tune.qloguniform(0.5, 8, 0.5)) == ("int", 1, 16, True, 0.5)
    assert shown(tune.loguniform(0.1, 1)) == ("float", 0.1, 1, True, 0)
    assert shown(tune.choice("abc")) == ("option", 0, 2, False, 0)


def test_multiples_of_a_step_have_no_noise():
    found = axis_of("x", tune.quniform(0, 1, 0.1), "a test")
    assert [found.value(count) for count in range(11)] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_shares_of_a_logarithmic_range_are_even_in_its_logarithm():
    found = axis_of("x", tune.loguniform(1e-4, 1), "a test")
    assert found.from_share(0.5) == pytest.approx(1e-2)
    assert found.share(1e-3) == pytest.approx(0.25)
    assert found.middle() == pytest.approx(1e-2)


def test_a_distribution_that_nobody_knows_is_refused():
    class Odd:
        def draw(self, domain: Any, rng: Any) -> float:
            return math.pi

    domain = tune.uniform(0, 1)
    domain.sampler = Odd()
    with pytest.raises(InvalidInputError, match="'deep/x'"):
        axis_of("deep/x", domain, "a test")
