"""Nobody runs on: whole process trees end with the attempt, the nanny, the engine or the driver (I7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_harness import HERE, LocalDriver, check_buried, gone, open_fds, wait_promptly, wait_until

from holdfast.core.events import Cause
from holdfast.core.observations import Died, Joined, Returned
from holdfast.engines import process_tree, worker_links
from holdfast.trainable.worker_messages import Decision

Drive = Callable[..., LocalDriver]

# A trial with a child, a child in a session of its own, a daemon (forked twice, own session) that was executed and one
# that was not, and a grandchild; all ignore SIGTERM.
FAMILY = """
    import select
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lines, pipe = os.pipe()
    def say():
        os.write(pipe, b"%d\\n" % os.getpid())
    def daemonise(body):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                body()
            os._exit(0)
    def execute():
        say()
        os.execvp("sleep", ["sleep", "1000"])
    def stay():
        say()
        time.sleep(1000)
    def parent_of_one():
        os.setsid()
        if os.fork() == 0:
            stay()
        stay()
    if os.fork() == 0:
        execute()
    if os.fork() == 0:
        parent_of_one()
    daemonise(execute)
    daemonise(stay)
    text = b""
    while text.count(b"\\n") < 5:
        text += os.read(lines, 100)
    report(pids=[os.getpid(), *map(int, text.split())])
"""


def family(driver: LocalDriver, n: int) -> list[int]:
    driver.code(n, FAMILY + "\n    time.sleep(1000)")
    pids: list[int] = driver.metrics(n)["pids"]
    assert len(pids) == 6
    assert all(map(process_tree.is_running, pids))
    return pids


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_halt_takes_the_whole_family(drive: Drive, start: str) -> None:
    driver = drive(start=start)
    pids = family(driver, 0)
    halted_at = time.monotonic()
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(0), Died)
    check_buried(pids, halted_at)


def test_a_worker_that_dies_takes_its_family_along(drive: Drive) -> None:
    driver = drive()
    pids = family(driver, 0)
    killed_at = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    assert isinstance(driver.end_of(0), Died)
    check_buried(pids, killed_at)


def test_the_end_of_one_worker_leaves_the_daemons_of_others_alone(drive: Drive) -> None:
    driver = drive()
    others = family(driver, 0)
    assert isinstance(driver.ran(1, "report()\nos._exit(1)"), Died)
    driver.code(2, "report()\ntime.sleep(1000)")
    driver.metrics(2)
    driver.engine.halt(2, 1, 0.0)
    driver.end_of(2)
    assert all(map(process_tree.is_running, others))


def test_close_ends_everything_and_leaves_no_zombie(drive: Drive, new_children: Callable[[], list[int]]) -> None:
    driver = drive()
    pids = [*family(driver, 0), *family(driver, 1), driver.nanny()]
    driver.engine.close()
    assert gone(pids)
    assert new_children() == []


def test_close_with_grace_lets_trials_end_themselves(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_links, "TERM_S", 0.01)
    driver = drive()
    code = """
        def tidy(*_):
            time.sleep(0.1)
            with open(setup.root + "/tidy", "w") as file:
                file.write("done")
            os._exit(0)
        signal.signal(signal.SIGTERM, tidy)
        report()
        time.sleep(1000)
    """
    driver.code(0, code)
    driver.metrics(0)
    driver.engine.close(grace_s=30.0)
    assert (tmp_path / "tidy").read_text() == "done"


def test_opening_and_closing_leaks_no_descriptor(tmp_path: Path) -> None:
    before = open_fds()
    for _ in range(20):
        driver = LocalDriver(tmp_path)
        assert isinstance(driver.ran(0, "report()"), Returned)
        driver.engine.close()
    assert open_fds() == before


def test_a_killed_nanny_is_replaced_and_nothing_of_it_runs_on(drive: Drive) -> None:
    driver = drive()
    driver.ran(9, "report()")
    pids = family(driver, 0)
    nanny = driver.nanny()
    driver.code(1, "report()\ntime.sleep(1000)")
    driver.metrics(1)
    os.kill(nanny, signal.SIGKILL)
    for n in (0, 1):
        end = driver.end_of(n)
        assert (type(end), end.cause) == (Died, Cause.ENGINE_LOST)
    assert gone(pids)
    assert isinstance(driver.ran(2, "report()"), Returned)
    assert driver.nanny() != nanny
    assert [len(driver.ends_of(n)) for n in (0, 1, 2)] == [1, 1, 1]


def test_a_nanny_that_cannot_live_makes_launches_fail_and_not_spin(drive: Drive) -> None:
    driver = drive(preload=["kills_its_process"])
    for n in range(6):
        driver.code(n, "report()")
        end = driver.end_of(n)
        assert isinstance(end, Died)
        if end.cause == Cause.EXIT:
            break
    else:
        pytest.fail(f"the engine went on for ever: {driver.seen}")
    assert "nanny.log" in end.detail


def test_close_does_not_wait_for_a_nanny_that_is_still_importing(drive: Drive) -> None:
    driver = drive(preload=["imports_for_ever"])
    driver.code(0, "report()")
    pool = driver.engine._pool
    assert pool is not None
    assert pool._nanny is not None
    nanny = pool._nanny.pid
    driver.until(lambda: (driver.logs.parent / "importing").exists())
    driver.engine.close()
    assert gone([nanny])


def test_a_nanny_that_is_still_importing_does_not_outlive_its_driver(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        sys.path[:0] = {[HERE, *sys.path]!r}
        from pathlib import Path
        from engine_harness import LocalDriver
        driver = LocalDriver(Path({str(tmp_path)!r}), preload=["imports_for_ever"])
        print(driver.engine._pool._nanny.pid, flush=True)
        time.sleep(1000)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        nanny = int(process.stdout.readline())
        wait_until((tmp_path / "importing").exists, "the import has begun")
        process.kill()
    wait_promptly(lambda: gone([nanny]), "the nanny is gone", 2.0)


DRIVER = """
    import os, sys, time
    sys.path[:0] = {path!r}
    from pathlib import Path
    from engine_harness import LocalDriver
    from test_process_trees import family
    driver = LocalDriver(Path({directory!r}), start={start!r})
    pids = family(driver, 0) + family(driver, 1) + [driver.nanny()]
    {extra}
    print(*pids, flush=True)
    time.sleep(1000)
