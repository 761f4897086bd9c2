"""The page while things happen: reports arrive, drivers die and come back, servers go away, buttons are pressed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from opened import REPORTS, Opened
from ui_clients import LiveServer

Serve = Callable[[Path], LiveServer]
Open = Callable[..., Opened]
Drive = Callable[..., "Popen[bytes]"]
Trained = Callable[[str], Path]

# What is written on a canvas since it was last cleared: names and numbers of the axes.
WATCH_CANVAS = """() => {
  const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.clearRect = function (...given) {
    this.canvas.written = [];
    return clearRect.apply(this, given);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, ...given) {
    (this.canvas.written ??= []).push(text);
    return fillText.call(this, text, ...given);
  };
}"""
LAST_STEP = """(() => {
  const written = document.querySelector(".chart canvas")?.written ?? [];
  const ticks = written.slice(written.indexOf("step") + 1, written.indexOf("loss"));
  return Math.max(0, ...ticks.map(Number));
})()"""

pytestmark = pytest.mark.slow


@pytest.fixture
def live(drive: Drive, serve: Serve, open_page: Open, tmp_path: Path) -> tuple[Opened, Popen[bytes], Path]:
    """A page at an experiment that runs; it must never be loaded again."""
    root = tmp_path / "runs"
    root.mkdir()
    driver = drive("endless", root, "running")
    (journal,) = _wait_for_journal(root, driver)
    page = open_page(serve(journal).address, "#/")
    page.page.evaluate("window.sameDocument = true")
    page.see("running", ".pill")
    return page, driver, root


def _wait_for_journal(root: Path, driver: Popen[bytes]) -> list[Path]:
    deadline = time.monotonic() + 60
    while not list(root.glob("*/.holdfast/journal/*.hfj")):
        assert driver.poll() is None, "the driver ended"
        assert time.monotonic() < deadline, "no journal"
        time.sleep(0.05)
    return [path for path in root.iterdir() if path.is_dir()]


def test_reports_arrive_without_loading_everything_again(live: tuple[Opened, Popen[bytes], Path]) -> None:
    page, _, _ = live
    page.until(f"{REPORTS} > 3")
    before = page.page.evaluate(REPORTS)
    page.until(f"{REPORTS} > {before} + 8")
    page.page.evaluate("location.hash = '#/trials'")
    page.view("trials")
    page.page.wait_for_selector(".vrow")
    rows = "[...document.querySelectorAll('.vrow')].map((row) => row.textContent).join()"
    first = page.page.evaluate(rows)
    page.until(f"(first) => {rows} !== first", first)
    assert page.page.evaluate("window.sameDocument")
    of_all, of_some = _asked(page)
    deadline = time.monotonic() + 60
    while _asked(page)[1] < of_some + 3:
        assert time.monotonic() < deadline, "the trials that changed are not asked for"
        page.page.wait_for_timeout(50)  # lets the browser tell what it asks
    assert _asked(page)[0] == of_all


def test_axes_follow_the_data_until_somebody_zooms(live: tuple[Opened, Popen[bytes], Path]) -> None:
    """New points used to run out of a picture whose axes stayed as they were at first."""
    page, _, _ = live
    page.page.add_init_script(f"({WATCH_CANVAS})()")
    page.page.reload()
    page.until(f"{REPORTS} > 8")
    page.page.evaluate("location.hash = '#/charts/curves'")
    page.until(f"{LAST_STEP} > 0")
    before = page.page.evaluate(LAST_STEP)
    page.until(f"{LAST_STEP} > {2 * before}")

    box = page.page.locator(".u-over").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + box["width"] / 4, y, steps=4)
    page.page.mouse.up()
    page.until(f"{LAST_STEP} < {2 * before}")
    zoomed = page.page.evaluate(LAST_STEP)
    asked = _curves_asked(page)
    deadline = time.monotonic() + 60
    while _curves_asked(page) < asked + 4:
        assert time.monotonic() < deadline, "the curves that grow are not asked for"
        page.page.wait_for_timeout(50)  # lets the browser tell what it asks
    assert page.page.evaluate(LAST_STEP) == zoomed
    page.page.mouse.dblclick(x, y)
    page.until(f"{LAST_STEP} > {2 * before}")


def test_eight_tabs_follow_one_experiment(live: tuple[Opened, Popen[bytes], Path]) -> None:
    """A browser opens six connections to a server. With a stream for each tab, the seventh was never loaded."""
    first, _, _ = live
    tabs = [first]
    for _ in range(7):
        tabs.append(Opened(first.page.context.new_page(), first.address))
        tabs[-1].go("#/trials")
        tabs[-1].page.wait_for_selector(".vrow")
        tabs[-1].page.evaluate("location.hash = '#/'")
    for tab in tabs:
        _grows(tab)
    assert sum("/events" in url for tab in tabs for url in tab.asked) == 1
    tabs.pop(1).page.close()
    for tab in tabs[1:-1]:
        _turn(tab, "hidden")
    _turn(first, "hidden")
    _grows(tabs[-1])
    assert sum("/events" in url for url in tabs[-1].asked) == 1
    before = tabs[-1].page.evaluate(REPORTS)
    _turn(first, "visible")
    first.until(f"{REPORTS} > {before}")
    _grows(first)
    tabs[-1].page.close()
    _grows(first)
    assert [url for tab in tabs for url in tab.asked if "after=" in url]
    assert not any(tab.complaints for tab in tabs)


def _grows(page: Opened) -> None:
    page.until(f"{REPORTS} > 0")
    page.until(f"{REPORTS} > {page.page.evaluate(REPORTS)} + 3")


def _turn(page: Opened, state: str) -> None:
    """As if the window of the tab was covered, or seen again; without a screen no tab is hidden."""
    page.page.evaluate(
        """(state) => {
          Object.defineProperty(document, "visibilityState", { get: () => state, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def _curves_asked(page: Opened) -> int:
    return sum("/curves?" in url for url in page.asked)


def _asked(page: Opened) -> tuple[int, int]:
    """How often the page has asked for columns of all trials, and of some."""
    columns = [url for url in page.asked if "/columns?" in url]
    some = sum("trials=" in url for url in columns)
    return len(columns) - some, some


def test_driver_that_is_killed_and_resumed(live: tuple[Opened, Popen[bytes], Path], drive: Drive) -> None:
    page, driver, root = live
    page.until(f"{REPORTS} > 3")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    page.see("Driver interrupted", ".banner")
    page.see("exited without shutting down", ".banner")
    page.see("holdfast resume", ".command")
    before = page.page.evaluate(REPORTS)
    drive("endless", root, "running")
    page.see("running", ".pill")
    page.unsee("Driver interrupted", ".banner")
    page.until(f"{REPORTS} > {before} + 3")
    assert page.page.evaluate("window.sameDocument")


def test_server_that_goes_away_is_named(
    drive: Drive, open_page: Open, serve: Serve, trained: Trained, tmp_path: Path
) -> None:
    shutil.copytree(trained("stopped_early"), tmp_path / "copied")
    server = serve(tmp_path / "copied")
    page = open_page(server.address, "#/")
    page.expected += [
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
        "ERR_SOCKET_NOT_CONNECTED",
    ]
    server.kill()
    page.see("Connection lost", ".banner")
    page.see("stopped_early", "h1")


def test_note_and_stop_from_the_page(live: tuple[Opened, Popen[bytes], Path]) -> None:
    page, driver, _ = live
    page.page.get_by_role("button", name="Note").click()
    assert page.page.get_by_role("button", name="Save the note").is_disabled()
    page.page.locator("dialog textarea").fill("try <b>less</b> dropout")
    page.page.get_by_role("button", name="Save the note").click()
    page.see("try <b>less</b> dropout", ".story")
    page.page.get_by_role("button", name="Stop").click()
    page.page.get_by_role("button", name="Cancel").click()
    assert driver.poll() is None
    page.page.get_by_role("button", name="Stop").click()
    page.page.get_by_role("button", name="Stop all trials").click()
    page.see("Driver interrupted", ".banner")
    driver.wait(60)


def test_one_trial_is_stopped_from_its_page(live: tuple[Opened, Popen[bytes], Path]) -> None:
    page, driver, _ = live
    page.page.evaluate("location.hash = '#/trials?filter=status == RUNNING'")
    page.page.locator(".vrow a").first.click()
    page.see("running", "h1 .pill")
    page.page.get_by_role("button", name="Stop this trial").click()
    page.page.get_by_role("button", name="Stop the trial", exact=True).click()
    page.see("done", "h1 .pill")
    assert driver.poll() is None


def test_dead_experiment_has_no_buttons(serve: Serve, trained: Trained, open_page: Open) -> None:
    page = open_page(serve(trained("stopped_early")).address, "#/")
    page.see("finished", ".pill")
    for name in ("Stop", "Add samples", "Note"):
        assert page.page.get_by_role("button", name=name, exact=True).count() == 0


def test_looking_at_a_moved_read_only_experiment_writes_nothing(
    serve: Serve, trained: Trained, open_page: Open, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(trained("stopped_early") / "stopped_early", moved)
    for path in (*moved.rglob("*"), moved):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.lstat().st_mtime_ns for path in moved.rglob("*")}
    page = open_page(serve(moved).address, "#/")
    page.see("12", ".tile")
    page.go("#/charts/curves")
    page.page.wait_for_selector(".chart canvas")
    page.go("#/trials")
    page.page.locator(".vrow a").first.click()
    page.see("Attempt 1 started", ".story")
    assert page.page.get_by_role("button", name="Note", exact=True).count() == 0
    assert {path: path.lstat().st_mtime_ns for path in moved.rglob("*")} == before
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o755)


def test_two_experiments_are_listed_and_opened(serve: Serve, trained: Trained, open_page: Open, tmp_path: Path) -> None:
    for kind in ("stopped_early", "population"):
        shutil.copytree(trained(kind) / kind, tmp_path / "both" / kind)
    page = open_page(serve(tmp_path / "both").address, "#/")
    page.view("experiments")
    page.see("2 experiments")
    page.page.get_by_role("link", name="population").click()
    page.view("overview")
    page.until("document.title === 'population · holdfast'")
    page.page.get_by_role("link", name="holdfast", exact=True).click()
    page.view("experiments")


def test_page_of_a_running_trial_follows_it(live: tuple[Opened, Popen[bytes], Path]) -> None:
    """Every report changes the trial: questions about it must not be given up for newer ones for ever."""
    page, _, _ = live
    page.page.evaluate("location.hash = '#/trials?filter=status == RUNNING'")
    page.page.locator(".vrow a").first.click()
    page.see("It reported iterations 1 to", ".story")
    iteration = "Number(document.querySelectorAll('.tile dd')[1]?.textContent ?? '0')"
    before = page.page.evaluate(iteration)
    page.until(f"{iteration} > {before} + 10")
    printed = "[...(document.querySelector('pre')?.textContent ?? '').matchAll(/step (\\d+)/g)]"
    page.until(f"Math.max(0, ...{printed}.map((found) => Number(found[1]))) > {before} + 5")
    assert page.page.evaluate("window.sameDocument")
