"""The examples run, and so does every Python block of the README and the guides that is marked ``run``.

A page's blocks marked `````python run````` are one script, in the order of the page, run in an empty directory. What a
block prints is compared with the `````text output````` block behind it, if there is one.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast as tune

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))
PAGES = [PROJECT / "README.md", PROJECT / "docs" / "index.md", *sorted((PROJECT / "docs" / "guides").glob("*.md"))]
WITHOUT_CODE = {"index.md", "environment-variables.md", "live-page.md"}
TIMEOUT_S = 120.0

_FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_END = "--- end of block ---"


class Block(NamedTuple):
    """A block to run, the line it begins in, and what it must print (None: anything)."""

    line: int
    code: str
    output: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    for fence, following in itertools.zip_longest(fences, fences[1:]):
        if fence["info"] == "python run":
            expected = following["body"] if following is not None and following["info"] == "text output" else None
            yield Block(text.count("\n", 0, fence.start("body")) + 1, fence["body"], expected)


def script_of(blocks: list[Block]) -> str:
    """One script; its lines have the numbers that they have in the page, so that a traceback leads there."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
        lines.append(f"print({_END!r}, flush=True)")
    return "\n".join(lines) + "\n"


def run(script: Path, home: Path, *arguments: str) -> str:
    """Run a script as a user would, with warnings as errors, and return what it printed."""
    known = {"HOME": str(home), "PYTHONPATH": str(Path(tune.__file__).parents[1]), "PYTHONWARNINGS": "error"}
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("TUNE_", "HOLDFAST_", "RAY_"))}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=home,
        env={**variables, **known},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{script} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def experiments_in(storage: Path) -> list[tune.ResultGrid]:
    return [tune.ResultGrid.from_path(spec.parents[1]) for spec in sorted(storage.glob("*/.holdfast/spec.json"))]


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem != "quickstart"], ids=lambda path: path.stem
)
def test_example_finishes_every_trial_and_can_be_run_again(example, tmp_path):
    run(example, tmp_path, "results")
    first = experiments_in(tmp_path / "results")
    assert first, "the example stored nothing where it was told to"
    assert all(result.status == "TERMINATED" for grid in first for result in grid)
    run(example, tmp_path, "results")
    again = experiments_in(tmp_path / "results")
    assert [[r.metrics_history for r in grid] for grid in again] == [
        [r.metrics_history for r in grid] for grid in first
    ]


@pytest.mark.slow
def test_quickstart_loses_nothing(tmp_path):
    pytest.importorskip("sklearn")
    assert "0 were lost" in run(PROJECT / "examples" / "quickstart.py", tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_in_page_runs_and_prints_what_the_page_says(page, tmp_path):
    blocks = list(blocks_of(page))
    if page.name in WITHOUT_CODE:
        assert not blocks
        return
    assert blocks, "a page without code that runs"
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text(script_of(blocks), encoding="utf-8")
    printed = run(script, tmp_path).split(f"{_END}\n")
    for block, text in zip(blocks, printed, strict=False):
        assert block.output in (None, text), f"{page.name}, the block in line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_in_page_lead_to_files_that_exist(page):
    targets = [match["target"] for match in _LINK.finditer(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


def test_the_index_names_every_guide():
    index = (PROJECT / "docs" / "index.md").read_text(encoding="utf-8")
    guides = [path.name for path in PAGES if path.parent.name == "guides"]
    assert [name for name in guides if f"guides/{name}" not in index] == []


def test_the_table_of_environment_variables_is_complete():
    from dataclasses import fields

    from holdfast.config.environment import IGNORED_VARIABLES, Environment

    text = (PROJECT / "docs" / "guides" / "environment-variables.md").read_text(encoding="utf-8")
    names = {name for field in fields(Environment) for name in field.metadata["names"]}
    names |= {name for spellings in IGNORED_VARIABLES for name in spellings}
    listed = set(re.findall(r"`([A-Z_]{4,})`", text))
    assert names - listed == set()
