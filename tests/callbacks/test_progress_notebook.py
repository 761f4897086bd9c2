"""Progress in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from progress_world import World, boom

from holdfast.display.display import Ending, RunSummary, make_display
from holdfast.display.experiment_facts import DisplayOptions
from holdfast.display.live import NotebookDisplay, Output, in_notebook

NASTY = "<script>alert('x')</script>&"


class Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def run(options: DisplayOptions | None = None) -> tuple[NotebookDisplay, World, list[tuple[str, bool]]]:
    shown: list[tuple[str, bool]] = []
    display = NotebookDisplay(options, publish=lambda html, overwrite: shown.append((html, overwrite)))
    world = World(display.feed, name=NASTY, root=f"/data/{NASTY}")
    n = world.launch({NASTY: NASTY}, name=NASTY)
    world.report(n, **{"loss": 0.5, NASTY: 1.0})
    world.fail(world.launch(), boom(NASTY))
    display.note(NASTY)
    display.start(world.facts)
    return display, world, shown


def test_everything_from_the_user_is_escaped() -> None:
    display, world, shown = run()
    display.update(world.state, world.facts, world.at)
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED, reason=NASTY))
    for html, _ in shown:
        page = Tags(html)
        assert page.tags <= {"div", "b", "span", "progress", "table", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in html
        assert NASTY in page.text
        assert "/home/me/train.py:17" in page.text
        assert "RUNNING" in page.text
    assert "Tuner.restore(" in Tags(shown[-1][0]).text


def test_frames_are_limited_and_replaced_in_place() -> None:
    display, world, shown = run()
    for _ in range(100):
        display.update(world.state, world.facts, world.at)
    assert len(shown) == 1
    assert shown[0][1] is True


def test_overwriting_can_be_turned_off() -> None:
    display, world, shown = run(DisplayOptions(overwrite=False))
    display.update(world.state, world.facts, world.at)
    assert shown[0][1] is False


def test_a_front_end_that_fails_does_not_end_the_experiment(caplog: pytest.LogCaptureFixture) -> None:
    def publish(html: str, overwrite: bool) -> None:
        raise RuntimeError("kernel is gone")

    display = NotebookDisplay(publish=publish)
    world = World(display.feed)
    display.update(world.state, world.facts, world.at)
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.INTERRUPTED))
    assert "kernel is gone" in caplog.text
    assert 'Tuner.restore("/data/lr-search")' in caplog.text


def test_tests_do_not_run_in_a_notebook() -> None:
    assert in_notebook() is False
    assert isinstance(make_display(1, notebook=True), NotebookDisplay)


def test_ipython_shows_one_output_and_updates_it() -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        with shell.display_trap:
            published: list[dict[str, object]] = []
            shell.display_pub.publish = lambda data, metadata=None, **more: published.append(  # type: ignore[method-assign]
                {"html": data["text/html"], "update": more.get("update", False)}
            )
            output = Output()
            for html in ("<b>1</b>", "<b>2</b>"):
                output.show(html, True)
            assert published == [{"html": "<b>1</b>", "update": False}, {"html": "<b>2</b>", "update": True}]
    finally:
        InteractiveShell.clear_instance()
