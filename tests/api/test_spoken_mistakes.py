"""Mistakes in a script or a session, as Python itself shows them: the user's line, and what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ESCAPES = r"\x1b]0;title\x07"


def said_by(tmp_path: Path, *lines: str) -> str:
    """What a script prints on its standard error before it ends with an exception."""
    script = tmp_path / "script.py"
    script.write_text("\n".join(("import holdfast as tune", *lines)) + "\n")
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    return run.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("unifrom", "Did you mean 'uniform'?"),
        ("ASHAScheduler", "It is tune.schedulers.ASHAScheduler."),
        ("train", "Write tune itself: train.report(...) is tune.report(...)"),
    ],
)
def test_an_unknown_name_is_explained_once_and_at_the_line_of_the_user(tmp_path: Path, name: str, hint: str) -> None:
    said = said_by(tmp_path, f"tune.{name}")
    assert hint in said
    assert f"tune.{name}" in said.splitlines()[2]
    assert said.lower().count("did you mean") <= 1
    assert "__getattr__" not in said


def test_a_result_that_is_not_there_is_explained(tmp_path: Path) -> None:
    lines = (
        "def train(config): return 1.0",
        "config = tune.RunConfig(name='exp', storage_path='.', verbose=0)",
        "tune.Tuner(train, tune_config=tune.TuneConfig(num_samples=2), run_config=config).fit()[5]",
    )
    said = said_by(tmp_path, *lines)
    assert "IndexError: There is no result 5: there are 2 trials, so the last is grid[1]." in said
    assert "grid.py" not in said


def test_what_a_trial_raises_gives_no_commands_to_the_terminal(tmp_path: Path) -> None:
    lines = (
        f"def train(config): raise ValueError('boom{ESCAPES}')",
        "failing = tune.FailureConfig(fail_fast='raise')",
        "config = tune.RunConfig(name='exp', storage_path='.', verbose=0, failure_config=failing)",
        "tune.Tuner(train, run_config=config).fit()",
    )
    said = said_by(tmp_path, *lines)
    assert "ValueError: boom\\x1b]0;title\\x07" in said
    assert "\x1b" not in said
    assert "\x07" not in said
    lines = ("raise tune.ResultGrid.from_path('exp').errors[0]",)
    said = said_by(tmp_path, *lines)
    assert "boom\\x1b]0;title\\x07" in said
    assert "The trial's own traceback" in said
    assert "\x1b" not in said
