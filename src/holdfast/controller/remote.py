"""An experiment in a store, and its mirror on this machine: where both are, and how they come together.

Owns the place of mirrors, the first upload of a new experiment, and opening one that exists. Whoever reads opens a
mirror or a view of it; only a driver, by its claim, may change one.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.config import Environment
from holdfast.controller.spec import PRIVATE, Root
from holdfast.errors import ExperimentNotFoundError, InvalidInputError, StorageError
from holdfast.storage.address import Address, is_remote, parse, within
from holdfast.storage.local import write_atomic
from holdfast.storage.probe import probe
from holdfast.storage.store import Sending, Store, create_once

SPEC = f"{PRIVATE}/spec.json"
OBJECTS = f"{PRIVATE}/objects"
DEFAULT_CACHE = "~/.cache/holdfast"
ELSEWHERE = "mirror.path"  # names the mirror if the user wanted it in another place


class Remote:
    """The store's side of one experiment."""

    def __init__(self, address: Address, filesystem: Any = None) -> None:
        self.address = address
        self.filesystem = filesystem

    @cached_property
    def store(self) -> Store:
        """The connection; made when it is first needed."""
        from holdfast.storage.agent_client import connect

        return connect(self.address, filesystem=self.filesystem)

    @property
    def url(self) -> str:
        """What a person types to get here again."""
        return self.address.path if self.filesystem is not None else str(self.address)

    @property
    def identity(self) -> str:
        """Its place, however its address is spelled.

        Whose server it is does not count, because that may change while the experiment stays. If two servers have one
        of the same address, hydrating tells them apart.
        """
        if self.filesystem is not None:
            return f"{hash_of(self.filesystem)}:{self.address.path}"
        return self.address.url

    @property
    def name(self) -> str:
        """What the experiment is called there."""
        return self.address.path.rpartition("/")[2] or self.address.bucket

    def below(self, name: str) -> Remote:
        """The place of this name below this one."""
        return Remote(self.address / name, self.filesystem)

    def exists(self) -> bool:
        """Is there an experiment exactly here?"""
        return self.store.stat(SPEC) is not None

    def was_started(self) -> bool:
        """Has a driver ever claimed it?"""
        return any(self.store.list(f"{PRIVATE}/{part}/") for part in ("parts", "epochs"))

    def publish(self, root: Root, *, unfenced: bool) -> bool:
        """Make a new experiment exist in the store, the file that says so last.

        Returns:
            False if somebody else's is there.

        Raises:
            UnsafeStoreError: The store cannot keep two drivers apart, and nobody has said that this does not matter.
            StorageError: It refuses or does not answer.
        """
        if not unfenced:
            probe(self.store)
        if self.exists():
            return False
        self.send_objects(root)
        return create_once(self.store, SPEC, root.spec_file.read_bytes()) is None

    def replace_unstarted(self, root: Root) -> None:
        """Let this experiment take the place of one that was made here and never run."""
        self.send_objects(root)
        self.store.put(SPEC, root.spec_file.read_bytes())

    def send_objects(self, root: Root) -> None:
        """Upload what the user's objects are stored in."""
        files = [path for path in root.objects.iterdir() if path.is_file() and not path.name.startswith(".")]
        self.store.send([Sending(str(path), f"{OBJECTS}/{path.name}") for path in sorted(files)])


def hash_of(filesystem: Any) -> str:
    """A name for a file system object that an equal one has too, in another process; without its secrets."""
    token = getattr(filesystem, "_fs_token_", "") or getattr(filesystem, "type_name", type(filesystem).__name__)
    return hashlib.sha256(str(token).encode()).hexdigest()[:12]


def remote_of(path: str | os.PathLike[str], filesystem: Any = None) -> Remote | None:
    """The store that a path leads to; None if it is a local directory."""
    if filesystem is not None:
        text = os.fspath(path)
        if "://" in text:
            raise InvalidInputError(
                f"{text!r} with storage_filesystem={filesystem!r}: give the path inside that file system, without a "
                "scheme."
            )
        return Remote(within(filesystem, text), filesystem)
    return Remote(parse(path)) if is_remote(path) else None


def mirror_root(remote: Remote, staging: str | None = None) -> Root:
    """Where the mirror of an experiment is, or will be.

    Args:
        remote: The experiment.
        staging: The directory that the user wants mirrors in; a later restore on this machine finds it again.
    """
    key = hashlib.sha256(remote.identity.encode()).hexdigest()[:12]
    home = Path(Environment.read().staging_root or DEFAULT_CACHE).expanduser() / key
    note = home / ELSEWHERE
    if staging is not None:
        # Below the key: experiments of the same name in two buckets must not share a mirror.
        chosen = Path(staging).expanduser().absolute() / key / remote.name
        if chosen != home / remote.name:
            write_atomic(str(note), str(chosen).encode())
        return Root(chosen, remote=remote)
    try:
        elsewhere = note.read_text()
    except FileNotFoundError:
        elsewhere = ""
    return Root(elsewhere if os.path.isabs(elsewhere) else home / remote.name, remote=remote)


def open_root(path: str | os.PathLike[str], filesystem: Any = None, *, read_only: bool = False) -> Root:
    """The local root of the experiment at ``path``: itself, or the mirror of one in a store.

    Raises:
        ExperimentNotFoundError: The store has no experiment exactly there.
        StorageError: The store refuses or does not answer.
    """
    from holdfast.journal.hydrate import hydrate

    remote = remote_of(path, filesystem)
    if remote is None:
        return Root(parse(path).path)
    root = mirror_root(remote)
    if not remote.exists():
        raise ExperimentNotFoundError(_nothing_there(remote))
    hydrated = hydrate(remote.store, root.path, read_only=read_only)
    return Root(hydrated.root, remote=remote)


def can_open(path: str | os.PathLike[str], filesystem: Any = None) -> bool:
    """Is there an experiment exactly at ``path``?"""
    remote = remote_of(path, filesystem)
    return Root(parse(path).path).exists() if remote is None else remote.exists()


def _nothing_there(remote: Remote) -> str:
    try:
        nearby = sorted({stat.key.split("/")[0] for stat in remote.store.list("") if stat.key.endswith("/" + SPEC)})
    except StorageError:
        nearby = []
    hint = f" Did you mean {' or '.join(remote.below(name).url for name in nearby[:3])}?" if nearby else ""
    return f"There is no experiment at {remote.url}: no experiment state file ({SPEC}) there.{hint}"
