"""A store that hangs or fails is noticed, and nobody waits for it."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
import store_trials

from holdfast.errors import StoreUnreachableError
from holdfast.results import store_look
from holdfast.results.follow import Follower
from holdfast.results.store_look import StoreHangs, StoreLook
from holdfast.ui.source import Source
from holdfast.ui.watch import FollowedExperiment

DEADLINE_S = 60.0


def ask(look: StoreLook[Any], question: Any) -> Any:
    """Ask until there is an answer."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return look.ask(question)
        except StoreHangs:
            assert time.monotonic() < deadline


def test_a_look_that_hangs_is_not_waited_for_and_then_said(monkeypatch: pytest.MonkeyPatch) -> None:
    go, looks = threading.Event(), StoreLook[int](0.0)
    with pytest.raises(StoreHangs):
        looks.ask(lambda: go.wait(DEADLINE_S) and 1)
    assert looks.trouble("s3://b/x") == "", "it has not taken long"
    monkeypatch.setattr(store_look, "SLOW_S", -1.0)
    found = looks.trouble("s3://b/x")
    assert re.fullmatch(r"s3://b/x has not answered for \d+ s; what is shown is from \d\d:\d\d:\d\d", found)
    go.set()
    assert ask(looks, lambda: 2) == 1, "the answer to the first question"
    assert looks.trouble("s3://b/x") == ""
    assert ask(looks, lambda: 2) == 2


def test_a_look_that_fails_is_said_until_one_succeeds() -> None:
    looks = StoreLook[int](DEADLINE_S)

    def refuse() -> int:
        raise StoreUnreachableError("nobody listens.")

    with pytest.raises(StoreUnreachableError):
        looks.ask(refuse)
    assert looks.trouble("s3://b/x").startswith("s3://b/x cannot be reached (nobody listens); what is shown is from ")
    assert looks.ask(lambda: 1) == 1
    assert looks.trouble("s3://b/x") == ""


def test_questions_are_answered_while_the_store_hangs(bucket: str, tmp_path: Any, monkeypatch: Any) -> None:
    url = store_trials.interrupted(f"{bucket}/runs", tmp_path, "two")
    go = threading.Event()

    def hang(*_: Any) -> None:
        assert go.wait(DEADLINE_S)

    def opened(path: str, progress: Any) -> Source:
        return Source(path, Follower.open(path, tolerant=True, patience_s=0.0))

    monkeypatch.setattr("holdfast.ui.watch.REMOTE_POLL_S", 0.0)
    watched = FollowedExperiment(url, opened)
    assert watched.opened.wait(DEADLINE_S)
    monkeypatch.setattr("holdfast.shipping.extend_view.extend_view", hang)
    monkeypatch.setattr(store_look, "SLOW_S", -1.0)
    assert "has not answered" in watched.ask(lambda source: source.unreachable).result(DEADLINE_S)
    assert watched.ask(lambda source: source.facts()["state"]).result(DEADLINE_S) == "interrupted"
    go.set()
    monkeypatch.undo()
    deadline = time.monotonic() + DEADLINE_S
    while watched.ask(lambda source: source.unreachable).result(DEADLINE_S):
        assert time.monotonic() < deadline
    watched.close()
