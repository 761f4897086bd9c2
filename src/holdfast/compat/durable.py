"""``DurableTrainable``: a class trainable that copies its checkpoints to a store by itself.

Owns the order of saving and copying for instances that the user makes. In an experiment it adds nothing: that one's own
storage has the checkpoints, and copying them once more would only cost time.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, Self

from holdfast.config.secrets import refuse_secrets
from holdfast.errors import InvalidInputError, InvalidTypeError, SyncError
from holdfast.storage.address import join_address
from holdfast.trainable import class_checkpoint
from holdfast.trainable.trainable import SavedCheckpoint, Trainable

log = logging.getLogger("holdfast")


class DurableTrainable(Trainable):
    """A ``Trainable`` whose checkpoints are also in a store. Override the same methods as of ``Trainable``.

    **In an experiment** every class trainable is durable, so this one needs no special care: with
    ``RunConfig(storage_path="s3://...")``, ``SyncConfig(upload_dir=...)`` or a syncer, checkpoints travel the way all
    others do, once. ``remote_checkpoint_dir`` then names the trial's own directory there (or, for an experiment in a
    local directory, that one), ``storage_client`` is None and ``_create_storage_client`` is not asked.

    **An instance of your own** saves below ``logdir`` and copies that to ``remote_checkpoint_dir`` with its storage
    client: an object with ``sync_up``, ``sync_down``, ``delete`` and ``wait``, such as a ``holdfast.syncer.Syncer``.

    Args:
        remote_checkpoint_dir: Where checkpoints are copied to: a URI as for ``storage_path``, a directory, or whatever
            your own storage client understands.
        args: As for ``Trainable``.
        kwargs: As for ``Trainable``.

    Attributes:
        remote_checkpoint_dir: As given.
        storage_client: What copies.

    Example:
        >>> class Count(DurableTrainable):
        ...     def setup(self, config):
        ...         self.x = 0
        ...     def step(self):
        ...         self.x += 1
        ...         return {"x": self.x}
        ...     def save_checkpoint(self, checkpoint_dir):
        ...         return {"x": self.x}
        ...     def load_checkpoint(self, checkpoint):
        ...         self.x = checkpoint["x"]
        >>> first = Count(f"{tmp}/kept", {})
        >>> path = first.train() and first.save()
        >>> second = Count(f"{tmp}/kept", {})  # on another machine, perhaps
        >>> second.restore(path)
        >>> second.train()["x"]
        2
    """

    def __init__(self, remote_checkpoint_dir: str, *args: Any, **kwargs: Any) -> None:
        if not isinstance(remote_checkpoint_dir, str | os.PathLike):
            raise InvalidTypeError(
                f"{type(self).__name__}(remote_checkpoint_dir, config): the first argument says where checkpoints are "
                f"copied to, got {remote_checkpoint_dir!r}."
            )
        self.remote_checkpoint_dir = os.fspath(remote_checkpoint_dir)
        refuse_secrets("remote_checkpoint_dir", self.remote_checkpoint_dir)
        self.storage_client: Any = None
        self._local_only = False
        super().__init__(*args, **kwargs)
        if self._session is None:
            self.storage_client = self._create_storage_client()
        elif type(self)._create_storage_client is not DurableTrainable._create_storage_client:
            log.warning(
                "%s._create_storage_client() is not used in an experiment, whose own storage keeps the checkpoints. "
                "To have them copied in your own way give the experiment SyncConfig(upload_dir=..., syncer=...).",
                type(self).__name__,
            )

    @classmethod
    def _made(cls, config: dict[str, Any], place: str) -> Self:
        return cls(remote_checkpoint_dir=place, config=config)

    def _create_storage_client(self) -> Any:
        """What copies to ``remote_checkpoint_dir``; override it to use something else."""
        from holdfast.sync.store_syncer import get_cloud_sync_client

        return get_cloud_sync_client(self.remote_checkpoint_dir)

    def _storage_path(self, local_path: str) -> str:
        """Where the copy of something below ``logdir`` is."""
        relative = os.path.relpath(os.path.realpath(local_path), os.path.realpath(self.logdir)).replace(os.sep, "/")
        return self.remote_checkpoint_dir if relative == "." else join_address(self.remote_checkpoint_dir, relative)

    # --- saving and restoring -----------------------------------------------------------------------------------------

    def save(self, checkpoint_dir: str | None = None) -> SavedCheckpoint:
        """Save the training state, and return when it has been copied.

        Args:
            checkpoint_dir: Where to: ``logdir`` or a directory below it. By default a new one.

        Returns:
            The path to pass to ``restore``, here or, with the same ``remote_checkpoint_dir``, on any machine.

        Durability:
            When this returns, the checkpoint is at ``remote_checkpoint_dir``, as far as the storage client's ``wait``
            can be trusted. If this raises, no checkpoint was committed. In an experiment the driver commits it later.

        Raises:
            InvalidInputError: ``checkpoint_dir`` is somewhere else.
            SyncError: Or whatever your storage client raises: it could not be copied.
        """
        if not self._copies:
            return super().save(checkpoint_dir)
        if checkpoint_dir is not None:
            self._check_below("save", checkpoint_dir)
        saved = super().save(checkpoint_dir)
        try:
            self._finish(self.storage_client.sync_up, self.logdir, self.remote_checkpoint_dir)
        except Exception as error:
            error.add_note(f"What was saved is in {saved}, and not at {self.remote_checkpoint_dir}.")
            raise
        return saved

    def restore(self, checkpoint_path: Any) -> None:
        """Bring back what is at ``remote_checkpoint_dir``, then load a state that ``save`` saved.

        Args:
            checkpoint_path: What ``save`` returned, in this process or in another one; or anything else that
                ``Trainable.restore`` takes.
        """
        if self._copies and isinstance(checkpoint_path, (str, PurePath)):
            self._finish(self.storage_client.sync_down, self.remote_checkpoint_dir, self.logdir)
            checkpoint_path = self._local_path(os.fspath(checkpoint_path))
        super().restore(checkpoint_path)

    def delete_checkpoint(self, checkpoint_path: str) -> None:
        """Delete a checkpoint that ``save`` wrote, its copy first; a missing one is warned about."""
        directory = _checkpoint_of(os.fspath(checkpoint_path)) if self._copies else None
        if directory is not None:
            self._check_below("delete_checkpoint", directory)
            self._finish(self.storage_client.delete, self._storage_path(directory))
        super().delete_checkpoint(checkpoint_path)  # which says so if there is none

    def save_to_object(self) -> bytes:
        """The training state as bytes; nothing is copied."""
        with self._without_copies():
            return super().save_to_object()

    def restore_from_object(self, obj: bytes) -> None:
        """Load what ``save_to_object`` returned."""
        with self._without_copies():
            super().restore_from_object(obj)

    def reset(self, new_config: dict[str, Any], *args: Any, **kwargs: Any) -> bool:
        """Become another trial; False if ``reset_config`` does not support it."""
        done = super().reset(new_config, *args, **kwargs)
        if done and self._session is not None:
            self.remote_checkpoint_dir = self._session.trial_place
        return done

    def stop(self) -> None:
        """End the instance's life, and that of its storage client if it can be closed."""
        try:
            super().stop()
        finally:
            client, self.storage_client = self.storage_client, None
            if hasattr(client, "close"):
                client.close()

    # --- below --------------------------------------------------------------------------------------------------------

    @property
    def _copies(self) -> bool:
        """Whether this instance takes care of its copies itself."""
        return self._session is None and not self._local_only

    @contextlib.contextmanager
    def _without_copies(self) -> Iterator[None]:
        self._local_only = True
        try:
            yield
        finally:
            self._local_only = False

    def _finish(self, start: Callable[..., Any], *arguments: str) -> None:
        """Start something that the storage client does in its own time, and return when it is done."""
        # Only False means "left out"; clients of the oldest generation may return nothing.
        if start(*arguments) is False:
            self.storage_client.wait()  # for whatever it is busy with
            if start(*arguments) is False:
                raise SyncError(f"{self.storage_client!r} left a copy out twice, as if another one were running.")
        self.storage_client.wait()

    def _check_below(self, method: str, path: str) -> None:
        if not _is_below(path, self.logdir):
            raise InvalidInputError(
                f"{method}({path!r}): only what is in `logdir`, or below it, is copied to "
                f"{self.remote_checkpoint_dir}. It is {self.logdir!r}."
            )

    def _local_path(self, path: str) -> str:
        """Where a checkpoint is below this instance's ``logdir``, whichever machine it was saved on."""
        if _is_below(path, self.logdir):
            return path
        parts = path.removeprefix(self.remote_checkpoint_dir).split("/")
        for at in range(len(parts)):
            found = os.path.join(self.logdir, *filter(None, parts[at:]))
            directory = _checkpoint_of(found)
            if directory is not None and directory in (found, os.path.dirname(found)):
                return found
        return path


def _is_below(path: str, directory: str) -> bool:
    top, place = os.path.realpath(directory), os.path.realpath(path)
    return place == top or place.startswith(os.path.join(top, ""))


def _checkpoint_of(path: str) -> str | None:
    """The checkpoint that a path is or lies in; None if there is none that ``save`` wrote."""
    try:
        directory = class_checkpoint.directory_of(path)
    except InvalidInputError:
        return None
    return directory if class_checkpoint.is_checkpoint(directory) else None
