"""Whether a scheduler ended a trial before it had used its budget: one answer for plots, the page and Optuna."""

from __future__ import annotations

from holdfast.core.ending import RETURNED
from holdfast.core.state import State, Status, Trial

_NOT_EARLY = (RETURNED, "done", "stop criterion", "time budget")
_FULL_BUDGET = ("reached max_t", "used up its budget", "has come to")


def was_stopped_early(state: State, trial: Trial) -> bool:
    """Whether a scheduler, or a user, stopped the trial; not if it reached ``max_t``, a stop criterion or its end."""
    reason = trial.reason
    if trial.status != Status.TERMINATED or not reason:
        return False
    if reason.startswith(_NOT_EARLY) or reason == state.stopping:
        return False
    return not any(words in reason for words in _FULL_BUDGET)
