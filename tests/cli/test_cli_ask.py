"""``holdfast stop``, ``note``, ``tag`` and ``samples``: asked of live drivers, and refused in words without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import store_trials
from roots import RootWriter, small_experiment

from holdfast.controller import user_requests
from holdfast.controller.request_files import folder_of
from holdfast.core import events as ev
from holdfast.core.events import Action
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.results.grid import ResultGrid
from servers.process import poll

Holdfast = Callable[..., Any]
DEADLINE_S = 60


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with one trial, which waits before its third step."""
    process = store_trials.driver(str(tmp_path / "results"), tmp_path, {})
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def said(tmp_path: Path) -> RootWriter:
    """An experiment about which people have said something; its driver has left."""
    root = RootWriter(tmp_path / "said").open()
    root.create({"lr": 0.1})
    root.create({"lr": 0.2})
    root.start(0)
    root.report(0, {"loss": 1.0})
    about = [
        (0, Action.NOTE, "\x1b[2Jdiverges", ()),
        (0, Action.TAG, "", ("keep", "paper")),
        (-1, Action.NOTE, "x" * 9, ()),
    ]
    for number, (n, action, text, tags) in enumerate(about):
        root.add(ev.UserRequested(root.tick(), n, f"r{number}", action, text, tags, by="ann@box"))
    root.add(ev.UserRequested(root.tick(), -1, "r3", Action.TAG, "", ("thesis",)))
    root.add(ev.UserRequested(root.tick(), 0, "r4", Action.STOP, by="ann@box"))
    root.report(0, {"loss": 0.5}, "stop", STOPPED_BY_USER)
    root.end(0, STOPPED_BY_USER)
    root.add(ev.UserRequested(root.tick(), 0, "r5", Action.STOP, refused="trial abcde_00000 has ended already"))
    root.add(ev.SettingsChanged(root.tick(), num_samples=3, total=3, words=("num_samples 1 -> 3",), request="r6"))
    return root.finish()


def test_everything_is_asked_of_a_live_driver(
    tmp_path: Path, live: subprocess.Popen[bytes], holdfast: Holdfast
) -> None:
    path = tmp_path / "results" / "exp"
    answer = holdfast("note", path, 0, "look at this")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Noted for trial ")
    assert holdfast("note", path, "about all of it").out == "Noted for the experiment.\n"
    assert holdfast("tag", path, 0, "keep", "paper").code == 0
    assert holdfast("tag", path, "--remove", 0, "paper").code == 0
    assert holdfast("tag", path, "--experiment", "thesis").code == 0
    answer = holdfast("samples", path, 1)
    assert (answer.code, answer.out) == (1, "")
    assert "num_samples is 1 already" in answer.err
    answer = holdfast("samples", path, 2, "--json")
    assert json.loads(answer.out) == {"accepted": True, "text": "The experiment has num_samples=2 from now on."}
    assert "TERMINATED" in holdfast("stop", path, 0).out
    (tmp_path / "go").touch()
    assert live.wait(DEADLINE_S) == 0
    grid = ResultGrid.from_path(path)
    assert (grid[0].tags, grid[0].notes) == (["keep"], ["look at this"])
    assert (grid.tags, grid.notes) == (["thesis"], ["about all of it"])
    assert (grid[0].metrics["training_iteration"], grid[1].metrics["training_iteration"]) == (3, 4)
    assert "stopped by the user" in holdfast("show", path).out
    assert os.listdir(folder_of(path)) == []


def test_a_stopped_driver_leaves_what_can_be_resumed(
    tmp_path: Path, live: subprocess.Popen[bytes], holdfast: Holdfast
) -> None:
    path = tmp_path / "results" / "exp"
    answer = holdfast("stop", path)
    assert answer.code == 0
    assert f"holdfast resume {path}" in answer.out
    (tmp_path / "go").touch()
    assert live.wait(DEADLINE_S) == 0
    assert "interrupted (the user stopped the experiment)" in holdfast("status", path).out
    assert holdfast("resume", path).code == 0
    assert [result.status for result in ResultGrid.from_path(path)] == ["TERMINATED"]


def test_requests_to_a_store_go_through_the_mirror_of_its_driver(
    bucket: str, tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/exp"
    process = store_trials.driver(bucket, tmp_path, {})
    try:
        assert holdfast("note", url, 0, "from here").code == 0
        monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "another machine"))
        answer = holdfast("stop", url)
        assert answer.code == 1
        assert "type the same command there" in answer.err
        monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
        (tmp_path / "go").touch()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert ResultGrid.from_path(url)[0].notes == ["from here"]


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["stop"], "holdfast resume"),
        (["stop", "0"], "No driver runs"),
        (["note", "some text"], "holdfast resume"),
        (["tag", "--experiment", "keep"], "holdfast resume"),
        (["samples", "7"], "TuneConfig(num_samples=7)).fit()"),
    ],
)
def test_without_a_driver_the_answer_is_what_to_type_instead(
    said: RootWriter, holdfast: Holdfast, arguments: list[str], instead: str
) -> None:
    answer = holdfast(arguments[0], said.path, *arguments[1:])
    assert answer.code == 1
    assert "No driver runs" in answer.err
    assert instead in answer.err
    assert not os.path.exists(folder_of(said.path))


