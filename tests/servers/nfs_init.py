"""The first process of the NFS machine: sets up server and clients, then runs commands that the host leaves for it.

Owns: everything inside the machine. It runs on the interpreter of the host (the machine's root is the host's, read
only) with the standard library only. `machine.json` beside it says where things are. The exchange folder is the only
place where host and machine both write: `N.job` (a JSON list, the command) becomes `N.out` and then `N.code`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBC = ctypes.CDLL(None, use_errno=True)
FINIT_MODULE = 313
POWER_OFF = 0x4321FEDC
GRACE_S = 10
POLL_S = 0.05
MODULES = ("kernel/fs/nfs/nfsv4.ko", "kernel/fs/nfsd/nfsd.ko")

ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n",
    "protocols": "tcp 6 TCP\nudp 17 UDP\n",
    "services": "nfs 2049/tcp\nnfs 2049/udp\nsunrpc 111/tcp\nsunrpc 111/udp\n",
    "netconfig": "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
}


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: Path | str, kind: str, options: str = "", flags: int = 0) -> None:
    words = [str(word).encode() for word in (source, target, kind)]
    check(LIBC.mount(*words, flags, options.encode()), f"mount {kind} on {target}")


def load_modules(modules: Path) -> None:
    needs = dict(line.split(":", 1) for line in (modules / "modules.dep").read_text().splitlines())
    loaded: set[str] = set()
    for name in MODULES:
        for part in (*reversed(needs[name].split()), name):
            if part not in loaded:
                with (modules / part).open("rb") as file:
                    check(LIBC.syscall(FINIT_MODULE, file.fileno(), b"", 0), f"load {part}")
                loaded.add(part)


def bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        up = struct.pack("16sh22x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(handle, 0x8914, up)  # SIOCSIFFLAGS


def make_system(setting: dict[str, str]) -> None:
    """The few places that programs want to write to, as file systems in memory over the host's."""
    mount("proc", "/proc", "proc")
    mount("none", setting["exchange"], "hostfs", setting["exchange"])
    for place in ("/var", "/run", setting["export"], setting["scratch"]):
        mount("tmpfs", place, "tmpfs", "size=1g")
    etc = Path(setting["scratch"], "etc")
    etc.mkdir()
    for name, text in ETC.items():
        (etc / name).write_text(text)
    export = f"{setting['export']} 127.0.0.1(rw,sync,no_root_squash,fsid=0,insecure,no_subtree_check)\n"
    (etc / "exports").write_text(export)
    mount(str(etc), "/etc", "none", flags=4096)  # MS_BIND
    Path("/var/lib/nfs/v4recovery").mkdir(parents=True)
    for name in ("etab", "rmtab"):
        Path("/var/lib/nfs", name).touch()


def start_server(setting: dict[str, str]) -> None:
    mount("nfsd", "/proc/fs/nfsd", "nfsd")
    for name in ("nfsv4leasetime", "nfsv4gracetime"):
        Path("/proc/fs/nfsd", name).write_text(str(GRACE_S))
    tools = Path(setting["tools"])
    subprocess.run([tools / "exportfs", "-ra"], check=True)
    subprocess.run([tools / "rpc.nfsd", "-N", "3", "-H", "127.0.0.1", "2"], check=True)
    subprocess.Popen([tools / "rpc.mountd", "-F", "-N", "2", "-N", "3"])


def mount_clients(setting: dict[str, str]) -> None:
    options = "addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,proto=tcp,port=2049,soft,timeo=100,nosharecache"
    for target in setting["clients"].split(":"):
        mount("127.0.0.1:/", target, "nfs4", options)
    # The server grants new state only after its grace period: the first file that opens tells when it is over.
    probe = Path(setting["clients"].split(":")[0], ".ready")
    probe.write_text("ready")
    probe.unlink()


def serve(exchange: Path, environment: dict[str, str]) -> None:
    """Run the jobs in order, for ever; the host ends the machine."""
    number = 0
    while True:
        job = exchange / f"{number}.job"
        if not job.exists():
            time.sleep(POLL_S)
            continue
        with (exchange / f"{number}.out").open("wb") as out:
            command = json.loads(job.read_text())
            done = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)
        code = exchange / f"{number}.code"
        code.with_suffix(".part").write_text(str(done.returncode))
        code.with_suffix(".part").rename(code)
        number += 1


def main() -> None:
    setting: dict[str, str] = json.loads((HERE / "machine.json").read_text())
    os.environ |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": setting["libraries"]}
    make_system(setting)
    bring_loopback_up()
    load_modules(Path(setting["modules"]))
    start_server(setting)
    mount_clients(setting)
    exchange = Path(setting["exchange"])
    (exchange / "ready").touch()
    serve(exchange, {**os.environ, "HOME": setting["scratch"], "TMPDIR": setting["scratch"]})


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        LIBC.reboot(POWER_OFF)
