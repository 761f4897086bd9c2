"""Pictures of the main views in both themes, of an experiment whose driver was killed and resumed.

They are written to `build/screenshots`; `make screenshots` puts some of them into the documentation.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from opened import Opened
from trained import run_to_the_end
from ui_clients import LiveServer

from holdfast.results.follow import Follower
from servers.process import poll

KILLED_AT = 120
STARTED_S = 120
VIEWS = {
    "overview": "#/",
    "trials": "#/trials?sort=metric%2Floss",
    "history": "#/charts/history",
    "curves": "#/charts/curves",
    "parallel": "#/charts/parallel",
    "slice": "#/charts/slice",
    "workers": "#/charts/workers",
    "recovery": "#/charts/recovery",
}

# Where the experiment is, as a person would have it: a picture tells nothing of the machine that it was taken on.
_AT_HOME = """(folder) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/home/you/results");
}"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve: Callable[..., LiveServer], tmp_path_factory: pytest.TempPathFactory) -> LiveServer:
    """A server of an experiment that was killed with kill -9 after some reports, and resumed."""
    folder = tmp_path_factory.mktemp("showcase")
    path = folder / "digits"
    with run_to_the_end("showcase", folder, "digits") as driver:
        poll(lambda: _reports(path) > KILLED_AT or driver.poll() is not None, STARTED_S, "some reports")
        assert driver.poll() is None
        os.kill(driver.pid, signal.SIGKILL)
    with run_to_the_end("showcase", folder, "digits") as driver:
        assert driver.wait(STARTED_S) == 0
    return serve(path)


def _reports(path: Path) -> int:
    return Follower.open(path).history.state.reports if list(path.glob(".holdfast/journal/*.hfj")) else 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_picture_of_a_view(server: LiveServer, open_page: Callable[..., Opened], theme: str, view: str) -> None:
    page = open_page(server.address, VIEWS[view], theme=theme)
    page.unsee("Loading ...", "main")
    page.page.wait_for_selector(".vrow" if view == "trials" else ".chart canvas, .chart svg")
    assert "Not available" not in page.text()
    (experiment,) = server.get("/api/experiments")
    page.page.evaluate(_AT_HOME, str(Path(experiment["path"]).parent))
    page.screenshot(f"{theme}-{view}", full=False)
