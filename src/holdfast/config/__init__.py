"""Every setting a user can write down, and the one reader of environment variables.

Owns: the configuration classes of the public face, their defaults and their validation, and ``Environment``.
Must never: start anything, touch a disk or a network, or import another part of holdfast than ``errors`` and ``warn``.
"""

from holdfast.config.checkpoint import CheckpointConfig, SyncConfig
from holdfast.config.environment import Environment
from holdfast.config.run import FailureConfig, LocalEngine, RayEngine, RunConfig
from holdfast.config.tune import DEPRECATED, ResumeConfig, TuneConfig

__all__ = [
    "DEPRECATED",
    "CheckpointConfig",
    "Environment",
    "FailureConfig",
    "LocalEngine",
    "RayEngine",
    "ResumeConfig",
    "RunConfig",
    "SyncConfig",
    "TuneConfig",
]
