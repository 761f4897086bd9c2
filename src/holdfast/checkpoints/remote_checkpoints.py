"""Checkpoints in a remote store: upload, download, delete.

Owns the order of a commit in a store and of a deletion. Files are uploaded first and the manifest is created last,
once, so that no reader ever finds a manifest whose files are missing. A deletion removes the manifest first and the
files last, for the same reason. Never deletes a key that no manifest or local copy names, and never mistakes an outage
or a denial for damage.

    O0  does the manifest exist already?   an answer was lost, or another driver has finished this upload
    O1  files uploaded, their hashes compared with the manifest while they are read
    O2  sizes compared with the store's listing
    O3  manifest created                   <- from here on the checkpoint exists in the store

O1 is done by this machine, or by the one that has the stage (``stage_sending``); the rest always by the driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from holdfast.checkpoints import names
from holdfast.checkpoints.checkpoint_reader import quarantine
from holdfast.checkpoints.commit import Committed
from holdfast.checkpoints.manifest import ALGORITHM, BadManifest, Manifest, decode, digest, encode
from holdfast.checkpoints.syscalls import rename_noreplace
from holdfast.checkpoints.tree import remove_quietly, storage_error
from holdfast.checkpoints.verified import read_through
from holdfast.errors import CheckpointDamagedError, ObjectMissingError, StorageError
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.local import fsync_dir
from holdfast.storage.store import Fetching, Sending, Store, create_once

_GIVEN_UP = b'{"given_up":'  # in the place of a manifest: this checkpoint will never be


def upload(store: Store, directory: Path, key: str) -> Committed:
    """Make a checkpoint that is committed locally exist in the store, or find that it does.

    Args:
        store: Where to.
        directory: The local checkpoint.
        key: Its name in the store, without a slash at the end.

    Durability: when this returns, the checkpoint survives the loss of this machine.

    Raises:
        CheckpointDamagedError: The local files are not what the manifest says, or the key is another checkpoint's.
        StorageError: The store refuses or does not answer. Calling again later may work.
    """
    data = _local_manifest(directory)
    try:
        manifest = decode(data)
    except BadManifest as error:
        _damaged(directory, f"its manifest is damaged: {error}")
    found = _get(store, f"{key}/{names.MANIFEST}")
    if found is None:
        _send_files(store, directory, key, manifest)
        found = _create_manifest(store, key, manifest, data)
    if found is not None and found.startswith(_GIVEN_UP):
        _abandoned(store, key, directory)
    if found is not None and found != data:
        _damaged(directory, f"the store has another checkpoint at {key}")
    crashpoint("O3.after")
    return Committed(digest(manifest), manifest.total, len(manifest.files))


def publish(store: Store, key: str, stage: str, send: Callable[[], Manifest]) -> Committed:
    """The same as ``upload`` for a stage that is not on this machine: another one sends its files.

    Args:
        store: Where to.
        key: The checkpoint's name in the store.
        stage: What it is made of.
        send: Has the files sent; returns their manifest. Not called if the checkpoint is there.

    Raises:
        CheckpointDamagedError: The key is another checkpoint's, or was given up.
        StorageError: The store refuses or does not answer. Calling again later may work.
    """
    found = _get(store, f"{key}/{names.MANIFEST}")
    if found is None:
        manifest = send()
        data = encode(manifest)
        found = _create_manifest(store, key, manifest, data) or data
    if found.startswith(_GIVEN_UP):
        _abandoned(store, key, Path(key))
    made = _made_of(stage, found) or _damaged(Path(key), f"the store has another checkpoint at {key}")
    crashpoint("O3.after")
    return made


def _create_manifest(store: Store, key: str, manifest: Manifest, data: bytes) -> bytes | None:
    """Create the manifest, after all its files are there; returns the one that was there before, if one was."""
    incomplete = _lacks(store, key, manifest)
    crashpoint("O3.before")
    if not incomplete:
        return create_once(store, f"{key}/{names.MANIFEST}", data)
    found = _get(store, f"{key}/{names.MANIFEST}")
    if found is None:  # else somebody removes the files while we send them
        raise StorageError(incomplete)
    return found


def _abandoned(store: Store, key: str, path: Path) -> NoReturn:
    _delete_files(store, key)  # what was sent since: nobody else will look for it
    _damaged(path, "another driver has taken over and abandoned its upload")


def find_uploaded(store: Store, key: str, stage: str) -> Committed | None:
    """The checkpoint that was made of this stage, if it is in the store: its driver was lost after the upload."""
    found = _get(store, f"{key}/{names.MANIFEST}")
    return None if found is None else _made_of(stage, found)


def _get(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissingError:
        return None


def _made_of(stage: str, data: bytes) -> Committed | None:
    try:
        manifest = decode(data)
    except BadManifest:
        return None
    ours = manifest.stage == stage
    return Committed(digest(manifest), manifest.total, len(manifest.files)) if ours else None


def give_up(store: Store, key: str, stage: str) -> Committed | None:
    """Decide for good that an upload will not be finished, and remove its files.

    A driver that was taken over may still be at it. Whoever creates the manifest's object decides: that driver, or we,
    with one that says no. It stays there, small as it is, because that driver may wake up at any later time.

    Returns:
        The checkpoint, if the upload was completed before we could say no.

    Raises:
        CheckpointDamagedError: Something else is there, which was left as it is: a checkpoint of another stage, or a
            manifest that cannot be read. Its files may have the names of ours.
    """
    manifest = f"{key}/{names.MANIFEST}"
    there = create_once(store, manifest, _GIVEN_UP + b'"%s"}\n' % os.urandom(16).hex().encode())
    if there is not None and not there.startswith(_GIVEN_UP):
        return _made_of(stage, there) or _damaged(Path(key), f"the store has another checkpoint at {key}")
    _delete_files(store, key)
    return None


def _delete_files(store: Store, key: str) -> None:
    """Delete everything but the manifest's object of a checkpoint that was given up."""
    store.delete([stat.key for stat in store.list(f"{key}/") if stat.key != f"{key}/{names.MANIFEST}"])


