"""How the end of a worker process is told: once, after its last word, with the right cause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from engine_harness import LocalDriver, wait_until

from holdfast.core.events import Cause
from holdfast.core.observations import Died, Joined, Raised, Report, Returned
from holdfast.engines import process_tree, worker_pool
from holdfast.trainable.worker_messages import SaveRequest, frame

Drive = Callable[..., LocalDriver]


@pytest.mark.parametrize(
    ("code", "cause", "detail"),
    [
        ("os._exit(3)", Cause.EXIT, "exit code 3"),
        ("os._exit(0)", Cause.EXIT, "exit code 0"),
        ("sys.exit(4)", Cause.EXIT, "exit code 4"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Cause.SIGNAL, "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Cause.SIGNAL, "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", Cause.PREEMPTED, "SIGTERM"),
        ("os.abort()", Cause.SIGNAL, "SIGABRT"),
    ],
)
def test_a_death_is_classified_and_told_once_after_the_last_report(
    drive: Drive, code: str, cause: str, detail: str
) -> None:
    driver = drive()
    end = driver.ran(0, f"report(step=1)\nreport(step=2)\n{code}")
    assert isinstance(end, Died)
    assert end.cause == cause
    assert detail in end.detail
    assert [report.metrics["step"] for report in driver.reports_of(0)] == [1, 2]
    assert driver.seen[-1] is end
    assert isinstance(driver.ran(1, "report()"), Returned)
    assert len(driver.ends_of(0)) == 1


def test_a_report_sent_just_before_death_is_delivered(drive: Drive) -> None:
    driver = drive()
    code = """
        from holdfast.core.observations import Report
        channel.send(Report(*who, 1, 0.0, {"blob": "x" * 500_000}), Report(*who, 2, 0.0, {"last": True}))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    end = driver.ran(0, code)
    assert isinstance(end, Died)
    reports = driver.reports_of(0)
    assert [len(report.metrics.get("blob", "")) for report in reports] == [500_000, 0]
    assert driver.seen.index(reports[-1]) < driver.seen.index(end)


def test_a_result_sent_just_before_death_counts_and_no_death_is_told(drive: Drive) -> None:
    driver = drive()
    code = """
        from holdfast.core.observations import Returned
        channel.send(Returned(*who))
        os._exit(1)
    """
    driver.code(0, code)
    assert isinstance(driver.end_of(0), Returned)
    assert isinstance(driver.ran(1, "report()"), Returned)
    assert len(driver.ends_of(0)) == 1


def test_a_partial_message_does_not_hide_the_death(drive: Drive) -> None:
    driver = drive()
    end = driver.ran(0, "report()\nchannel._socket.sendall(b'\\x00\\x01\\x00\\x00half')\nos._exit(5)")
    assert isinstance(end, Died)
    assert "exit code 5" in end.detail


def test_a_worker_that_writes_rubbish_on_its_socket_is_ended(drive: Drive) -> None:
    driver = drive()
    end = driver.ran(0, "report()\nchannel._socket.sendall(b'hello world, this is not a frame')\ntime.sleep(1000)")
    assert isinstance(end, Died)
    assert end.cause == Cause.EXIT
    assert "something else than its messages" in end.detail


def test_a_worker_that_closes_its_socket_is_ended(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "SILENT_S", 0.05)
    driver = drive()
    end = driver.ran(0, "report()\nos.closerange(3, 100)\ntime.sleep(1000)")
    assert isinstance(end, Died)
    assert "closed its connection" in end.detail


