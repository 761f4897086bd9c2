"""A page in the browser, and what went wrong in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servers import page_tools

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

WAIT_MS = 60_000
POLL_MS = 30
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
LEAST_BYTES = 5_000
REPORTS = "Number((document.querySelectorAll('.tile dd')[4]?.textContent ?? '0').replace(/,/g, ''))"
_AXE = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations
    .filter((each) => each.impact === "serious" || each.impact === "critical")
    .map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html.slice(0, 200)).join(" | ")}`);
}"""


class Opened:
    """One window at one server or report. ``expected`` are parts of complaints that a test causes on purpose."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.expected: list[str] = []
        self.asked: list[str] = []
        self._complaints: list[str] = []
        self._host = urlsplit(address).netloc
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self._complaints.append(str(error)))
        page.on("request", self._requested)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console that no test expects."""
        return [each for each in self._complaints if not any(part in each for part in self.expected)]

    @property
    def foreign(self) -> list[str]:
        """Requests to other hosts."""
        return [url for url in self.asked if urlsplit(url).scheme != "data" and urlsplit(url).netloc != self._host]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complaints.append(message.text)

    def _requested(self, request: Request) -> None:
        self.asked.append(request.url)

    def go(self, route: str) -> None:
        """Open a view by its address and wait until its first data is painted."""
        self.page.goto(f"{self.address}{route}")
        self.page.wait_for_selector("body[data-ready]")

    def view(self, name: str) -> None:
        """Wait until this view is shown."""
        self.page.wait_for_selector(f"main[data-view='{name}']")

    def text(self, selector: str = "main") -> str:
        """All text in an element, once it is there."""
        return self.page.locator(selector).first.inner_text()

    def see(self, text: str, selector: str = "body") -> None:
        """Wait until an element contains a text."""
        self.page.locator(selector, has_text=text).first.wait_for()

    def unsee(self, text: str, selector: str = "body") -> None:
        """Wait until no element of this kind contains the text."""
        script = "([s, text]) => ![...document.querySelectorAll(s)].some((e) => e.textContent.includes(text))"
        self.until(script, [selector, text])

    def until(self, script: str, argument: Any = None) -> None:
        """Wait until a script is true. Asked again from outside: the page's policy allows no script made of text."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(script, argument):
            assert time.monotonic() < deadline, f"waited {WAIT_MS / 1000} s for {script} {argument or ''}"
            self.page.wait_for_timeout(POLL_MS)

    def screenshot(self, name: str, *, full: bool = True) -> None:
        """For people to look at: in `build/screenshots`, or the folder that HOLDFAST_SCREENSHOTS names."""
        folder = Path(os.environ.get("HOLDFAST_SCREENSHOTS") or SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", full_page=full)
        assert (folder / f"{name}.png").stat().st_size > LEAST_BYTES

    def barriers(self) -> list[str]:
        """What axe-core calls serious or critical."""
        self.page.evaluate(f"{page_tools.axe()};undefined")
        return list(self.page.evaluate(_AXE))
