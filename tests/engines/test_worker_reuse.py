"""Which workers are used again, and which are replaced."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from engine_harness import LocalDriver, check_buried, gone

from holdfast.core.observations import Died, Raised, Returned, Stopped
from holdfast.engines import worker_links
from holdfast.trainable.worker_messages import Decision

Drive = Callable[..., LocalDriver]


def test_one_process_runs_trial_after_trial(drive: Drive) -> None:
    driver = drive()
    for n in range(4):
        assert isinstance(driver.ran(n, "report(pid=os.getpid())"), Returned)
    assert len({driver.metrics(n)["pid"] for n in range(4)}) == 1


def test_a_trial_stopped_in_time_leaves_its_worker_warm(drive: Drive) -> None:
    driver = drive()
    driver.answers[0, 1] = ""
    driver.code(0, "report()")
    driver.metrics(0)
    driver.engine.reply(0, 1, Decision(1, "stop"))
    driver.engine.halt(0, 1, 60.0)
    assert isinstance(driver.end_of(0), Stopped)
    driver.ran(1, "report()")
    assert driver.pid_of(0) == driver.pid_of(1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("report()\nraise ValueError('x')", Raised),
        ("report()\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True, name='left').start()", Returned),
        ("report()\nthreading.Thread(target=time.sleep, args=(1000,), name='left').start()", Returned),
    ],
)
def test_a_worker_is_replaced_after(drive: Drive, code: str, kind: type) -> None:
    driver = drive()
    assert isinstance(driver.ran(0, code), kind)
    assert gone([driver.pid_of(0)]), "its end is told when the process is gone, not before"
    assert isinstance(driver.ran(1, "report()"), Returned)
    assert driver.pid_of(0) != driver.pid_of(1)


def test_processes_that_a_trial_leaves_are_gone_when_its_end_is_told(drive: Drive) -> None:
    driver = drive()
    code = """
        child = subprocess.Popen(["sleep", "1000"])
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        report(pids=[child.pid, daemon.pid])
    """
    began = time.monotonic()
    assert isinstance(driver.ran(0, code), Returned)
    check_buried([*driver.metrics(0)["pids"], driver.pid_of(0)], began)
    assert isinstance(driver.ran(1, "report()"), Returned)


def test_children_that_have_ended_and_threads_that_were_joined_are_no_reason_to_replace_it(drive: Drive) -> None:
    driver = drive()
    code = """
        subprocess.run(["true"])
        if os.fork() == 0:
            os._exit(0)
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        report()
    """
    driver.ran(0, code)
    driver.ran(1, "report()")
    assert driver.pid_of(0) == driver.pid_of(1)


def test_max_trials_per_worker_is_kept(drive: Drive) -> None:
    driver = drive(max_trials_per_worker=2)
    for n in range(5):
        driver.ran(n, "report()")
    pids = [driver.pid_of(n) for n in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_a_worker_whose_halt_needed_a_signal_is_replaced_although_it_unwound(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_links, "TERM_S", 60.0)
    driver = drive()
    code = """
        def raise_stop(*_):
            raise RuntimeError("asked to end")
        signal.signal(signal.SIGTERM, raise_stop)
        report()
        time.sleep(1000)
    """
    driver.code(0, code)
    driver.metrics(0)
    driver.engine.halt(0, 1, 0.01)
    assert isinstance(driver.end_of(0), Raised)
    driver.ran(1, "report()")
    assert driver.pid_of(0) != driver.pid_of(1)


def test_a_worker_that_ignores_everything_is_killed_after_its_grace(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_links, "TERM_S", 0.05)
    driver = drive()
    driver.code(0, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport()\nos.execvp('sleep', ['sleep', '1000'])")
    driver.metrics(0)
    driver.engine.halt(0, 1, 0.01)
    assert isinstance(driver.end_of(0), Died)
    assert gone([driver.pid_of(0)])


def test_exit_functions_of_user_code_run_when_a_worker_retires(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_links, "EXIT_S", 60.0)
    driver = drive(max_trials_per_worker=1)
    code = "report()\nimport atexit\natexit.register(lambda: os.write(1, b'tidied up\\n'))"
    driver.ran(0, code)
    assert driver.printed(0) == "tidied up\n"


def test_a_worker_that_does_not_leave_is_killed(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_links, "EXIT_S", 0.05)
    driver = drive(max_trials_per_worker=1)
    driver.code(0, "report()\nimport atexit\natexit.register(time.sleep, 1000)")
    assert isinstance(driver.end_of(0), Returned)
    assert gone([driver.pid_of(0)])


def test_workers_get_numbers_of_their_own_from_the_one_in_the_setup(tmp_path: object, drive: Drive) -> None:
    driver = drive(max_trials_per_worker=1)
    for n in range(3):
        driver.ran(n, "report(worker=setup.worker)")
    assert [driver.metrics(n)["worker"] for n in range(3)] == [0, 1, 2]


def test_logs_that_stay_empty_are_removed(drive: Drive) -> None:
    driver = drive(max_trials_per_worker=1)
    driver.ran(0, "report()")
    driver.ran(1, "report()\nprint('hello')")
    driver.ran(2, "report()")
    driver.engine.close()
    assert [file.name for file in driver.logs.iterdir()] == ["trial_1.log"]
    assert driver.printed(1) == "hello\n"
