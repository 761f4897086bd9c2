"""holdfast: hyperparameter search whose experiments survive anything.

import holdfast as tune

def train(config):
    return {"loss": (config["x"] - 3) ** 2}

results = tune.Tuner(train, param_space={"x": tune.uniform(0, 5)}).fit()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import _moved
from holdfast._version import __version__
from holdfast.trainable import tracebacks as _tracebacks

if TYPE_CHECKING:
    from holdfast.callbacks.callback import Callback
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.compat.durable import DurableTrainable
    from holdfast.compat.tune_run import Experiment, run, run_experiments
    from holdfast.config import (
        CheckpointConfig,
        FailureConfig,
        LocalEngine,
        RayEngine,
        ResumeConfig,
        RunConfig,
        SyncConfig,
        TuneConfig,
    )
    from holdfast.config.registry import register_env, register_trainable
    from holdfast.config.resources import PlacementGroupFactory, with_parameters, with_resources
    from holdfast.display.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from holdfast.errors import TuneError
    from holdfast.results import ExperimentAnalysis, Result, ResultGrid
    from holdfast.schedulers import create_scheduler
    from holdfast.search import BasicVariantGenerator, create_searcher
    from holdfast.space import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from holdfast.stopper import Stopper
    from holdfast.trainable.api import checkpoint_dir, get_checkpoint, get_context, report, should_checkpoint
    from holdfast.trainable.context import TuneContext
    from holdfast.trainable.trainable import Trainable
    from holdfast.tuner import Tuner

# Names are imported when they are first used: a worker process, or a script that only reads results, does not pay for
# the rest. Each line is a module and the public names that live in it.
_HOMES = {
    "holdfast.callbacks.callback": ("Callback",),
    "holdfast.display.reporters": (
        "CLIReporter",
        "JupyterNotebookReporter",
        "ProgressReporter",
    ),
    "holdfast.checkpoints.checkpoint": ("Checkpoint",),
    "holdfast.compat.durable": ("DurableTrainable",),
    "holdfast.compat.tune_run": ("Experiment", "run", "run_experiments"),
    "holdfast.config": (
        "CheckpointConfig",
        "FailureConfig",
        "LocalEngine",
        "RayEngine",
        "ResumeConfig",
        "RunConfig",
        "SyncConfig",
        "TuneConfig",
    ),
    "holdfast.errors": ("TuneError",),
    "holdfast.config.registry": (
        "register_env",
        "register_trainable",
    ),
    "holdfast.config.resources": (
        "PlacementGroupFactory",
        "with_parameters",
        "with_resources",
    ),
    "holdfast.results": (
        "ExperimentAnalysis",
        "Result",
        "ResultGrid",
    ),
    "holdfast.schedulers": ("create_scheduler",),
    "holdfast.search": (
        "BasicVariantGenerator",
        "create_searcher",
    ),
    "holdfast.space": (
        "choice",
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
        "sample_from",
        "uniform",
    ),
    "holdfast.stopper": ("Stopper",),
    "holdfast.trainable.context": ("TuneContext",),
    "holdfast.trainable.api": (
        "checkpoint_dir",
        "get_checkpoint",
        "get_context",
        "report",
        "should_checkpoint",
    ),
    "holdfast.trainable.trainable": ("Trainable",),
    "holdfast.tuner": ("Tuner",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_SUBMODULES = frozenset(
    {
        "air",
        "analysis",
        "callback",
        "callbacks",
        "error",
        "experiment",
        "integration",
        "logger",
        "plots",
        "progress_reporter",
        "registry",
        "result",
        "result_grid",
        "schedulers",
        "search",
        "space",
        "stopper",
        "syncer",
        "testing",
        "trainable",
        "tune_config",
        "tuner",
        "utils",
    }
)
_OLDER = frozenset({"durable", "syncConfig"})

__all__ = [
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


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is not None:
        value = globals()[name] = getattr(import_module(home), name)
        return value
    if name in _SUBMODULES:
        return import_module(f"holdfast.{name}")
    if name == "session":
        return import_module("holdfast.air.session")
    if name in _OLDER:
        return import_module("holdfast.compat.older_names").older(name)
    if name.startswith("_"):  # asked for by tools, not by people
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    raise import_module("holdfast.compat.older_names").unknown(name, __dir__())


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})


_moved.install()
_tracebacks.install()
