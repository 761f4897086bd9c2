"""What ``ray.tune`` and its neighbours have and holdfast has not, and what to use instead.

Owns these texts. A module or name belongs here if scripts import it; what only Ray's own code uses does not.
"""

from __future__ import annotations

_SEARCHER = "use another searcher, for example holdfast.compat.tune.search.optuna.OptunaSearch"
_TRAINER = (
    "holdfast runs trials, not distributed training. Start the framework's own launcher in the trainable, and ask for "
    "resources with tune.with_resources"
)
_INTERNAL = "it is an internal part of Ray Tune; write a scheduler, a searcher or a Callback"
_NODE_SYNCER = (
    "leave sync_to_driver out: on a cluster checkpoints come to the driver over connections of holdfast's own, which "
    "need neither ssh, docker nor kubectl"
)
_REPORTING = "use TuneReportCheckpointCallback of holdfast.compat.tune.integration.{}"

_MODULES = {
    "data": "it is a package of its own: install ray and import it from there",
    "exceptions": "errors are in holdfast.errors",
    "rllib": "it is a package of its own: install ray and import it from there",
    "serve": "it is a package of its own: install ray and import it from there",
    "train.huggingface": _REPORTING.format("transformers"),
    "train.lightgbm": _REPORTING.format("lightgbm"),
    "train.lightning": _REPORTING.format("pytorch_lightning"),
    "train.tensorflow": _REPORTING.format("keras"),
    "train.torch": _TRAINER,
    "train.trainer": _TRAINER,
    "train.xgboost": _REPORTING.format("xgboost"),
    "tune.automl": _SEARCHER,
    "tune.checkpoint_manager": "use holdfast.compat.tune.Checkpoint",
    "tune.cloud": "use holdfast.compat.tune.Checkpoint, which accepts URIs",
    "tune.constants": _INTERNAL,
    "tune.examples": "examples are in the directory examples/ of holdfast's repository",
    "tune.execution.trial_runner": _INTERNAL,
    "tune.execution.tune_controller": _INTERNAL,
    "tune.execution.ray_trial_executor": _INTERNAL,
    "tune.function_runner": "pass the function itself to Tuner or tune.run",
    "tune.impl": _INTERNAL,
    "tune.integration.docker": _NODE_SYNCER,
    "tune.integration.horovod": _TRAINER,
    "tune.integration.kubernetes": _NODE_SYNCER,
    "tune.integration.mxnet": "call tune.report in a callback of MXNet",
    "tune.integration.ray_train": "there is no Ray Train in a trial: call tune.report in the training loop itself",
    "tune.integration.tensorflow": _TRAINER,
    "tune.ray_trial_executor": _INTERNAL,
    "tune.resources": "use holdfast.compat.tune.PlacementGroupFactory",
    "tune.schedulers.util": _INTERNAL,
    "tune.search.dragonfly": _SEARCHER,
    "tune.search.flaml": _SEARCHER,
    "tune.search.search_algorithm": "derive from holdfast.compat.tune.search.Searcher",
    "tune.search.search_generator": "derive from holdfast.compat.tune.search.Searcher; it needs no generator around it",
    "tune.search.sigopt": _SEARCHER,
    "tune.search.skopt": _SEARCHER,
    "tune.search.util": "a searcher gets metric, mode and space by its method set_search_properties",
    "tune.sync_client": "use holdfast.compat.tune.syncer",
    "tune.trial_executor": _INTERNAL,
    "tune.trial_runner": _INTERNAL,
    "tune.utils.callback": "the default loggers need no creation; RunConfig(callbacks=[...]) adds to them",
    "tune.utils.log": "verbosity is a number: RunConfig(verbose=0), 1, 2 or 3",
    "tune.utils.mock": "holdfast.testing has stores, clocks and trials for tests",
    "tune.web_server": "type `holdfast status` or `holdfast show` to look at a running experiment",
    "util": "only tuning has a counterpart; resources of a trial are a tune.PlacementGroupFactory",
}
_NAMES = {
    "BackendExecutor": _TRAINER,
    "DataParallelTrainer": _TRAINER,
    "DistributedTrainableCreator": _TRAINER,
    "FunctionRunner": "pass the function itself to Tuner or tune.run",
    "FunctionTrainable": "pass the function itself to Tuner or tune.run",
    "RayTrainReportCallback": "use TuneReportCheckpointCallback of holdfast.compat.tune.integration",
    "ReportCheckpointCallback": _REPORTING.format("keras"),
    "ScalingConfig": _TRAINER,
    "SearchAlgorithm": "derive from holdfast.compat.tune.search.Searcher",
    "SearchGenerator": "derive from holdfast.compat.tune.search.Searcher; it needs no generator around it",
    "get_dataset_shard": "load the data in the trainable, or pass it with tune.with_parameters",
    "resolve_nested_dict": "use holdfast.compat.tune.search.variant_generator.generate_variants",
    "wrap_function": "pass the function itself to Tuner or tune.run",
}


def explain(name: str) -> str:
    """Say what to use instead of something that is not there.

    Args:
        name: Its path below ``ray``, such as ``tune.search.skopt``.

    Returns:
        A sentence; "" if it is not known.
    """
    known = name.replace("tune.suggest", "tune.search", 1)
    known = {"tune.search.search": "tune.search.search_algorithm"}.get(known, known)
    way = _MODULES.get(known) or _NAMES.get(name.rpartition(".")[2], "")
    return f"ray.{name} has no counterpart in holdfast: {way}." if way else ""