def fetch(store: Store, key: str, directory: Path, *, expect_digest: str | None = None) -> Manifest:
    """Make a local copy of a checkpoint, each file hashed while it arrives.

    Durability: none; the store has it.

    Raises:
        CheckpointDamagedError: It is not there, or not what was committed.
        StorageError: The store refuses or does not answer: nothing is known about the checkpoint.
    """
    data = _remote_manifest(store, key, directory)
    manifest = _checked(data, key, directory, expect_digest)
    stage = directory.with_name(names.stage_name(0))  # swept like any stage if we are killed
    try:
        stage.mkdir(parents=True)
        _fetch_files(store, key, stage, manifest)
        (stage / names.MANIFEST).write_bytes(data)
        crashpoint("fetch.before_rename")
        _move_in(stage, directory)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, f"fetching the checkpoint {key} to {directory}") from error
    finally:
        remove_quietly([str(stage)])
    return manifest


def ensure_local(store: Store, key: str, directory: Path, *, expect_digest: str) -> None:
    """Have a good copy at hand: the local one if it is whole, else one from the store.

    Raises as ``fetch`` does.
    """
    if directory.is_dir():
        try:
            read_through(directory, expect_digest)
            return
        except CheckpointDamagedError:
            quarantine(directory)
    fetch(store, key, directory, expect_digest=expect_digest)


def check_remote(store: Store, key: str, directory: Path, *, expect_digest: str) -> None:
    """See whether a checkpoint is complete in the store, by names and sizes; whoever fetches it, reads it.

    Raises as ``fetch`` does.
    """
    manifest = _checked(_remote_manifest(store, key, directory), key, directory, expect_digest)
    lacks = _lacks(store, key, manifest)
    if lacks:
        _damaged(directory, lacks)


