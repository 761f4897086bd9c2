"""Fixtures for tests of the server behind the live page: real processes, real connections."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest
from buckets import bucket as bucket
from ui_clients import LiveServer

from servers.fixtures import *  # noqa: F403


@pytest.fixture(scope="session")
def _installed() -> None:
    """Skips tests of the server where it cannot run."""
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'holdfast[ui]'")


@pytest.fixture
def serve(_installed: None) -> Iterator[Callable[..., LiveServer]]:
    """Starts `holdfast ui` with these arguments; all are ended after the test."""
    started: list[LiveServer] = []

    def start(*arguments: object, **environ: str) -> LiveServer:
        started.append(LiveServer([str(each) for each in arguments], environ))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def serve_all(_installed: None) -> Iterator[Callable[..., LiveServer]]:
    """The same for all tests of a file."""
    started: list[LiveServer] = []

    def start(*arguments: object) -> LiveServer:
        started.append(LiveServer([str(each) for each in arguments], {"PYTHONPATH": _path()}))
        return started[-1]

    yield start
    for server in started:
        server.kill()


def _path() -> str:
    return os.pathsep.join(dict.fromkeys(path for path in sys.path if path))


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start find the same modules as the tests."""
    monkeypatch.setenv("PYTHONPATH", _path())
