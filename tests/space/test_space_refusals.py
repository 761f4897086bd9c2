"""What a refusal tells the user to write is accepted when it is written."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as tune
from holdfast.errors import UsageError
from holdfast.space.domains import Float

CALL = re.compile(r"(?<![.\w])(?:q?(?:log)?uniform|q?(?:log)?randint|choice|grid_search)\([^()]*\)")


def refusal(text: str) -> str:
    """What is said to somebody who writes this."""
    with pytest.raises(UsageError) as caught:
        eval(f"tune.{text}")
    return str(caught.value)


def suggestions(message: str) -> list[str]:
    return CALL.findall(message)


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("quniform(0, 1, 0.3)", ["quniform(0, 0.9, 0.3)"]),
        ("quniform(0.05, 1, 0.1)", ["quniform(0.1, 1, 0.1)"]),
        ("quniform(0, 1, 2)", ["quniform(0, 2, 2)"]),
        ("quniform(-0.5, 0.5, 0.3)", ["quniform(-0.3, 0.3, 0.3)"]),
        ("qloguniform(1, 10, 3)", ["qloguniform(3, 9, 3)"]),
        ("qloguniform(1e-4, 1e-1, 1e-3)", ["qloguniform(0.001, 0.1, 0.001)"]),
        ("qloguniform(0, 1, 0.3)", ["qloguniform(0.3, 0.9, 0.3)"]),
        ("loguniform(0, 1)", ["loguniform(0.0001, 1)", "uniform(0, 1)"]),
        ("lograndint(0, 10)", ["randint(0, 10)"]),
        ("lograndint(0, 1)", ["randint(0, 1)"]),
        ("choice(5)", ["choice([5])"]),
        ("choice({2, 1})", ["choice([1, 2])"]),
        ("choice({1, 'a'})", None),
        ("choice(1, 2, 3)", ["choice([1, 2, 3])"]),
        ("choice([1, 2], [0.9, 0.1])", ["choice([1, 1, 2])"]),
        ("choice(['a', 'b'], p=[0.9, 0.1])", ["choice(['a', 'a', 'b'])"]),
        ("grid_search(1, 2)", ["grid_search([1, 2])"]),
        ("grid_search(tune.choice([1, 2]))", ["grid_search([1, 2])"]),
    ],
)
def test_the_suggested_call_works(written: str, suggested: list[str] | None) -> None:
    found = suggestions(refusal(written))
    found = [call for call in found if call != written]
    assert suggested is None or found == suggested
    assert found
    for call in found:
        eval(f"tune.{call}")


@given(
    call=st.sampled_from(["quniform", "qloguniform"]),
    lower=st.floats(-10, 10).map(lambda value: round(value, 3)),
    width=st.floats(0, 10).map(lambda value: round(value, 3)),
    q=st.floats(0.001, 5).map(lambda value: round(value, 3)),
)
@settings(max_examples=300, deadline=None)
def test_bounds_that_do_not_fit_the_step_are_answered_with_bounds_that_do(call, lower, width, q):
    try:
        getattr(tune, call)(lower, round(lower + width, 3), q)
    except UsageError as error:
        for suggested in suggestions(str(error)):
            eval(f"tune.{suggested}")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("uniform('0.1', 1)", "Write it without quotes"),
        ("uniform('low', 1)", r"\('?str'?\)\.$|\(str\)\.$"),
        ("loguniform(0.1, -1)", "got upper=-1. Pass the value itself"),
        ("loguniform(1, 0.1)", "lower=1 and upper=0.1. Swap them"),
        ("loguniform(1, float('inf'))", "Give an upper bound that is a finite float"),
        ("lograndint(-1, 10)", "Start at 1"),
        ("qrandint(1, 4, 5)", "upper=5, or a smaller q"),
        ("randn(0, -2)", "write sd=2"),
        ("choice(tune.uniform(0, 1))", "write it without choice"),
        ("grid_search(tune.randint(0, 9))", "write it without grid_search"),
        ("sample_from(tune.uniform(0, 1))", "leave sample_from out"),
    ],
)
def test_the_way_out_fits_the_mistake(written: str, words: str) -> None:
    assert re.search(words, refusal(written))


def test_a_bound_of_a_normal_domain_is_told_its_next_multiple() -> None:
    with pytest.raises(UsageError, match=r"lower=0\.5 is not divisible by q=0\.3.*lower=0\.6"):
        Float(0.5, None).normal().quantized(0.3)


def test_a_grid_is_named_with_its_place_and_the_way_out_is_a_call() -> None:
    with pytest.raises(UsageError, match=r"grid_search at 'n/g' expected .* Write grid_search\(\[5\]\)"):
        tune.Tuner(lambda config: None, param_space={"n": {"g": {"grid_search": 5}}})


def test_a_very_long_value_is_shown_in_part() -> None:
    assert len(refusal(f"choice({set(range(1000))})")) < 700
