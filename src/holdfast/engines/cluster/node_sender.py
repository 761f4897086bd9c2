"""Nodes that use the experiment's store themselves, as the driver sees them.

Owns: which node is asked to upload a stage or to fetch a checkpoint, and which is not asked because it could not. Must
never: commit anything, or blame a node for a store that does not work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator

from holdfast.checkpoints import names
from holdfast.checkpoints.stage_sending import CannotSend, SentStage, StageRef
from holdfast.engines.cluster.carrier import Carrier, lost_stage
from holdfast.engines.cluster.courier import Courier
from holdfast.engines.cluster.node_files import Need, NodeFiles
from holdfast.engines.cluster.tree_stream import TransferCut
from holdfast.errors import CheckpointDamagedError, StorageError

NO_STORE_S = 300.0
"""How long a node that could not use the store is not asked to."""

RESCUE_S = 10.0
"""How long a driver that leaves brings stages whose upload has not ended."""

TURN_S = 0.05

_log = logging.getLogger(__name__)


class StoreStarts:
    """Checkpoints that attempts start from and that only the store has (``courier.StartFetching``).

    Args:
        root: The experiment's directory here.
        fetch: Makes a good copy of a checkpoint in it, given its path and digest.
    """

    def __init__(self, root: str, fetch: Callable[[str, str], None]) -> None:
        self._root = root
        self._fetch = fetch
        self.suspects: set[str] = set()
        """Checkpoints that were found damaged when somebody fetched them."""

    def lacks(self, need: Need) -> bool:
        """Whether a checkpoint is in the store alone."""
        return need.stored and not os.path.isdir(os.path.join(self._root, need.path))

    def fetch(self, carrier: Carrier, files: NodeFiles, need: Need) -> bool:
        """Let the node fetch a checkpoint. False if it cannot: then a good copy is here."""
        why = ""
        if time.monotonic() >= files.no_store_until:
            try:
                carrier.fetch_start(need.path, need.digest)
                return True
            except CannotSend as error:
                why = str(error)
            except CheckpointDamagedError as error:
                raise self._suspect(need, error) from error
        self.fetch_here(need)
        if why:  # and not because the store does not work
            avoid_store(files, why)
        return False

    def fetch_here(self, need: Need) -> None:
        """Have a good copy here; raises ``StorageError``."""
        try:
            self._fetch(need.path, need.digest)
        except CheckpointDamagedError as error:
            raise self._suspect(need, error) from error

    def fetch_and_tell(self, need: Need, done: Callable[[str], None]) -> None:
        """The same, in a thread of the courier's; calls ``done`` with "", or with why it cannot be."""
        why = ""
        try:
            self.fetch_here(need)
        except OSError as error:
            why = str(error) or type(error).__name__
        except BaseException as error:
            _log.exception("fetching %s", need.path)
            why = f"{type(error).__name__}: {error}"
        done(why)

    def _suspect(self, need: Need, error: CheckpointDamagedError) -> StorageError:
        self.suspects.add(need.path)
        return StorageError(f"{need.path} is damaged: {error.reason}")


class NodeSender:
    """Has nodes upload their stages (``checkpoints.stage_sending.StageSender``).

    Args:
        courier: Knows where stages are.
        starts: Knows what nodes have fetched.
        root: The experiment's directory here.
    """

    def __init__(self, courier: Courier, starts: StoreStarts, root: str) -> None:
        self._courier = courier
        self._starts = starts
        self._root = root

    def can_send(self, stage: StageRef) -> bool:
        """See ``StageSender``."""
        files = self._courier.where(stage.trial_dir, stage.sealed)
        return files is not None and not files.lost and time.monotonic() >= files.no_store_until

    def is_lost(self, stage: StageRef) -> bool:
        """See ``StageSender``."""
        files = self._courier.where(stage.trial_dir, stage.sealed)
        return files is not None and bool(files.lost)

    def send(self, stage: StageRef) -> SentStage:
        """See ``StageSender``."""
        with self._asking(stage) as carrier:
            sent = carrier.send_stage(stage)
            if sent is None:
                raise self._lost(stage, carrier.host)
        return sent

    def check(self, stage: StageRef) -> bool:
        """See ``StageSender``. Older stages are given up for it, so they must not be in a safer place."""
        here = _names(os.path.join(self._root, stage.trial_dir))
        is_kept_here = any(names.is_sealed(name) or names.index_of(name) is not None for name in here)
        if is_kept_here or len(self._courier.nodes_of(stage.trial_dir)) > 1:
            return False
        with self._asking(stage) as carrier:
            if not carrier.check_stage(stage):
                raise self._lost(stage, carrier.host)
        return True

    def sent(self, stage: StageRef) -> None:
        """See ``StageSender``."""
        files = self._courier.where(stage.trial_dir, stage.sealed)
        if files is not None:
            self._courier.brought(files, stage.trial_dir, stage.sealed)

    def fetches(self, key: str) -> bool:
        """See ``StageSender``."""
        return key not in self._starts.suspects

    def send_no_more(self, stage: StageRef, why: str) -> None:
        """See ``StageSender``."""
        files = self._courier.where(stage.trial_dir, stage.sealed)
        if files is not None:
            avoid_store(files, why)

    def rescue(self, turn: Callable[[float], None]) -> None:
        """The driver leaves before all uploads have ended: bring what nodes have, for its successor to upload.

        Args:
            turn: Lets connections arrive, for so many seconds.
        """
        brought = self._courier.bring_all()
        deadline = time.monotonic() + RESCUE_S
        while not all(each.done() for each in brought) and time.monotonic() < deadline:
            turn(TURN_S)

    @contextlib.contextmanager
    def _asking(self, stage: StageRef) -> Iterator[Carrier]:
        """A connection to the node that has the stage."""
        files = self._courier.where(stage.trial_dir, stage.sealed)
        if files is None:
            raise StorageError(f"{stage.trial_dir}/{stage.sealed} was brought meanwhile")
        if files.lost:
            raise self._lost(stage, files.host)
        try:
            with self._courier.carrier(files) as carrier:
                yield carrier
        except TransferCut as error:
            if files.lost:
                raise self._lost(stage, files.host) from error
            raise StorageError(f"the connection to {files.host} was cut ({error})") from error

    def _lost(self, stage: StageRef, host: str) -> CheckpointDamagedError:
        return lost_stage(os.path.join(self._root, stage.trial_dir, stage.sealed), host)


def avoid_store(files: NodeFiles, why: str) -> None:
    """Do not ask this node to use the store for some time; users are told once."""
    files.no_store_until = time.monotonic() + NO_STORE_S
    if not files.no_store:
        files.no_store = why
        _log.warning(
            "%s cannot use the store itself: %s. Its checkpoints go through the driver's machine instead, whose "
            "network is then the limit; nothing is lost. Install holdfast[cloud] on %s, and let it reach the store "
            "with the driver's credentials or its own. It is tried again every %.0f s.",
            *(files.host, why.rstrip("."), files.host, NO_STORE_S),
        )


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
