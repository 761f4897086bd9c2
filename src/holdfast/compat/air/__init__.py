"""``ray.air``: settings, the checkpoint and the session. Its modules are found by ``compat.aliases``."""

from holdfast.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, Session, session

__all__ = ["Checkpoint", "CheckpointConfig", "FailureConfig", "Result", "RunConfig", "Session", "session"]
