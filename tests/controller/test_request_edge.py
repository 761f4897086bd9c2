"""Request files as a driver meets them: new, old, malformed, hostile, many at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.controller import request_files
from holdfast.controller.request_edge import MOST_AT_ONCE, RequestEdge
from holdfast.controller.request_files import (
    LOOKS_AFTER_CHANGE,
    LOOKS_BETWEEN,
    RequestFolder,
    UserRequest,
    check_request,
    create_request,
    folder_of,
    new_id,
    parse_request,
    path_of,
)
from holdfast.core.events import Action
from holdfast.core.state import State
from holdfast.errors import InvalidInputError
from holdfast.storage.local import TEMP_PREFIX


class FakeJournal:
    """A journal whose records become durable when a test says so."""

    written_seq = 0
    local_seq = 0
    asked = 0

    def request_sync(self) -> None:
        self.asked += 1


class EdgeSetup:
    """An edge with everything that it needs."""

    def __init__(self, root: Path, epoch: int = 3) -> None:
        self.state, self.journal, self.told = State(), FakeJournal(), []
        self.edge = RequestEdge(
            RequestFolder(root),
            self.state,
            self.journal,
            epoch,
            total_of=lambda samples: 2 * samples,
            warn=self.told.append,
        )

    def answer(self, *ids: str) -> None:
        """The core has made facts of these, which are written and not durable."""
        self.state.requests.update(dict.fromkeys(ids))
        self.journal.written_seq += 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".holdfast").mkdir()
    return tmp_path


def note(epoch: int = 3, **facts) -> UserRequest:
    return UserRequest(**{"epoch": epoch, "action": Action.NOTE, "text": "hello", "by": "ann@box", **facts})


def test_without_requests_there_is_nothing_to_do_and_nothing_is_made(root: Path) -> None:
    setup = EdgeSetup(root)
    assert setup.edge.look() == []
    assert os.listdir(root / ".holdfast") == []
    assert setup.told == []


def test_a_request_is_told_once_and_its_file_goes_when_the_answer_is_durable(root: Path) -> None:
    setup = EdgeSetup(root)
    request_id = create_request(root, note(trial="t0"))
    (asked,) = setup.edge.look()
    assert (asked.id, asked.action, asked.trial, asked.text, asked.by) == (request_id, "note", "t0", "hello", "ann@box")
    assert setup.edge.look() == []
    setup.answer(request_id)
    assert setup.edge.look() == []
    assert os.path.exists(path_of(root, request_id))  # a power cut could still take the answer
    assert setup.journal.asked
    setup.journal.local_seq = setup.journal.written_seq
    setup.edge.look()
    assert os.listdir(folder_of(root)) == []


def test_what_a_killed_driver_has_answered_is_removed_and_not_told_again(root: Path) -> None:
    request_id = create_request(root, note(epoch=2))
    setup = EdgeSetup(root)
    setup.state.requests[request_id] = None
    assert setup.edge.look() == []
    assert os.listdir(folder_of(root)) == []


def test_a_request_for_an_earlier_driver_is_refused(root: Path) -> None:
    create_request(root, note(epoch=2))
    (asked,) = EdgeSetup(root).edge.look()
    assert "made for driver 2" in asked.refused


def test_a_request_for_a_successor_is_left_to_it(root: Path) -> None:
    create_request(root, note(epoch=4))
    setup = EdgeSetup(root)
    assert setup.edge.look() == []
    assert len(os.listdir(folder_of(root))) == 1
    assert len(EdgeSetup(root, epoch=4).edge.look()) == 1


def test_requests_are_told_in_the_order_in_which_they_were_made(root: Path) -> None:
    ids = [create_request(root, note(text=f"{i}")) for i in range(5)]
    assert [asked.id for asked in EdgeSetup(root).edge.look()] == ids


def test_many_requests_take_several_looks(root: Path) -> None:
    setup = EdgeSetup(root)
    ids = [create_request(root, note()) for _ in range(MOST_AT_ONCE + 3)]
    told = [[asked.id for asked in setup.edge.look()] for _ in range(3)]
    assert [len(each) for each in told] == [MOST_AT_ONCE, 3, 0]
    assert [request_id for each in told for request_id in each] == ids


def test_samples_come_with_the_number_of_trials(root: Path) -> None:
    create_request(root, UserRequest(epoch=3, action=Action.SAMPLES, num_samples=5))
    (asked,) = EdgeSetup(root).edge.look()
    assert (asked.num_samples, asked.total) == (5, 10)


def test_samples_that_cannot_be_are_refused_in_words(root: Path) -> None:
    setup = EdgeSetup(root)

    def refuse(samples: int) -> int:
        raise InvalidInputError("its search space is not known")

    setup.edge._total_of = refuse
    create_request(root, UserRequest(epoch=3, action=Action.SAMPLES, num_samples=5))
    (asked,) = setup.edge.look()
    assert asked.refused == "its search space is not known"


def test_malformed_files_are_answered_in_words(root: Path) -> None:
    os.makedirs(folder_of(root))
    request_id = new_id()
    Path(path_of(root, request_id)).write_bytes(b"{")
    (asked,) = EdgeSetup(root).edge.look()
    assert asked.id == request_id
    assert "cannot be read" in asked.refused


@pytest.mark.parametrize("name", ["README", "../x.json", "1.json", "A" * 32 + ".json", f"{'0' * 32}.json.bak"])
def test_other_names_are_left_alone(name: str) -> None:
    assert request_files.id_of(name) == ""


def test_links_pipes_and_directories_are_neither_followed_nor_removed(root: Path, tmp_path: Path) -> None:
    folder = Path(folder_of(root))
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(msgspec.json.encode(note()))
    names = [f"{i:032x}.json" for i in range(3)]
    os.symlink(secret, folder / names[0])
    os.mkfifo(folder / names[1])
    (folder / names[2]).mkdir()
    setup = EdgeSetup(root)
    assert setup.edge.look() == []
    assert len(setup.told) == 3
    assert setup.edge.look() == []
    assert len(setup.told) == 3  # said once
    assert sorted(os.listdir(folder)) == names


def test_a_folder_that_is_a_link_is_not_entered(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".holdfast").mkdir(parents=True)
    create_request(elsewhere, note())
    os.symlink(folder_of(elsewhere), folder_of(root))
    setup = EdgeSetup(root)
    assert setup.edge.look() == setup.edge.look() == []
    assert len(setup.told) == 1
    with pytest.raises(NotADirectoryError):
        create_request(root, note())
    assert len(os.listdir(folder_of(elsewhere))) == 1


def test_a_huge_file_is_not_read_whole(root: Path) -> None:
    os.makedirs(folder_of(root))
    request_id = new_id()
    with open(path_of(root, request_id), "wb") as file:
        file.truncate(1 << 40)
    (asked,) = EdgeSetup(root).edge.look()
    assert "more than" in asked.refused


def test_a_file_that_cannot_be_removed_is_said_once_and_not_followed_again(root: Path) -> None:
    setup = EdgeSetup(root)
    request_id = create_request(root, note())
    setup.edge.look()
    setup.answer(request_id)
    setup.journal.local_seq = setup.journal.written_seq

    def refuse(name: str) -> None:
        raise PermissionError(13, "Permission denied")

    setup.edge._source.remove = refuse
    assert setup.edge.look() == setup.edge.look() == []
    setup.state.requests.clear()  # so many others came that the fold has forgotten it
    setup.edge._source.look_again()
    assert setup.edge.look() == []
    assert len(setup.told) == 1


def test_a_look_without_news_lists_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes may have the same time stamp: a few looks after one still list; later only one in many does."""
    create_request(root, note(epoch=9))
    folder = RequestFolder(root)
    listed = [folder.names() is not None for _ in range(LOOKS_AFTER_CHANGE + LOOKS_BETWEEN + 10)]
    assert listed[: LOOKS_AFTER_CHANGE + 1] == [True] * (LOOKS_AFTER_CHANGE + 1)
    assert sum(listed) == LOOKS_AFTER_CHANGE + 2
    create_request(root, note())
    os.utime(folder_of(root))
    assert folder.names() is not None


