"""Schedulers: pure policies that judge running trials and pick the next one to run."""

from holdfast.schedulers.fifo import FIFOScheduler

__all__ = ["FIFOScheduler"]
