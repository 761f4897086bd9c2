"""Names of the files that holdfast itself writes for people, besides checkpoints."""

from __future__ import annotations

from holdfast.views.trials import ERROR_FILE, PICKLED_ERROR_FILE

_OF_TRIALS = ("result.json", "progress.csv", "params.json", "params.pkl", ERROR_FILE, PICKLED_ERROR_FILE)
_EVENTS = "events.out.tfevents."
_COPIES = ("pbt_global.txt", "pbt_policy_")


def is_of_trial(name: str) -> bool:
    """Is it a file of a trial's directory?"""
    return name in _OF_TRIALS or name.startswith(_EVENTS)


def is_of_experiment(name: str) -> bool:
    """Is it a file of the experiment's directory?"""
    return name.startswith(_COPIES) and name.endswith(".txt")
