"""What a worker process is before user code runs in it, and the ways of starting one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from engine_harness import LocalDriver, open_fds

from holdfast.config import LocalEngine
from holdfast.core.events import Cause
from holdfast.core.observations import Capacity, Died, Joined, Raised, Returned
from holdfast.engines import process_tree
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.errors import InternalError, TuneError
from holdfast.testing.engine_contract import ContractDriver, make_run, make_setup
from holdfast.testing.scripted import SCRIPTED_RUNNER
from holdfast.trainable.pickling import dump_trainable

Drive = Callable[..., LocalDriver]

HYGIENE = """
    import resource, random
    def read(path):
        with open(path) as file:
            return file.read().strip()
    report(
        leads=os.getsid(0) == os.getpgid(0) == os.getpid(),
        oom=int(read("/proc/self/oom_score_adj")),
        stdin=os.readlink("/proc/self/fd/0"),
        stdout=os.readlink("/proc/self/fd/1"),
        stderr=os.readlink("/proc/self/fd/2"),
        sockets=[
            os.get_inheritable(int(fd)) for fd in os.listdir("/proc/self/fd")
            if int(fd) > 2 and os.path.lexists("/proc/self/fd/" + fd)
        ],
        sigint=signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        sigterm=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        sigchld=signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
        blocked=len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        threads=threading.active_count(),
        gc=__import__("gc").isenabled(),
        random=random.random(),
        argv=sys.argv,
        path=sys.path,
    )
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_is_tidy_before_user_code_runs(drive: Drive, start: str) -> None:
    driver = drive(start=start)
    for n in range(2):
        driver.code(n, HYGIENE)
    one, two = driver.metrics(0), driver.metrics(1)
    log = str(driver.logs / "worker-0.log")
    assert one["leads"]
    assert one["oom"] == 500
    assert (one["stdin"], one["stdout"], one["stderr"]) == ("/dev/null", log, log)
    assert not any(one["sockets"]), "children that a trial executes inherit nothing"
    assert (one["sigint"], one["sigterm"], one["sigchld"], one["blocked"]) == (True, True, True, 0)
    assert (one["threads"], one["gc"]) == (1, True)
    assert one["random"] != two["random"]
    assert one["argv"] == sys.argv
    assert set(sys.path) <= {*one["path"], ""}


def test_a_worker_has_one_socket_and_nothing_else_of_the_nanny(drive: Drive) -> None:
    driver = drive()
    code = """
        links = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
        report(fds=[os.readlink(link).split(":")[0] for link in links if os.path.lexists(link)])
    """
    for n in range(3):
        driver.code(n, code)
    for n in range(3):
        assert driver.metrics(n)["fds"] == ["socket"]


