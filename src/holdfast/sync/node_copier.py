"""Copying checkpoints from the nodes of a cluster with a command or a function of the user's.

Owns one copy: its source in the form ``user@ip:/path/``, its timeout, and its end when nobody needs it any more. Must
never: know what is copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from holdfast.config import SyncConfig
from holdfast.errors import InvalidInputError, StorageError, SyncError
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.syncer import BackgroundSyncer, FunctionSyncer
from holdfast.sync.syncer_setting import resolve_syncer


class NodeCopier:
    """Copies directories of nodes to this machine. From any thread, any number at a time.

    Args:
        config: Its ``syncer`` is a command, a function, or an object that is made of one.
    """

    def __init__(self, config: SyncConfig) -> None:
        found = resolve_syncer(config.syncer, sync_period=config.sync_period, sync_timeout=config.sync_timeout)
        assert isinstance(found, CommandSyncer | FunctionSyncer)
        self._syncer: BackgroundSyncer = found

    def __call__(self, source: str, target: str, stop: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Copy the content of ``source``, an address such as ``ray@10.0.0.8:/tmp/x/``, to the directory ``target``.

        Args:
            source: The address.
            target: A directory of this machine; it is made.
            stop: Whether nobody needs the copy any more.
            timeout_s: Instead of ``sync_timeout``, if that is longer.

        Raises:
            StorageError: It failed, took too long, or was stopped.
        """
        one = copy.copy(self._syncer)  # a syncer runs one copy at a time
        limit_s = min(one.sync_timeout, one.sync_timeout if timeout_s is None else timeout_s)
        try:
            one.sync_down(source, target)
            if not one.finish_or_give_up(limit_s, stop):
                raise SyncError(f"the copy of {source} was given up, after at most {limit_s:g} s")
        except StorageError:
            raise
        except Exception as error:
            raise SyncError(f"the copy of {source} failed: {type(error).__name__}: {error}") from error
        finally:
            one.close()


def node_copier(config: SyncConfig | None) -> NodeCopier | None:
    """What copies from nodes, if the user has given something that does; with an ``upload_dir`` it copies to there.

    Raises:
        InvalidInputError: It is a ``Syncer`` for stores, and there is no ``upload_dir`` that it could copy to.
    """
    if config is None or not config.has_own_syncer or config.upload_dir is not None:
        return None
    syncer = config.syncer
    is_object = hasattr(syncer, "sync_up")
    if is_object and not isinstance(syncer, CommandSyncer | FunctionSyncer):
        raise InvalidInputError(
            f"SyncConfig(syncer={type(syncer).__name__}(...)) has no upload_dir to copy to, and a Syncer cannot copy "
            "from the nodes of a cluster. Give upload_dir=...; or a command with {source} and {target}, or a function "
            "(source, target), which get 'user@ip:/path/' of a node; or leave syncer out: then checkpoints come over "
            "connections of holdfast's own. Nothing was started."
        )
    return NodeCopier(config)
