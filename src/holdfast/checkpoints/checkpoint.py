"""``Checkpoint``: the user's handle on a directory with training state.

Owns what users can do with a checkpoint: look into it, copy it, attach metadata. Writes nothing into a committed
checkpoint but ``.metadata.json``, and never deletes a directory that it did not make itself.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints import names
from holdfast.errors import InvalidInputError, InvalidTypeError, NotSerializableError, ObjectMissingError

if TYPE_CHECKING:
    from holdfast.checkpoints.far import FarPlace

PICKLE_PROTOCOL = 5


class LocalFilesystem:
    """Stands for the machine's own file system in ``Checkpoint.filesystem``."""

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

    Attributes:
        path: Absolute path of the directory, or where it is in its file system or store.
        filesystem: Where it is.
    """

    path: str
    filesystem: Any
    _temporary = False
    _far: FarPlace | None = None
    _near: str | None = None  # a directory that may hold a local copy

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        text = os.fspath(path)
        if "://" in text or filesystem is not None:
            from holdfast.checkpoints.far import FarPlace, StoreFilesystem, is_far

            if is_far(text, filesystem):
                self._far = FarPlace(text, filesystem)
                filesystem = filesystem or StoreFilesystem(text.partition("://")[0])
        self.path = text if self._far is not None else _local_path(text)
        self.filesystem = LocalFilesystem() if filesystem is None else filesystem
        self._uuid = os.urandom(8).hex()

    @classmethod
    def mirrored(cls, path: str, near: str, filesystem: Any = None) -> Checkpoint:
        """A checkpoint in a store of which there may be a local copy at ``near``."""
        checkpoint = cls(path, filesystem)
        checkpoint._near = near
        return checkpoint

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint that consists of the files in ``path``; nothing is copied before it is reported."""
        return cls(path)

    @classmethod
    def from_uri(cls, uri: str) -> Checkpoint:
        """The checkpoint at a URI."""
        return cls(uri)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        """A checkpoint that holds a dict, pickled now: later changes to ``data`` do not reach it.

        The dict is kept in a temporary directory that is removed with the checkpoint object; a checkpoint that was
        reported is stored like any other.

        Raises:
            InvalidTypeError: ``data`` is not a dict.
            NotSerializableError: Something in it cannot be pickled.
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
        import tempfile

        directory = tempfile.mkdtemp(prefix="holdfast_dict_")
        with open(f"{directory}/{names.DICT_FILE}", "wb") as file:
            file.write(payload)
        checkpoint = cls(directory)
        weakref.finalize(checkpoint, _remove_own, directory, os.getpid())
        checkpoint._temporary = True
        return checkpoint

    def to_dict(self) -> dict[str, Any]:
        """The dict that ``from_dict`` was given, or that a class trainable's ``save_checkpoint`` returned.

        Raises:
            InvalidInputError: The checkpoint holds no dict.
        """
        import pickle

        with self.as_directory() as directory:
            path = os.path.join(directory, names.DICT_FILE)
            if not os.path.isfile(path):
                raise InvalidInputError(
                    f"{self!r} holds no dict: it has no file {names.DICT_FILE}. Use as_directory() to read its files."
                )
            with open(path, "rb") as file:
                data: dict[str, Any] = pickle.load(file)
        return data

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint's files into a directory of your own.

        Callers that ask for the same directory at the same time, in this process or others, share one copy. If the
        copy fails, nothing of it is left. Files of the same name in an existing directory are replaced, others stay.

        Args:
            path: Where to; None for a temporary directory, the same one for every copy of this object.

        Returns:
            The path of the directory.

        Raises:
            InvalidInputError: The checkpoint does not exist.
            CheckpointDamagedError: A saved checkpoint is not what was saved.
            StorageFullError: There is no space for the copy.
            StorageError: The file system fails in another way.
        """
        from holdfast.checkpoints.export import export

        if path is None:
            import tempfile

            path = os.path.join(tempfile.gettempdir(), f"holdfast_checkpoint_{self._uuid}")
        with self.as_directory() as directory:
            return export(directory, os.path.abspath(os.fspath(path)), token=self._uuid)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """The checkpoint's files as a directory to read. Do not change it.

        It is the real one, without a copy, if the checkpoint is on this machine. One from a store is downloaded and
        verified, and the copy is removed afterwards.

        Raises:
            InvalidInputError: The checkpoint does not exist.
            CheckpointDamagedError: What the store has is not what was saved.
            StorageError: The store refuses or does not answer.
        """
        if self._far is None:
            self._require()
            yield self.path
            return
        try:
            with self._far.borrowed(self._near) as directory:
                yield directory
        except ObjectMissingError:
            self._require()
            raise

    def get_metadata(self) -> dict[str, Any]:
        """The metadata that was set, or an empty dict."""
        from holdfast.checkpoints.export import read_metadata

        return read_metadata(self.path) if self._far is None else self._far.get_metadata()

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata: a dict of strings, numbers, booleans, lists and dicts.

        Durability: when this returns, the metadata survives a loss of power.

        Raises:
            InvalidTypeError: It cannot be written as JSON.
        """
        from holdfast.checkpoints.export import encode_metadata, write_metadata

        self._require()
        if self._far is None:
            write_metadata(self.path, metadata)
        else:
            self._far.set_metadata(encode_metadata(metadata))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Set some keys of the metadata and leave the others."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _require(self) -> None:
        there = os.path.isdir(self.path) if self._far is None else self._far.exists()
        if not there:
            raise InvalidInputError(
                f"{self!r} does not exist: there is no such directory. It may have been removed because newer or "
                "better checkpoints replaced it; CheckpointConfig(num_to_keep=...) says how many are kept."
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._temporary:
            # By value: the directory goes away with this object, and the copy may be read on another machine.
            with open(os.path.join(self.path, names.DICT_FILE), "rb") as file:
                return _unpickle, (type(self), file.read())
        if self._far is not None:
            return _unpickle_far, (type(self), self.path, self.filesystem)
        return super().__reduce_ex__(protocol)

    def __fspath__(self) -> str:
        raise TypeError(
            f"{self!r} is not a path. Use `with checkpoint.as_directory() as path:` to read its files, or "
            "checkpoint.to_directory(path) to copy them."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(filesystem={self._kind}, path={self.path})"

    @property
    def _kind(self) -> str:
        return str(getattr(self.filesystem, "type_name", None) or type(self.filesystem).__name__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return self.path == other.path and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self.path)


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


def _unpickle_far(kind: type[Checkpoint], path: str, filesystem: Any) -> Checkpoint:
    from holdfast.checkpoints.far import StoreFilesystem

    return kind(path, None if isinstance(filesystem, StoreFilesystem) else filesystem)


def _unpickle(kind: type[Checkpoint], payload: bytes) -> Checkpoint:
    return kind._from_pickle(payload)


def _remove_own(directory: str, pid: int) -> None:
    """Remove the directory of a dict, but not from a forked child that inherited the object."""
    if os.getpid() == pid:
        from holdfast.checkpoints.tree import remove_quietly

        remove_quietly([directory])
