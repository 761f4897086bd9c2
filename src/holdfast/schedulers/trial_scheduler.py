"""The base of schedulers, under the name that users of other tuners import it by."""

from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.fifo import FIFOScheduler

__all__ = ["FIFOScheduler", "TrialScheduler"]
