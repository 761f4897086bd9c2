"""Module paths of Ray that have no file here: ``holdfast.compat.tune.schedulers.pbt`` is ``holdfast.schedulers.pbt``.

Owns the table and the finder that makes such modules when they are imported. A made module holds nothing: each name is
looked up where it lives, so classes, ``isinstance`` and pickles are the same whichever way they were imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from holdfast.compat.missing import explain

PACKAGE = "holdfast.compat."

ELSEWHERE = {
    "air.checkpoint": "holdfast.checkpoints.checkpoint",
    "air.config": "holdfast.config",
    "air.integrations": "holdfast.integration",
    "air.result": "holdfast.results.result",
    "air.session": "holdfast.air.session",
    "cloudpickle": "cloudpickle",
    "session": "holdfast.air.session",
    "train.context": "holdfast.trainable.context",
    "train.session": "holdfast.air.session",
    "tune.analysis.experiment_analysis": "holdfast.analysis",
    "tune.context": "holdfast.trainable.context",
    "tune.durable_trainable": "holdfast.compat.durable",
    "tune.experiment.trial": "holdfast.experiment",
    "tune.logger.csv": "holdfast.logger",
    "tune.logger.json": "holdfast.logger",
    "tune.logger.logger": "holdfast.logger",
    "tune.logger.tensorboardx": "holdfast.logger",
    "tune.execution": "holdfast.config.resources",
    "tune.execution.placement_groups": "holdfast.config.resources",
    "tune.experiment.experiment": "holdfast.compat.tune_run",
    "tune.logger.aim": "holdfast.integration.aim",
    "tune.logger.comet": "holdfast.integration.comet",
    "tune.logger.mlflow": "holdfast.integration.mlflow",
    "tune.logger.unified": "holdfast.logger",
    "tune.logger.wandb": "holdfast.integration.wandb",
    "tune.sample": "holdfast.search.sample",
    "tune.schedulers.median_stopping_rule": "holdfast.schedulers.median_stopping",
    "tune.search.ax.ax_search": "holdfast.search.ax",
    "tune.search.bayesopt.bayesopt_search": "holdfast.search.bayesopt",
    "tune.search.bohb.bohb_search": "holdfast.search.bohb",
    "tune.search.hebo.hebo_search": "holdfast.search.hebo",
    "tune.search.hyperopt.hyperopt_search": "holdfast.search.hyperopt",
    "tune.search.nevergrad.nevergrad_search": "holdfast.search.nevergrad",
    "tune.search.optuna.optuna_search": "holdfast.search.optuna",
    "tune.search.zoopt.zoopt_search": "holdfast.search.zoopt",
    "tune.session": "holdfast.air.session",
    "tune.stopper.experiment_plateau": "holdfast.stopper",
    "tune.stopper.function_stopper": "holdfast.stopper",
    "tune.stopper.maximum_iteration": "holdfast.stopper",
    "tune.stopper.noop": "holdfast.stopper",
    "tune.stopper.stopper": "holdfast.stopper",
    "tune.stopper.timeout": "holdfast.stopper",
    "tune.stopper.trial_plateau": "holdfast.stopper",
    "tune.suggest": "holdfast.search",
    "tune.suggest.suggestion": "holdfast.search.searcher",
    "tune.syncer_config": "holdfast.syncer",
    "tune.track": "holdfast.compat.track",
    "tune.trainable.function_trainable": "holdfast.trainable",
    "tune.trainable.session": "holdfast.air.session",
    "tune.trial": "holdfast.experiment",
    "tune.tune": "holdfast.compat.tune_run",
    "tune.utils.placement_groups": "holdfast.config.resources",
    "tune.utils.trainable": "holdfast.compat.trainable_util",
    "tune.utils.util": "holdfast.utils",
}
"""Modules that are called otherwise, or lie elsewhere; what is below one of them is below the other."""

TUNE = frozenset(
    {
        "analysis",
        "callback",
        "error",
        "experiment",
        "integration",
        "logger",
        "progress_reporter",
        "registry",
        "result",
        "result_grid",
        "schedulers",
        "search",
        "stopper",
        "syncer",
        "trainable",
        "tune_config",
        "tuner",
        "utils",
    }
)
"""Modules of ``ray.tune`` that have the same name in ``holdfast``."""

MORE = {
    "train.context": {"TrainContext": "holdfast.trainable.context:TuneContext", "get_context": "holdfast"},
    "tune.analysis": {"Analysis": "holdfast.results:ExperimentAnalysis"},
    "tune.analysis.experiment_analysis": {"Analysis": "holdfast.results:ExperimentAnalysis"},
    "tune.context": {"get_context": "holdfast"},
    "tune.registry": {"get_trainable_cls": "holdfast.config.registry:get_trainable"},
    "tune.schedulers.pbt": {"PopulationBasedTrainingReplay": "holdfast.schedulers"},
    "tune.suggest.suggestion": dict.fromkeys(
        ("ConcurrencyLimiter", "UNDEFINED_METRIC_MODE", "UNDEFINED_SEARCH_SPACE", "UNRESOLVED_SEARCH_SPACE"),
        "holdfast.search",
    ),
    "tune.trainable": {
        "PlacementGroupFactory": "holdfast",
        "TrainableUtil": "holdfast.compat.trainable_util",
    },
    "tune.trainable.util": {
        "PlacementGroupFactory": "holdfast",
        "TrainableUtil": "holdfast.compat.trainable_util",
        "with_parameters": "holdfast",
        "with_resources": "holdfast",
    },
    "tune.tuner": {"Tuner": "holdfast.compat.tuner"},
}
"""Names that a module has in addition to, or instead of, those of the one that it stands for, and where they live:
a module, or ``module:name`` if it is called otherwise there."""


def target_of(name: str) -> str | None:
    """The module that one below this package stands for; None if there is no such."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        target = ELSEWHERE.get(".".join(parts[:size]))
        if target is not None:
            return ".".join([target, *parts[size:]])
    if len(parts) > 1 and parts[0] == "tune" and parts[1] in TUNE:
        return ".".join(["holdfast", *parts[1:]])
    return None


