"""``ray.tune``: everything of ``holdfast``, and names of earlier generations.

Its modules (``holdfast.compat.tune.schedulers``, ...) are found by ``compat.aliases``.
"""

from importlib import import_module
from typing import Any

import holdfast

# Instead of holdfast's own, or in addition to them: the name, and the module that has it.
_HOMES = {
    "Tuner": "holdfast.compat.tuner",
    "durable": "holdfast.compat.older_names",
    "get_trial_dir": "holdfast.air.session",
    "get_trial_id": "holdfast.air.session",
    "get_trial_name": "holdfast.air.session",
    "get_trial_resources": "holdfast.air.session",
    "is_session_enabled": "holdfast.compat.older_names",
}
_MODULES = {"session", "suggest", "sample", "trial", "durable_trainable", "track"}

_NAMES = sorted({*holdfast.__all__, *_HOMES})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _NAMES
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return getattr(holdfast, name)


def __dir__() -> list[str]:
    return sorted({*dir(holdfast), *_HOMES, *_MODULES})
