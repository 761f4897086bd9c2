"""After failures the advice must not run the old bug: hints carry the trainable, and stored code says that it is."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.cli.main import main
from holdfast.config.registry import written_as
from holdfast.trainable.changed_code import difference, is_stored_code
from holdfast.trainable.pickling import dump_trainable, load_trainable

Make = Callable[..., tune.Tuner]

SCRIPT = """
import sys
import holdfast as tune

SCALE = 1


def helper(x):
    return x * SCALE


def train(config):
    tune.report({"loss": helper(config["x"])})
    raise ValueError("the bug")


if __name__ == "__main__":
    from holdfast import Tuner

    if sys.argv[1:]:
        exec(sys.argv[1])
    else:
        run = tune.RunConfig(name="exp", storage_path="store", verbose=1)
        Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=run).fit()
"""


class Project:
    """A directory with a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "store" / "exp"
        self.edit("", SCRIPT)

    def edit(self, old: str, new: str) -> None:
        path = self.folder / "script.py"
        path.write_text(path.read_text().replace(old, new) if old else textwrap.dedent(new))

    def run(self, *arguments: str, program: tuple[str, ...] = ("script.py",)) -> str:
        command = [sys.executable, *program, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120)
        return done.stdout + done.stderr

    def cli(self, *arguments: str) -> str:
        return self.run(*arguments, program=("-m", "holdfast"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def hint(text: str) -> str:
    found = re.search(r"Tuner\.restore\(.*resume_errored=True\)\.fit\(\)", text)
    assert found is not None, text
    return found[0]


def test_the_hint_runs_the_corrected_code(project: Project) -> None:
    """To the letter, in the script that was corrected."""
    call = hint(project.run())
    assert call == f'Tuner.restore("{project.root}", trainable=train, resume_errored=True).fit()'
    assert hint(project.cli("status", str(project.root))) == call
    project.edit('raise ValueError("the bug")', "pass")
    shown = project.run(call)
    assert "2 done" in shown
    assert "stored trainable" not in shown
    assert "the bug" not in shown


def test_a_restore_that_uses_stored_code_says_which_and_from_when(project: Project) -> None:
    project.run()
    restore = 'Tuner.restore("store/exp", resume_errored=True).fit()'
    unchanged = project.run(restore)
    assert re.search(r"using the stored trainable train from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", unchanged)
    assert "pass trainable=train to use changed code" in unchanged
    assert "UserWarning" not in unchanged
    project.edit("SCALE = 1", "SCALE = 2")
    assert "SCALE, which helper uses, is not the same as in" in project.run(restore)
    project.edit('raise ValueError("the bug")', "pass")
    shown = project.run(restore)
    assert "UserWarning: The trainable 'train' is used as stored" in shown
    assert "Tuner.restore(path, trainable=train)" in shown
    assert "2 failed" in shown  # it did what it said


def test_the_command_line_says_so_and_can_import_the_changed_code(project: Project) -> None:
    project.run()
    project.edit('raise ValueError("the bug")', "pass")
    stored = project.cli("resume", "store/exp", "--resume-errored")
    assert "warning: The trainable 'train' is used as stored" in stored
    assert "--trainable MODULE:NAME" in stored
    assert "2 failed" in stored
    assert "cannot be imported" in project.cli("resume", "store/exp", "--trainable", "script:nothing")
    assert "must be MODULE:NAME" in project.cli("resume", "store/exp", "--trainable", "script")
    assert "2 done" in project.cli("resume", "store/exp", "--resume-errored", "--trainable", "script:train")


def test_after_an_error_of_the_users_code_the_hint_carries_the_trainable(
    make_tuner: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report({"los": 1})

    with pytest.raises(tune.TuneError):
        make_tuner(train, metric="loss", mode="min", verbose=1).fit()
    assert "trainable=train).fit()" in capsys.readouterr().out


def test_the_hint_for_an_interrupted_experiment_needs_no_trainable(
    crashed: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(4):
            tune.report({"step": step})

    crashed(train, {}, 2)
    assert main(["status", str(root)]) == 0
    assert f'Tuner.restore("{root}").fit()' in capsys.readouterr().out


class Model(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1}


def test_how_a_trainable_is_written() -> None:
    assert written_as(Model) == "Model"
    assert written_as("my model") == '"my model"'
    assert written_as(lambda config: None) == "..."
    assert written_as(tune.with_parameters(Model, data=1)) == "tune.with_parameters(Model, ...)"
    assert written_as(tune.with_resources(Model, {"cpu": 1})) == "Model"


# --- comparing code


def stored(trainable: Any) -> Any:
    return load_trainable(dump_trainable(trainable))


def test_what_is_imported_by_its_name_is_not_stored_code() -> None:
    assert not is_stored_code(stored(Model))


def in_main(monkeypatch: pytest.MonkeyPatch, source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__", "tune": tune}
    exec(compile(textwrap.dedent(source), "<cell>", "exec"), names)
    for name, value in names.items():
        if not name.startswith("__"):
            monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    return names


BEFORE = """
RATE = 0.1

def helper(x, power=2):
    return [y ** power for y in [x]]

def train(config):
    return {"loss": helper(config["x"])[0] * RATE}

class Net(tune.Trainable):
    SIZE = 3

    def step(self):
        return train(self.config)
"""


@pytest.mark.parametrize(
    ("old", "new", "of_function", "of_class"),
    [
        ("", "", "", ""),
        ("RATE = 0.1", "\n\nRATE = 0.1", "", ""),
        ("RATE = 0.1", "RATE = 0.2", "RATE", "RATE"),
        ("power=2", "power=3", "the defaults of helper", "the defaults of helper"),
        ("y ** power for", "y + power for", "helper", "helper"),
        ("* RATE", "/ RATE", "train", "train"),
        ("SIZE = 3", "SIZE = 4", "", "Net.SIZE"),
        ("def step(self):", "def reset(self): pass\n\n    def step(self):", "", "Net.reset"),
    ],
)
def test_changes_are_found_wherever_the_code_refers_to(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, of_function: str, of_class: str
) -> None:
    names = in_main(monkeypatch, BEFORE)
    function, kind = stored(names["train"]), stored(names["Net"])
    assert is_stored_code(function)
    in_main(monkeypatch, BEFORE.replace(old, new))
    for found, expected in ((difference(function), of_function), (difference(kind), of_class)):
        assert bool(found) == bool(expected)
        assert expected in found
