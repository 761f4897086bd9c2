"""What all servers promise as processes: nothing is left behind, nothing collides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from servers import install
from servers.gcs import GCS
from servers.install import Unavailable
from servers.process import Port, Server, ServerFailed, accepts, members, poll
from servers.seaweedfs import SeaweedFS

TESTS = Path(__file__).resolve().parents[1]


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has, whoever is to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Family(Server):
    """A server with a helper process."""

    name = "family"

    def command(self) -> list[str]:
        script = "import os, socket, sys; os.fork(); s = socket.socket(); p = int(sys.argv[1]); o = socket.SO_REUSEPORT"
        script += "; s.setsockopt(socket.SOL_SOCKET, o, 1); s.bind(('127.0.0.1', p)); s.listen(); input_ = s.accept"
        return [sys.executable, "-c", script + "\nwhile True: input_()", str(self.port)]


def test_leaving_the_context_ends_the_process_and_gives_the_port_back(tmp_path: Path) -> None:
    with GCS(tmp_path) as server:
        pid, port = server.pid, server.port
        assert accepts(port)
    assert gone(pid)
    assert not accepts(port)


def test_stop_ends_helper_processes_too(tmp_path: Path) -> None:
    with Family(tmp_path) as server:
        pid = server.pid
        poll(lambda: len(members(pid)) == 2, 10, "the helper")
        server.stop()
        assert members(pid) == []


@pytest.mark.parametrize("paused", [False, True])
def test_a_killed_test_process_takes_its_servers_along(tmp_path: Path, paused: bool) -> None:
    script = """
import sys, time
from test_server_processes import Family
server = Family(sys.argv[1]).start()
if sys.argv[2] == "True":
    server.pause()
print(server.pid, flush=True)
time.sleep(600)
"""
    path = os.pathsep.join([str(TESTS), str(Path(__file__).parent)])
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(paused)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert members(pid)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    poll(lambda: not members(pid), 10, "the servers to end")


def test_seaweedfs_leaves_no_socket_files(tmp_path: Path) -> None:
    server = SeaweedFS(tmp_path)
    try:
        server.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        ports = {str(port.number) for port in server._ports.values()}
        assert any(path.stem.rpartition("-")[2] in ports for path in Path("/tmp").glob("seaweedfs-*.sock"))
    assert not any(path.stem.rpartition("-")[2] in ports for path in Path("/tmp").glob("seaweedfs-*.sock"))


def test_reserved_ports_differ() -> None:
    ports = [Port() for _ in range(50)]
    assert len({port.number for port in ports}) == 50
    for port in ports:
        port.release()


def test_a_server_that_dies_at_once_shows_its_log(tmp_path: Path) -> None:
    class Broken(GCS):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('the disk is on fire')"]

    with pytest.raises(ServerFailed, match="the disk is on fire"):
        Broken(tmp_path).start()


def test_a_server_cannot_be_started_from_a_thread_that_ends_before_it(tmp_path: Path) -> None:
    raised: list[Exception] = []

    def start() -> None:
        try:
            GCS(tmp_path).start()
        except ServerFailed as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_what_is_not_installed_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "cache", lambda: tmp_path)
    with pytest.raises(Unavailable, match="make servers"):
        SeaweedFS(tmp_path / "server").start()


def test_a_failed_installation_leaves_its_reason_for_the_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "cache", lambda: tmp_path)

    def fail() -> None:
        install.run([sys.executable, "-c", "raise SystemExit('no such package')"])

    assert "no such package" in (install.attempt("python", fail) or "")
    with pytest.raises(Unavailable, match="no such package"):
        install.program("weed")
    assert install.attempt("python", lambda: None) is None
    assert install.why_missing("python") is None
