"""What the driver knows about the files of one node, and what an attempt needs there.

Owns: these two, and which start checkpoints a node keeps. Must never: send anything.
"""

from __future__ import annotations

import contextlib
import queue
import threading

import msgspec

from holdfast.engines.cluster.carrier import Carrier

KEPT_STARTS = 4
"""Checkpoints that attempts have started from and that a node keeps, in case another attempt starts from them."""


class NodeFiles:
    """What is known about the files of one node.

    Attributes:
        host: Its name.
        place: Its scratch directory, as an address for ``Copier``.
        lost: Why nothing more can come from there; "" while it can.
        pushed: Digests of what it was given, by ``key_of``.
        starts: Checkpoints that it was given, the oldest first, and the workers whose attempts use each.
        brought: Size and time of the files that were brought, by trial directory.
        pending: Stages of each trial directory that were not brought yet.
        collecting: Trial directories that are collected now and then, while that has not ended.
        users: Workers whose attempts are in each trial directory; without any, it is removed.
        changing: Trial directories, and others beside them, in which a thread puts or removes something.
        no_store: Why it could not use the store, as users were told; "" if it could.
        no_store_until: Until then it is not asked to.
        changed: Held while any of these is read or written.
        idle: Connections that nobody uses.
        busy: Connections that somebody uses.
    """

    def __init__(self, node: str, host: str, place: str = "") -> None:
        self.node = node
        self.host = host
        self.place = place
        self.lost = ""
        self.pushed: dict[str, str] = {}
        self.starts: dict[str, set[int]] = {}
        self.brought: dict[str, dict[str, tuple[int, int]]] = {}
        self.pending: dict[str, set[str]] = {}
        self.collecting: set[str] = set()
        self.users: dict[str, set[int]] = {}
        self.changing: set[str] = set()
        self.no_store = ""
        self.no_store_until = 0.0
        self.changed = threading.Condition()
        self.idle: queue.SimpleQueue[Carrier] = queue.SimpleQueue()
        self.busy: set[Carrier] = set()

    def lose(self, why: str) -> None:
        """Nothing more can come from there; whoever waits for it, hears of it."""
        with self.changed:
            self.lost = self.lost or why
            for carrier in self.busy:
                carrier.hang_up()
        while not self.idle.empty():
            with contextlib.suppress(queue.Empty):
                self.idle.get_nowait().close()

    def unused_starts(self) -> list[str]:
        """Start checkpoints that are removed, because nobody uses them and there are others."""
        unused = [path for path, workers in self.starts.items() if not workers]
        return unused[: max(0, len(unused) - KEPT_STARTS)]

    def is_unused(self, path: str) -> bool:
        """Whether a trial directory or a start checkpoint can be removed."""
        return not (self.users.get(path) or self.pending.get(path) or self.starts.get(path))


class Need(msgspec.Struct, frozen=True):
    """Something that a node must have before an attempt can start there: a directory, or files of one."""

    path: str  # relative to the experiment
    digest: str
    files: tuple[str, ...] = ()  # () for the whole directory
    content: dict[str, bytes] = {}  # instead of what is on this disk
    stored: bool = False  # a checkpoint of the experiment, with its own digest: the store may have it instead


def key_of(need: Need) -> str:
    """The path alone for a directory."""
    return "\0".join((need.path, *need.files))
