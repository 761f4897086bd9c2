"""Function trainables in a worker: what they report, and how the answers reach them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_wire import TIMEOUT_S, Driver, kinds, metrics, three_reports, until

from holdfast.trainable import session
from holdfast.trainable.api import (
    report,
)

Start = Callable[..., Driver]


def test_a_function_reports_and_returns(driver: Start) -> None:
    messages = driver(three_reports).attempt({"x": 10}, n=4, attempt=2)
    assert kinds(messages) == ["Report", "Report", "Report", "Returned"]
    assert metrics(messages) == [{"loss": 10}, {"loss": 9}, {"loss": 8}]
    assert [message.ordinal for message in messages[:3]] == [1, 2, 3]
    assert {(message.n, message.attempt, message.worker) for message in messages} == {(4, 2, 7)}
    assert all(message.dt >= 0 for message in messages[:3])


def test_report_returns_only_after_its_own_decision(driver: Start) -> None:
    worker = driver(three_reports)
    worker.launch({"x": 1})
    first = worker.next()
    worker.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        worker.next()
    worker.sock.settimeout(TIMEOUT_S)
    worker.decide(99)  # an answer to nothing
    worker.decide(first.ordinal)
    assert worker.next().ordinal == 2
    worker.decide(2)
    worker.play()


def test_stop_runs_finally_blocks_and_later_reports_raise_again(driver: Start, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def train(config: dict[str, Any]) -> None:
        try:
            for i in range(10):
                try:
                    report({"i": i})
                except Exception:
                    raise AssertionError("a stop must not look like an error") from None
        finally:
            try:
                report({"late": 1})
            except BaseException as error:
                seen.write_text(type(error).__name__)

    worker = driver(train)
    worker.launch()
    messages = worker.play(stop_at=2)
    assert kinds(messages) == ["Report", "Report", "Stopped"]
    assert seen.read_text() == "TrialStopped"


def test_pause_unwinds_too(driver: Start) -> None:
    worker = driver(three_reports)
    worker.launch({"x": 1})
    assert kinds(worker.play(stop_at=1, go="pause")) == ["Report", "Stopped"]


def test_a_function_that_swallows_the_stop_is_still_stopped(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        for i in range(3):
            try:
                report({"i": i})
            except BaseException:
                pass
        return {}

    worker = driver(train)
    worker.launch()
    assert kinds(worker.play(stop_at=1)) == ["Report", "Stopped"]


def test_older_spellings_of_report_are_accepted(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report(loss=0.5, acc=1)
        report({"a": 1}, b=2)
        report(0.25)
        report()

    reported = metrics(driver(train).attempt())
    assert reported == [{"loss": 0.5, "acc": 1}, {"a": 1, "b": 2}, {"_metric": 0.25}, {}]


def test_user_keys_pass_and_done_becomes_a_boolean(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report({"training_iteration": 5, "timesteps_total": 9, "done": np.bool_(False)})
        report({"time_this_iter_s": 2.5})

    messages = driver(train).attempt()
    assert metrics(messages)[0] == {"training_iteration": 5, "timesteps_total": 9, "done": False}
    assert messages[1].dt == 2.5


def test_bad_metrics_raise_in_the_training_and_use_up_no_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        for bad in ([1], {1: 2}, {"big": "x" * (70 * 1024 * 1024)}):
            try:
                report(bad)
            except (TypeError, ValueError) as error:
                report({"refused": str(error)[:60]})

    messages = driver(train).attempt()
    texts = [m["refused"] for m in metrics(messages)]
    assert ["needs a dict" in texts[0], "must be strings" in texts[1], "larger than the limit" in texts[2]] == [
        True
    ] * 3
    assert [message.ordinal for message in messages[:-1]] == [1, 2, 3]


def test_threads_of_the_trial_may_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        threads = [threading.Thread(target=lambda i=i: report({"i": i})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    messages = driver(train).attempt()
    assert sorted(m["i"] for m in metrics(messages)) == list(range(8))
    assert [message.ordinal for message in messages[:-1]] == list(range(1, 9))


def test_a_thread_left_by_an_earlier_trial_cannot_report_into_the_next(driver: Start, tmp_path: Path) -> None:
    done = tmp_path / "done"

    def train(config: dict[str, Any]) -> dict[str, Any] | None:
        if config["first"]:

            def linger() -> None:
                until(lambda: (now := session.current()) is not None and now.run.n == 1, "second trial")
                try:
                    report({"stray": 1})
                except Exception as error:
                    done.write_text(str(error))

            threading.Thread(target=linger, daemon=True, name="stray").start()
            return None
        until(done.exists, "the stray thread")
        return {"own": 1}

    worker = driver(train)
    worker.attempt({"first": True}, n=0)
    assert metrics(worker.attempt({"first": False}, n=1)) == [{"own": 1}]
    assert "thread 'stray', which an earlier trial" in done.read_text()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_cannot_report(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                report({"child": 1})
            except BaseException as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.wait()
        report({"said": os.read(read, 1000).decode()})

    (reported,) = metrics(driver(train).attempt())
    assert "which trial id_0 forked" in reported["said"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_that_returns_from_the_trainable_says_nothing(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        if os.fork() == 0:
            return
        os.wait()
        report({"parent": 1})

    assert kinds(driver(train).attempt()) == ["Report", "Returned"]


def test_a_report_inside_a_report_is_refused(driver: Start) -> None:
    """A signal handler can run while the main thread waits in ``report``."""

    def train(config: dict[str, Any]) -> None:
        channel = session.current()._channel
        real = channel.receive

        def handler() -> Any:
            channel.receive = real
            try:
                report({"inner": 1})
            except Exception as error:
                channel.said = str(error)
            return real()

        channel.receive = handler
        report({"outer": 1})
        report({"said": channel.said})

    outer, said = metrics(driver(train).attempt())
    assert outer == {"outer": 1}
    assert "Set a flag in the handler" in said["said"]
