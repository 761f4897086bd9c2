"""Settings and the session under the names that scripts of an earlier generation import them by."""

from holdfast.air import session
from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.config import CheckpointConfig, FailureConfig, RunConfig
from holdfast.results import Result

Session = session

__all__ = ["Checkpoint", "CheckpointConfig", "FailureConfig", "Result", "RunConfig", "Session", "session"]
