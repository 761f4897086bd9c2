"""The running trial, for helpers that log to a tracker from inside a trainable.

Owns the ids of such runs. They differ from those of the callbacks' runs: two writers of one run would lose rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UsageError
from holdfast.trainable.api import get_context
from holdfast.views.results import flatten_result


@dataclass
class TrialHere:
    """The trial that this process runs."""

    id: str
    """Of its run: the same in each attempt."""

    trial_id: str
    name: str
    experiment: str
    directory: str

    @staticmethod
    def flat(config: Mapping[str, Any] | None) -> dict[str, Any]:
        """A config as ``{"a/b": value}``."""
        return {str(key): value for key, value in flatten_result(config or {}).items()}


def trial_here() -> TrialHere:
    """The running trial.

    Raises:
        UsageError: This process runs none.
    """
    context = get_context()
    storage = context.get_storage()
    if storage is None:
        raise UsageError(
            "This is called inside a trial: in the function or the class that Tuner runs. Elsewhere use the tracker's "
            "own library."
        )
    trial, experiment = str(context.get_trial_id()), str(context.get_experiment_name())
    digest = hashlib.sha256(f"{experiment}/{trial}/inside".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in trial)[:40]
    return TrialHere(
        f"{readable}-{digest}", trial, str(context.get_trial_name()), experiment, str(context.get_trial_dir())
    )