@pytest.mark.parametrize(
    "arguments",
    [["tag", "PATH", "0"], ["note", "PATH", "0", "two", "words"], ["tag", "PATH", "--experiment", "a b"]]
    + [["samples", "PATH", "0"], ["samples", "PATH", "many"], ["note", "PATH", " "], ["note"], ["stop", "nowhere"]],
)
def test_what_cannot_work_is_a_usage_error(said: RootWriter, holdfast: Holdfast, arguments: list[str]) -> None:
    answer = holdfast(*(said.path if each == "PATH" else each for each in arguments))
    assert (answer.code, answer.out) == (2, "")
    assert answer.err


def test_a_driver_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process is the driver, and looks at nothing."""
    root = RootWriter(tmp_path / "exp").open()
    monkeypatch.setattr(user_requests.stop_all, "__kwdefaults__", {"wait_s": 0.1})
    answer = holdfast("stop", root.path)
    assert answer.code == 1
    assert "has not answered for 0.1 s" in answer.err
    assert len(os.listdir(folder_of(root.path))) == 1  # a later driver refuses it
    root.finish()


def test_a_driver_that_dies_meanwhile_is_noticed_and_the_request_withdrawn(
    tmp_path: Path, live: subprocess.Popen[bytes], holdfast: Holdfast
) -> None:
    path = tmp_path / "results" / "exp"
    os.kill(live.pid, 19)  # SIGSTOP: it does not look any more
    with subprocess.Popen(["sh", "-c", f"while ! ls {folder_of(path)}/*.json; do :; done; kill -9 {live.pid}"]):
        answer = holdfast("stop", path)
    live.wait()
    assert answer.code == 1
    assert "ended before it took the request" in answer.err
    poll(lambda: os.listdir(folder_of(path)) == [], DEADLINE_S, "the request to be withdrawn")


def test_what_people_said_is_shown_everywhere(said: RootWriter, holdfast: Holdfast, tmp_path: Path) -> None:
    shown = holdfast("status", said.path).out
    assert "tags: thesis" in shown
    assert "ann@box): xxxxxxxxx" in shown
    facts = json.loads(holdfast("status", said.path, "--json").out)
    assert (facts["tags"], [note["text"] for note in facts["notes"]]) == (["thesis"], ["xxxxxxxxx"])
    assert facts["trials"][0]["tags"] == ["keep", "paper"]
    assert facts["trials"][0]["notes"][0] == {
        "at": facts["trials"][0]["notes"][0]["at"],
        "text": "\x1b[2Jdiverges",
        "by": "ann@box",
    }
    table = holdfast("show", said.path).out
    assert "Tags" in table
    assert "keep,paper" in table
    assert "\x1b" not in table
    assert "note (" in holdfast("show", said.path, 0).out
    assert "keep,paper" in holdfast("list-trials", said.path, "--columns", "trial_id,tags,notes").out
    out = tmp_path / "out.csv"
    holdfast("export", said.path, out)
    assert "keep,paper" in out.read_text()


def test_the_story_tells_who_asked_for_what(said: RootWriter, holdfast: Holdfast) -> None:
    story = holdfast("show", said.path, 0, "--story").out
    for line in (
        r"The user (ann@box) noted about it: \x1b[2Jdiverges.",
        "The user (ann@box) tagged it: keep, paper.",
        "The user (ann@box) stopped it.",
        "It ended, because the user had stopped it.",
        "A request of the user (stop) about it was refused: trial abcde_00000 has ended already.",
    ):
        assert line in story
    story = holdfast("show", said.path, "--story").out
    assert "The user (ann@box) noted about the experiment: xxxxxxxxx." in story
    assert "The user tagged the experiment: thesis." in story
    assert "The user changed: num_samples 1 -> 3." in story


def test_a_copy_takes_no_request_along(said: RootWriter, holdfast: Holdfast, tmp_path: Path) -> None:
    os.makedirs(folder_of(said.path))
    Path(folder_of(said.path), f"{1:032x}.json").write_text("{}")
    assert holdfast("copy", said.path, tmp_path / "copy").code == 0
    assert not os.path.exists(folder_of(tmp_path / "copy"))


def test_a_copy_of_a_running_experiment_takes_no_requests(tmp_path: Path, holdfast: Holdfast) -> None:
    """Its claim names a driver that is alive, and never looks into this directory."""
    writer = small_experiment(tmp_path / "exp")
    shutil.copytree(writer.path, tmp_path / "copy")
    answer = holdfast("note", tmp_path / "copy", "hello")
    assert answer.code == 1
    assert "is a copy" in answer.err
    assert not list((tmp_path / "copy" / ".holdfast").glob("requests/*"))
    assert "This is a copy" in holdfast("status", tmp_path / "copy").out
    assert "This is a copy" not in holdfast("status", writer.path).out
    writer.finish()
