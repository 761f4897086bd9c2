"""Callbacks and helpers by which training code of well-known frameworks reports, saves and resumes.

One module per framework: ``keras``, ``lightgbm``, ``pytorch_lightning``, ``sklearn``, ``torch``, ``transformers`` and
``xgboost``. Each is imported, together with its framework, when it is first used. Nothing in the rest of holdfast may
import from this folder.
"""

from importlib import import_module
from typing import Any

_MODULES = ("keras", "lightgbm", "pytorch_lightning", "sklearn", "torch", "transformers", "xgboost")

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"holdfast.integration.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
