"""Fixtures for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from holdfast.cli.main import main


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as leaving:  # argparse
            code = int(leaving.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run
