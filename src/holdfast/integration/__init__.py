"""Callbacks and helpers by which training code of well-known frameworks reports, saves and resumes.

One module per framework: ``keras``, ``lightgbm``, ``pytorch_lightning``, ``sklearn``, ``torch``, ``transformers`` and
``xgboost``. Each is imported, together with its framework, when it is first used. The trackers ``aim``, ``comet``,
``mlflow`` and ``wandb`` show experiments elsewhere; their callbacks are also here. Nothing in the rest of holdfast but
the command line may import from this folder.
"""

from importlib import import_module
from typing import Any

_MODULES = ("keras", "lightgbm", "pytorch_lightning", "sklearn", "torch", "transformers", "xgboost")
_TRACKERS = ("aim", "comet", "mlflow", "wandb")
_OF_TRACKERS = {
    "AimLoggerCallback": "aim",
    "CometLoggerCallback": "comet",
    "MLflowLoggerCallback": "mlflow",
    "WandbLoggerCallback": "wandb",
    "setup_mlflow": "mlflow",
    "setup_wandb": "wandb",
}

__all__ = list(_MODULES + _TRACKERS + tuple(_OF_TRACKERS))


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _TRACKERS:
        return import_module(f"holdfast.integration.{name}")
    if name in _OF_TRACKERS:
        return getattr(import_module(f"holdfast.integration.{_OF_TRACKERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
