"""What copies an experiment elsewhere, under the name that users import it by; each lives with its noun."""

from holdfast.config import SyncConfig
from holdfast.errors import SyncError
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.store_syncer import get_cloud_sync_client
from holdfast.sync.syncer import BackgroundSyncer, FunctionSyncer, Syncer

__all__ = [
    "BackgroundSyncer",
    "CommandSyncer",
    "FunctionSyncer",
    "SyncConfig",
    "SyncError",
    "Syncer",
    "get_cloud_sync_client",
]
