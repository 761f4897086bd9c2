"""The examples in docstrings run and print what they say."""

import doctest
import importlib

import pytest

MODULES = ["domains", "naming", "objects", "primitives", "rng", "nested", "variants"]


@pytest.mark.parametrize("name", [*(f"holdfast.space.{name}" for name in MODULES), "holdfast.search.basic_variant"])
def test_docstring_examples_are_true(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0
