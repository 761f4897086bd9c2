"""Names, values and output of others are text: nothing runs, nothing is reordered, nothing is too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from opened import Opened
from trained import SCRIPT
from ui_clients import LiveServer

NAME = "<img src=x onerror='window.harmed=1'>"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve: Callable[[Path], LiveServer], trained: Callable[[str], Path]) -> LiveServer:
    folder = trained("hostile")
    if (folder / "hostile").exists():
        (folder / "hostile").rename(folder / NAME)
    return serve(folder)


def test_hostile_names_are_shown_as_text(server: LiveServer, open_page: Callable[..., Opened]) -> None:
    page = open_page(server.address, "#/")
    page.go(f"#/trials?columns=trial_id|config/long|config/{quote(SCRIPT, safe='')}")
    page.page.wait_for_selector(".vrow")
    page.see("AAAA", ".vrow")
    page.see("<U+202E>gnp.exe", ".vrow")
    page.page.locator(".vrow a").first.click()
    page.see("<script>window.harmed=1</script>", "dt")
    page.see("<script>window.harmed=1</script>", "pre")
    for chart in ("parallel", "slice?x=long", "curves"):
        page.go(f"#/charts/{chart}")
        page.page.wait_for_selector(".chart")
    assert page.page.evaluate("window.harmed") is None
    marks = page.page.evaluate("/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.body.innerText)")
    assert not marks
    assert len(page.page.content()) < 2_000_000


def test_metric_with_commas_and_percents_is_drawn(server: LiveServer, open_page: Callable[..., Opened]) -> None:
    page = open_page(server.address, "#/charts/history")
    for name in ("%2C", "<script>window.harmed=1</script>"):
        options = page.page.locator("select").first.locator("option").all_inner_texts()
        index = next(i for i, text in enumerate(options) if text.startswith(name))
        page.page.locator("select").first.select_option(index=index)
        page.page.wait_for_selector(".chart canvas")
        page.unsee("Nothing to draw yet", "main")
    assert page.page.evaluate("window.harmed") is None


def test_unknown_addresses_say_so(server: LiveServer, open_page: Callable[..., Opened]) -> None:
    page = open_page(server.address, "#/")
    page.expected.append("404")
    for route, sentence in (
        ("#/nothing", "No such view"),
        ("#/charts/nothing", "No such chart"),
        ("#/trials/nothing", "No such trial"),
        ("#/trials?filter=%", "12 trials"),
    ):
        page.page.goto("about:blank")
        page.page.goto(f"{server.address}{route}")
        if "filter" not in route:
            page.see(sentence, "main")
        else:
            page.see("means nothing here", "[role=alert]")
