"""``Checkpoint``: the user's handle on a directory with training state.

Owns what users can do with a checkpoint: look into it, copy it, attach metadata. Writes nothing into a committed
checkpoint but ``.metadata.json``, and never deletes a directory that it did not make itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.checkpoints import dict_place, names
from holdfast.config.secrets import refuse_missing_slashes, refuse_secrets
from holdfast.errors import (
    CheckpointDamagedError,
    InvalidInputError,
    InvalidTypeError,
    NotSerializableError,
    ObjectMissingError,
)

if TYPE_CHECKING:
    from holdfast.checkpoints.remote_place import RemotePlace

PICKLE_PROTOCOL = 5


class LocalFilesystem:
    """Stands for the machine's own file system in ``Checkpoint.filesystem`` where pyarrow is not installed."""

    type_name = "local"

    def __eq__(self, other: object) -> bool:
        return getattr(other, "type_name", None) == self.type_name

    def __hash__(self) -> int:
        return hash(self.type_name)

    def __repr__(self) -> str:
        return "LocalFilesystem()"


class Checkpoint:
    """A directory that holds training state.

    ``report(metrics, checkpoint=Checkpoint.from_directory(path))`` saves the files in ``path``; ``get_checkpoint()``
    and ``Result.checkpoint`` give back the saved ones.

    A saved checkpoint has, beside your files, ``_manifest.json``: names, sizes and hashes of your files, by which
    damage is noticed. ``to_directory`` leaves it out. Do not change your files in a saved checkpoint: it would count
    as damaged. Metadata is kept in ``.metadata.json``, which the manifest does not cover, so it may be set at any time.

    ``to_dict``, ``as_directory`` and ``to_directory`` compare every byte of a saved checkpoint with its manifest when a
    process first uses it, and again if a file has changed since; each of them, and the constructors, take
    ``verify=False`` to leave that out. A directory of your own has no manifest and is taken as it is.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = pathlib.Path(path, "weights.txt").write_text("0.5")
        ...     checkpoint = Checkpoint.from_directory(path)
        ...     with checkpoint.as_directory() as directory:
        ...         pathlib.Path(directory, "weights.txt").read_text()
        '0.5'

    Args:
        path: The directory, or its URI: ``file://``, ``s3://``, ``gs://``, ``az://``.
        filesystem: None, or the pyarrow or fsspec file system in which ``path`` is a path.
        verify: False reads the files of this checkpoint without comparing them with their manifest.

    Attributes:
        path: Absolute path of the directory, or where it is in its file system or store.
    """

    path: str
    _filesystem: Any = None  # None: the machine's own
    _verify = True
    _digest: str | None = None  # of the manifest, as the journal knows it
    _temporary = False
    _pickle: bytes | None = None  # of a dict that has no directory yet
    _metadata: dict[str, Any] | None = None  # of such a dict
    _remote: RemotePlace | None = None
    _local_copy: str | None = None  # a directory that may hold a local copy

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None, *, verify: bool = True) -> None:
        text = os.fspath(path)
        refuse_missing_slashes("path", text)
        refuse_secrets("path", text)
        if "://" in text or filesystem is not None:
            from holdfast.checkpoints.remote_place import RemotePlace, is_remote_place
            from holdfast.storage.address import unwrapped

            text, filesystem = unwrapped(text, filesystem)
            if is_remote_place(text, filesystem):
                self._remote = RemotePlace(text, filesystem)
                filesystem = self._remote.stands_for
        self.path = text if self._remote is not None else _local_path(text)
        self._filesystem = filesystem
        self._uuid = os.urandom(8).hex()
        if not verify:
            self._verify = False

    @property
    def filesystem(self) -> Any:
        """The file system in which ``path`` is a path; pyarrow's, where that is installed."""
        if self._filesystem is not None:
            shown = getattr(self._filesystem, "shown", None)
            return self._filesystem if shown is None else shown()
        try:  # only when somebody asks: importing it takes longer than most trials
            return import_module("pyarrow.fs").LocalFileSystem()
        except ImportError:
            return LocalFilesystem()

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's own file system."""
        return self._kind == LocalFilesystem.type_name

    @classmethod
    def saved(cls, path: str, filesystem: Any = None, *, digest: str) -> Checkpoint:
        """A checkpoint that an experiment has saved, whose journal knows the digest of its manifest."""
        checkpoint = cls(path, filesystem)
        checkpoint._digest = digest or None
        return checkpoint

    @classmethod
    def mirrored(cls, path: str, local_copy: str, filesystem: Any = None, *, digest: str = "") -> Checkpoint:
        """The same in a store; there may be a local copy at ``local_copy``."""
        checkpoint = cls.saved(path, filesystem, digest=digest)
        checkpoint._local_copy = local_copy
        return checkpoint

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Checkpoint:
        """The checkpoint that consists of the files in ``path``; nothing is copied before it is reported."""
        return cls(path, verify=verify)

    @classmethod
    def from_uri(cls, uri: str, *, verify: bool = True) -> Checkpoint:
        """The checkpoint at a URI."""
        return cls(uri, verify=verify)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        """A checkpoint that holds a dict, pickled now: later changes to ``data`` do not reach it.

        In a trial, ``report`` writes it straight into the experiment's storage. Elsewhere it is kept in a temporary
        directory that is removed with the checkpoint object.

        Raises:
            InvalidTypeError: ``data`` is not a dict.
            NotSerializableError: Something in it cannot be pickled.
            StorageError: There is no place for the temporary directory.
        """
        if not isinstance(data, dict):
            raise InvalidTypeError(f"Checkpoint.from_dict() takes a dict, not {type(data).__name__}: {data!r:.80}")
        import cloudpickle

        try:
            payload = cloudpickle.dumps(data, protocol=PICKLE_PROTOCOL)
        except Exception as error:
            raise NotSerializableError(
                f"the dict given to Checkpoint.from_dict() cannot be pickled: {error}. Save such objects with their "
                "own method into a directory and use Checkpoint.from_directory()."
            ) from error
        return cls._from_pickle(payload)

    @classmethod
    def _from_pickle(cls, payload: bytes) -> Checkpoint:
        checkpoint = cls.__new__(cls)
        checkpoint._uuid = os.urandom(8).hex()
        checkpoint._temporary = True
        checkpoint._pickle = payload
        if not dict_place.is_in_trial():
            checkpoint._give_place()
            checkpoint._pickle = None  # a notebook may keep many of them
        return checkpoint

    def __getattr__(self, name: str) -> Any:
        if name == "path" and self._pickle is not None:
            return self._give_place()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _give_place(self) -> str:
        """Write a dict to files, because somebody wants to see them; they go with this object."""
        place = dict_place.make()
        try:
            self.write_dict(place.path)
        except BaseException:
            place.remove(place.path)
            raise
        weakref.finalize(self, place.remove, place.path)
        self.path = place.path
        return self.path

    @property
    def is_unwritten(self) -> bool:
        """Whether this is a dict that has no files yet: ``write_dict`` makes them where they are wanted."""
        return self._pickle is not None and "path" not in self.__dict__

    @property
    def is_dict(self) -> bool:
        """Whether this object was made from a dict, so that its files go away with it."""
        return self._temporary

    def write_dict(self, directory: str) -> dict[str, str]:
        """Write the files of such a dict into an empty directory.

        Returns:
            The hashes of those that must stay as they are, by name.

        Raises:
            StorageError: It does not take them; ``StorageFullError`` if there is no space.
        """
        from holdfast.checkpoints.manifest import new_hasher
        from holdfast.checkpoints.metadata import write_metadata
        from holdfast.checkpoints.tree import storage_error

        assert self._pickle is not None
        path = f"{directory}/{names.DICT_FILE}"
        try:
            with open(path, "wb") as file:
                file.write(self._pickle)
        except OSError as error:
            raise storage_error(error, f"writing {path}") from error
        if self._metadata is not None:
            write_metadata(directory, self._metadata)
        hasher = new_hasher()
        hasher.update(self._pickle)
        return {names.DICT_FILE: hasher.hexdigest()}

    def to_dict(self, *, verify: bool | None = None) -> dict[str, Any]:
        """The dict that ``from_dict`` was given, or that a class trainable's ``save_checkpoint`` returned.

        Args:
            verify: False reads it without comparing the files with their manifest.

        Raises:
            InvalidInputError: The checkpoint holds no dict.
            CheckpointDamagedError: A saved checkpoint is not what was saved.
        """
        import pickle

        if self._pickle is not None:
            held: dict[str, Any] = pickle.loads(self._pickle)
            return held
        with self.as_directory(verify=verify) as directory:
            path = os.path.join(directory, names.DICT_FILE)
            if not os.path.isfile(path):
                raise InvalidInputError(
                    f"{self!r} holds no dict: it has no file {names.DICT_FILE}. Use as_directory() to read its files."
                )
            with open(path, "rb") as file:
                try:
                    data: dict[str, Any] = pickle.load(file)
                except (pickle.UnpicklingError, EOFError) as error:
                    self._damaged(f"{names.DICT_FILE} cannot be unpickled: {error}")
        return data

    def to_directory(self, path: str | os.PathLike[str] | None = None, *, verify: bool | None = None) -> str:
        """Copy the checkpoint's files into a directory of your own.

        Callers that ask for the same directory at the same time, in this process or others, share one copy. If the
        copy fails, nothing of it is left. Files of the same name in an existing directory are replaced, others stay.

        Args:
            path: Where to; None for a temporary directory, the same one for every copy of this object.
            verify: False copies the files without comparing them with their manifest.

        Returns:
            The path of the directory.

        Raises:
            InvalidInputError: The checkpoint does not exist.
            CheckpointDamagedError: A saved checkpoint is not what was saved.
            StorageFullError: There is no space for the copy.
            StorageError: The file system fails in another way.
        """
        from holdfast.checkpoints.copy_out import export
        from holdfast.checkpoints.verified import inspect

        verify = self._verify if verify is None else verify
        if path is None:
            import tempfile

            path = os.path.join(tempfile.gettempdir(), f"holdfast_checkpoint_{self._uuid}")
        # Files that are here are compared while they are copied: reading them twice would gain nothing.
        with self.as_directory(verify=verify and self._remote is not None) as directory:
            with self._told_damage():
                if verify and self._remote is None:
                    inspect(directory, self._digest)
                return export(directory, os.path.abspath(os.fspath(path)), token=self._uuid, verify=verify)

    @contextlib.contextmanager
    def as_directory(self, *, verify: bool | None = None) -> Iterator[str]:
        """The checkpoint's files as a directory to read. Do not change it.

        It is the real one, without a copy, if the checkpoint is on this machine. One from a store is downloaded and
        verified, and the copy is removed afterwards.

        Args:
            verify: False reads the files without comparing them with their manifest.

        Raises:
            InvalidInputError: The checkpoint does not exist.
            CheckpointDamagedError: What is there is not what was saved.
            StorageError: The storage refuses or does not answer.
        """
        verify = self._verify if verify is None else verify
        if self._remote is None:
            self._require()
            if verify and not self._temporary:
                from holdfast.checkpoints.verified import ensure

                with self._told_damage():
                    ensure(self.path, self._digest)
            yield self.path
            return
        try:
            with self._remote.local_files(self._local_copy, digest=self._digest, verify=verify) as directory:
                yield directory
        except ObjectMissingError:
            self._require()
            raise

    @contextlib.contextmanager
    def _told_damage(self) -> Iterator[None]:
        """Say of damage what a user can do about it, unless the checkpoint is just being deleted."""
        try:
            yield
        except CheckpointDamagedError as error:
            self._require()
            self._damaged(error.reason, error)

    def _damaged(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        raise CheckpointDamagedError(
            f"the checkpoint {self.path} is damaged: {reason}. It was left as it is. Use another one of the trial "
            "(Result.best_checkpoints lists them), or, if you changed the files yourself, pass verify=False to read "
            "them as they are.",
            path=self.path,
            reason=reason,
        ) from cause

    def get_metadata(self) -> dict[str, Any]:
        """The metadata that was set, or an empty dict.

        Raises:
            CheckpointDamagedError: It is not what was written.
        """
        from holdfast.checkpoints.metadata import read_metadata

        if self.is_unwritten:
            return dict(self._metadata or {})
        return read_metadata(self.path) if self._remote is None else self._remote.get_metadata()

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata: a dict of strings, numbers, booleans, lists and dicts.

        Durability: when this returns, the metadata survives a loss of power.

        Raises:
            InvalidTypeError: It cannot be written as JSON.
        """
        from holdfast.checkpoints.metadata import encode_metadata, write_metadata

        if self._pickle is not None:
            self._metadata = json.loads(encode_metadata(metadata))
            if self.is_unwritten:
                return
        self._require()
        if self._remote is None:
            write_metadata(self.path, metadata)
        else:
            self._remote.set_metadata(encode_metadata(metadata))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Set some keys of the metadata and leave the others."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _require(self) -> None:
        if self._remote is not None:
            exists = self._remote.exists()
        else:
            if self._pickle is not None and not os.path.isdir(self.path):
                del self.path  # the attempt that made it is over, or has reported it as a directory: make it anew
            # A checkpoint loses its manifest first when it is deleted.
            exists = os.path.isdir(self.path) and not os.path.exists(f"{self.path}/{names.TRASH_MARK}")
        if not exists:
            raise InvalidInputError(
                f"{self!r} does not exist: there is no such directory. It may have been removed because newer or "
                "better checkpoints replaced it; CheckpointConfig(num_to_keep=...) says how many are kept."
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._temporary:
            # By value: the directory goes away with this object, and the copy may be read on another machine.
            payload = self._pickle
            if payload is None:
                with open(os.path.join(self.path, names.DICT_FILE), "rb") as file:
                    payload = file.read()
            return _unpickle, (type(self), payload)
        if self._remote is not None:
            return _unpickle_remote, (type(self), self.path, self._filesystem, self._digest, self._verify)
        return super().__reduce_ex__(protocol)

    def __fspath__(self) -> str:
        raise TypeError(
            f"{self!r} is not a path. Use `with checkpoint.as_directory() as path:` to read its files, or "
            "checkpoint.to_directory(path) to copy them."
        )

    def __repr__(self) -> str:
        if self.is_unwritten:
            return f"{type(self).__name__}(filesystem={self._kind}, a dict of {len(self._pickle or b''):,} bytes)"
        return f"{type(self).__name__}(filesystem={self._kind}, path={self.path})"

    @property
    def _kind(self) -> str:
        place = LocalFilesystem if self._filesystem is None else self._filesystem
        return str(getattr(place, "type_name", None) or type(place).__name__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        if self._pickle is not None or other._pickle is not None:
            return self is other
        return self.path == other.path and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._uuid if self._pickle is not None else self.path)


def _local_path(path: str) -> str:
    if "://" not in path:
        return os.path.abspath(path)
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"the checkpoint URI {path!r} is not a local one. Give a path or file:///absolute/path, or copy the "
            "checkpoint to a local directory first."
        )
    return os.path.abspath(unquote(parts.path))


def _unpickle_remote(
    kind: type[Checkpoint], path: str, filesystem: Any, digest: str | None = None, verify: bool = True
) -> Checkpoint:
    from holdfast.checkpoints.remote_place import StoreFilesystem

    checkpoint = kind(path, None if isinstance(filesystem, StoreFilesystem) else filesystem, verify=verify)
    checkpoint._digest = digest
    return checkpoint


_unpickle_far = _unpickle_remote  # its name in pickles of earlier versions


def _unpickle(kind: type[Checkpoint], payload: bytes) -> Checkpoint:
    return kind._from_pickle(payload)
