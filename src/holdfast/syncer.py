"""What copies an experiment elsewhere, under the name that users import it by; each lives with its noun."""

from holdfast.config import SyncConfig
from holdfast.errors import SyncError
from holdfast.storage.store_syncer import get_cloud_sync_client
from holdfast.storage.sync_commands import CommandSyncer
from holdfast.storage.syncer import BackgroundSyncer, FunctionSyncer, Syncer

__all__ = [
    "BackgroundSyncer",
    "CommandSyncer",
    "FunctionSyncer",
    "SyncConfig",
    "SyncError",
    "Syncer",
    "get_cloud_sync_client",
]
