"""Scratch directories: those of drivers that are gone are removed, and no other."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster import porter


def plan(base: Path, run: str, node: str = "a", experiment: str = "e") -> say.PorterPlan:
    where = {"scratch": str(base), "node": node, "run": run, "experiment": experiment}
    return say.PorterPlan(addresses=[], secret="", ip="", **where)  # type: ignore[arg-type]


def test_what_a_gone_driver_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.engines.cluster import node_messages as say, porter\n"
        "porter.make_scratch(say.PorterPlan(addresses=[], secret='', ip='', scratch=sys.argv[1], node='a', run='r1', "
        "experiment=sys.argv[2]))"
    )
    for experiment in ("e", "other"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path), experiment], check=True)
    top = porter.make_scratch(plan(tmp_path, "r2"))
    assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(top), "holdfast-other-r1-a"])


def test_one_that_is_being_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making the lock and holding it, another porter looks."""
    real, ready, go = porter.fcntl.flock, threading.Event(), threading.Event()

    def slow(fd: int, how: int) -> None:
        if how == porter.fcntl.LOCK_EX and not go.is_set():
            ready.set()
            go.wait(30)
        real(fd, how)

    monkeypatch.setattr(porter.fcntl, "flock", slow)
    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(porter.make_scratch(plan(tmp_path, "r1"))))
    thread.start()
    assert ready.wait(30)
    monkeypatch.setattr(porter.fcntl, "flock", real)
    porter.make_scratch(plan(tmp_path, "r1", "b"))
    go.set()
    thread.join()
    assert os.path.isdir(made[0])


def test_other_users_of_a_node_cannot_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        top = porter.make_scratch(plan(tmp_path, "r1"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(top).st_mode) == 0o700