def delete_remote(store: Store, key: str) -> None:
    """Delete a checkpoint from the store, or what is left of one. May be repeated.

    Only keys below the checkpoint's own name go, which the journal has given to no other (I3).
    """
    store.delete([f"{key}/{names.MANIFEST}"])
    crashpoint("D2.remote")
    store.delete([stat.key for stat in store.list(f"{key}/")])


def _local_manifest(directory: Path) -> bytes:
    try:
        return (directory / names.MANIFEST).read_bytes()
    except FileNotFoundError:
        _damaged(directory, "it has no manifest")
    except OSError as error:
        raise storage_error(error, f"reading the checkpoint {directory}") from error


def _send_files(store: Store, directory: Path, key: str, manifest: Manifest) -> None:
    files = [Sending(f"{directory}/{entry.path}", f"{key}/{entry.path}") for entry in manifest.files]
    metadata = directory / names.METADATA
    if metadata.is_file():
        files.append(Sending(str(metadata), f"{key}/{names.METADATA}"))
    try:
        hashes = store.send(files)
    except OSError:
        for entry in manifest.files:
            if not os.path.lexists(f"{directory}/{entry.path}"):
                _damaged(directory, f"{entry.path} is missing")
        raise
    if manifest.algo == ALGORITHM:
        for entry, found in zip(manifest.files, hashes, strict=False):
            if found != entry.hash:
                _damaged(directory, f"the content of {entry.path} is not what was saved")


def _lacks(store: Store, key: str, manifest: Manifest) -> str:
    """What the store lacks of the files that were sent; "" if nothing."""
    sizes = {stat.key: stat.size for stat in store.list(f"{key}/")}
    for entry in manifest.files:
        if sizes.get(f"{key}/{entry.path}") != entry.size:
            size = sizes.get(f"{key}/{entry.path}")
            return f"{store.url}/{key}/{entry.path} has {size} bytes in the store instead of {entry.size:,}"
    return ""


def _remote_manifest(store: Store, key: str, directory: Path) -> bytes:
    try:
        return store.get(f"{key}/{names.MANIFEST}")
    except ObjectMissingError:
        _damaged(directory, "the store has no manifest of it")


def _checked(data: bytes, key: str, directory: Path, expect_digest: str | None) -> Manifest:
    try:
        manifest = decode(data)
    except BadManifest as error:
        _damaged(directory, f"its manifest in the store is damaged: {error}")
    if expect_digest is not None and digest(manifest) != expect_digest:
        _damaged(directory, f"the manifest at {key} differs from the committed one")
    return manifest


def _fetch_files(store: Store, key: str, stage: Path, manifest: Manifest) -> None:
    files = [Fetching(f"{key}/{entry.path}", f"{stage}/{entry.path}") for entry in manifest.files]
    try:
        hashes = store.fetch(files)
    except ObjectMissingError as error:
        _damaged(stage, f"a file is missing in the store: {error}")
    for entry, found in zip(manifest.files, hashes, strict=True):
        if os.path.getsize(f"{stage}/{entry.path}") != entry.size:
            _damaged(stage, f"{entry.path} does not have the {entry.size:,} bytes that were saved")
        if manifest.algo == ALGORITHM and found != entry.hash:
            _damaged(stage, f"the content of {entry.path} is not what was saved")


def _move_in(stage: Path, directory: Path) -> None:
    try:
        rename_noreplace(str(stage), str(directory))
    except FileExistsError:  # somebody else has fetched it meanwhile
        return
    fsync_dir(str(directory.parent))


def _damaged(path: Path, reason: str) -> NoReturn:
    raise CheckpointDamagedError(
        f"the checkpoint {path} cannot be used: {reason}. Nothing was overwritten; an older checkpoint of the trial "
        "can be used instead.",
        path=str(path),
        reason=reason,
    )