"""


def driver_code(directory: Path, start: str = "fork", extra: str = "") -> str:
    places = {"path": [HERE, *sys.path], "directory": str(directory), "start": start, "extra": extra}
    return textwrap.dedent(DRIVER).format(**places)


def kill_a_driver(directory: Path, start: str = "fork", extra: str = "") -> list[int]:
    code = driver_code(directory, start, extra)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(pids) >= 13
    return pids


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_outlives_a_killed_driver_by_two_seconds(tmp_path: Path, start: str) -> None:
    pids = kill_a_driver(tmp_path, start)
    wait_promptly(lambda: gone(pids), "all descendants gone", 2.0)


def test_a_fork_of_the_driver_that_holds_the_sockets_open_keeps_nothing_alive(tmp_path: Path) -> None:
    pids = kill_a_driver(tmp_path, extra="pids.insert(0, os.fork() or time.sleep(1000))")
    try:
        wait_promptly(lambda: gone(pids[1:]), "all descendants gone", 2.0)
        assert process_tree.is_running(pids[0])
    finally:
        os.kill(pids[0], signal.SIGKILL)


def test_what_survived_the_deaths_of_driver_and_nanny_is_ended_by_the_next_engine(tmp_path: Path) -> None:
    code = driver_code(tmp_path)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        nanny = pids[-1]
        os.kill(nanny, signal.SIGSTOP)
        process.kill()
        process.wait()
        os.kill(nanny, signal.SIGKILL)
    wait_until(lambda: gone([nanny]), "the nanny is gone")
    assert not gone(pids)
    driver = LocalDriver(tmp_path)
    assert gone(pids)
    assert isinstance(driver.ran(0, "report()"), Returned)
    driver.engine.close()
    assert list(driver.logs.iterdir()) == []


def test_close_works_although_a_fork_holds_the_sockets_open(drive: Drive) -> None:
    driver = drive()
    pids = family(driver, 0)
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ready, 1)
        os._exit(0)
    try:
        driver.engine.close()
        assert gone(pids)
    finally:
        os.close(go)
        os.close(ready)
        os.waitpid(child, 0)


def test_closing_in_a_fork_of_the_driver_touches_no_process(drive: Drive) -> None:
    driver = drive()
    driver.code(0, "report()\nreport()")
    driver.answers[0, 1] = ""
    driver.metrics(0)
    child = os.fork()
    if child == 0:
        driver.engine.close()
        os._exit(0)
    os.waitpid(child, 0)
    driver.answers.clear()
    driver.engine.reply(0, 1, Decision(1))
    assert isinstance(driver.end_of(0), Returned)


def test_the_engine_works_in_a_thread_that_is_not_the_main_one(tmp_path: Path) -> None:
    ends: list[object] = []

    def fit() -> None:
        driver = LocalDriver(tmp_path)
        ends.append(driver.ran(0, "report()"))
        driver.engine.close()

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join(60)
    assert [type(end) for end in ends] == [Returned]


def test_signals_to_everybody_do_not_reach_the_nanny_or_the_trials(drive: Drive) -> None:
    driver = drive()
    driver.answers[0, 1] = ""
    driver.code(0, "report()\nreport()")
    driver.metrics(0)
    nanny, worker = driver.nanny(), driver.pid_of(0)
    assert os.getpgid(nanny) == nanny != os.getpgid(0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(nanny, signum)
    os.kill(worker, signal.SIGINT)
    driver.answers.clear()
    driver.engine.reply(0, 1, Decision(1))
    assert isinstance(driver.end_of(0), Returned)
    assert sum(isinstance(o, Joined) for o in driver.seen) == 1
