"""An experiment in a store, looked at from elsewhere: while its driver runs, after it died, and without its machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from opened import REPORTS, Opened
from ui_clients import LiveServer

from holdfast.controller.remote_experiment import can_open
from servers.process import poll

FOUND_S = 120

pytestmark = pytest.mark.slow


def test_experiment_in_a_store_is_followed_and_outlives_its_driver(
    bucket: str,
    drive: Callable[..., Popen[bytes]],
    serve: Callable[..., LiveServer],
    open_page: Callable[..., Opened],
    tmp_path: Path,
) -> None:
    """The server has a cache of its own, as on another machine: it learns everything from the store."""
    url = f"{bucket}/runs/running"
    driver = drive("endless", f"{bucket}/runs", "running")
    poll(lambda: can_open(url) or driver.poll() is not None, FOUND_S, "the experiment in the store")
    assert driver.poll() is None
    page = open_page(serve(url, HOLDFAST_LOCAL_CACHE_DIR=str(tmp_path / "elsewhere")).address, "#/")
    page.page.evaluate("window.sameDocument = true")
    page.see("running", ".pill")
    page.see(url, "main")
    page.until(f"{REPORTS} > 3")
    before = page.page.evaluate(REPORTS)
    page.until(f"{REPORTS} > {before} + 8")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    page.see("Driver interrupted", ".banner")
    page.see(f"holdfast resume {url}", ".command")
    assert page.page.evaluate("window.sameDocument")

    shutil.rmtree(tmp_path / "cache")  # the machine of the driver is lost as well
    page = open_page(serve(url, HOLDFAST_LOCAL_CACHE_DIR=str(tmp_path / "third")).address, "#/trials")
    page.page.locator(".vrow a").first.click()
    page.see("Attempt 1 started", ".story")
    page.page.wait_for_selector(".chart canvas")
