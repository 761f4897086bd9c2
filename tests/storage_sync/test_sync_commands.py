"""CommandSyncer: quoting, exit codes, time limits, and no process left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sync_tools import CP, content_of, until

from holdfast.errors import SyncError
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.directories import delete_by_address

SLEEP = "sleep 600 & echo $! > {pid}; wait; : {{source}} {{target}}"


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def written_pid(file: Path) -> int:
    until(lambda: file.exists() and file.read_text().strip(), "the command's child")
    return int(file.read_text())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a {target} $HOME"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "a").write_text("A")
    (folder / "sub dir" / "b").write_text("B")
    return folder


def test_a_command_copies_both_ways_whatever_the_directories_are_called(source: Path, tmp_path: Path) -> None:
    away, back = tmp_path / 'away "quoted" {source}', tmp_path / "back"
    syncer = CommandSyncer(CP)
    assert syncer.sync_up(str(source), str(away))
    syncer.wait()
    assert content_of(away) == content_of(source)
    assert syncer.sync_down(str(away), str(back))
    syncer.wait()
    assert content_of(back) == content_of(source)


def test_places_of_a_template_are_filled() -> None:
    syncer = CommandSyncer("tool {options} {exclude} {source} {target} | awk '{print}'", options="--fast -v")
    assert syncer.command("/a b", "s3://x/y", ["*.tmp", "a/*"]) == (
        "tool --fast -v --exclude '*.tmp' --exclude 'a/*' '/a b/' s3://x/y/ | awk '{print}'"
    )
    assert CommandSyncer("cp {source} {target}").command("/a", "/b", ["x"]) == "cp /a/ /b/"
    other = CommandSyncer("tool {exclude} {source} {target}", exclude_option="-x={pattern}")
    assert other.command("/a", "/b", ["c"]) == "tool -x=c /a/ /b/"


@pytest.mark.parametrize(("template", "place"), [("cp {target}", "{source}"), ("cp {source}", "{target}")])
def test_a_template_without_its_places_is_refused(template: str, place: str) -> None:
    with pytest.raises(ValueError, match=rf"Sync template missing '\{place}'\."):
        CommandSyncer(template)


def test_other_mistakes_in_templates_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Sync delete template missing '\{target\}'"):
        CommandSyncer(CP, delete_template="rm -r")
    with pytest.raises(ValueError, match=r"exclude_option must be an option with \{pattern\}"):
        CommandSyncer(CP, exclude_option="-x")
    with pytest.raises(ValueError, match="A sync template must be a command"):
        CommandSyncer(print)  # type: ignore[arg-type]


def test_a_failing_command_is_an_error_with_command_code_and_stderr(source: Path, tmp_path: Path) -> None:
    syncer = CommandSyncer("echo doing; echo 'access denied' >&2; exit 7 # {source} {target}")
    syncer.sync_up("/from", "box:/to")
    with pytest.raises(SyncError) as failure:
        syncer.wait()
    text = str(failure.value)
    assert text.startswith("Sync error. Ran command: echo doing; echo 'access denied' >&2; exit 7 # /from/ box:/to/")
    assert "exit code was 7. Stderr: access denied" in text


def test_a_command_that_does_not_exist_is_an_error_that_names_it() -> None:
    syncer = CommandSyncer("no-such-tool {source} {target}")
    syncer.sync_up("/from", "box:/to")
    with pytest.raises(SyncError, match=r"exit code was 127(.|\n)*no-such-tool"):
        syncer.wait()


def test_only_the_end_of_a_long_story_is_shown() -> None:
    syncer = CommandSyncer("seq 100000 >&2; false {source} {target}")
    syncer.sync_up("/from", "box:/to")
    with pytest.raises(SyncError) as failure:
        syncer.wait()
    assert str(failure.value).endswith("100000")
    assert len(str(failure.value)) < 5000


def test_a_hanging_command_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    syncer = CommandSyncer(SLEEP.format(pid=pid_file), sync_timeout=600)
    syncer.sync_up("/from", "box:/to")
    child = written_pid(pid_file)
    syncer.sync_timeout = 0.01
    with pytest.raises(TimeoutError, match="given up after sync_timeout"):
        syncer.wait()
    until(lambda: not is_alive(child), "the end of the command's child")


def test_a_hanging_command_is_killed_even_if_nobody_waits(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    syncer = CommandSyncer(SLEEP.format(pid=pid_file), sync_timeout=10)
    syncer.sync_up("/from", "box:/to")
    child = written_pid(pid_file)
    until(lambda: not is_alive(child), "the end of the command's child")
    with pytest.raises(TimeoutError, match=r"killed after sync_timeout|given up"):
        syncer.wait()


def test_reset_kills_the_command_and_the_next_one_works(source: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    syncer = CommandSyncer(SLEEP.format(pid=pid_file))
    syncer.sync_up("/from", "box:/to")
    child = written_pid(pid_file)
    syncer.reset()
    until(lambda: not is_alive(child), "the end of the command's child")
    syncer.template = CP
    assert syncer.sync_up(str(source), str(tmp_path / "away"))
    syncer.wait()
    assert content_of(tmp_path / "away") == content_of(source)


def test_no_command_survives_the_death_of_its_driver(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = tmp_path / "driver.py"
    script.write_text(
        "import time\n"
        "from holdfast.sync.command_syncer import CommandSyncer\n"
        f"CommandSyncer({SLEEP.format(pid=pid_file)!r}).sync_up('/from', 'box:/to')\n"
        "time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, str(script)])
    try:
        child = written_pid(pid_file)
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not is_alive(child), "the end of the command's child")


def test_a_process_that_a_command_leaves_behind_does_not_delay_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    syncer = CommandSyncer(f"sleep 600 & echo $! > {pid_file}; : {{source}} {{target}}")
    syncer.sync_up("/from", "box:/to")
    syncer.wait()
    os.kill(written_pid(pid_file), signal.SIGKILL)


def test_commands_can_be_pickled_while_one_runs(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    syncer = CommandSyncer(SLEEP.format(pid=pid_file), "rm {target}", sync_period=7, options="-o")
    syncer.sync_up("/from", "box:/to")
    written_pid(pid_file)
    copy = pickle.loads(pickle.dumps(syncer))
    syncer.close()
    copy.wait()
    assert (copy.template, copy.delete_template, copy.sync_period) == (syncer.template, "rm {target}", 7)


# --- deleting


def test_a_delete_template_deletes(tmp_path: Path) -> None:
    victim = tmp_path / "box" / "old"
    victim.mkdir(parents=True)
    syncer = CommandSyncer(CP, delete_template="rm -r {target}")
    syncer.delete(str(victim))
    syncer.wait()
    assert not victim.exists()
    syncer.delete(str(victim))
    with pytest.raises(SyncError, match="Ran command: rm -r"):
        syncer.wait()


def test_without_a_delete_template_a_local_directory_is_deleted(tmp_path: Path) -> None:
    for number, address in enumerate(["{}", "file://{}"]):
        victim = tmp_path / f"old {number}"
        (victim / "sub").mkdir(parents=True)
        assert delete_by_address(address.format(victim))
        assert not victim.exists()
        assert delete_by_address(address.format(victim))


def test_what_cannot_be_deleted_is_kept_and_said(caplog: pytest.LogCaptureFixture) -> None:
    syncer = CommandSyncer("rsync -a {source} {target}")
    assert syncer.delete("ubuntu@192.0.0.1:/data/old")
    syncer.wait()
    assert "ubuntu@192.0.0.1:/data/old is obsolete and was not deleted" in caplog.text
    assert "delete_template" in caplog.text


def test_a_uri_is_deleted_through_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    files = fsspec.filesystem("memory")
    files.pipe("/holdfast-test/old/file", b"x")
    assert delete_by_address("memory://holdfast-test/old")
    assert not files.exists("/holdfast-test/old")
    assert delete_by_address("memory://holdfast-test/old")


def test_excluded_files_stay_behind_with_a_tool_that_can(source: Path, tmp_path: Path) -> None:
    syncer = CommandSyncer(
        "tar -C {source} {exclude} -cf - . | tar -C {target} -xf -", exclude_option="--exclude={pattern}"
    )
    syncer.sync_up(str(source), str(tmp_path / "away"), ["sub dir/*"])
    syncer.wait()
    assert content_of(tmp_path / "away") == {"a": b"A"}


def test_threads_of_ended_commands_are_gone() -> None:
    syncer = CommandSyncer(": {source} {target}")
    for _ in range(5):
        syncer.sync_up("/from", "box:/to")
        syncer.wait()
    until(lambda: not [t for t in threading.enumerate() if t.name == "holdfast-sync"], "the threads to end")
