"""Function trainables in a worker: how an attempt ends, and what it finds around it."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_wire import Driver, kinds, metrics, three_reports

from holdfast.config.resources import PlacementGroupFactory, with_parameters
from holdfast.core.observations import Raised, Report, Returned
from holdfast.trainable import session
from holdfast.trainable.api import (
    get_context,
    report,
)

Start = Callable[..., Driver]


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"a": 1}, [{"a": 1}]),
        (0.5, [{"_metric": 0.5}]),
        (np.float32(0.5), [{"_metric": 0.5}]),
        (0.0, [{"_metric": 0.0}]),
        (None, []),
        (False, []),
        ({}, []),
        ([], []),
        ("", []),
    ],
)
def test_return_values(driver: Start, returned: Any, expected: list[Any]) -> None:
    messages = driver(lambda config: returned).attempt()
    assert metrics(messages) == expected
    assert isinstance(messages[-1], Returned)


@pytest.mark.parametrize("returned", ["text", [1], object(), np.ones(2)])
def test_other_return_values_are_errors(driver: Start, returned: Any) -> None:
    (end,) = driver(lambda config: returned).attempt()
    assert isinstance(end, Raised)
    assert "must return or yield a dict of metrics or a single number" in end.error.message


def test_generators_report_what_they_yield_and_are_closed(driver: Start, tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    def train(config: dict[str, Any]) -> Iterator[Any]:
        try:
            yield {"a": 1}
            yield 0.5
            return {"last": 1}
        finally:
            closed.write_text("yes")

    worker = driver(train)
    assert metrics(worker.attempt()) == [{"a": 1}, {"_metric": 0.5}, {"last": 1}]
    closed.unlink()
    worker.launch(n=1)
    assert kinds(worker.play(stop_at=1)) == ["Report", "Stopped"]
    assert closed.exists()


def test_an_exception_is_told_with_the_users_own_line(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report({"a": 1})
        fail()

    def fail() -> None:
        raise KeyError("no such thing")

    end = driver(train).attempt()[-1]
    assert isinstance(end, Raised)
    line = fail.__code__.co_firstlineno + 1
    assert end.error.type == "KeyError"
    assert end.error.message == "'no such thing'"
    assert end.error.location == f"{__file__}:{line}"
    assert "in fail" in end.error.traceback
    assert "holdfast/trainable" not in end.error.traceback
    assert (end.storage, end.restoring, end.final) == (False, False, False)


def test_a_wrong_call_of_report_points_at_the_users_line(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        report("nonsense")

    (end,) = driver(train).attempt()
    assert end.error.location == f"{__file__}:{train.__code__.co_firstlineno + 1}"
    assert "holdfast/trainable" not in end.error.traceback


def exits(config: dict[str, Any]) -> None:
    sys.exit(3)


def interrupts(config: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def exhausts(config: dict[str, Any]) -> None:
    raise MemoryError("32 GiB")


def recurses(config: dict[str, Any]) -> None:
    recurses(config)


@pytest.mark.parametrize(
    ("trainable", "kind"),
    [(exits, "SystemExit"), (interrupts, "KeyboardInterrupt"), (exhausts, "MemoryError"), (recurses, "RecursionError")],
)
def test_whatever_user_code_raises_the_worker_lives_on(driver: Start, trainable: Any, kind: str) -> None:
    worker = driver(trainable)
    for n in range(2):
        (end,) = worker.attempt(n=n)
        assert isinstance(end, Raised)
        assert end.error.type == kind


def test_the_exception_itself_comes_along_if_it_pickles(driver: Start) -> None:
    import pickle

    class Plain(Exception):
        pass

    class Unloadable(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("text")

    def train(config: dict[str, Any]) -> None:
        raise {
            "plain": Plain("x", 1),
            "unloadable": Unloadable(1, 2),
            "lock": Plain(threading.Lock()),
            "huge": Plain("x" * 2_000_000),
        }[config["which"]]

    worker = driver(train)
    ends = {which: worker.attempt({"which": which})[-1] for which in ("plain", "unloadable", "lock", "huge")}
    assert pickle.loads(ends["plain"].pickled).args == ("x", 1)
    assert [ends[which].pickled for which in ("unloadable", "lock", "huge")] == [b""] * 3
    assert len(ends["huge"].error.message) < 20_000


def test_a_full_disk_in_the_chain_of_causes_is_storage_trouble(driver: Start) -> None:
    def train(config: dict[str, Any]) -> None:
        try:
            raise OSError(config["errno"], "trouble")
        except OSError as error:
            raise RuntimeError("could not write the log") from error

    worker = driver(train)
    assert worker.attempt({"errno": errno.ENOSPC})[-1].storage
    assert worker.attempt({"errno": errno.EDQUOT})[-1].storage
    assert not worker.attempt({"errno": errno.EACCES})[-1].storage


def test_a_trainable_that_cannot_be_loaded_is_not_retried(driver: Start) -> None:
    worker = driver(three_reports)
    (worker.root / "trainable.pkl").write_bytes(b"\x92\xc4\x02hi\xc4\x00")
    (end,) = worker.attempt()
    assert isinstance(end, Raised)
    assert end.final
    (worker.root / "trainable.pkl").unlink()
    (end,) = worker.attempt(n=1)
    assert end.error.type == "FileNotFoundError"
    assert not end.final


# --- what surrounds a trial -------------------------------------------------------------------------------------------


def test_the_context_knows_the_trial(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        context = get_context()
        assert context.get_trial_resources() == PlacementGroupFactory([{"CPU": 2}, {"GPU": 1}], "SPREAD")
        storage = context.get_storage()
        assert storage.trial_fs_path == context.get_trial_dir()
        with pytest.raises(DeprecationWarning):
            context.get_metadata()
        with pytest.warns(DeprecationWarning, match="distributed trainers only"):
            assert context.get_world_size() == 1
        return {
            "id": context.get_trial_id(),
            "name": context.get_trial_name(),
            "experiment": context.get_experiment_name(),
            "dir": context.get_trial_dir(),
        }

    worker = driver(train)
    (seen,) = metrics(worker.attempt(n=3, bundles=[{"CPU": 2}, {"GPU": 1}], strategy="SPREAD"))
    assert seen == {"id": "id_3", "name": "name_3", "experiment": "exp", "dir": str(worker.root / "trial_3")}


def test_objects_of_the_config_are_put_back_anew_for_each_trial(driver: Start) -> None:
    from holdfast.space.objects import extract_objects

    plain, objects = extract_objects({"lr": 0.1, "data": np.array([1, 2]), "nested": [{"fn": len}]})

    def train(config: dict[str, Any]) -> dict[str, Any]:
        config["data"] += 1
        return {"sum": config["data"].sum(), "len": config["nested"][0]["fn"]("abc"), "lr": config["lr"]}

    worker = driver(train, objects=objects)
    for n in range(2):
        assert metrics(worker.attempt(plain, n=n)) == [{"sum": 5, "len": 3, "lr": 0.1}]


def test_parameters_reach_the_function(driver: Start) -> None:
    def train(config: dict[str, Any], data: list[int]) -> dict[str, Any]:
        return {"sum": sum(data) + config["x"]}

    assert metrics(driver(with_parameters(train, data=[1, 2])).attempt({"x": 1})) == [{"sum": 4}]


def test_older_signatures_are_adapted(driver: Start) -> None:
    def with_reporter(config: dict[str, Any], reporter: Any) -> None:
        reporter(loss=1, timesteps_total=2)
        reporter(0.5)
        reporter(dir=reporter.logdir)

    def with_checkpoint_dir(config: dict[str, Any], checkpoint_dir: str | None = None) -> dict[str, Any]:
        return {"start": checkpoint_dir}

    worker = driver(with_reporter)
    assert metrics(worker.attempt()) == [
        {"loss": 1, "timesteps_total": 2},
        {"_metric": 0.5},
        {"dir": str(worker.root / "trial_0")},
    ]
    worker = driver(with_checkpoint_dir)
    assert metrics(worker.attempt()) == [{"start": None}]
    assert metrics(worker.attempt(checkpoint="trial_0/c")) == [{"start": str(worker.root / "trial_0/c")}]


def test_nothing_of_a_trial_reaches_the_next_one(driver: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        found = {
            "cwd": os.getcwd(),
            "kept": os.environ.get("KEPT"),
            "mine": os.environ.get("MINE"),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "original": os.environ["TUNE_ORIG_WORKING_DIR"],
            "redirected": sys.stdout is None,
        }
        os.environ["MINE"] = "left behind"
        del os.environ["KEPT"]
        os.chdir("/")
        sys.stdout = None
        return found

    before = dict(os.environ)
    worker = driver(train, chdir=True)
    for n, gpus in ((0, ("0", "2")), (1, ())):
        (found,) = metrics(worker.attempt(n=n, gpus=gpus))
        assert found == {
            "cwd": str(worker.root / f"trial_{n}"),
            "kept": "1",
            "mine": None,
            "gpus": ",".join(gpus),
            "original": str(worker.root),
            "redirected": False,
        }
        assert os.getcwd() == str(worker.root)
        assert dict(os.environ) == before
        assert session.current() is None


def test_relative_import_places_are_the_drivers(driver: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_the_driver_knows.py").write_text("value = 5")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import only_the_driver_knows

        return {"value": only_the_driver_knows.value, "first": sys.path[0]}

    worker = driver(train, chdir=True, sys_path=("lib", ""), working_dir=str(tmp_path))
    assert metrics(worker.attempt()) == [{"value": 5, "first": str(tmp_path / "lib")}]
    assert sys.path[1] == str(tmp_path)
    sys.modules.pop("only_the_driver_knows")


def test_without_chdir_a_trial_runs_where_the_driver_runs(driver: Start) -> None:
    worker = driver(lambda config: {"cwd": os.getcwd()}, chdir=False)
    (found,) = metrics(worker.attempt())
    assert found == {"cwd": str(worker.root)}


def test_each_trial_has_random_numbers_of_its_own_that_can_be_repeated(driver: Start) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"python": random.random(), "numpy": np.random.rand()}

    state = random.getstate()
    one, other = driver(train), driver(train)
    first, second = (metrics(one.attempt(n=n)) for n in (0, 1))
    assert first != second
    assert metrics(other.attempt(n=1)) == second
    random.setstate(state)


def test_a_report_counts_when_an_interrupt_hits_the_wait(driver: Start) -> None:
    """The answer to a report that nobody waits for any more must not be taken for the answer to the next one."""

    def train(config: dict[str, Any]) -> None:
        channel = session.current()._channel
        real = channel.receive

        def interrupted() -> Any:
            channel.receive = real
            raise KeyboardInterrupt

        channel.receive = interrupted
        try:
            report({"i": 1})
        except KeyboardInterrupt:
            report({"i": 2})
        report({"i": 3})

    messages = driver(train).attempt()
    assert metrics(messages) == [{"i": 1}, {"i": 2}, {"i": 3}]
    assert isinstance(messages[-2], Report)
    assert messages[-2].ordinal == 3
