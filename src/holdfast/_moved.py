"""Where modules of earlier versions are now: what they stored names its classes and functions by the old places.

Owns that table, and the finder that is asked for a module when there is none of that name. A module belongs here if a
user's object could have been pickled with something of it: a trainable that calls ``report``, a syncer, a request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "holdfast.callbacks.progress_reporter": "holdfast.display.reporters",
    "holdfast.callbacks.reporters": "holdfast.display.reporters",
    "holdfast.callbacks.rows": "holdfast.views.results",
    "holdfast.callbacks.trial_view": "holdfast.views.trials",
    "holdfast.checkpoints.far": "holdfast.checkpoints.remote_place",
    "holdfast.compat.experiment": "holdfast.compat.tune_run",
    "holdfast.compat.run": "holdfast.compat.tune_run",
    "holdfast.resources": "holdfast.config.resources",
    "holdfast.schedulers.dehb": "holdfast.schedulers.hb_dehb",
    "holdfast.stopper.resolve": "holdfast.stopper.builtin",
    "holdfast.stopper.stop_argument": "holdfast.stopper.builtin",
    "holdfast.storage.store_syncer": "holdfast.sync.store_syncer",
    "holdfast.storage.sync_commands": "holdfast.sync.command_syncer",
    "holdfast.storage.syncer": "holdfast.sync.syncer",
    "holdfast.trainable.inside": "holdfast.trainable.api",
    "holdfast.trainable.plain": "holdfast.trainable.metrics",
    "holdfast.warn": "holdfast.messages.warn",
}


class _Moved:
    """Finds modules by the names that they had, and makes them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # the usual kind

    def exec_module(self, module: ModuleType) -> None:
        now = import_module(MOVED[module.__name__])
        module.__doc__ = now.__doc__
        vars(module).update({name: value for name, value in vars(now).items() if not name.startswith("__")})


def install() -> None:
    """Let moved modules be found; behind all others, so that nothing else becomes slower."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
