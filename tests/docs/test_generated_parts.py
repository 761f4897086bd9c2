"""The tables and pictures in the docs are the tables in the code."""

import runpy
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))  # the generator's own modules
GENERATOR = runpy.run_path(str(DOCS / "generate.py"))


def test_the_tables_in_the_docs_are_up_to_date():
    page = (DOCS / "architecture.md").read_text()
    assert GENERATOR["rewritten"](page) == page, "run `make docs`"


@pytest.mark.parametrize("name", GENERATOR["PICTURES"])
def test_a_picture_in_the_docs_is_up_to_date(name):
    assert GENERATOR["PICTURES"][name]() == (DOCS / name).read_text(), "run `make docs`"


@pytest.mark.parametrize("name", GENERATOR["PICTURES"])
def test_a_picture_is_well_formed_and_stands_in_the_page(name):
    assert ElementTree.parse(DOCS / name).getroot().tag.endswith("svg")
    assert f"({name})" in (DOCS / "architecture.md").read_text()


def test_the_picture_of_statuses_has_a_row_for_every_transition():
    from holdfast.core.transitions import TRANSITIONS

    texts = [node.text for node in ElementTree.parse(DOCS / "statuses.svg").iter() if node.tag.endswith("}text")]
    for _, event in TRANSITIONS:
        times = sum(each.__name__ == event.__name__ for _, each in TRANSITIONS)
        assert texts.count(event.__name__) == times
