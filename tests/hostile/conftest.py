"""Fixtures for experiments that somebody else has prepared."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
sys.path.insert(0, str(Path(__file__).parent))

from holdfast.cli.main import main

DEADLINE_S = 120


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in this process; an exception that nobody expected fails the test."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as leaving:  # argparse
            code = int(leaving.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    """A read that waits for ever ends the test, not the run."""

    def ring(number: int, frame: object) -> None:
        raise AssertionError("it hangs")

    former = signal.signal(signal.SIGALRM, ring)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)
