"""Experiments by name, lists without a place, and completion in a shell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

from holdfast.cli.parser import make_parser

Run = Callable[..., Any]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default results directory; the current directory is another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.mark.parametrize("command", [["status"], ["show"], ["verify"], ["list-trials"], ["gc"]])
def test_a_name_is_found_in_the_default_results_directory(command: list[str], results: Path, holdfast: Run) -> None:
    small_experiment(results / "digits").finish()
    answer = holdfast(*command, "digits")
    assert (answer.code, answer.err) == (0, "")


def test_what_is_in_the_current_directory_comes_first(results: Path, holdfast: Run) -> None:
    small_experiment(results / "digits").finish()
    small_experiment(Path("digits")).finish()
    assert json.loads(holdfast("status", "digits", "--json").out)["path"] == str(Path("digits").absolute())


def test_a_directory_that_is_no_experiment_does_not_hide_one(results: Path, holdfast: Run) -> None:
    small_experiment(results / "digits").finish()
    Path("digits").mkdir()
    assert json.loads(holdfast("status", "digits", "--json").out)["path"] == str(results / "digits")


def test_a_name_that_is_nowhere_says_where_was_looked(results: Path, holdfast: Run) -> None:
    answer = holdfast("status", "digits")
    assert answer.code == 2
    assert str(results) in answer.err
    assert str(Path("digits").absolute()) in answer.err
    assert "holdfast list" in answer.err


def test_a_list_without_a_place_shows_both(results: Path, holdfast: Run) -> None:
    small_experiment(results / "digits").finish()
    small_experiment(Path("letters")).finish()
    answer = holdfast("list")
    assert answer.code == 0
    assert "digits" in answer.out
    assert "letters" in answer.out
    assert len(json.loads(holdfast("list", "--json").out)) == 2


def test_a_results_directory_below_the_current_one_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holdfast: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "results"))
    small_experiment(tmp_path / "results" / "digits").finish()
    assert len(json.loads(holdfast("list", "--json").out)) == 1


# --- sorting


@pytest.fixture
def sorted_root(tmp_path: Path) -> Path:
    root = RootWriter(tmp_path / "exp").open()
    for loss in (0.3, 0.1, 0.2):
        n = root.create({"lr": 1 - loss})
        root.start(n)
        root.report(n, {"loss": loss})
    root.create({"lr": 5.0})
    return root.finish().path


def losses(answer: Any) -> list[float | None]:
    return [trial["last_result"]["loss"] if trial["last_result"] else None for trial in json.loads(answer.out)]


def test_trials_are_sorted_by_a_metric_or_a_parameter(sorted_root: Path, holdfast: Run) -> None:
    assert losses(holdfast("show", sorted_root, "--sort", "loss", "--json")) == [0.1, 0.2, 0.3, None]
    assert losses(holdfast("show", sorted_root, "--sort", "lr", "--desc", "--json")) == [None, 0.1, 0.2, 0.3]


def test_the_best_trials_are_shown(sorted_root: Path, holdfast: Run) -> None:
    assert losses(holdfast("show", sorted_root, "--best", "2", "--json")) == [0.1, 0.2]
    shown = holdfast("show", sorted_root, "--best", "2").out
    assert shown.index("0.1") < shown.index("0.2")
    assert "0.3" not in shown


def test_a_key_that_no_trial_has_lists_those_that_there_are(sorted_root: Path, holdfast: Run) -> None:
    answer = holdfast("show", sorted_root, "--sort", "accuracy")
    assert answer.code == 2
    assert "'accuracy'" in answer.err
    assert "loss, lr, status" in answer.err


def test_the_best_needs_a_metric(tmp_path: Path, holdfast: Run) -> None:
    root = RootWriter(tmp_path / "exp", metric=None, mode=None).open().finish()
    answer = holdfast("show", root.path, "--best", "2")
    assert answer.code == 2
    assert "--sort METRIC" in answer.err
    assert holdfast("show", root.path, "--best", "0").code == 2


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_a_shell_knows_every_command_and_option(shell: str, holdfast: Run) -> None:
    from holdfast.cli.completion import commands_of

    script = holdfast("completion", shell).out
    for name, (_, options) in commands_of(make_parser()).items():
        assert name in script
        assert all(option.removeprefix("--") in script for option in options)


def test_bash_completes(results: Path, holdfast: Run) -> None:
    small_experiment(results / "digits").finish()

    def complete(*words: str) -> list[str]:
        code = holdfast("completion", "bash").out
        code += f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _holdfast; echo ${{COMPREPLY[@]}}\n"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert complete("holdfast", "stat") == ["status"]
    assert complete("holdfast", "show", "--be") == ["--best"]
    assert complete("holdfast", "status", "dig") == ["digits"]
