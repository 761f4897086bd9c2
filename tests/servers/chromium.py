"""A real browser without a window: Debian's Chromium, or the headless one that npm has.

Owns: `<venv>/servers/chromium`. Playwright's own downloads are not used: they come from elsewhere.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import NamedTuple

from servers.install import HOW, Unavailable, cache, node, npm, run, why_missing

PACKAGE = "@sparticuz/chromium"
VERSION = "147.0.0"
_UNPACK = """
const { brotliDecompressSync } = require("node:zlib");
const { readFileSync, writeFileSync } = require("node:fs");
for (const [from, to] of [["chromium.br", "chromium"], ["al2023.tar.br", "libraries.tar"]]) {
  writeFileSync(to, brotliDecompressSync(readFileSync(`package/bin/${from}`)));
}
"""


class Browser(NamedTuple):
    """A program, and what it needs in its environment."""

    path: str
    environ: dict[str, str]


def install() -> None:
    """Nothing if the machine has Chromium; else fetch the one from npm, which needs no root."""
    if shutil.which("chromium") is not None or _program().exists():
        return
    home = _program().parent
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    run([*npm(), "pack", f"{PACKAGE}@{VERSION}"], cwd=home)
    (archive,) = home.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(home, filter="data")
    run([str(node()), "-e", _UNPACK], cwd=home)
    with tarfile.open(home / "libraries.tar") as packed:
        packed.extractall(home, filter="data")
    for leftover in (archive, home / "libraries.tar"):
        leftover.unlink()
    shutil.rmtree(home / "package")
    _program().chmod(0o755)


def find() -> Browser:
    """The browser of this machine.

    Raises:
        Unavailable: There is none.
    """
    system = shutil.which("chromium")
    if system is not None:
        return Browser(system, {})
    if not _program().exists():
        reason = why_missing("chromium") or HOW
        raise Unavailable(f"Chromium is neither on this machine (apt-get install chromium) nor in {cache()}: {reason}")
    return Browser(str(_program()), {"LD_LIBRARY_PATH": str(_program().parent / "lib")})


def _program() -> Path:
    return cache() / "chromium" / "chromium"
