"""What runs in a worker: sessions, runners and messages; and ``Trainable`` for those who import it from here."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.config.resources import with_parameters, with_resources
    from holdfast.trainable.trainable import Trainable

# Imported when first used: a worker needs one of the runners only.
_HOMES = {
    "DurableTrainable": "holdfast.compat.durable",
    "Trainable": "holdfast.trainable.trainable",
    "with_parameters": "holdfast.config.resources",
    "with_resources": "holdfast.config.resources",
}

__all__ = ["DurableTrainable", "Trainable", "with_parameters", "with_resources"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
