"""The public face: which names there are, and what importing them costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import holdfast

HEAVY = ["keras", "lightgbm", "lightning", "numpy", "pandas", "pyarrow", "ray", "rich", "sklearn", "torch", "xgboost"]


def test_the_public_names_are_exactly_these():
    assert sorted(holdfast.__all__) == [
        "BasicVariantGenerator",
        "CLIReporter",
        "Callback",
        "Checkpoint",
        "CheckpointConfig",
        "DurableTrainable",
        "Experiment",
        "ExperimentAnalysis",
        "FailureConfig",
        "JupyterNotebookReporter",
        "LocalEngine",
        "PlacementGroupFactory",
        "ProgressReporter",
        "RayEngine",
        "Result",
        "ResultGrid",
        "ResumeConfig",
        "RunConfig",
        "Stopper",
        "SyncConfig",
        "Trainable",
        "TuneConfig",
        "TuneContext",
        "TuneError",
        "Tuner",
        "__version__",
        "checkpoint_dir",
        "choice",
        "create_scheduler",
        "create_searcher",
        "get_checkpoint",
        "get_context",
        "grid_search",
        "lograndint",
        "loguniform",
        "qlograndint",
        "qloguniform",
        "qrandint",
        "qrandn",
        "quniform",
        "randint",
        "randn",
        "register_env",
        "register_trainable",
        "report",
        "run",
        "run_experiments",
        "sample_from",
        "should_checkpoint",
        "uniform",
        "with_parameters",
        "with_resources",
    ]


def test_every_public_name_exists():
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    assert not hasattr(holdfast, "no_such_name")


def loaded_by(code: str) -> list[str]:
    """Which of the heavy modules a fresh process has loaded after running this."""
    show = f"import sys, json; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    source = str(Path(holdfast.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_importing_holdfast_loads_nothing_heavy():
    assert loaded_by("import holdfast") == []


def test_using_every_public_name_loads_nothing_heavy():
    assert loaded_by("import holdfast\nfor name in holdfast.__all__: getattr(holdfast, name)") == []


def test_running_an_experiment_loads_nothing_heavy(tmp_path):
    code = f"""
import holdfast as tune
run_config = tune.RunConfig(storage_path={str(tmp_path)!r}, verbose=0, engine=tune.LocalEngine(cpus=1))
grid = tune.Tuner(lambda config: {{"x": 1}}, run_config=run_config).fit()
assert grid[0].metrics["x"] == 1
"""
    assert loaded_by(code) == []
