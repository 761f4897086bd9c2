"""`docs/seeds.md`: every row names tests that exist, or says why there is none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| A(\d+) \|.*\| (.*) \| (.*) \|$", re.MULTILINE)


def rows() -> list[tuple[int, list[str], str]]:
    text = (PROJECT / "docs" / "seeds.md").read_text(encoding="utf-8")
    return [(int(number), re.findall(r"`([^`]+::[^`]+)`", shown), note) for number, shown, note in _ROW.findall(text)]


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_is_there_once_and_in_order() -> None:
    assert [number for number, _, _ in rows()] == list(range(1, 39))


def test_every_named_test_exists() -> None:
    named = [test.split("::") for _, shown, _ in rows() for test in shown]
    missing = [f"{path}::{name}" for path, name in named if name not in functions_in(PROJECT / path)]
    assert missing == []
    assert len(named) > 60


def test_a_row_without_a_test_says_that_it_needs_several_nodes() -> None:
    assert [number for number, shown, note in rows() if not shown and "needs several nodes" not in note] == []
