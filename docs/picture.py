"""Makes docs/kill-and-resume.svg, the picture in the README, from a real run: ``make picture``.

A script is started in a terminal of its own, its driver is killed with SIGKILL in the middle, and the same command is
given again. What the terminal showed just before the kill and at the end becomes the picture.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 118, 24
ENOUGH_ENDED = 2
HALF_WAY = 12  # of 40 epochs
PICTURE = Path(__file__).with_name("kill-and-resume.svg")

SCRIPT = """
import time
import holdfast as tune

def train(config):
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] if checkpoint else 0
    for epoch in range(start + 1, 41):
        time.sleep(0.05)
        loss = (config["lr"] - 0.1) ** 2 + 1 / epoch
        tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict({"epoch": epoch}))

tune.Tuner(
    train,
    param_space={"lr": tune.loguniform(1e-3, 1.0), "optimizer": tune.choice(["sgd", "adam"])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=8, seed=3),
    run_config=tune.RunConfig(name="first", storage_path="results", if_exists="resume"),
).fit()
"""

# Rich's own template loads a font from elsewhere; a picture in a README should need nothing.
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
    line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""

_ERASE = re.compile(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")


class Terminal:
    """A program in a terminal of its own, and everything that it has written there."""

    def __init__(self, command: list[str], folder: str) -> None:
        self.written = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", LINES=str(HEIGHT), COLUMNS=str(WIDTH))
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(command[0], command)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        os.set_blocking(self._fd, False)

    def read(self) -> bool:
        """Take in what was written by now; False at the end."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
            return True
        except OSError:
            return False
        self.written += data.decode(errors="replace")
        return bool(data)

    def frames(self) -> list[str]:
        """What it has painted, one picture after the other."""
        return [frame.replace("\r", "") for frame in _ERASE.split(self.written)]


def is_worth_a_kill(root: Path) -> bool:
    """Whether some trials have ended and those that run are half-way, as anybody could ask while it runs."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "status", str(root), "--json"], capture_output=True, text=True
    )
    if done.returncode:
        return False
    facts = json.loads(done.stdout)
    running = [trial["iteration"] for trial in facts["trials"] if trial["status"] == "RUNNING"]
    return facts["counts"]["TERMINATED"] >= ENOUGH_ENDED and bool(running) and min(running) >= HALF_WAY


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py"]
        first = Terminal(command, folder)
        asked = time.monotonic()
        while first.read():
            if time.monotonic() - asked > 0.3:
                asked = time.monotonic()
                if is_worth_a_kill(Path(folder, "results", "first")):
                    os.kill(first.pid, signal.SIGKILL)
                    break
        before = first.frames()[-1]
        os.waitpid(first.pid, 0)
        second = Terminal(command, folder)
        while second.read():
            pass
        os.waitpid(second.pid, 0)
        frames = second.frames()
        soon = next(frame for frame in frames if frame.count("RUNNING") == 2)
        draw(*(hide(frame, folder) for frame in (before, soon, frames[-1])))


def hide(text: str, folder: str) -> str:
    """Leave out where this machine keeps temporary files."""
    return text.replace(folder, "~").rstrip()


def draw(before: str, soon: str, after: str) -> None:
    """Put what was seen before the kill, soon after the second start, and at the end below each other."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text("$ python train.py", "bold"))
    console.print(Text.from_ansi(before), soft_wrap=True)
    console.print(Text("Killed", "bold red"))
    console.print(Text("$ python train.py        # the same command again", "bold"))
    console.print(Text.from_ansi(soon), soft_wrap=True)
    console.print(Text("..."))
    console.print(Text.from_ansi(after), soft_wrap=True)
    console.save_svg(str(PICTURE), title="kill -9, then the same command again", code_format=TEMPLATE)


if __name__ == "__main__":
    main()
