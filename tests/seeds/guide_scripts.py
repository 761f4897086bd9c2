"""Runs a block of a guide as a script of its own, as a reader would, and looks at what it left.

Blocks are transcribed by the one rule for imports: the package ``ray`` is called ``holdfast.compat``. Places that a
guide makes up are replaced by those of the test. What a block leaves out or gets wrong stands beside it in the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import holdfast

SOURCE = Path(holdfast.__file__).parents[1]
TIMEOUT_S = 300.0
DEADLINE_S = 60.0

YOUR_MODULE = '''
"""What the guides import: a trainable that saves, loads, and reports an AUC that rises, and falls in the end."""

import os
import pathlib

from holdfast.compat import tune
from holdfast.compat.air import Checkpoint, session

STEPS = int(os.environ.get("STEPS", "8"))


def my_trainable(config):
    checkpoint = session.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    with open(os.path.expanduser("~/starts"), "a") as file:
        file.write(f"{start}\\n")
    for step in range(start + 1, STEPS + 1):
        fails = pathlib.Path("~/fails").expanduser()
        if step == 4 and fails.exists():
            raise RuntimeError("the disk is full")
        auc = step if step < 7 else 0
        session.report({"step": step, "max-auc": auc}, checkpoint=Checkpoint.from_dict({"step": step}))


trainable = my_trainable
'''


class Ran(NamedTuple):
    """What a script printed, and how it ended."""

    code: int
    out: str
    err: str


class Machine:
    """A machine with a home directory and nothing else; `~/starts` has the step that each attempt started from."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        (home / "your_module.py").write_text(YOUR_MODULE)

    def run(self, block: str, *, fails: bool = False, **places: str) -> Ran:
        """Run a block, with each place that the guide made up (`places`, new by old) replaced.

        Args:
            block: The code.
            fails: Whether it is to end with an error.
            places: `name=place` replaces `<name>` in the block.
        """
        code = textwrap.dedent(block)
        for name, place in places.items():
            assert f"<{name}>" in code, name
            code = code.replace(f"<{name}>", place)
        script = self.home / "script.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=self.home,
            env={**os.environ, "HOME": str(self.home), "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode != 0) == fails, f"ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return Ran(done.returncode, done.stdout, done.stderr)

    def starts(self) -> list[int]:
        """The steps after which the trainable of `your_module` was started, in order."""
        return [int(line) for line in (self.home / "starts").read_text().split()]


def checkpoints_in(directory: Path) -> list[str]:
    """`<trial>/checkpoint_<step>` below an experiment's directory, with the trials' names left out."""
    return sorted(path.name for path in directory.glob("*/checkpoint_*"))


def steps_of(place: str | Path) -> list[list[int]]:
    """The steps that each trial of a finished experiment reported."""
    grid = holdfast.ResultGrid.from_path(str(place))
    assert [result.status for result in grid] == ["TERMINATED"] * len(grid)
    return [[row["step"] for row in result.metrics_history] for result in grid]


def until_saved(place: Path, is_it: Callable[[holdfast.Result], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until the journal of an experiment that runs has the checkpoint that a test waits for."""
    until = time.monotonic() + DEADLINE_S
    while True:
        if (place / ".holdfast" / "spec.json").exists():
            grid = holdfast.ResultGrid.from_path(str(place))
            if len(grid) and grid[0].checkpoint is not None and is_it(grid[0]):
                return
        assert process.poll() is None, f"the script ended with {process.returncode}"
        assert time.monotonic() < until, "the checkpoint was never saved"
        time.sleep(0.05)
