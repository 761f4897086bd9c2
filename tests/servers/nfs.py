"""A machine with a real NFS server and two real NFS clients: the Linux kernel's own, in User-Mode Linux.

The kernel runs as an ordinary process on this machine and changes nothing on it. Commands run inside of it, on the
programs of this machine (its root is ours, read only). Good for what NFS does differently; slow for much data.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from servers.install import HOW, Unavailable, cache, unpack_debian, why_missing
from servers.process import Server, poll

_FOLDER = "nfs"
_PACKAGES = ("user-mode-linux", "nfs-kernel-server", "nfs-common", "libtirpc3", "libtirpc-common", "libnfsidmap1")
_LIBRARIES = ("libevent-core-2.1-7", "libkeyutils1", "libdevmapper1.02.1", "libwrap0")
_INIT = Path(__file__).with_name("nfs_init.py")
COMMAND_TIMEOUT_S = 120.0


def install() -> None:
    """Unpack Debian's User-Mode Linux and NFS tools beside the other servers."""
    tree = cache() / _FOLDER / "tree"
    if not (tree / "usr" / "bin" / "linux.uml").exists():
        unpack_debian((*_PACKAGES, *_LIBRARIES), tree)


class NFS(Server):
    """`with NFS(directory) as machine: machine.run([sys.executable, "-c", code, *machine.mounts])`.

    `mounts` are two mounts of one export with separate caches, as two hosts would have them; `export` is the folder
    on the server's side. All three exist inside the machine only. The data is in memory.
    """

    name = "the NFS machine"
    durable = False
    start_timeout_s = 180.0

    def __init__(self, directory: Path | str) -> None:
        super().__init__(directory)
        self.directory = self.directory.resolve()
        self.mounts = (str(self.directory / "client-a"), str(self.directory / "client-b"))
        self.export = str(self.directory / "export")
        self._exchange = self.directory / "exchange"
        self._jobs = 0

    def command(self) -> list[str]:
        kernel = self._tree() / "usr" / "bin" / "linux.uml"
        init = self.directory / "init.py"
        return [
            *(str(kernel), "rootfstype=hostfs", "rootflags=/", "ro", "mem=1200M", "quiet", f"init={init}"),
            *("con=null", "con0=fd:0,fd:1"),
        ]

    def prepare(self) -> None:
        tree = self._tree()
        scratch = self.directory / "scratch"
        shutil.rmtree(self._exchange, ignore_errors=True)
        self._jobs = 0
        for folder in (*self.mounts, self.export, self._exchange, scratch):
            Path(folder).mkdir(exist_ok=True)
        init = self.directory / "init.py"
        init.write_text(f"#!{sys.executable} -IS\n{_INIT.read_text()}")
        init.chmod(0o755)
        libraries = [str(path) for path in sorted(tree.glob("**/x86_64-linux-gnu")) if path.is_dir()]
        setting = {
            "exchange": str(self._exchange),
            "export": self.export,
            "scratch": str(scratch),
            "clients": ":".join(self.mounts),
            "modules": str(next(iter(tree.glob("usr/lib/uml/modules/*")))),
            "tools": str(tree / "usr" / "sbin"),
            "libraries": ":".join(libraries),
        }
        (self.directory / "machine.json").write_text(json.dumps(setting))

    def ready(self) -> bool:
        return (self._exchange / "ready").exists()

    def run(self, command: list[str], timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a command inside; both of its streams are in `stdout` of what is returned."""
        number, self._jobs = self._jobs, self._jobs + 1
        part = self._exchange / f"{number}.new"
        part.write_text(json.dumps(command))
        part.rename(part.with_suffix(".job"))
        code = self._exchange / f"{number}.code"
        poll(code.exists, timeout_s, f"{command[0]} inside {self.name}")
        text = (self._exchange / f"{number}.out").read_text(errors="replace")
        return subprocess.CompletedProcess(command, int(code.read_text()), text)

    def restart_server(self) -> None:
        """Stop and start the NFS server inside; the clients stay mounted, and wait out its grace period."""
        for words in self.restart_commands():
            done = self.run(words)
            assert done.returncode == 0, done.stdout

    def restart_commands(self) -> tuple[list[str], list[str]]:
        """The commands that stop and start the NFS server, to be run inside."""
        tool = str(self._tree() / "usr" / "sbin" / "rpc.nfsd")
        return [tool, "0"], [tool, "-N", "3", "-H", "127.0.0.1", "2"]

    @staticmethod
    def _tree() -> Path:
        tree = cache() / _FOLDER / "tree"
        if not (tree / "usr" / "bin" / "linux.uml").exists():
            raise Unavailable(f"User-Mode Linux is not in {cache()}: {why_missing('nfs') or HOW}")
        return tree
