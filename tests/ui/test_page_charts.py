"""What charts and cards say: parameters that do not vary, trials that ended as they should, values that are None."""

from __future__ import annotations

import json
import shutil
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opened import Opened
from ui_clients import LiveServer
from written import Written, write_trials

from holdfast.core.events import Cause, ErrorFacts
from holdfast.results.packing import PackedColumn, pack, unpack

if TYPE_CHECKING:
    from playwright.sync_api import Route

Serve = Callable[[Path], LiveServer]
Open = Callable[..., Opened]

CANVAS = ".chart canvas"
DAMAGED = "Record 12 of the journal does not match its checksum. Nothing was overwritten."

pytestmark = pytest.mark.slow


def _loss(n: int, step: int) -> dict[str, float]:
    return {"loss": 1 / step + n / 100, "size": float(n * step)}


@pytest.fixture(scope="module")
def varied(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> LiveServer:
    """Twelve trials: `steps` is the same in all, some came to their full budget, one was killed, one tried again."""
    trials = [
        Written(
            {"steps": 12, "lr": 0.001 * (n + 1), "layers": n % 4 + 1, "act": ("relu", None, "gelu")[n % 3]},
            [_loss(n, step) for step in range(1, 5)],
            reason="reached max_t" if n % 2 else "behind at rung 3",
            error=ErrorFacts(message="killed by SIGKILL") if n == 11 else None,
            cause=Cause.SIGNAL,
            lost=[_loss(n, 1), _loss(n, 2)] if n == 10 else None,
        )
        for n in range(12)
    ]
    return serve(write_trials(tmp_path_factory.mktemp("varied") / "varied", trials))


@pytest.fixture(scope="module")
def alike(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> LiveServer:
    """Four trials with one configuration and one result; a scheduler stopped all of them."""
    trials = [Written({"lr": 0.1, "layers": 2}, [{"loss": 0.5, "size": 1.0}], "behind at rung 1") for _ in range(4)]
    return serve(write_trials(tmp_path_factory.mktemp("alike") / "alike", trials))


def _replaced(page: Opened, part: str, change: Callable[[Any], Any]) -> None:
    """From now on this part of the API answers with something else."""

    def answer(route: Route) -> None:
        route.fulfill(json=change(route.fetch().json()))

    page.page.route(f"**/api/experiments/*{part}", answer)


def _refused(page: Opened, part: str) -> None:
    page.expected.append("409")
    body = json.dumps({"error": DAMAGED})
    page.page.route(
        f"**/api/experiments/*{part}",
        lambda route: route.fulfill(status=409, body=body, content_type="application/json"),
    )


def test_parameters_that_do_not_vary(varied: LiveServer, alike: LiveServer, open_page: Open) -> None:
    """An axis whose ends are the same had no end of ticks: the page stood still, and said RangeError."""
    page = open_page(varied.address, "#/charts/contour")
    page.page.wait_for_selector(CANVAS)
    chosen = "[...document.querySelectorAll('.chart-controls select')].map((each) => each.value).join()"
    assert page.page.evaluate(chosen) == "lr,layers,loss"
    page.see("lower is better", ".colour-bar")
    page.see("interpolated", ".chart-note")
    page.go("#/charts/contour?x=lr&y=steps")
    page.page.wait_for_selector(CANVAS)
    page.see("All trials have the same steps", ".chart-note")
    page.go("#/charts/slice?x=steps")
    page.page.wait_for_selector(CANVAS)
    page.go("#/charts/importance")
    page.see("1 parameter that does not vary is left out", ".chart-note")
    page.unsee("steps", ".bars .name")

    page = open_page(alike.address, "#/charts/contour")
    page.see("Nothing varies", ".empty")
    for chart in ("history", "history?x=time", "curves", "slice", "edf", "edf?log=1", "pareto?x_mode=min&y_mode=max"):
        page.go(f"#/charts/{chart}")
        page.page.wait_for_selector(CANVAS)
    page.go("#/charts/importance")
    page.see("4 trials with a result are too few", ".empty")
    page.go("#/charts/parallel")
    page.page.wait_for_selector("canvas")


def test_a_budget_that_is_used_up_is_no_early_stop(varied: LiveServer, alike: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/charts/curves")
    page.see("12 trials; 6 stopped early (○), 1 failed", ".chart-note")
    page.page.get_by_label("hide early-stopped and failed").check()
    page.see("7 are hidden", ".chart-note")
    page = open_page(alike.address, "#/charts/curves?show=finished")
    page.see("The filter hides 4 trials", ".empty")
    page.unsee("Nothing to draw yet", ".empty")

    def early(route: Route) -> None:
        head, columns = unpack(route.fetch().body())
        columns["early_stopped"] = PackedColumn("early_stopped", array("i", [1, 0, 0, 0]))
        more = {key: value for key, value in head.items() if key not in ("rows", "columns")}
        route.fulfill(body=pack(columns.values(), head["rows"], **more))

    page.page.route("**/api/experiments/*/columns?*early_stopped*", early)
    page.page.reload()
    page.see("4 trials; 1 stopped early (○)", ".chart-note")


def test_damage_is_said_where_it_matters(varied: LiveServer, open_page: Open) -> None:
    """Damage may be found long after the page was opened: by the first question that reads all reports."""
    page = open_page(varied.address, "#/trials")
    for part in ("/curves?*", "/charts/**", "/trials/*/story"):
        _refused(page, part)
    page.page.evaluate("location.hash = '#/'")
    page.see(DAMAGED, ".empty")
    page.see(DAMAGED, ".banner")
    page.unsee("Loading curves", "main")
    for route in ("charts/curves", "charts/edf", "compare?trials=abcde_00000,abcde_00001", "trials/abcde_00000"):
        page.page.evaluate(f"location.hash = '#/{route}'")
        page.see(DAMAGED, ".empty")
        page.unsee("No report yet", "main")
    page.see(DAMAGED, "main section p.muted")
    _replaced(page, "", lambda found: found | {"damage": DAMAGED})
    page.go("#/")
    page.see(f"Damage: {DAMAGED}", ".banner")
    assert page.page.locator(".banner", has_text=DAMAGED).count() == 1


def test_nothing_is_claimed_of_a_damaged_journal(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.see("a power cut would lose nothing", ".tile")
    repair = "holdfast repair /x/varied"
    lost = {"journal_damage": {"message": DAMAGED}, "damage": DAMAGED, "repair_command": repair, "resume_command": None}
    change = lost | {"state": "interrupted", "why": "its journal is damaged", "last_event_at": None}
    _replaced(page, "", lambda found: found | change)
    _replaced(page, "/charts/recovery", lambda found: {"events": [], "by_kind": {}, "lost_s": 0, "end": 0})
    page.page.reload()
    page.see("Driver interrupted: its journal is damaged.", ".banner")
    page.unsee("Nothing that was reported is lost", ".banner")
    page.unsee("would lose nothing", ".tile")
    page.see("not known: the journal is damaged", ".tile")
    page.see(repair, ".command")
    page.unsee("Resume", "h2")
    page.screenshot("damaged")
    page.go("#/charts/recovery")
    page.see("What happened is not known", ".empty")
    page.unsee("Nothing went wrong", "main")


def test_store_that_does_not_answer_is_named_and_ages_grow(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    said = "s3://b/x has not answered for 23 s; what is shown is from 12:03:41"
    now = time.time()
    _replaced(page, "", lambda found: found | {"unreachable": said, "state": "running", "last_event_at": now})
    page.page.reload()
    page.see(f"Store does not answer: {said}", ".banner")
    page.page.unroute_all()
    page.page.route("**/api/experiments/*", lambda route: None)  # no answer: only the page's own clock goes on
    age = "Number(/last event (\\d+) s ago/.exec(document.body.innerText)?.[1] ?? 0)"
    page.until(f"{age} >= 2")
    page.until(f"{age} >= {page.page.evaluate(age) + 2}")


def test_experiment_of_a_newer_format_is_not_called_a_lost_connection(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.expected += ["status of 4", "MIME type"]
    body = json.dumps(
        {"error": "Written by holdfast 9.0.", "state": "newer format", "name": "newer", "path": "/x/newer"}
    )
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=409, body=body, content_type="application/json")

    for part in ("", "/events*"):
        page.page.route(f"**/api/experiments/*{part}", refuse)
    page.page.reload()
    page.see("Newer format", ".empty h2")
    deadline = time.monotonic() + 60
    while sum("/events" in url for url in refused) < 2:
        assert time.monotonic() < deadline, "the stream is not tried again"
        page.page.wait_for_timeout(50)  # lets the browser tell what it asks
    page.unsee("Connection lost", ".banner")


def test_none_is_a_value(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.see("relu, gelu, None", "dd")
    page.see("1 to 8, whole", "dd")
    page.go("#/trials/abcde_00001")
    page.see("None", ".facts dd")
    page.go("#/trials")
    page.see("None", ".vrow")
    page.go("#/compare?trials=abcde_00000,abcde_00001")
    page.see("None", "td")
    page.go("#/charts/slice?x=act")
    page.page.locator("details.behind summary").click()
    page.see("None", "details.behind [role=cell]")
    page.go("#/trials?filter=act == None")
    page.see("4 of 12 trials", "[role=status]")
    page.go("#/trials?columns=trial_id|config/act&sort=config/act")
    shown = "[...document.querySelectorAll('.vrow')].map((row) => row.lastElementChild.textContent).join(' ')"
    page.until(f"{shown} === '{' '.join(4 * ['gelu'] + 4 * ['relu'] + 4 * ['None'])}'")
    page.go("#/charts/contour?x=act&y=layers")
    page.page.wait_for_selector(CANVAS)
    page.page.locator("details.behind summary").click()
    page.see("None", "details.behind [role=cell]")


def test_nested_parameters_have_the_names_of_their_columns(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    trials = [Written({"deep": {"a": {"b": 0.00003762559769557488}}}, [{"loss": 0.5}])]
    page = open_page(serve(write_trials(tmp_path / "nested", trials, space={})).address, "#/")
    for route in ("", "trials/abcde_00000"):
        page.go(f"#/{route}")
        page.see("deep/a/b", "dt")
        page.see("3.763e-5", "dd")


def test_failures_and_attempts_in_the_words_of_the_server(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.see("the process was killed · 1 trial", ".rows p")
    page.go("#/trials/abcde_00011")
    page.see("the process was killed: killed by SIGKILL", "main p")
    page.go("#/trials/abcde_00010")
    page.see("Last failure", "h2")
    page.see("out of memory: killed by SIGKILL", "main p")
    rows = "[...document.querySelectorAll('[aria-label=Attempts] tbody tr')].map((row) => row.children)"
    page.until(f"{rows}.length === 2")
    said = page.page.evaluate(f"{rows}.map((cells) => [0, 2, 3, 4].map((i) => cells[i].textContent))")
    assert said == [
        ["1", "3.0 s", "failed (out of memory)", "node:4242"],
        ["2", "6.0 s", "finished", "node:4242"],
    ]
    page.see("2", ".tile:nth-child(3) dd")


def test_output_opens_at_its_end(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    lines = [f"line {n}" for n in range(300)]
    page.page.route("**/trials/*/log?*", lambda route: route.fulfill(json={"lines": lines, "truncated": False}))
    page.go("#/trials/abcde_00001")
    page.see("line 299", "pre")
    left = "(p => p.scrollHeight > 2 * p.clientHeight ? p.scrollHeight - p.scrollTop - p.clientHeight : -1)"
    page.until(f"(left => left >= 0 && left < 2)({left}(document.querySelector('pre')))")


def test_toast_is_as_dark_as_the_page_behind_its_text(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/", theme="dark")
    colour = """() => {
      const toast = document.createElement("p");
      toast.className = "toast";
      document.querySelector(".page-head > div").append(toast);
      return getComputedStyle(toast).color;
    }"""
    assert page.page.evaluate(colour) == "rgb(14, 19, 21)"


def test_ranges_of_parallel_coordinates_by_keyboard(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/charts/parallel")
    page.see("1 parameter is not shown", ".chart-note")
    page.see("lower is better", ".colour-bar")
    page.page.get_by_label("range of").select_option("layers")
    page.page.get_by_label("from").fill("3")
    page.page.get_by_label("from").press("Enter")
    page.see("6 of 12 trials selected", ".chart-note")
    page.page.get_by_role("button", name="All of layers").click()
    page.see("12 of 12 trials selected", ".chart-note")


def test_names_that_every_object_of_javascript_has(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    """A parameter named toString was taken for the function of that name, and the page stayed empty."""
    names = ("toString", "constructor", "__proto__", "hasOwnProperty")
    trials = [
        Written({name: (n + 1) * 10**k for k, name in enumerate(names)}, [_loss(n, 1) | {"valueOf": n / 7}])
        for n in range(12)
    ]
    page = open_page(serve(write_trials(tmp_path / "named", trials, space={})).address, "#/charts/parallel")
    page.page.get_by_label("range of").select_option("__proto__")
    page.page.get_by_label("from").fill("700")
    page.page.get_by_label("from").press("Enter")
    page.see("6 of 12 trials selected", ".chart-note")
    for route in (
        *(f"charts/slice?x={name}" for name in names),
        "charts/contour?x=__proto__&y=constructor",
        "charts/pareto?x=loss&y=valueOf&y_mode=min",
        "charts/curves?metric=valueOf",
    ):
        page.go(f"#/{route}")
        page.page.wait_for_selector(CANVAS)
    for route in ("charts/importance", "trials/abcde_00003", "compare?trials=abcde_00000,abcde_00001"):
        page.go(f"#/{route}")
        page.see("__proto__", "main")
    page.go("#/trials?columns=trial_id|toString|config/toString&filter=toString > 6 and trial_id != constructor")
    page.see("6 of 12 trials", "[role=status]")


def test_view_that_fails_leaves_the_others_usable(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/charts/history")
    page.page.wait_for_selector(CANVAS)
    page.expected.append("Cannot read properties of null")
    _replaced(page, "/charts/edf?*", lambda found: found | {"points": [None]})
    page.page.evaluate("location.hash = '#/charts/edf'")
    page.see("This view cannot be shown", ".empty h2")
    page.see("bug in holdfast: Cannot read properties of null", ".empty")
    page.screenshot("failed-view")
    page.page.get_by_role("link", name="Trials").click()
    page.see("abcde_00011", ".vrow")
    page.page.evaluate("location.hash = '#/charts/curves'")
    page.page.wait_for_selector(CANVAS)


def test_every_chart_has_its_data_as_a_table(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.until("document.querySelectorAll('details.behind').length === 2")
    page.go("#/compare?trials=abcde_00000,abcde_00001")
    page.page.locator("details.behind summary").click()
    page.see("abcde_00001 loss", "details.behind")


def test_direction_of_a_metric_is_asked_for(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/charts/pareto")
    page.see("Choose minimize or maximize for size", ".empty")
    page.page.get_by_label("mode").nth(1).select_option("max")
    page.see("trials are on the front", ".chart-note")
    page.page.unroute_all()
    _replaced(page, "", lambda found: found | {"modes": {"size": "max"}})
    page.go("#/charts/pareto")
    page.page.reload()
    page.see("trials are on the front", ".chart-note")


def test_recovery_in_words(varied: LiveServer, open_page: Open) -> None:
    """Trial 10 was tried again from its beginning, after 3 s; trial 11 failed, and nobody knows what that has cost."""
    page = open_page(varied.address, "#/charts/recovery")
    page.page.wait_for_selector(CANVAS)
    page.see("at least 3.0 s", ".tile")
    tiles = "[...document.querySelectorAll('.tile')].map((tile) => [...tile.children].map((e) => e.textContent))"
    assert page.page.evaluate(tiles)[1:] == [
        ["▶ retry", "1", "3.0 s lost"],
        ["◀ rewind", "1", "3.0 s repeated"],
        ["✕ failed for good", "1", "time lost not known"],
    ]
    page.see("counts once in the total", ".chart-note")
    page.page.locator("details.behind summary").click()
    page.see("time lost not known", "details.behind [role=cell]")

    kinds = ("driver_lost", "takeover", "rewind", "crash", "interrupted", "resume", "lag")
    begin = 1_700_000_010
    events = [
        {"time": begin + k, "end": begin + k, "kind": kind, "text": "it", "lost_s": 0} for k, kind in enumerate(kinds)
    ]
    events[-1] |= {"end": None, "lost_s": 5}
    sums = {kind: {"count": 1, "lost_s": events[k]["lost_s"]} for k, kind in enumerate(kinds)}
    _replaced(page, "/charts/recovery", lambda found: found | {"events": events, "by_kind": sums, "lost_s": 5})
    page.go("#/charts/history")
    page.go("#/charts/recovery")
    page.page.wait_for_selector(CANVAS)
    for words in ("driver lost", "take-over", "iterations thrown away", "failed for good", "interrupted", "resumed"):
        page.see(words, ".tile")
    page.see("5.0 s lost", ".tile")
    page.unsee("at least", ".tile")


def test_copy_has_the_colour_of_its_donor(alike: LiveServer, open_page: Open) -> None:
    """Trial 1 copied trial 0; the others neither copied nor were copied."""
    begin, end, config = 1_700_000_000, 1_700_000_040, {"lr": 0.1, "layers": 2}
    nodes = [
        {"trial_id": "abcde_00000", "segments": [[begin, end, 0, 4, config]]},
        {"trial_id": "abcde_00001", "segments": [[begin, begin + 20, 0, 2, config], [begin + 20, end, 2, 4, config]]},
    ]
    edges = [{"time": begin + 20, "to": "abcde_00001", "from": "abcde_00000", "iteration": 2, "checkpoint": "c"}]
    page = open_page(alike.address, "#/")
    _replaced(page, "/charts/lineage", lambda found: {"nodes": nodes, "edges": edges, "params": ["lr"]})
    page.go("#/charts/lineage")
    page.page.wait_for_selector("[aria-label='Lineage of 4 trials with 1 copy'] canvas")
    page.see("abcde_00003", ".legend")
    box = page.page.locator(".u-over").first.bounding_box()
    assert box is not None
    lane = box["y"] + box["height"] * (1 - (2 + 0.7) / 4.4)
    page.page.mouse.move(box["x"] + box["width"] * 0.75, lane)
    page.see("abcde_00001", ".tooltip")
    page.see("descends from abcde_00000", ".tooltip")
    page.page.mouse.move(box["x"] + box["width"] * 0.25, lane)
    page.see("iterations 0 to 2", ".tooltip")
    page.unsee("descends", ".tooltip")
    page.screenshot("copies")


def test_workers_of_one_slot_are_one_line(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/charts/workers")
    page.page.wait_for_selector("[aria-label='Timeline of 1 slot with 13 attempts'] canvas")
    page.see("Workers were idle for 10 % of the time (12 s in sum).", ".chart-note")
    page.see("done", ".legend")
    begin = 1_700_000_000
    workers = [
        {"name": f"{'ab'[n // 3]}:{n}", "host": "ab"[n // 3], "pid": n, "busy_s": 9, "idle_s": 1,
         "spans": [[begin + 10 * n, begin + 10 * n + 9, f"abcde_{n:05d}", 1, "done", n // 3]]}
        for n in range(6)
    ]  # fmt: skip
    workers[5]["spans"] = [[begin + 50, begin + 59, "", 0, "several", 1]]
    more = {"workers": workers, "lanes": 2, "busy_s": 54, "idle_s": 6, "note": "Some are drawn as one."}
    _replaced(page, "/charts/workers", lambda found: found | more)
    page.go("#/charts/history")
    page.go("#/charts/workers")
    page.page.wait_for_selector("[aria-label='Timeline of 2 slots with 6 attempts'] canvas")
    page.see("Workers were idle for 10 % of the time (6.0 s in sum). Some are drawn as one.", ".chart-note")
    page.page.locator("details.behind summary").click()
    rows = "[...document.querySelectorAll('details.behind [role=row]')].slice(1).map((row) => row.children)"
    page.until(f"{rows}.length === 6")
    shown = page.page.evaluate(f"{rows}.map((cells) => [0, 1, 2, 4].map((i) => cells[i].textContent).join(' '))")
    assert shown[3:] == [
        "b slot 2 b:3 abcde_00003 done",
        "b slot 2 b:4 abcde_00004 done",
        "b slot 2 b:5 several several",
    ]


def test_state_of_an_experiment_that_cannot_be_read(varied: LiveServer, open_page: Open) -> None:
    states = [
        {"id": "a", "name": "newer", "path": "/x/newer", "state": "newer format", "error": "Written by 9.0."},
        {"id": "b", "name": "moved", "path": "/x/moved", "state": "not found", "error": "There is nothing."},
        {"id": "c", "name": "cut", "path": "/x/cut", "state": "finished", "damage": DAMAGED},
    ]
    page = open_page(varied.address, "#/")
    page.page.route("**/api/experiments", lambda route: route.fulfill(json=states))
    page.page.goto("about:blank")
    page.go("#/")
    page.see("newer format", ".pill")
    page.see("not found", ".pill")
    page.see("damaged", ".pill")
    page.see(DAMAGED, ".problem")


def test_place_that_vanishes(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    """What was read stays in sight. Whoever opens the experiment later is told its name, state and place."""
    trials = [Written({"lr": 0.1}, [{"loss": 0.5}])]
    for name in ("gone", "never", "kept"):
        write_trials(tmp_path / "runs" / name, trials)
    server = serve(tmp_path / "runs")
    ids = {each["name"]: each["id"] for each in server.get("/api/experiments")}
    page = open_page(server.address, f"#/e/{ids['gone']}")
    page.see("finished", ".pill")
    page.page.evaluate(f"location.hash = '#/e/{ids['gone']}/trials'")
    for name in ("gone", "never"):
        shutil.rmtree(tmp_path / "runs" / name)
    page.see("not found", ".pill")
    page.see("Not found: ", ".banner")
    page.see("What was read before is shown.", ".banner")
    page.unsee("Damage", ".banner")
    page.see("abcde_00000", ".vrow")
    found = server.get(f"/api/experiments/{ids['gone']}")
    assert found["damage"] is None
    page.see(found["why"], ".banner")

    page = open_page(server.address, "#/")
    page.expected.append("Failed to load resource")
    page.page.evaluate(f"location.hash = '#/e/{ids['never']}'")
    page.see("Not found", ".empty h2")
    page.see(str(tmp_path / "runs" / "never"), ".empty p.mono")
    page.see("not found", "header .pill")
    page.until("document.title === 'never · holdfast'")


def test_words_of_durability_and_uploads(varied: LiveServer, open_page: Open) -> None:
    page = open_page(varied.address, "#/")
    page.see("a power cut would lose nothing", ".tile")
    page.see("no checkpoint waits", ".tile")
    text = "checkpoints were not uploaded: the next driver uploads those that are still on its machine"
    waiting = {"checkpoints": 14, "bytes": 123_456_789_000, "oldest_s": 3.0, "waiting_since": None, "text": text}
    _replaced(page, "", lambda found: found | {"backlog": waiting, "state": "interrupted", "why": "x"})
    page.page.reload()
    page.see("14 checkpoints", ".tile")
    page.see("123 GB", ".tile")
    page.see(text, ".tile")
    cut = "[...document.querySelectorAll('.tile dd')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert page.page.evaluate(cut) == 0
