"""``ray.train``, as far as a trial uses it: what it reports, and the settings of a run."""

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from holdfast.results import Result
from holdfast.trainable.api import get_checkpoint, get_context, report

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "Result",
    "RunConfig",
    "SyncConfig",
    "get_checkpoint",
    "get_context",
    "report",
]
