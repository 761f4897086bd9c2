"""Schedulers: pure policies that judge running trials and pick the next one to run."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.fifo import FIFOScheduler
from holdfast.schedulers.scheduler_names import create_scheduler

if TYPE_CHECKING:
    from holdfast.schedulers.asha_promotion import ASHAPromotionScheduler
    from holdfast.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
    from holdfast.schedulers.hb_bohb import HyperBandForBOHB
    from holdfast.schedulers.hb_dehb import DEHBScheduler
    from holdfast.schedulers.hyperband import HyperBandScheduler
    from holdfast.schedulers.median_stopping import MedianStoppingRule
    from holdfast.schedulers.pasha import PASHAScheduler
    from holdfast.schedulers.pb2 import PB2
    from holdfast.schedulers.pbt import PopulationBasedTraining
    from holdfast.schedulers.pbt_replay import PopulationBasedTrainingReplay
    from holdfast.schedulers.resource_changing import (
        DistributeResources,
        DistributeResourcesToTopJob,
        ResourceChangingScheduler,
    )
    from holdfast.schedulers.view import ExperimentView

# Imported when they are first used: nobody needs all of them.
_MODULES = {
    "ASHAPromotionScheduler": "asha_promotion",
    "ASHAScheduler": "async_hyperband",
    "AsyncHyperBandScheduler": "async_hyperband",
    "DEHBScheduler": "hb_dehb",
    "DistributeResources": "resource_changing",
    "DistributeResourcesToTopJob": "resource_changing",
    "ExperimentView": "view",
    "HyperBandForBOHB": "hb_bohb",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median_stopping",
    "PASHAScheduler": "pasha",
    "PB2": "pb2",
    "PopulationBasedTraining": "pbt",
    "PopulationBasedTrainingReplay": "pbt_replay",
    "ResourceChangingScheduler": "resource_changing",
}

__all__ = [
    "ASHAPromotionScheduler",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "DEHBScheduler",
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "ExperimentView",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PASHAScheduler",
    "PB2",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "TrialScheduler",
    "create_scheduler",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
