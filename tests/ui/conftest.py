"""Fixtures for tests of the page in a real browser: Chromium, `holdfast ui`, experiments made by real drivers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from buckets import bucket as bucket
from opened import Opened
from trained import PROGRAM, environ

from servers import chromium
from servers.fixtures import *  # noqa: F403
from servers.install import Unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from ui_clients import LiveServer

TRAINED_S = 120
WINDOW = {"width": 1280, "height": 860}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -r constraints/ui.txt"
    )
    try:
        found = chromium.find()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        running = started.chromium.launch(executable_path=found.path, args=options, env={**os.environ, **found.environ})
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Opened]]:
    """Opens an address in a window of its own; after the test, no page may have complained or asked other hosts."""
    opened: list[Opened] = []

    def start(address: str, route: str = "", *, theme: str = "light", width: int = WINDOW["width"]) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": WINDOW["height"]}, color_scheme=theme, reduced_motion="reduce"
        )
        opened.append(Opened(context.new_page(), address))
        opened[-1].go(route)
        return opened[-1]

    yield start
    for page in opened:
        page.page.context.close()
    for page in opened:
        assert not page.complaints
        assert not page.foreign


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The storage path of a finished experiment of a kind; made once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            command = [sys.executable, str(PROGRAM), kind, str(folder), kind]
            subprocess.run(command, env=environ(), check=True, capture_output=True, timeout=TRAINED_S)
            made[kind] = folder
        return made[kind]

    return make


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., LiveServer]]:
    """Starts `holdfast ui`, once for each path and environment; all are ended after the tests."""
    pytest.importorskip("starlette", reason="starlette is not installed: pip install 'holdfast[ui]'")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'holdfast[ui]'")
    from ui_clients import LiveServer

    started: dict[tuple[str, ...], LiveServer] = {}

    def start(path: Path | str, **more: str) -> LiveServer:
        key = (str(path), *more.values())
        if key not in started:
            started[key] = LiveServer([str(path)], {**environ(), **more})
        return started[key]

    yield start
    for server in started.values():
        server.kill()


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a driver that the test ends."""
    running: list[subprocess.Popen[bytes]] = []

    def start(kind: str, storage_path: Path | str, name: str) -> subprocess.Popen[bytes]:
        log = open(tmp_path / f"driver{len(running)}.log", "wb")  # noqa: SIM115
        command = [sys.executable, str(PROGRAM), kind, str(storage_path), name]
        running.append(subprocess.Popen(command, env=environ(), stdout=log, stderr=log))
        log.close()
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
