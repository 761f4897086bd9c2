"""What real trials print is seen while they run, and kept."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as tune

SCRIPT = """
import logging, os, sys, warnings
import holdfast as tune

def train(config):
    print("out of", config["x"])
    print("err of", config["x"], file=sys.stderr)
    logging.getLogger("mine").warning("logged by %d", config["x"])
    os.system(f"echo child of {config['x']}")
    sys.stdout.write("\\r 10%")
    sys.stdout.write("\\r100% of " + str(config["x"]) + "\\n")
    print("\\x1b[31mred\\x1b[0m \\x1b[2J of", config["x"])
    if config["x"] == 1 and tune.get_context().get_trial_name() and not os.path.exists("again"):
        open("again", "w").close()
        raise ValueError("once")
    print("unfinished", config["x"], end="")
    return {"loss": config["x"]}

tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2])},
    run_config=tune.RunConfig(
        name="loud", storage_path=sys.argv[1], verbose=int(sys.argv[2]), log_to_file=sys.argv[3] == "files",
        failure_config=tune.FailureConfig(max_failures=1), engine=tune.LocalEngine(cpus=1),
    ),
).fit()
"""


def run(tmp_path: Path, verbose: int = 1, *, files: bool = False, terminal: bool = False) -> str:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "results"), str(verbose), "files" if files else ""]
    if not terminal:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower, env=environment) as process:
        os.close(follower)
        said = b""
        try:
            while data := os.read(leader, 65536):
                said += data
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(leader)
        assert process.wait(60) == 0
    return said.decode()


def names(root: Path) -> list[str]:
    return [trial.metrics["trial_id"] for trial in tune.ResultGrid.from_path(root)]


@pytest.mark.parametrize("files", [False, True])
def test_what_trials_print_appears_with_their_names_in_plain_output(tmp_path: Path, files: bool) -> None:
    said = run(tmp_path, files=files)
    for x, name in enumerate(names(tmp_path / "results/loud")):
        for line in (
            f"out of {x}",
            f"err of {x}",
            f"logged by {x}",
            f"child of {x}",
            f"100% of {x}",
            f"unfinished {x}",
        ):
            assert f"train_{name} | {line}\n" in said
        assert f"train_{name} | red \\x1b[2J of {x}\n" in said
    assert said.count("out of 1\n") == 2
    # Files that attempts share tell them apart only if one is seen to run.
    assert said.count("| --- attempt 2 ---\n") == 1 or files
    assert "10%" not in said.replace("100%", "")
    assert "\x1b" not in said


def test_in_a_terminal_they_appear_above_the_table(tmp_path: Path) -> None:
    said = run(tmp_path, terminal=True)
    for x, name in enumerate(names(tmp_path / "results/loud")):
        assert f"train_{name} | \x1b[0mout of {x}\r\n" in said
    assert "\x1b[31mred\x1b[0m \\x1b[2J of 2" in said
    assert "\x1b[2J" not in said


def test_verbose_0_shows_nothing_and_keeps_everything(tmp_path: Path) -> None:
    assert run(tmp_path, verbose=0) == ""
    logs = tmp_path / "results/loud/.holdfast/logs"
    for x, name in enumerate(names(tmp_path / "results/loud")):
        assert f"\nout of {x}\nerr of {x}\n" in (logs / f"{name}.log").read_text()


def test_a_bound_that_is_none_is_refused() -> None:
    for value in (0, -1, 100, "64 MB", 1.5):
        with pytest.raises((ValueError, TypeError), match="max_output_bytes"):
            tune.RunConfig(max_output_bytes=value)  # type: ignore[arg-type]
    assert tune.RunConfig(max_output_bytes=None).max_output_bytes is None
    assert tune.RunConfig().max_output_bytes == 64 * 1024 * 1024
