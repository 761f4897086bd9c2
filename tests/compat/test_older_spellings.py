"""Every row of the tables of older spellings in the guide for those who come from Ray Tune is run, both sides."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import compat
from holdfast.compat import air, session, tune

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "coming-from-ray-tune.md"
_ROW = re.compile(r"^\| `(.+)` \| `(.+)` \|$", re.MULTILINE)

OLDER = {"tune": tune, "air": air, "session": session}
TODAY = {"tune": holdfast}


def rows(title: str) -> list[tuple[str, str]]:
    text = GUIDE.read_text(encoding="utf-8")
    return _ROW.findall(text.split(f"**{title}**\n", 1)[1].split("\n**", 1)[0].split("\n## ", 1)[0])


def sides(found: list[tuple[str, str]]) -> list[Any]:
    return [
        pytest.param(code, which, id=f"{which}: {code}")
        for pair in found
        for code, which in zip(pair, ("older", "today"), strict=True)
    ]


def names_of(which: str) -> dict[str, Any]:
    return dict(OLDER if which == "older" else TODAY)


def train(config: dict[str, Any]) -> dict[str, int]:
    return {"loss": 1}


class Model(holdfast.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        pass


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Results go to the test's own directory; hints are not errors here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "results"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def fit(trainable: Any, tmp_path: Path) -> holdfast.Result:
    (result,) = holdfast.Tuner(
        trainable, run_config=holdfast.RunConfig(storage_path=tmp_path / "fitted", verbose=0)
    ).fit()
    assert result.error is None
    return result


def test_there_are_tables() -> None:
    assert [len(rows(title)) > 5 for title in ("Imports", "In the script", "In a trial", "Trainables")] == [True] * 4
    assert compat.__name__ == "holdfast.compat"


@pytest.mark.parametrize(("code", "which"), sides(rows("Imports")))
def test_an_import_works(code: str, which: str) -> None:
    exec(code, {})


@pytest.mark.parametrize(("code", "which"), sides(rows("In the script")))
def test_an_expression_of_a_script_works(code: str, which: str, tmp_path: Path) -> None:
    if which == "older":
        tune.run(train, name="exp", local_dir=str(tmp_path), verbose=0)
    else:
        holdfast.Tuner(train, run_config=holdfast.RunConfig(name="exp", storage_path=tmp_path, verbose=0)).fit()
    checkpoint = holdfast.Checkpoint.from_dict({"x": 1}).to_directory(str(tmp_path / "checkpoint"))
    names = {"train": train, "Model": Model, "path": str(tmp_path / "exp"), "checkpoint": checkpoint}
    names.update(names_of(which))
    value = eval(code, names)
    trials = value if isinstance(value, list) else getattr(value, "trials", None) or ()
    assert all(trial.status == "TERMINATED" for trial in trials)
    if isinstance(value, holdfast.ResultGrid):
        assert [result.status for result in value] == ["TERMINATED"] * len(value)


@pytest.mark.parametrize(("code", "which"), sides(rows("In a trial")))
def test_a_statement_of_a_trial_works(code: str, which: str, tmp_path: Path) -> None:
    names = names_of(which)
    exec(f"def trial(config):\n    value = {code}\n    tune.report({{'kept': repr(value)}})", names)
    metrics = fit(names["trial"], tmp_path).metrics
    assert metrics["kept"] is not None
    if "get_trial" in code or "name" in code:
        assert metrics["kept"] != "None"


@pytest.mark.parametrize(("code", "which"), sides([row for row in rows("Trainables") if "def train(" in row[0]]))
def test_a_function_trains(code: str, which: str, tmp_path: Path) -> None:
    names = names_of(which)
    exec(code, names)
    assert fit(names["train"], tmp_path).metrics["loss"] == 1


@pytest.mark.parametrize("which", ["older", "today"])
def test_a_class_of_all_methods_trains_saves_and_loads(which: str, tmp_path: Path) -> None:
    methods = [row[which == "today"] for row in rows("Trainables") if "self" in row[0]]
    names = names_of(which)
    exec("class Model(tune.Trainable):\n" + "\n".join(f"    {method}" for method in methods), names)
    result = fit(names["Model"], tmp_path)
    assert result.metrics["loss"] == 1
    assert holdfast.utils.validate_save_restore(names["Model"])