def test_what_was_never_completed_is_swept_when_it_is_old(root: Path) -> None:
    os.makedirs(folder_of(root))
    old, young = (Path(folder_of(root)) / f"{TEMP_PREFIX}{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1.0, time.time() - 2 * request_files.ABANDONED_S))
    RequestFolder(root).sweep()
    assert os.listdir(folder_of(root)) == [young.name]


@pytest.mark.parametrize(
    "facts",
    [
        {"action": "dance"},
        {"action": "note", "text": "  "},
        {"action": "note", "text": "x" * (request_files.MAX_TEXT + 1)},
        {"action": "note", "text": "x", "trial": "t" * 1000},
        {"action": "tag", "tags": []},
        {"action": "tag", "tags": ["\x1b[2J"]},
        {"action": "tag", "tags": ["a,b"]},
        {"action": "tag", "tags": ["x" * 65]},
        {"action": "tag", "tags": [f"{i}" for i in range(100)]},
        {"action": "samples", "num_samples": 0},
        {"action": "samples", "num_samples": 10**12},
        {"action": "samples", "num_samples": 3, "trial": "t0"},
        {"action": "stop", "format": 2},
        {"action": 1},
        {"action": "stop", "epoch": "1"},
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_words(facts: dict) -> None:
    with pytest.raises(InvalidInputError):
        parse_request(msgspec.json.encode({"epoch": 1, **facts}))


def test_a_request_says_what_it_said() -> None:
    request = note(text="grüße \u202e", tags=("a",), trial="t0")
    assert parse_request(msgspec.json.encode(request)) == request


@pytest.mark.parametrize("facts", [{"text": "a\ud800"}, {"text": "a", "trial": "\udcff"}])
def test_text_that_cannot_be_stored_is_refused_before_anything_is_written(facts: dict) -> None:
    with pytest.raises(InvalidInputError, match="not valid Unicode"):
        check_request(note(**facts))
