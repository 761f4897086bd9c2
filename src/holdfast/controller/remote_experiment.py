"""The local mirror of an experiment in a remote store: where it is, and how it is created and opened.

Owns the location of mirrors, and opening an existing experiment. Readers open a mirror
or a cached copy of it; only a driver, by its claim, may change one.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

from holdfast.config import Environment
from holdfast.errors import (
    ExperimentExistsError,
    ExperimentNotFoundError,
    StorageError,
)
from holdfast.storage.address import parse
from holdfast.storage.layout import PRIVATE, SPEC, Root
from holdfast.storage.local import write_atomic
from holdfast.storage.remote_root import Remote, remote_of

DEFAULT_CACHE = "~/.cache/holdfast"
ELSEWHERE = "mirror.path"  # names the mirror if the user wanted it in another place
MIRROR_OF = f"{PRIVATE}/mirror.of"  # in such a mirror: the experiment that it is one of


def mirror_root(remote: Remote, staging: str | None = None) -> Root:
    """Where the mirror of an experiment is, or will be.

    Args:
        remote: The experiment.
        staging: The directory that the user wants mirrors in; a later restore on this machine finds it again.

    Raises:
        ExperimentExistsError: What is in the place that ``staging`` says is something else.
    """
    cache = _cache_of(remote)
    note = cache / ELSEWHERE
    if staging is not None:
        chosen = Path(staging).expanduser().absolute() / remote.name
        _check_free(chosen, remote)
        if chosen != cache / remote.name:
            write_atomic(str(note), str(chosen).encode())
        return Root(chosen, remote=remote)
    try:
        elsewhere = note.read_text()
    except FileNotFoundError:
        elsewhere = ""
    if not os.path.isabs(elsewhere) or mirrored_in(Path(elsewhere)) not in ("", remote.identity):
        return Root(cache / remote.name, remote=remote)
    return Root(elsewhere, remote=remote)


def _cache_of(remote: Remote) -> Path:
    """The directory for the mirror of one experiment if the user has chosen no other."""
    key = hashlib.sha256(remote.identity.encode()).hexdigest()[:12]
    return Path(Environment.read().staging_root or DEFAULT_CACHE).expanduser() / key


def mirrored_in(path: Path) -> str:
    """The experiment that a directory is a mirror of; "" if it does not say so."""
    try:
        return (path / MIRROR_OF).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def mark_mirror(root: Root) -> None:
    """Say in a mirror whose it is: in a directory of the user's choice another one of that name may be wanted.

    Raises:
        ExperimentExistsError: Somebody else was faster.
    """
    assert root.remote is not None
    mark = root.path / MIRROR_OF
    root.private.mkdir(parents=True, exist_ok=True)
    written = mark.with_name(f".{mark.name}.{uuid.uuid4().hex[:8]}")
    write_atomic(str(written), root.remote.identity.encode())
    try:
        os.link(written, mark)  # never over another one
    except FileExistsError:
        _check_free(root.path, root.remote)
    finally:
        written.unlink(missing_ok=True)


def is_unused(path: Path) -> bool:
    """Whether a mirror's directory is missing, or holds nothing but its mark."""
    if not path.is_dir():
        return True
    inside = {entry.name for entry in path.iterdir()}
    return inside <= {PRIVATE} and {entry.name for entry in (path / PRIVATE).glob("*")} <= {Path(MIRROR_OF).name}


def prefer_mirror_in(staging: str, path: str, filesystem: Any = None) -> None:
    """Let the mirror of an experiment that this machine has nothing of be made in a directory of the user's choice."""
    remote = remote_of(path, filesystem)
    if remote is not None and not mirror_root(remote).private.is_dir():
        mirror_root(remote, staging)


def _check_free(path: Path, remote: Remote) -> None:
    """Experiments of the same name in two stores must not share a mirror, nor take the place of a local one."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    owner = mirrored_in(path)
    if owner == remote.identity:
        return
    what = f"the local files of {owner}" if owner else "something that is not a mirror of it"
    raise ExperimentExistsError(
        f"The local files of {remote.url} would be in {path}, and {what} are there. Choose another local_dir, another "
        "name, or move that directory away. Nothing was changed."
    )


def open_root(path: str | os.PathLike[str], filesystem: Any = None, *, read_only: bool = False) -> Root:
    """The local root of the experiment at ``path``: itself, or the mirror of one in a store.

    Raises:
        ExperimentNotFoundError: The store has no experiment exactly there.
        StorageError: The store refuses or does not answer.
    """
    from holdfast.shipping.restore_mirror import restore_mirror

    remote = remote_of(path, filesystem)
    if remote is None:
        return Root(parse(path).path)
    root = mirror_root(remote)
    if not remote.exists():
        raise ExperimentNotFoundError(_nothing_there(remote))
    restored = restore_mirror(remote.store, root.path, read_only=read_only)
    if not read_only and restored.root == str(root.path) and root.path.parent != _cache_of(remote):
        mark_mirror(root)
    return Root(restored.root, remote=remote)


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
