"""A real sshd with rsync, for the tests of user-supplied synchronisation.

The programs are those of the machine, or Debian's packages unpacked beside the other servers: nothing is installed
on the machine, and no system user or directory is made. Elsewhere the tests are skipped.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

from servers.install import HOW, Unavailable, cache, run, unpack_debian, why_missing
from servers.process import HOST, Server

_FOLDER = "ssh"
_PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync")
_PACKAGES = ("openssh-server", "openssh-client", "rsync", "libwrap0", "libpopt0", "libxxhash0", "libzstd1", "liblz4-1")
_SYSTEM = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
_SHIM_SOURCE = Path(__file__).with_name("sshd_shim.c")


def install() -> None:
    """Make sshd, ssh, ssh-keygen and rsync available; Debian's packages fill in what the machine lacks."""
    home = cache() / _FOLDER
    programs = home / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=_SYSTEM)]
    tree = home / "tree"
    if missing:
        unpack_debian(_PACKAGES, tree)
    for name in missing:
        found = next(iter(sorted(tree.glob(f"usr/*bin/{name}"))), None)
        if found is None:
            raise Unavailable(f"none of the packages {', '.join(_PACKAGES)} has {name}")
        _require_libraries(found, tree)
        wrapper = programs / name
        libraries = shlex.quote(_libraries(tree))
        wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {shlex.quote(str(found))} "$@"\n')
        wrapper.chmod(0o755)
    if _needs_shim():
        run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(home / "shim.so"), str(_SHIM_SOURCE), "-ldl"])


def _libraries(tree: Path) -> str:
    return ":".join(str(path) for path in sorted(tree.glob("**/lib/*-linux-gnu*")) if path.is_dir())


def _require_libraries(found: Path, tree: Path) -> None:
    listed = run(["ldd", str(found)], extra={"LD_LIBRARY_PATH": _libraries(tree)})
    absent = [line.split()[0] for line in listed.splitlines() if "not found" in line]
    if absent:
        raise Unavailable(f"{found.name} needs {', '.join(absent)}, which this machine and {_PACKAGES} do not have")


def _needs_shim() -> bool:
    """Only root confines sshd's network process, and needs a user and a directory for that."""
    try:
        pwd.getpwnam("sshd")
    except KeyError:
        return os.getuid() == 0
    return os.getuid() == 0 and not Path("/run/sshd").is_dir()


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{cache() / _FOLDER / 'bin'}:{_SYSTEM}")
    if found is None:
        raise Unavailable(f"{name} is not on this machine: {why_missing('ssh') or HOW}")
    return found


class Sshd(Server):
    """`with Sshd(directory) as server: subprocess.run(["rsync", ...], env=os.environ | server.environment())`.

    The other side is this machine and this user: `host` is the name to use in `rsync -a a/ HOST:/path/b/`.
    """

    name = "sshd"
    host = "holdfast-test-host"

    def command(self) -> list[str]:
        for name in _PROGRAMS:
            _program(name)
        sshd = _program("sshd")
        unpacked = cache() / _FOLDER / "tree" / "usr" / "sbin" / "sshd"
        if Path(sshd).parent == cache() / _FOLDER / "bin":
            sshd = str(unpacked)  # it starts itself again by this name
        return [sshd, "-D", "-e", "-f", str(self.directory / "sshd_config")]

    def variables(self) -> dict[str, str]:
        found = {"LD_LIBRARY_PATH": _libraries(cache() / _FOLDER / "tree")}
        if _needs_shim():
            shim = cache() / _FOLDER / "shim.so"
            if not shim.exists():
                raise Unavailable(f"sshd cannot run as root without {shim}: {why_missing('ssh') or HOW}")
            found |= {"LD_PRELOAD": str(shim), "HOLDFAST_SSHD_EMPTY": str(self.directory / "empty")}
        return found

    def prepare(self) -> None:
        empty = self.directory / "empty"
        empty.mkdir(mode=0o755, exist_ok=True)
        empty.chmod(0o755)
        for name in ("host_key", "user_key"):
            if not (self.directory / name).exists():
                command = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name)]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        shutil.copy(self.directory / "user_key.pub", self.directory / "authorized_keys")
        host_key = (self.directory / "host_key.pub").read_text()
        (self.directory / "known_hosts").write_text(f"[{HOST}]:{self.port} {host_key}")
        self._configure_server()
        self._configure_client()

    def environment(self) -> dict[str, str]:
        """The variables for a client process: `rsync` and `ssh` on the path, and how rsync reaches the server."""
        programs = f"{cache() / _FOLDER / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        return {"PATH": programs, "RSYNC_RSH": shlex.join(self.ssh)}

    @property
    def ssh(self) -> list[str]:
        """The beginning of an ssh command line; the host and the command follow."""
        return [_program("ssh"), "-F", str(self.directory / "ssh_config")]

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"

    def _configure_server(self) -> None:
        lines = {
            "ListenAddress": f"{HOST}:{self.port}",
            "HostKey": self.directory / "host_key",
            "AuthorizedKeysFile": self.directory / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "MaxStartups": "100",
            "Subsystem": "sftp internal-sftp",
            "SetEnv": f"PATH={cache() / _FOLDER / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        }
        self._write("sshd_config", lines)

    def _configure_client(self) -> None:
        lines = {
            "Host": self.host,
            "HostName": HOST,
            "Port": self.port,
            "User": getpass.getuser(),
            "IdentityFile": self.directory / "user_key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.directory / "known_hosts",
            "BatchMode": "yes",
        }
        self._write("ssh_config", lines)

    def _write(self, name: str, lines: dict[str, object]) -> None:
        (self.directory / name).write_text("".join(f"{word} {value}\n" for word, value in lines.items()))
