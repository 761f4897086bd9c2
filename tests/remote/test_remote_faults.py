"""A network that loses answers, a store that is busy or slow: exactly one of everything, and bounded waiting rooms."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import pytest
from lab import until
from remote_experiments import RemotePlan
from remote_lab import RemoteLab, mostly_slow_pairs

from holdfast.core import events as ev
from holdfast.shipping import parts
from servers.fault_proxy import Answer, Cut, Delay, DropAnswer, FaultProxy, Hold, Throttle

PLAN = RemotePlan(trials=2, steps=8, every=2, pause_s=0.02, keep=2, max_failures=0)
WHAT = {"parts": "/parts/0", "manifests": "_manifest.json", "spec": "/spec.json"}


def check(lab: RemoteLab, plan: RemotePlan) -> list[ev.AnyEvent]:
    assert lab.check_finished(plan).total_failures == 0
    lab.check_stored()
    keys = [key for key in lab.keys(parts.PREFIX) if parts.parse_key(key)]
    numbers = [part.header.number for key in keys for part in parts.decode_parts(lab.store.get(key), key)]
    assert numbers == list(range(1, len(numbers) + 1))
    return lab.history()


@pytest.mark.parametrize(
    ("what", "ending"),
    mostly_slow_pairs(
        [("parts", "close"), ("parts", "reset"), ("manifests", "reset"), ("spec", "close")], ("manifests", "reset")
    ),
)
def test_an_answer_that_is_lost_after_the_store_has_acted_changes_nothing(
    proxied: tuple[RemoteLab, FaultProxy], what: str, ending: Any
) -> None:
    """The repetition meets its own object, and must not take it for a rival's."""
    lab, proxy = proxied
    rule = proxy.rule(DropAnswer(ending=ending), method="PUT", path=WHAT[what], nth={1, 3, 4, 6})
    lab.start(PLAN).must_finish()
    assert rule.hits
    check(lab, PLAN)


@pytest.mark.parametrize(
    ("what", "body_bytes"), mostly_slow_pairs([("parts", 0), ("manifests", 0), ("spec", 0), ("parts", 1)], ("parts", 0))
)
def test_a_connection_that_breaks_in_a_request_leaves_no_half_object(
    proxied: tuple[RemoteLab, FaultProxy], what: str, body_bytes: int
) -> None:
    """Some servers make an empty object when the connection breaks before the body: it would be taken for a rival's."""
    lab, proxy = proxied
    rule = proxy.rule(Cut("while", body_bytes), method="PUT", path=WHAT[what], nth={1, 3, 4, 6})
    lab.start(PLAN).must_finish()
    assert rule.hits
    check(lab, PLAN)


@pytest.mark.slow
def test_a_store_that_is_busy_is_asked_again(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """503 and 429 to every tenth request, of whatever kind, and now and then no answer to a question."""
    lab, proxy = proxied
    every_tenth = set(range(3, 400, 10))
    busy = proxy.rule(Answer(503, b"<Error><Code>SlowDown</Code></Error>"), nth=every_tenth)
    proxy.rule(Answer(429), nth={n + 4 for n in every_tenth})
    lost = proxy.rule(DropAnswer(), method="GET", nth=set(range(2, 100, 7)))
    lab.start(PLAN).must_finish()
    assert busy.hits > 3
    assert lost.hits
    check(lab, PLAN)
    lab.lose("a")
    lab.start(PLAN, "b").must_finish()
    lab.check_stored()


# --- back-pressure


def staged_at_once(history: list[ev.AnyEvent]) -> int:
    """How many checkpoints of one trial were waiting to be committed, at most."""
    waiting: dict[int, set[int]] = {}
    most = 0
    for event in history:
        match event:
            case ev.CheckpointStaged():
                waiting.setdefault(event.n, set()).add(event.index)
                most = max(most, len(waiting[event.n]))
            case ev.CheckpointCommitted() | ev.CheckpointRejected():
                waiting[event.n].discard(event.index)
            case ev.CheckpointsDropped():
                waiting[event.n] -= set(event.indexes)
    return most


def replaced(history: list[ev.AnyEvent]) -> list[int]:
    """Checkpoints that were dropped before they were committed."""
    committed = {e.index for e in history if isinstance(e, ev.CheckpointCommitted)}
    dropped = {index for e in history if isinstance(e, ev.CheckpointsDropped) for index in e.indexes}
    return sorted(dropped - committed)


@pytest.mark.slow
def test_a_newer_checkpoint_replaces_one_that_waits_for_a_slow_store(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    late = threading.Event()
    proxy.rule(Hold(late), method="PUT", path="weights.bin")
    plan = RemotePlan(trials=1, steps=30, every=1, pause_s=0.02, keep=1, max_failures=0)
    driver = lab.start(plan)
    until(lambda: driver.ended or len(lab.acknowledged()) == 30, lambda: driver.output)
    late.set()
    driver.must_finish()
    history = check(lab, plan)
    assert replaced(history), "no checkpoint was replaced by a newer one"
    assert staged_at_once(history) <= 4
    assert 29 in {e.index for e in history if isinstance(e, ev.CheckpointCommitted)}, "the last one counts"
    assert len(proxy.matching("PUT", "weights.bin")) < 20


@pytest.mark.slow
def test_without_a_limit_every_checkpoint_is_kept_and_trials_train_on(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    proxy.rule(Delay(0.2), method="PUT", path="weights.bin")
    plan = RemotePlan(trials=1, steps=12, every=1, pause_s=0.0, keep=None, max_failures=0)
    driver = lab.start(plan)
    driver.must_finish()
    history = check(lab, plan)
    assert not replaced(history)
    assert len(lab.committed_keys()) == 12


@pytest.mark.slow
def test_while_a_store_is_slow_memory_and_disk_are_bounded(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    lab, proxy = proxied
    slow = proxy.rule(Throttle(2_000_000), method="PUT", path="weights.bin")
    plan = RemotePlan(trials=2, steps=20, every=1, pause_s=0.0, keep=1, bytes=1_000_000, max_failures=0)
    driver = lab.start(plan)
    most_disk = most_memory = 0

    def look() -> bool:
        nonlocal most_disk, most_memory
        most_disk = max(most_disk, size_below(lab.mirror()))
        most_memory = max([most_memory, *(memory_of(agent.pid) for agent in lab.agents())])
        return driver.ended

    until(look, lambda: driver.output, step_s=0.02)
    driver.must_finish()
    assert slow.hits
    check(lab, plan)
    assert most_disk < 2 * 6 * plan.bytes, f"{most_disk:,} bytes of checkpoints waited on the local disk"
    assert 0 < most_memory < 300_000_000


def size_below(folder: Any) -> int:
    """What checkpoints take on the local disk, while they come and go."""
    total = 0
    for parent, _, files in os.walk(folder):
        if "weights.bin" in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, "weights.bin")).st_size
    return total


def memory_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0


def test_wait_for_commit_means_the_store(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """Each report with a checkpoint returns only when its manifest is in the store."""
    lab, proxy = proxied
    proxy.rule(Delay(0.1), method="PUT", path="_manifest.json")
    plan = RemotePlan(trials=1, steps=6, every=1, keep=None, wait_for_commit=True, max_failures=0)
    driver = lab.start(plan)

    def no_report_is_early() -> bool:
        acknowledged = len(lab.acknowledged())
        assert len(lab.committed_keys()) >= acknowledged
        return driver.ended

    until(no_report_is_early, lambda: driver.output)
    driver.must_finish()
    check(lab, plan)
    assert staged_at_once(lab.history()) == 1
