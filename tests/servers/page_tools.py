"""What builds and checks the live page: esbuild, TypeScript and axe-core, as the lock file of `ui/` pins them.

Owns: `<venv>/servers/page`. Must never write into `ui/`: a built page goes where the caller says.
`python -m servers.page_tools FOLDER` builds it.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from pathlib import Path

from servers.install import HOW, REPOSITORY, Unavailable, cache, node, npm, run, why_missing

SOURCES = REPOSITORY / "ui"
_FILES = ("package.json", "package-lock.json", ".npmrc", "build.mjs", "tsconfig.json")


def home() -> Path:
    """The folder with the tools and a copy of the page's sources."""
    return cache() / "page"


def install() -> None:
    """Install exactly what the lock file names, from the registry that npm is set up with."""
    lock = SOURCES / "package-lock.json"
    done = home() / "installed"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return
    home().mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(SOURCES / name, home() / name)
    run([*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home())
    done.write_bytes(lock.read_bytes())


def fresh_sources() -> Path:
    """The tools beside a copy of the sources as they are now.

    Raises:
        Unavailable: The tools are not installed, or are those of another lock file.
    """
    done = home() / "installed"
    if not done.exists() or done.read_bytes() != (SOURCES / "package-lock.json").read_bytes():
        raise Unavailable(f"the tools of the page are not in {home()}: {why_missing('page') or HOW}")
    with open(home() / "copying", "w") as alone:  # several processes run tests, and may be building what is there
        fcntl.flock(alone, fcntl.LOCK_EX)
        if _contents(home()) != _contents(SOURCES):
            shutil.rmtree(home() / "src", ignore_errors=True)
            shutil.copytree(SOURCES / "src", home() / "src")
            for name in _FILES:
                shutil.copy(SOURCES / name, home() / name)
    return home()


def _contents(folder: Path) -> dict[str, bytes]:
    files = [*(folder / "src").rglob("*"), *(folder / name for name in _FILES)]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}


def build(target: Path) -> None:
    """Build the page into a folder."""
    run([str(node()), "build.mjs", str(target)], cwd=fresh_sources())


def axe() -> str:
    """The source of axe-core, which finds barriers for people who use the page with a keyboard or a screen reader."""
    return (fresh_sources() / "node_modules" / "axe-core" / "axe.min.js").read_text()


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
