"""The root of an experiment in a remote store: its address, its connection, and how an experiment is put there.

Owns the first upload of a new experiment. Its local mirror is somebody else's.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Any

from holdfast.config.secrets import refuse_missing_slashes, refuse_secrets
from holdfast.errors import InvalidInputError, StorageError, StoreUnreachableError
from holdfast.storage.address import Address, is_remote, parse, unwrapped, within
from holdfast.storage.layout import OBJECTS, PRIVATE, REMOVING, SPEC, Root
from holdfast.storage.options import StoreOptions
from holdfast.storage.probe import probe
from holdfast.storage.store import Sending, Store, create_once

FIRST_LOOK_S = 5.0


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

    def check_server(self) -> None:
        """Find out within seconds that nobody listens at the server's address, for somebody who only wants to look.

        Ordinary requests are repeated for three quarters of a minute, because a driver can wait for a server that is
        restarted. Whatever else may be wrong is left to them.

        Raises:
            StoreUnreachableError: The connection was refused, again and again.
        """
        from holdfast.storage.agent_client import connect

        if self.filesystem is not None or self.address.is_local:
            return
        first = connect(self.address, options=StoreOptions(timeout_s=FIRST_LOOK_S))
        try:
            first.stat(SPEC)
        except StoreUnreachableError as error:
            if "Connection refused" in str(error):
                raise
        except StorageError:
            pass
        finally:
            first.close()

    @property
    def url(self) -> str:
        """What a person types to get here again."""
        return self.address.path if self.filesystem is not None else str(self.address)

    @property
    def identity(self) -> str:
        """Its place, however its address is spelled.

        Whose server it is does not count, because that may change while the experiment stays. If two servers have one
        of the same address, restoring the mirror distinguishes them.
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
        """Is there an experiment exactly here, whole or damaged? One that is being removed is none."""
        if self.has_spec():
            return True
        return bool(self.store.list(f"{PRIVATE}/parts/")) and self.store.stat(REMOVING) is None

    def has_spec(self) -> bool:
        """Whether the file is there that makes it an experiment."""
        return self.store.stat(SPEC) is not None

    def has_history(self) -> bool:
        """Whether anything is there that only a driver makes."""
        return any(self.store.list(f"{PRIVATE}/{part}/") for part in ("parts", "epochs", "marks"))

    def publish(self, root: Root, *, unfenced: bool) -> bool:
        """Make a new experiment exist in the store, the file that says so last.

        Returns:
            False if somebody else's is there.

        Raises:
            UnsafeStoreError: The store cannot keep two drivers apart, and nobody has said that this does not matter.
            StorageError: It refuses or does not answer.
        """
        if not unfenced:
            probe(self.store)  # before anything is uploaded: a store that is refused has no experiment in it
        if self.exists():
            return False
        # Objects first: once the spec is there, any machine may restore the experiment, and would find no trainable.
        # Objects without a spec are an attempt, which the next one overwrites. `exists` only saves the upload: who was
        # first is decided by the store, when the spec is created.
        self.send_objects(root)
        return create_once(self.store, SPEC, root.spec_file.read_bytes()) is None

    def replace_unstarted(self, root: Root) -> None:
        """Let this experiment take the place of one that was made here and never run."""
        self.send_objects(root)  # before the spec, as in `publish`
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
    text, filesystem = unwrapped(os.fspath(path), filesystem)
    if filesystem is not None:
        if "://" in text:
            refuse_secrets("path", text)
            raise InvalidInputError(
                f"{text!r} with storage_filesystem={filesystem!r}: give the path inside that file system, without a "
                "scheme."
            )
        return Remote(within(filesystem, text), filesystem)
    refuse_missing_slashes("path", text)
    return Remote(parse(text)) if is_remote(text) else None
