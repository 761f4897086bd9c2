"""Processes and capacity of this machine as /proc tells them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from engine_harness import gone, wait_until

from holdfast.engines import capacity, process_tree
from holdfast.engines.nanny_messages import RUN_VARIABLE

NAMED = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) Z (b', 0, 0, 0); print(flush=True); time.sleep(1000)"


def test_a_process_whose_name_has_parentheses_is_read_right() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMED], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = process_tree.look(child.pid)
        child.kill()
    assert process is not None
    assert (process.name, process.parent) == ("a) Z (b", os.getpid())
    assert process_tree.look(child.pid) is None


def test_descendants_are_found_and_killed_and_this_process_is_not() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000 & wait"]) as shell:
        wait_until(lambda: len(process_tree.children(shell.pid)) == 2, "two children")
        pids = process_tree.children(shell.pid)
        assert process_tree.kill_trees([shell.pid, os.getpid()]) == {shell.pid, *pids}
    wait_until(lambda: gone(pids), "all are gone")


def test_children_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    real = open

    def without_children(path: str, *args: object, **kwargs: object) -> object:
        if str(path).endswith("/children"):
            raise FileNotFoundError(path)
        return real(path, *args, **kwargs)

    others = set(process_tree.children(os.getpid()))
    with subprocess.Popen(["sleep", "1000"]) as child:
        monkeypatch.setattr("builtins.open", without_children)
        found = process_tree.children(os.getpid())
        monkeypatch.undo()
        child.kill()
    assert [pid for pid in found if pid not in others] == [child.pid]


def test_sweep_finds_processes_by_their_mark_alone() -> None:
    environment = os.environ | {RUN_VARIABLE: "mark-of-a-test"}
    with subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True) as child:
        with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
            assert process_tree.sweep("mark-of-a-test", 10.0)
            assert gone([child.pid])
            assert process_tree.is_running(stranger.pid)
            stranger.kill()
    assert process_tree.sweep("mark-of-a-test", 10.0)


def test_at_least_one_cpu_and_no_more_than_there_are() -> None:
    assert 1 <= capacity.usable_cpus() <= (os.cpu_count() or 1)
    assert capacity.usable_memory() > 0


def test_a_cgroup_quota_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for content, cpus in (("150000 100000", 1), ("400000 100000", 4), ("max 100000", 64), ("50000 100000", 1)):
        (folder := tmp_path / content.split()[0]).mkdir()  # type: ignore[operator]
        (folder / "cpu.max").write_text(content)
        monkeypatch.setattr(capacity, "_directories", lambda kind, f=folder: [str(f)] if kind == "" else [])
        assert capacity.usable_cpus() == cpus
