"""A hundred thousand trials: the page shows all of them, and has only those in sight in the document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from large import TRIALS, loss_of, trial_id, write_large
from opened import Opened
from ui_clients import LiveServer

MAX_ROWS = 100
BEST = min(range(TRIALS), key=loss_of)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large(tmp_path_factory.mktemp("large") / "large")


def test_a_hundred_thousand_trials(
    large: Path, serve: Callable[..., LiveServer], open_page: Callable[..., Opened]
) -> None:
    page = open_page(serve(large).address, "#/trials")
    page.see("100,000 trials", "[role=status]")
    page.see(trial_id(0), ".vrow")
    page.page.evaluate("() => { const t = document.querySelector('.vtable'); t.scrollTop = t.scrollHeight; }")
    page.see(trial_id(TRIALS - 1), ".vrow")
    assert page.page.locator(".vrow").count() < MAX_ROWS

    page.go("#/trials?sort=metric%2Floss")
    page.see(trial_id(BEST), ".vrow[aria-rowindex='2']")
    page.go("#/trials?filter=loss%20%3C%200.001")
    page.see("100 of 100,000 trials", "[role=status]")

    page.go("#/charts/history")
    page.page.wait_for_selector(f"[role=img][aria-label^='History of loss: {TRIALS} trials'] canvas")
    page.go("#/charts/curves")
    page.see("100,000 trials", ".chart-note")
    page.see("1,000 of 100,000 curves are drawn", ".chart-note")
    page.page.wait_for_selector(".chart canvas")

    page.go("#/")
    page.see("100,000", ".tile")
    page.see("300,000", ".tile")
    page.see(trial_id(BEST), ".tile a")
