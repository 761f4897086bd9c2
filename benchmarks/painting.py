"""The live page in a real browser: how soon the table and the history of a large experiment are painted, and scrolling.

The server has read the journal before. The figures of time are from the beginning of the navigation to the frame that
shows the data; those of CPU are of the page's main thread, as Chromium counts it. Needs playwright and Chromium.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child
from benchmarks.following import NO_LOGGERS, REPORTS, holdfast_make
from benchmarks.live_page import ServedPage

if TYPE_CHECKING:
    from benchmarks.harness import Bench

FRAMES = 240
PIXELS = 340
WAIT_S = 120.0
SHOWN = {"table": ("#/trials", ".vrow"), "history": ("#/charts/history", ".chart canvas")}
# A frame that shows the data has been painted when the one after it begins.
_WATCH = """(selector) => {
  const look = () => {
    if (!document.querySelector(selector)) return requestAnimationFrame(look);
    requestAnimationFrame(() => requestAnimationFrame(() => (window.paintedAt = performance.now())));
  };
  look();
}"""
_SCROLL = """async ([frames, pixels]) => {
  const table = document.querySelector(".vtable");
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const times = [];
  let before = await next();
  for (let i = 0; i < frames; i++) {
    table.scrollTop += pixels;
    const now = await next();
    times.push(now - before);
    before = now;
  }
  return times;
}"""


def run(bench: Bench) -> None:
    """Open both views of a large experiment, and scroll."""
    from benchmarks.harness import OURS, Call, at_most

    trials = 2000 if bench.quick else 100_000
    arguments = {"root": str(bench.directory() / f"trials-{trials}"), "trials": trials}
    bench.once(Call(OURS, "holdfast_make", arguments, env=NO_LOGGERS, timeout_s=1800))
    found = bench.alternate([Call(OURS, "holdfast_paint", arguments)], 2 if bench.quick else 5)
    of = f"{trials:,} x {REPORTS} reports"
    for view in SHOWN:
        bench.row(f"{view} of {of} painted", "s", bench.figures(found, f"{view}_s"), at_most(1.0))
        bench.row(f"CPU of the page for it, {view}", "s", bench.figures(found, f"{view}_cpu_s"))
    bench.row("scrolling: 95 % of frames within", "ms", bench.figures(found, "frame_ms"), at_most(33.4))
    bench.row("CPU of the page for a frame", "ms", bench.figures(found, "frame_cpu_ms"))


def holdfast_paint(root: str, trials: int) -> dict[str, float]:
    """One server and one browser."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from playwright.sync_api import sync_playwright

    from servers import chromium

    program = chromium.find()
    server = ServedPage(root)
    server.timed("/curves?metric=loss")  # all records are read then
    figures: dict[str, float] = {}
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program.path, args=options, env=program.environ or None)
        for view, (route, selector) in SHOWN.items():
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            cpu = _cpu_of(page)
            page.goto(f"{server.address}{route}", wait_until="commit")
            page.evaluate(_WATCH, selector)
            figures[f"{view}_s"] = _painted_at(page) / 1000
            figures[f"{view}_cpu_s"] = cpu()
            if view == "table":
                before = cpu()
                times = sorted(page.evaluate(_SCROLL, [FRAMES, PIXELS]))
                figures["frame_ms"] = times[int(0.95 * len(times))]
                figures["frame_cpu_ms"] = (cpu() - before) * 1000 / FRAMES
            page.close()
        browser.close()
    server.end()
    return figures


def _cpu_of(page: Any) -> Any:
    """A function that tells how much CPU time the main thread of the page has used."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    return used


def _painted_at(page: Any) -> float:
    deadline = time.monotonic() + WAIT_S
    while (at := page.evaluate("window.paintedAt")) is None:
        assert time.monotonic() < deadline, "nothing was painted"
        page.wait_for_timeout(20)
    return float(at)


__all__ = ["holdfast_make", "holdfast_paint", "run"]

if __name__ == "__main__":
    child.main(globals())