class _Aliases(MetaPathFinder, Loader):
    """Finds modules of this package that have no file of their own."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGE):
            return None
        name = fullname.removeprefix(PACKAGE)
        if name in MORE or _exists(target_of(name)):
            return ModuleSpec(fullname, self, is_package=True)
        # ``from package import name`` comes by as well, if the package has no such name. The error tells no module's
        # name, or else that statement would replace it by one without a reason.
        why = explain(name)
        if why:
            raise ModuleNotFoundError(why)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # the usual kind, which pickles by its name

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(PACKAGE)
        target, more = target_of(name), MORE.get(name, {})
        assert target is not None
        real: ModuleType | None = None
        try:
            real = import_module(target)
        except ModuleNotFoundError as error:
            if error.name is None or not target.startswith(error.name):
                raise  # something that the module itself needs
        names = sorted({*(_public(real) if real is not None else ()), *more})

        def look_up(wanted: str) -> Any:
            if wanted in more:
                place, _, other = more[wanted].partition(":")
                return getattr(import_module(place), other or wanted)
            if real is None or not hasattr(real, wanted):
                why = explain(f"{name}.{wanted}")
                raise AttributeError(why or f"module {module.__name__!r} has no attribute {wanted!r}")
            return getattr(real, wanted)

        module.__doc__ = real.__doc__ if real is not None else None
        vars(module).update(__getattr__=look_up, __dir__=lambda: names, __all__=names)


def _exists(target: str | None) -> bool:
    try:
        return target is not None and find_spec(target) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def _public(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    return list(names) if names is not None else [name for name in dir(module) if not name.startswith("_")]


def install() -> None:
    """Let modules of this package be found; once, behind those that have files."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.append(_Aliases())
