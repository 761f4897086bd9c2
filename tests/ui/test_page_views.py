"""Every view of finished experiments: addresses, titles, both themes, small screens, keyboard, no barriers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from opened import Opened
from ui_clients import LiveServer

from servers.install import Unavailable

CHARTS = (
    *("history", "curves", "parallel", "importance", "slice", "contour"),
    *("edf", "pareto", "workers", "lineage", "recovery"),
)
VIEWS = ("", "/trials", *(f"/charts/{name}" for name in CHARTS))
SMALL = 360
Serve = Callable[[Path], LiveServer]
Open = Callable[..., Opened]
Trained = Callable[[str], Path]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve: Serve, trained: Trained) -> LiveServer:
    return serve(trained("stopped_early"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_opens_by_its_address(server: LiveServer, open_page: Open, theme: str) -> None:
    page = open_page(server.address, "#/", theme=theme)
    for view in VIEWS:
        page.go(f"#{view or '/'}")
        page.view(view.split("/")[1] if view else "overview")
        page.unsee("Loading ...", "main")
        assert page.page.title() == "stopped_early · holdfast"
        assert "Not available" not in page.text(), view
        page.screenshot(f"all-{theme}{view.replace('/', '-') or '-overview'}")
    background = page.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(14, 19, 21)") == (theme == "dark")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_serious_barrier(server: LiveServer, open_page: Open, theme: str) -> None:
    page = open_page(server.address, "#/", theme=theme)
    try:
        page.barriers()
    except Unavailable as reason:
        pytest.skip(str(reason))
    trial = page.page.evaluate("fetch('api/experiments').then((r) => r.json()).then((l) => l[0].id)")
    first = server.get(f"/api/experiments/{trial}/trials?limit=2")["rows"]
    ids = [row["trial_id"] for row in first]
    for route in (*VIEWS, f"/trials/{ids[0]}", f"/compare?trials={','.join(ids)}", "/compare"):
        page.go(f"#{route or '/'}")
        page.unsee("Loading ...", "main")
        assert page.barriers() == [], route
    page.go("#/trials")
    page.page.get_by_role("button", name="Columns").click()
    page.page.wait_for_selector("dialog[open]")
    assert page.barriers() == [], "columns"


def test_no_view_is_wider_than_a_small_screen(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/", width=SMALL)
    for view in VIEWS:
        page.go(f"#{view or '/'}")
        page.unsee("Loading ...", "main")
        assert page.page.evaluate("document.documentElement.scrollWidth") == SMALL, view
        page.screenshot(f"small{view.replace('/', '-') or '-overview'}")


def test_chart_has_a_table_behind_it(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/charts/history")
    page.page.locator("details.behind summary").click()
    page.see("best so far", "details.behind")
    page.until("document.querySelectorAll('details.behind [role=row]').length > 3")


def test_table_is_filtered_and_sorted_by_the_address(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials?filter=status%20%3D%3D%20ERROR")
    page.see("2 of 12 trials")
    page.until("document.querySelectorAll('.vrow').length === 2")
    page.go("#/trials?sort=metric%2Floss&desc=1")
    values = "[...document.querySelectorAll('.vrow')].map((row) => Number(row.children[3].textContent))"
    # Two have failed before their first report: they come last, and compare with nothing.
    page.until(f"(v => v.length === 12 && v.slice(0, 10).every((x, i) => i === 0 || x <= v[i - 1]))({values})")


def test_table_is_sorted_by_short_names_and_by_whole_headers(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials?sort=loss")
    page.page.wait_for_selector("[aria-sort=ascending]")
    page.see("loss", "[aria-sort=ascending]")
    page.page.locator("[role=columnheader]", has_text="iteration").click(position={"x": 4, "y": 4})
    page.see("iteration", "[aria-sort=ascending]")
    page.go("#/trials?sort=nothing")
    page.see("There is no column nothing to sort by.", "[role=alert]")
    page.page.get_by_role("button", name="Columns").click()
    for name in ("cause", "worker", "stopped early"):
        page.page.locator("dialog label", has_text=name).locator("input").check()
    page.page.get_by_role("button", name="Done").click()
    page.see("stopped early", "[role=columnheader]")


def test_filter_knows_the_words_of_the_page(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials?filter=status == error")
    page.see("2 of 12 trials", "[role=status]")
    page.page.locator("input[type=search]").fill("status == Done or status == 'ERROR'")
    page.see("12 trials", "[role=status]")
    page.page.locator("input[type=search]").fill("status != complete")
    page.see("No status is called complete. There are: done, error, running", "[role=alert]")


def test_bad_filter_says_where(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials")
    page.page.keyboard.press("/")
    page.page.keyboard.type("loss < 0.3 und")
    page.see("Expected and, or, or the end, not und (at character 12)", "[role=alert]")
    page.page.locator("input[type=search]").fill("loss < 100 and iteration >= 1")
    page.see("12 trials", "[role=status]")
    page.unsee("Expected", "[role=alert]")
    assert "filter=loss" in page.page.url


def test_keys_walk_through_the_table(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials")
    page.page.wait_for_selector(".vrow")
    for key in ("j", "j", "k", "x", "j", "x"):
        page.page.keyboard.press(key)
    page.see("Compare (2)")
    second = page.page.locator(".vrow[data-active] a").inner_text()
    page.page.keyboard.press("Enter")
    page.see(second, "h1")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector(".vtable")
    page.page.keyboard.press("?")
    page.see("Keyboard", "dialog")
    page.page.keyboard.press("Escape")
    page.unsee("Keyboard", "dialog")


def test_selected_trials_are_compared(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials")
    for box in page.page.locator(".vrow input").all()[:3]:
        box.check()
    page.page.get_by_text("Compare (3)").click()
    page.view("compare")
    page.see("Compare 3 trials", "h1")
    page.until("document.querySelectorAll('thead th').length === 4")
    page.page.get_by_label("only differences").check()
    page.unsee("steps", "tbody th")


def test_columns_are_chosen_and_kept_in_the_address(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials")
    page.page.get_by_role("button", name="Columns").click()
    page.page.locator("dialog label", has_text="reason").locator("input").check()
    page.page.get_by_role("button", name="Done").click()
    page.see("reason", "[role=columnheader]")
    address = page.page.url
    page.go("#/")
    page.page.goto(address)
    page.see("reason", "[role=columnheader]")


def test_failed_trial_shows_its_error_and_output(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/")
    page.see("ValueError", "main")
    page.page.locator(".rows a").first.click()
    page.see("Error", "main h2")
    page.see("too large <script>", "main")
    page.see("step 1", "pre")
    page.see("Attempt 1 started", ".story")


def test_overview_says_what_is_searched(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/")
    page.see("Search space", "h2")
    page.see("each of 0.001, 0.01, 0.05, 0.1, 0.2, 0.5", "dd")
    page.see("relu, gelu", "dd")


def test_theme_is_switched_and_remembered(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/", theme="light")
    for expected in ("light", "dark"):
        page.page.locator("[data-test=theme]").click()
        page.until(f"document.documentElement.dataset.theme === '{expected}'")
    page.page.reload()
    page.until("document.documentElement.dataset.theme === 'dark'")


def test_token_leaves_the_address(server: LiveServer, open_page: Open) -> None:
    page = open_page(server.address, "#/trials")
    assert "token" not in page.page.url
    page.page.reload()
    page.page.wait_for_selector("body[data-ready]")


def test_population_shows_who_copied_whom(serve: Serve, trained: Trained, open_page: Open) -> None:
    page = open_page(serve(trained("population")).address, "#/charts/lineage")
    page.unsee("Loading ...", "main")
    assert "Not available" not in page.text()
    page.see("copies", ".chart-note")
    page.see("Schedule", "h2")
    page.until("document.querySelectorAll('details.behind').length === 2")
