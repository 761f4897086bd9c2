"""When trials end before they are done, and when the whole experiment does.

Owns: the ``Stopper`` interface, the built-in stoppers, and the reading of ``stop=`` in all its forms.
Must never: act. A stopper answers; the controller stops trials. The answers depend on the results and on the
lived time that a stopper was given, and on nothing else, so that a restored experiment gets the same ones.
"""

from holdfast.stopper.base import SnapshotStopper, Stopper
from holdfast.stopper.builtin import (
    CombinedStopper,
    DictStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    TimeoutStopper,
    can_snapshot,
    resolve_stopper,
)
from holdfast.stopper.plateau import ExperimentPlateauStopper, TrialPlateauStopper

__all__ = [
    "CombinedStopper",
    "DictStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "SnapshotStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "can_snapshot",
    "resolve_stopper",
]