def test_joined_names_the_process_and_this_machine(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report(pid=os.getpid(), name=os.uname().nodename)")
    joined = driver.first(Joined)
    assert (joined.pid, joined.host) == (driver.metrics(0)["pid"], driver.metrics(0)["name"])
    assert joined.ip.count(".") == 3


def test_capacity_is_what_was_configured(drive: Drive) -> None:
    resources = drive(gpus=1.5, resources={"licence": 2}).first(Capacity).resources
    assert resources.pop("memory") > 1e6
    assert resources == {"CPU": 4.0, "GPU": 1.5, "licence": 2.0}


def test_preloaded_modules_are_there_before_the_trial(drive: Drive) -> None:
    driver = drive(preload=["colorsys"])
    driver.ran(0, "report(there='colorsys' in sys.modules)")
    assert driver.metrics(0)["there"]


def test_a_preload_that_leaves_threads_falls_back_to_spawn_and_says_so(
    drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        driver = drive(preload=["leaves_a_thread"])
        assert isinstance(driver.ran(0, "report(there='leaves_a_thread' in sys.modules)"), Returned)
    assert not driver.metrics(0)["there"]
    assert 'start="spawn"' in caplog.text


def test_a_preload_that_fails_is_told_and_trials_run(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        driver = drive(preload=["no_such_module_anywhere"])
        assert isinstance(driver.ran(0, "report()"), Returned)
    assert "no_such_module_anywhere" in caplog.text


def test_numpy_can_be_preloaded_although_it_has_threads(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("numpy")
    driver = drive(preload=["numpy"])
    code = (
        "import numpy\nreport(x=float(numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum()), r=numpy.random.rand())"
    )
    for n in range(2):
        driver.code(n, code)
    assert driver.metrics(0)["x"] == 300.0**3
    assert driver.metrics(0)["r"] != driver.metrics(1)["r"]
    nanny = process_tree.look(driver.nanny())
    assert nanny is not None
    assert "spawn" not in caplog.text


def test_a_runner_that_cannot_be_imported_is_told_with_the_reason(tmp_path: Path) -> None:
    engine = LocalProcessEngine(LocalEngine(cpus=1), log_dir=tmp_path / "logs", runner="no_such_runner:run")
    driver = ContractDriver(engine)
    try:
        engine.open(make_setup(str(tmp_path)))
        driver.launch(0, ["report", {}])
        end = driver.end_of(0)
        assert isinstance(end, Died)
        assert "no_such_runner" in end.output
    finally:
        engine.close()


def test_the_runner_of_trainables_is_the_default(tmp_path: Path) -> None:
    def train(config: dict[str, int]) -> None:
        from holdfast.trainable.api import report

        for step in range(config["steps"]):
            report({"step": step})

    (tmp_path / "trainable").write_bytes(dump_trainable(train))
    engine = LocalProcessEngine(LocalEngine(cpus=1), log_dir=tmp_path / "logs")
    try:
        engine.open(msgspec.structs.replace(make_setup(str(tmp_path)), trainable_file="trainable"))
        driver = ContractDriver(engine)
        for n in range(2):
            engine.launch(make_run(n, 1, {"steps": 3}))
            assert isinstance(driver.end_of(n), Returned)
            assert [report.metrics["step"] for report in driver.reports_of(n)] == [0, 1, 2]
        assert sum(isinstance(o, Joined) for o in driver.seen) == 1
    finally:
        engine.close()


def test_open_that_fails_leaves_nothing(tmp_path: Path, new_children: Callable[[], list[int]]) -> None:
    before = open_fds()
    (tmp_path / "file").touch()
    engine = LocalProcessEngine(LocalEngine(cpus=1), log_dir=tmp_path / "file" / "logs", runner=SCRIPTED_RUNNER)
    with pytest.raises(TuneError, match="could not start"):
        engine.open(make_setup(str(tmp_path)))
    engine.close()
    engine.wake()
    assert open_fds() == before
    assert new_children() == []


def test_an_engine_without_a_python_to_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_fds()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    engine = LocalProcessEngine(LocalEngine(cpus=1), log_dir=tmp_path / "logs", runner=SCRIPTED_RUNNER)
    with pytest.raises(TuneError, match="no-python"):
        engine.open(make_setup(str(tmp_path)))
    assert open_fds() == before


def test_an_engine_that_was_never_opened_can_be_closed_and_one_is_opened_once(tmp_path: Path) -> None:
    engine = LocalProcessEngine(LocalEngine(cpus=1), log_dir=tmp_path / "logs", runner=SCRIPTED_RUNNER)
    engine.close()
    assert list(engine.poll(0.0)) == []
    driver = LocalDriver(tmp_path)
    with pytest.raises(InternalError):
        driver.engine.open(make_setup(str(tmp_path)))
    driver.engine.close()


def test_a_dropped_engine_closes_itself(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path)
    driver.ran(0, "report()")
    pid = driver.pid_of(0)
    del driver
    assert not process_tree.is_running(pid)


def test_the_memory_limit_of_the_setup_wins(drive: Drive) -> None:
    driver = drive(setup={"memory_limit_bytes": 200 * 2**20}, memory_limit_bytes=2**40)
    assert isinstance(driver.ran(0, "report()\nx = bytearray(2**29)"), Raised)


def test_a_driver_that_was_taken_over_leaves_its_successors_note(drive: Drive) -> None:
    """The note is all by which a later driver finds what is left if the successor and its nanny are both killed."""
    older = drive()
    newer = drive()
    note = newer.logs / "nanny.run"
    before = note.read_text()
    older.engine.close()
    assert note.read_text() == before
    newer.engine.close()
    assert not note.exists()


def test_a_driver_that_lost_its_nanny_to_a_take_over_leaves_its_successors_alone(drive: Drive) -> None:
    older = drive()
    older.code(0, "report()\ntime.sleep(1000)")
    older.metrics(0)
    newer = drive()  # ends what it finds
    assert isinstance(newer.ran(1, "report()"), Returned)
    nanny = newer.nanny()
    end = older.end_of(0)
    assert isinstance(end, Died)
    assert end.cause == Cause.ENGINE_LOST
    assert isinstance(older.ran(2, "report()"), Returned)
    assert newer.nanny() == nanny
    assert process_tree.is_running(nanny)
