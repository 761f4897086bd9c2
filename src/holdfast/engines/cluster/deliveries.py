"""What an attempt needs on a node that does not see the experiment's directory, and how a worker there is told of it.

Owns: the list of files, and the setup with the paths of that node. Must never: send anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from holdfast.engines.cluster.courier import FILES, Copier
from holdfast.engines.cluster.node_files import Need
from holdfast.engines.cluster.placement import Node
from holdfast.storage.digest import digest_of
from holdfast.storage.store_access import StoreAccess
from holdfast.trainable.worker_messages import Run, Setup


class ExperimentFiles(msgspec.Struct):
    """What attempts need from the experiment's directory.

    Attributes:
        root: The directory.
        objects: Content of files that every attempt needs, by path relative to it; read when a node needs them.
        values: Files that one config refers to, relative to it.
        shared: All nodes have to see the directory themselves.
        uid: Of the experiment.
        sync_period_s: How often the other files of running trials are brought here.
        store: Where checkpoints are, for nodes that can send and fetch them; None if they are brought here and pushed.
        fetch: Makes a good copy of such a checkpoint in the directory, given its path and digest.
        copier: The user's own way to copy checkpoints from nodes; None brings them over our connections.
    """

    root: str
    objects: Callable[[], dict[str, bytes]]
    values: Callable[[dict[Any, Any]], list[str]]
    shared: bool
    uid: str
    sync_period_s: float
    store: StoreAccess | None = None
    fetch: Callable[[str, str], None] | None = None
    copier: Copier | None = None


class Deliveries:
    """What nodes are given.

    Args:
        files: Of the experiment.
        setup: As the driver's own machine would use it.
        here: Addresses of that machine.
    """

    def __init__(self, files: ExperimentFiles, setup: Setup, here: Collection[str] = ()) -> None:
        self._here = here
        self._files = files
        self._setup = setup
        self._common: Need | None = None
        self._digests: dict[str, str] = {}

    def setup_for(self, worker: int, node: Node) -> Setup:
        """What a worker on this node is told once."""
        changes: dict[str, Any] = {"worker": worker, "scratch": node.scratch, "sys_path": self._sys_path(node)}
        if not node.sees_root:
            root = self._setup.root
            changes |= {
                "root": f"{node.scratch}/{FILES}",
                "trainable_file": _relative(self._setup.trainable_file, root),
                "objects_file": _relative(self._setup.objects_file, root),
                "digests": {**self._setup.digests, **self._digests},
                "working_dir": "",
            }
        return msgspec.structs.replace(self._setup, **changes)

    def _sys_path(self, node: Node) -> tuple[str, ...]:
        """Of the driver's places for imports those that mean the same on this node.

        On another machine the same path may have an older copy of a module, which would go before what is installed.
        """
        if not node.sees_root:
            return ()
        if not self._files.shared or node.facts.ip in self._here:
            return self._setup.sys_path
        start = self._setup.working_dir or os.getcwd()
        places = [(place, os.path.join(start, place)) for place in self._setup.sys_path]
        return tuple(place for place, full in places if _is_on_one_disk(full, self._setup.root))

    def needs(self, run: Run) -> list[Need]:
        """What the attempt's node must have before it can start."""
        if self._common is None:
            self._common = self._common_files()
        needs = [self._common]
        values = self._files.values(run.config)
        if values:
            names = tuple(sorted(os.path.basename(value) for value in values))
            needs.append(Need(os.path.dirname(values[0]), "values", names))
        start = self.start_of(run)
        return needs if start is None else [*needs, start]

    def start_of(self, run: Run) -> Need | None:
        """The checkpoint that the attempt starts from."""
        if run.checkpoint is None:
            return None
        digest = run.checkpoint_digest
        return Need(run.checkpoint, digest or "start", stored=bool(digest))

    def _common_files(self) -> Need:
        content = self._files.objects()
        folder = os.path.dirname(next(iter(content)))
        named = {os.path.basename(path): data for path, data in content.items()}
        self._digests = {name: digest_of(data) for name, data in named.items()}
        return Need(folder, "common", tuple(sorted(named)), named)


def _is_on_one_disk(path: str, other: str) -> bool:
    try:
        return os.stat(path).st_dev == os.stat(other).st_dev
    except OSError:
        return False


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root) if path else ""