def test_a_death_that_the_nanny_tells_late_is_told_as_what_it_was(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has given up waiting for a word about the worker whose connection had ended."""
    monkeypatch.setattr(worker_pool, "SILENT_S", 0.0)
    driver = drive()
    end = driver.ran(0, "report()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(1000)")
    assert isinstance(end, Died)
    assert end.cause == Cause.PREEMPTED


def test_the_last_lines_of_output_come_with_the_death(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report()\nprint('of another trial')")
    code = """
        report()
        print("first line")
        for i in range(30):
            print("line", i)
        os.write(2, b"written by C code\\n")
        subprocess.run(["echo", "written by a child"])
        os._exit(1)
    """
    end = driver.ran(1, code)
    lines = end.output.splitlines()
    assert driver.pid_of(0) == driver.pid_of(1)
    assert lines[-3:] == ["line 29", "written by C code", "written by a child"]
    assert len(lines) == 20


def test_output_is_read_from_the_files_of_the_trial_if_there_are_any(drive: Drive, tmp_path: object) -> None:
    driver = drive(setup={"log_to_file": ("stdout", "stderr")})
    code = """
        os.makedirs(setup.root + "/trial_0", exist_ok=True)
        os.dup2(os.open(setup.root + "/trial_0/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.write(2, b"it burns\\n")
        os._exit(1)
    """
    assert driver.ran(0, code).output == "it burns"


def test_a_crash_shows_the_python_line_it_happened_in(drive: Drive) -> None:
    end = drive().ran(0, "def burn():\n    os.kill(os.getpid(), signal.SIGSEGV)\nburn()")
    assert "Segmentation fault" in end.output
    assert "in burn" in end.output


def test_an_idle_worker_that_is_killed_is_replaced(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report()")
    os.kill(driver.pid_of(0), signal.SIGKILL)
    driver.until(lambda: not driver.engine._idle)
    assert isinstance(driver.ran(1, "report()"), Returned)
    assert driver.pid_of(0) != driver.pid_of(1)


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_an_attempt_given_to_a_worker_that_dies_before_reading_it_runs_elsewhere(drive: Drive, gpus: float) -> None:
    driver = drive(gpus=1, setup={"reuse_instances": True})
    driver.ran(0, "report()", gpus=gpus)
    os.kill(driver.pid_of(0), signal.SIGSTOP)
    wait_until(lambda: (look := process_tree.look(driver.pid_of(0))) and look.state == "T", "it stands still")
    driver.code(1, "report()", gpus=gpus)
    os.kill(driver.pid_of(0), signal.SIGKILL)
    assert isinstance(driver.end_of(1), Returned)
    assert driver.pid_of(0) != driver.pid_of(1)
    assert len(driver.reports_of(1)) == 1


def test_an_attempt_that_dies_silently_after_it_began_is_told(drive: Drive) -> None:
    driver = drive()
    driver.ran(0, "report()")
    assert isinstance(driver.ran(1, "os.kill(os.getpid(), signal.SIGKILL)"), Died)
    driver.code(2, "open(setup.root + '/began', 'w').close()\ntime.sleep(1000)")
    driver.until(lambda: len([o for o in driver.seen if isinstance(o, Joined)]) == 2)
    driver.until(lambda: os.path.exists(driver.logs.parent / "began"))
    driver.engine.save_soon(2, 1)
    os.kill(process_tree.children(driver.nanny())[0], signal.SIGKILL)
    assert isinstance(driver.end_of(2), Died)


def test_a_broken_runner_is_told_with_its_traceback(drive: Drive) -> None:
    driver = drive()
    end = driver.ran(0, "import code_runner\ndef bad(*a): raise KeyError('oops')\ncode_runner.attempt = bad\nreport()")
    assert isinstance(end, Returned)
    end = driver.ran(1, "report()")
    assert isinstance(end, Died)
    assert "KeyError: 'oops'" in end.output


def test_a_config_that_cannot_be_sent_ends_the_attempt_and_not_the_engine(drive: Drive) -> None:
    driver = drive()
    driver.code(0, "report()", big=1 << 100)
    end = driver.end_of(0)
    assert (type(end), end.cause) == (Died, Cause.EXCEPTION)
    assert isinstance(driver.ran(1, "report()"), Returned)


def test_messages_of_a_megabyte_pass_both_ways_at_once(drive: Drive) -> None:
    driver = drive()
    for n in range(3):
        driver.code(n, "report(back=config['blob'], n=len(config['blob']))", blob="y" * 1_000_000)
    for n in range(3):
        assert isinstance(driver.end_of(n), Returned)
        assert driver.metrics(n)["n"] == 1_000_000


def test_a_worker_that_does_not_read_does_not_stop_the_others(drive: Drive) -> None:
    driver = drive()
    driver.code(0, "report()\ntime.sleep(1000)")
    driver.metrics(0)
    worker = driver.engine._attempts[0, 1]
    driver.engine._pool.send(worker, frame(SaveRequest()) * 500_000)
    assert worker.link.waiting
    assert isinstance(driver.ran(1, "report()"), Returned)
    driver.engine.halt(0, 1, 0.0)
    assert isinstance(driver.end_of(0), Died)


def test_memory_limit_raises_memory_error_in_the_trial_and_is_lifted_after_it(drive: Drive) -> None:
    driver = drive(memory_limit_bytes=300 * 1024 * 1024)
    end = driver.ran(0, "report()\nx = bytearray(2**30)")
    assert isinstance(end, Raised)
    assert end.error.type == "MemoryError"
    assert isinstance(driver.ran(1, "report()\nx = bytearray(2**20)"), Returned)


def test_a_fork_that_falls_out_of_user_code_does_not_speak_for_the_trial(drive: Drive) -> None:
    driver = drive()
    code = """
        child = os.fork()
        if child == 0:
            raise SystemExit
        status = os.waitpid(child, 0)[1]
        report(code=os.waitstatus_to_exitcode(status))
    """
    assert isinstance(driver.ran(0, code), Returned)
    assert driver.metrics(0)["code"] != 0
    driver.ran(1, "if os.fork() > 0:\n    os.wait()\n    report()")
    assert len(driver.ends_of(1)) == 1


def test_reports_of_a_worker_that_is_leaving_are_not_passed_on(drive: Drive) -> None:
    driver = drive()
    code = """
        from holdfast.core.observations import Raised, Report
        from holdfast.core.events import ErrorFacts
        report()
        channel.send(Raised(*who, ErrorFacts()))
        channel.send(Report(*who, 2, 0.0, {}))
        os._exit(0)
    """
    assert isinstance(driver.ran(0, code), Raised)
    assert sum(isinstance(o, Report) for o in driver.seen) == 1
