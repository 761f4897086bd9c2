"""The sshd server with real ssh and rsync."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from servers.fault_proxy import Cut, FaultProxy
from servers.sshd import Sshd


def rsync(server: Sshd, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | server.environment()
    return subprocess.run(["rsync", *words], env=environment, capture_output=True, text=True, timeout=60)


def test_rsync_copies_a_tree_there_and_back(sshd: Sshd, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    assert rsync(sshd, "-a", f"{source}/", f"{sshd.host}:{tmp_path}/there/").returncode == 0
    assert rsync(sshd, "-a", f"{sshd.host}:{tmp_path}/there/", f"{tmp_path}/back/").returncode == 0
    assert (tmp_path / "back" / "file").read_text() == "content"


def test_a_stopped_sshd_fails_rsync_and_a_started_one_serves_again(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    sshd.stop()
    try:
        assert rsync(sshd, "-a", f"{tmp_path}/file", f"{sshd.host}:{tmp_path}/copy").returncode != 0
    finally:
        sshd.start()
    assert rsync(sshd, "-a", f"{tmp_path}/file", f"{sshd.host}:{tmp_path}/copy").returncode == 0


def test_the_proxy_cuts_ssh_connections(sshd: Sshd, fault_proxy: Callable[..., FaultProxy]) -> None:
    proxy = fault_proxy(f"127.0.0.1:{sshd.port}", protocol="tcp")
    proxy.rule(Cut("before"), nth=2)
    command = [*sshd.ssh, "-o", f"Port={proxy.port}", "-o", "StrictHostKeyChecking=no", sshd.host, "echo", "there"]
    known = ["-o", "UserKnownHostsFile=/dev/null"]
    results = [subprocess.run(command[:3] + known + command[3:], capture_output=True, timeout=60) for _ in range(3)]
    assert [result.returncode for result in results] == [0, 255, 0]
    assert results[0].stdout == b"there\n"
    assert [request.forwarded for request in proxy.requests] == [True, False, True]
