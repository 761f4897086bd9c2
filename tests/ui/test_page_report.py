"""A report in one file: the same pages without a server and without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opened import Opened
from trained import environ

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(trained: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of an experiment that is not there any more."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(trained("stopped_early") / "stopped_early", folder / "stopped_early")
    out = folder / "out.html"
    command = [sys.executable, "-m", "holdfast", "report", str(folder / "stopped_early"), str(out)]
    subprocess.run(command, env=environ(), check=True, capture_output=True)
    shutil.rmtree(folder / "stopped_early")
    return out.as_uri()


def test_report_shows_every_view_without_a_request(report: str, open_page: Callable[..., Opened]) -> None:
    page = open_page(report, "#/")
    page.view("overview")
    page.see("Static report", ".banner")
    assert page.page.title() == "stopped_early · holdfast"
    for view in ("/trials", "/charts/history", "/charts/curves", "/charts/parallel", "/charts/edf", "/charts/recovery"):
        page.go(f"#{view}")
        page.unsee("Loading ...", "main")
        assert "Not available" not in page.text(), view
    page.go("#/trials?filter=status == ERROR")
    page.see("2 of 12 trials")
    page.page.locator(".vrow a").first.click()
    page.see("ValueError", "main")
    page.see("Attempt 1 started", ".story")
    assert page.page.get_by_role("button", name="Note").count() == 0
    assert {url.split("#")[0] for url in page.asked} == {report}


def test_report_says_what_is_not_in_it(report: str, open_page: Callable[..., Opened]) -> None:
    page = open_page(report, "#/trials/nothing")
    page.see("No such trial", ".empty h2")
    page.go("#/trials")
    trial = page.text(".vrow a")
    drop = """(id) => {
      const { responses } = HOLDFAST_REPORT;
      for (const key of Object.keys(responses)) if (key.endsWith(id)) delete responses[key];
    }"""
    page.page.evaluate(drop, trial)
    page.page.locator(".vrow a").first.click()
    page.see("Not in this report", ".empty h2")
    page = open_page(report, "#/charts/contour?x=act&y=nothing")
    page.see("This view is not in this report", "main")
