"""``SyncConfig.syncer``: the meaning of each value that it may have."""

from __future__ import annotations

from typing import Any

from holdfast.config.checkpoint import check_copier, is_syncer_object
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.syncer import DetachedSyncer, FunctionSyncer, Syncer


def resolve_syncer(value: Any, *, sync_period: float = 300.0, sync_timeout: float = 1800.0) -> Syncer | None:
    """Return the syncer that a value of ``SyncConfig.syncer`` means.

    Args:
        value: "auto", None, a command template, a function ``(source, target)``, or a `Syncer`.
        sync_period: For what is made here; a `Syncer` keeps its own.
        sync_timeout: The same.

    Returns:
        None for "auto" and None: no syncer of the user's is involved.

    Raises:
        InvalidInputError: (also a ValueError) The value is of another kind.
    """
    if value is None or value == "auto":
        return None
    if isinstance(value, Syncer):
        return value
    if is_syncer_object(value):
        return DetachedSyncer(value)
    check_copier("SyncConfig.syncer", value, ', "auto", None or a Syncer object')
    if isinstance(value, str):
        return CommandSyncer(value, sync_period=sync_period, sync_timeout=sync_timeout)
    return FunctionSyncer(value, sync_period, sync_timeout)
