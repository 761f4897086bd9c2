"""Builds the documentation site and checks it: ``python docs/site/build.py build/docs``.

Exit code 1 if Sphinx warns about anything, a link is dead, or a page would load something from another host.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from links import problems

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def build(target: Path) -> list[str]:
    """Build the site into ``target`` and return what is wrong with it, one line each."""
    cache = target.with_name(f"{target.name}-cache")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--jobs", "2"]
    command += ["--fresh-env"]  # else a page that has not changed since would not be warned about again
    command += ["--conf-dir", str(HERE), "--doctree-dir", str(cache), str(ROOT), str(target)]
    paths = [str(HERE), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    said = done.stdout.splitlines()
    if done.returncode != 0:
        return said or [f"Sphinx ended with exit code {done.returncode}"]
    return said + problems(target)


def main() -> int:
    """Called from the command line."""
    target = Path(sys.argv[1]).resolve()
    wrong = build(target)
    print("\n".join(wrong) if wrong else f"open {target / 'index.html'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
