"""What runs in a worker: sessions, runners and messages; and ``Trainable`` for those who import it from here."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names

if TYPE_CHECKING:
    from holdfast.config.resources import with_parameters, with_resources
    from holdfast.trainable.trainable import Trainable

# Imported when first used: a worker needs one of the runners only.
_MODULES = {
    "DurableTrainable": "holdfast.compat.durable",
    "Trainable": "holdfast.trainable.trainable",
    "with_parameters": "holdfast.config.resources",
    "with_resources": "holdfast.config.resources",
}

__all__ = ["DurableTrainable", "Trainable", "with_parameters", "with_resources"]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
