"""The picture in the docs is the table in the code."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_diagram_in_the_docs_is_up_to_date():
    generator = runpy.run_path(str(DOCS / "generate.py"))
    page = (DOCS / "architecture.md").read_text()
    assert generator["rewritten"](page) == page, "run `make docs`"
