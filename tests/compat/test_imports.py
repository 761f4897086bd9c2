"""One rule for imports: the package ``ray`` is called ``holdfast.compat``, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import holdfast
from holdfast.compat import tune as compat_tune

# The import lines of the documents, as written, by the rule.
LINES = [
    "from holdfast.compat import air, tune",
    "from holdfast.compat import tune",
    "from holdfast.compat.air.config import RunConfig",
    "from holdfast.compat import ray",
    "from holdfast.compat.tune.syncer import get_cloud_sync_client",
    "from holdfast.compat.tune.trainable import Trainable, TrainableUtil",
    # and others of the same generations
    "import holdfast.compat.tune as tune",
    "from holdfast.compat import air, ray, session, train, tune",
    "from holdfast.compat.air import session, Checkpoint, RunConfig, CheckpointConfig, FailureConfig",
    "from holdfast.compat.air.checkpoint import Checkpoint",
    "from holdfast.compat.train import report, get_checkpoint, Checkpoint",
    "from holdfast.compat.tune import Tuner, TuneConfig, CLIReporter, Stopper, Callback",
    "from holdfast.compat.tune.callback import Callback",
    "from holdfast.compat.tune.logger import LoggerCallback, TBXLoggerCallback",
    "from holdfast.compat.tune.registry import register_trainable, register_env",
    "from holdfast.compat.tune.result import TRAINING_ITERATION",
    "from holdfast.compat.tune.schedulers import ASHAScheduler, PopulationBasedTraining",
    "from holdfast.compat.tune.schedulers.pb2 import PB2",
    "from holdfast.compat.tune.search import ConcurrencyLimiter",
    "from holdfast.compat.tune.search.optuna import OptunaSearch",
    "from holdfast.compat.tune.search.sample import Domain",
    "from holdfast.compat.tune.stopper import MaximumIterationStopper",
    "from holdfast.compat.tune.suggest import ConcurrencyLimiter",
    "from holdfast.compat.tune.suggest.hyperopt import HyperOptSearch",
    "from holdfast.compat.tune.suggest.suggestion import Searcher",
    "from holdfast.compat.tune.trial import Trial",
    "from holdfast.compat.tune.tuner import Tuner",
    "from holdfast.compat.tune.utils import validate_save_restore, flatten_dict",
    "from holdfast.compat.tune.schedulers import *",
    "from holdfast.compat.tune.execution.placement_groups import PlacementGroupFactory",
    "from holdfast.compat.tune.utils.placement_groups import PlacementGroupFactory",
    "from holdfast.compat.tune.experiment.experiment import Experiment",
    "from holdfast.compat.tune.experiment import Experiment, Trial",
    "from holdfast.compat.tune.logger.unified import UnifiedLogger",
    "from holdfast.compat.tune.trainable.util import TrainableUtil",
    "from holdfast.compat.tune.suggest.suggestion import ConcurrencyLimiter, UNRESOLVED_SEARCH_SPACE",
    "from holdfast.compat.tune.schedulers.pbt import PopulationBasedTraining, PopulationBasedTrainingReplay",
    "from holdfast.compat.tune.trainable.util import with_parameters, PlacementGroupFactory",
    "from holdfast.compat.tune.trainable import with_parameters, with_resources, PlacementGroupFactory",
    "from holdfast.compat.tune.registry import get_trainable_cls",
    "from holdfast.compat.tune.context import TuneContext, get_context",
    "from holdfast.compat.train.context import TrainContext, get_context",
    "from holdfast.compat.train.session import report",
    "from holdfast.compat.tune.result import EPISODE_REWARD_MEAN, MEAN_ACCURACY, MEAN_LOSS",
    "from holdfast.compat.tune.analysis import Analysis, ExperimentAnalysis",
    "from holdfast.compat.tune.utils.trainable import TrainableUtil",
    "from holdfast.compat.air.integrations.xgboost import TuneReportCheckpointCallback",
    "from holdfast.compat.air.integrations.comet import CometLoggerCallback",
    "from holdfast.compat.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow",
    "from holdfast.compat.air.integrations.wandb import WandbLoggerCallback, setup_wandb",
    "from holdfast.compat.tune.integration.mlflow import MLflowLoggerCallback",
    "from holdfast.compat.tune.logger.aim import AimLoggerCallback",
    "from holdfast.compat.tune.logger.mlflow import MLflowLoggerCallback",
    "from holdfast.compat import cloudpickle",
    "import holdfast.compat.cloudpickle as pickle; pickle.dumps(1)",
]

# What Ray has and holdfast has not, and what is named instead.
MISSING = [
    (
        "from holdfast.compat.tune.search.util import set_search_properties_backwards_compatible",
        "set_search_properties",
    ),
    ("from holdfast.compat.tune.integration.ray_train import TuneReportCallback", r"tune\.report"),
    ("from holdfast.compat.tune.suggest.skopt import SkOptSearch", "OptunaSearch"),
    ("from holdfast.compat.tune.search.flaml import CFO", "OptunaSearch"),
    ("from holdfast.compat.tune.suggest.search import SearchAlgorithm", "Searcher"),
    ("from holdfast.compat.tune.search import SearchAlgorithm", "Searcher"),
    ("from holdfast.compat.tune import trial_runner", "Callback"),
    ("import holdfast.compat.tune.impl.tuner_internal", "internal"),
    ("from holdfast.compat.tune.function_runner import wrap_function", "function itself"),
    ("from holdfast.compat.tune.trainable import wrap_function", "function itself"),
    ("from holdfast.compat.air import ScalingConfig", "with_resources"),
    ("from holdfast.compat.train import ScalingConfig", "with_resources"),
    ("from holdfast.compat.train.torch import TorchTrainer", "with_resources"),
    ("from holdfast.compat import rllib", "install ray"),
    ("from holdfast.compat.util.placement_group import PlacementGroup", "PlacementGroupFactory"),
    ("from holdfast.compat.tune.utils.log import Verbosity", "verbose"),
]


@pytest.mark.parametrize("line", LINES)
def test_an_import_line_works_by_the_rule(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize(("line", "instead"), MISSING)
def test_what_is_not_there_says_what_to_use_instead(line: str, instead: str) -> None:
    with pytest.raises(ImportError, match=rf"has no counterpart in holdfast: .*{instead}"):
        exec(line, {})


def test_a_missing_name_is_an_attribute_error_with_the_same_words() -> None:
    import holdfast.compat.tune.search as search

    assert not hasattr(search, "SearchAlgorithm")
    with pytest.raises(AttributeError, match=r"derive from holdfast\.compat\.tune\.search\.Searcher"):
        _ = search.SearchAlgorithm


def test_names_are_those_of_holdfast_itself() -> None:
    from holdfast.compat.air.config import RunConfig
    from holdfast.compat.tune.schedulers import ASHAScheduler

    assert RunConfig is holdfast.RunConfig
    assert ASHAScheduler is holdfast.schedulers.ASHAScheduler
    assert compat_tune.report is holdfast.report
    assert compat_tune.schedulers.ASHAScheduler is ASHAScheduler
    own = {"Tuner"}
    assert all(getattr(compat_tune, name) is getattr(holdfast, name) for name in set(holdfast.__all__) - own)
    assert issubclass(compat_tune.Tuner, holdfast.Tuner)


def test_objects_and_modules_pickle_whichever_way_they_were_imported() -> None:
    import holdfast.compat.tune.schedulers as schedulers

    scheduler = pickle.loads(pickle.dumps(schedulers.ASHAScheduler(max_t=7)))
    assert isinstance(scheduler, holdfast.schedulers.ASHAScheduler)
    assert pickle.loads(cloudpickle.dumps(schedulers)) is schedulers
    assert copy.copy(schedulers.ASHAScheduler) is holdfast.schedulers.ASHAScheduler


def test_a_module_or_name_that_is_not_there_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"holdfast\.compat\.tune\.nonsense"):
        exec("import holdfast.compat.tune.nonsense", {})
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        exec("import holdfast.compat.tune.search.nonsense", {})
    with pytest.raises(ImportError, match="Nonsense"):
        exec("from holdfast.compat.tune.schedulers import Nonsense", {})


def test_importing_them_loads_nothing_heavy() -> None:
    code = "from holdfast.compat import air, ray, tune; import sys; print('numpy' in sys.modules, 'ray' in sys.modules)"
    source = str(Path(holdfast.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_checkpoint_is_found_from_a_path_in_it(tmp_path: Path) -> None:
    from holdfast.compat.tune.trainable import Trainable, TrainableUtil

    class Count(Trainable):
        def step(self) -> dict[str, Any]:
            return {}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            (Path(checkpoint_dir) / "sub").mkdir()
            (Path(checkpoint_dir) / "sub" / "model.index").write_text("x")

    saved = str(tmp_path / "kept")
    Count({}).save(saved)
    assert TrainableUtil.find_checkpoint_dir(saved) == saved
    assert TrainableUtil.find_checkpoint_dir(f"{saved}/sub/model.index") == saved
    assert TrainableUtil.find_checkpoint_dir(f"{saved}/sub/model") == saved  # a prefix of files
    for nothing in (tmp_path, tmp_path / "gone" / "model"):
        with pytest.raises(FileNotFoundError, match=str(nothing)):
            TrainableUtil.find_checkpoint_dir(str(nothing))


def test_a_script_by_the_rule_runs_and_resumes_under_the_same_name(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from holdfast.compat import air, tune
            from holdfast.compat.air import session
            import sys

            def train(config):
                session.report({"score": config["x"]})

            tuner = tune.Tuner(
                train,
                param_space={"x": tune.grid_search([1, 2])},
                tune_config=tune.TuneConfig(num_samples=int(sys.argv[1])),
                run_config=air.RunConfig(name="my-tune-exp", local_dir="results", verbose=0),
            )
            print("trials:", len(tuner.fit()))
            """
        )
    )
    source = str(Path(holdfast.__file__).parent.parent)

    def run(samples: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), str(samples)]
        return subprocess.run(command, env={"PYTHONPATH": source}, cwd=tmp_path, capture_output=True, text=True)

    first = run(2)
    assert "trials: 4" in first.stdout, first.stderr
    assert "resuming" not in first.stderr
    second = run(3)
    assert "trials: 4" in second.stdout, second.stderr
    told = [line for line in second.stderr.splitlines() if "resuming" in line]
    assert len(told) == 1
    assert "my-tune-exp" in told[0]
    assert "num_samples=3" in second.stderr
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["my-tune-exp"]


def test_the_modern_spelling_keeps_refusing(tmp_path: Path) -> None:
    config = holdfast.RunConfig(name="exp", storage_path=tmp_path, verbose=0)
    holdfast.Tuner(_nothing, run_config=config).fit()
    with pytest.raises(holdfast.TuneError, match='if_exists="resume"'):
        holdfast.Tuner(_nothing, run_config=config)


def _nothing(config: dict[str, Any]) -> None:
    return None
