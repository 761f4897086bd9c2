"""Output files, in a process of their own: file descriptors 1 and 2 belong to the whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from worker_wire import Driver

def train(config):
    print("out of", config["n"])
    print("err of", config["n"], file=sys.stderr)
    os.system("echo child of " + str(config["n"]))
    os.write(1, b"raw\\n")
    Path(config["seen"]).write_text(Path("stdout").read_text() if Path("stdout").exists() else "")
    if config["n"] == 1:
        raise ValueError("loud")

worker = Driver(Path({root!r}), train, chdir=True, log_to_file={names!r})
print("before")
for n in (0, 0, 1):
    worker.attempt({{"n": n, "seen": {root!r} + "/seen"}}, n=n)
    print("between")
worker.close()
os.system("echo after")
"""


def run(tmp_path: Path, names: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(here=str(Path(__file__).parent), root=str(tmp_path / "exp"), names=names)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)


def test_output_goes_to_the_trials_files_and_back(tmp_path: Path) -> None:
    done = run(tmp_path, ("stdout", "stderr"))
    assert done.stdout.split("\n") == ["before", "between", "between", "between", "after", ""]
    assert done.stderr == ""
    lines = "out of 0\nchild of 0\nraw\n"
    assert (tmp_path / "exp/trial_0/stdout").read_text() == lines * 2
    assert (tmp_path / "exp/trial_0/stderr").read_text() == "err of 0\n" * 2
    assert (tmp_path / "exp/trial_1/stdout").read_text() == "out of 1\nchild of 1\nraw\n"
    # Lines are there while the trial runs, not only when it ends.
    assert (tmp_path / "exp/seen").read_text() == "out of 1\nchild of 1\nraw\n"


def test_one_file_can_take_both_streams(tmp_path: Path) -> None:
    run(tmp_path, ("log", "log"))
    assert (tmp_path / "exp/trial_1/log").read_text() == "out of 1\nerr of 1\nchild of 1\nraw\n"
