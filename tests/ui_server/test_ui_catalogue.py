"""Which address belongs to which experiment, also while directories are copied and moved."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from roots import many_trials, small_experiment

from holdfast.ui import catalogue as catalogues
from holdfast.ui.catalogue import Catalogue
from holdfast.ui.page_answers import summary

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _scanned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogues, "RESCAN_S", 0.0)
    monkeypatch.setattr(catalogues, "RESCAN_SHARE", 0.0)


def ids(catalogue: Catalogue) -> dict[str, str]:
    return {place.name: place.id for place in catalogue.places()}


def test_a_copy_does_not_take_the_address_of_its_original(tmp_path: Path) -> None:
    """Its name comes first in the alphabet, for this server and for the next one."""
    small_experiment(tmp_path / "run").die()
    catalogue = Catalogue(str(tmp_path))
    before = ids(catalogue)["run"]
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    after = ids(catalogue)
    assert list(after) == ["backup", "run"]
    assert after["run"] == before != after["backup"]
    assert ids(Catalogue(str(tmp_path))) == after


def test_a_moved_experiment_is_found_under_its_address(tmp_path: Path) -> None:
    """Nobody asks for the list: that the open page finds nothing at the old place is enough."""
    many_trials(tmp_path / "a", 2)
    catalogue = Catalogue(str(tmp_path))
    (place,) = catalogue.places()
    watched = catalogue.watch(place)
    assert watched.opened.wait(DEADLINE_S)
    (tmp_path / "a").rename(tmp_path / "b")
    watched.trouble_state = "not found"  # as its thread says when it looks again
    deadline = time.monotonic() + DEADLINE_S
    while (found := catalogue.find(place.id)) is None or found.path == place.path:
        assert time.monotonic() < deadline
    assert found == (place.id, "b", str(tmp_path / "b"))
    again = catalogue.watch(found)
    assert again.path == found.path
    assert len(again.ask(lambda source: source.history.state.trials).result(DEADLINE_S)) == 2
    assert watched.is_over
    (line,) = catalogue.listing(summary)
    assert (line["name"], line["path"], line["state"]) == ("b", str(tmp_path / "b"), "finished")


def test_the_list_has_the_new_path_of_a_moved_experiment_that_nobody_opened(tmp_path: Path) -> None:
    many_trials(tmp_path / "a", 2)
    catalogue = Catalogue(str(tmp_path))
    assert catalogue.listing(summary)[0]["path"] == str(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert catalogue.listing(summary)[0]["path"] == str(tmp_path / "b")


def test_the_list_reads_only_what_is_new_of_a_running_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = small_experiment(tmp_path / "exp")
    catalogue, read = Catalogue(str(tmp_path)), []
    really_open = catalogues.open_history
    monkeypatch.setattr(catalogues, "open_history", lambda *a, **k: read.append(a) or really_open(*a, **k))

    def listed() -> dict[str, Any]:
        (facts,) = catalogue.listing(lambda facts: facts)
        return facts

    before = listed()["reports"]
    deadline = time.monotonic() + DEADLINE_S
    for more in range(1, 4):
        writer.report(3, {"loss": 1.0})
        while listed()["reports"] != before + more:
            assert time.monotonic() < deadline
    assert len(read) == 1
    writer.finish()
