"""Directories by their addresses, as the user's tools take them: a path of this machine, a URI, or ``host:path``.

Must never create or delete anything on another machine but through the file system that the address itself names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import shutil
from urllib.parse import unquote, urlsplit

_log = logging.getLogger("holdfast.sync")


def as_directory(address: str) -> str:
    """Return the address with one slash at its end: to rsync that says "the content of"."""
    path, mark, query = address.partition("?") if "://" in address else (address, "", "")
    return f"{path.rstrip('/')}/{mark}{query}"


def make_local(address: str) -> None:
    """Make a directory that is on this machine; cp and rsync ask for it. Any other address is left alone."""
    if os.path.isabs(address):
        os.makedirs(address, exist_ok=True)


def delete_by_address(remote_dir: str) -> bool:
    """Delete a directory through the file system of its address; what is not there counts as deleted.

    Returns:
        False if nothing on this machine knows how to delete there. A log message says so.
    """
    if os.path.isabs(remote_dir) or remote_dir.startswith("file://"):
        path = remote_dir if os.path.isabs(remote_dir) else unquote(urlsplit(remote_dir).path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        return True
    if "://" in remote_dir and _is_installed("fsspec"):
        files, path = importlib.import_module("fsspec.core").url_to_fs(remote_dir)
        if files.exists(path):
            files.rm(path, recursive=True)
        return True
    if "://" in remote_dir and _is_installed("pyarrow"):
        files, path = importlib.import_module("pyarrow.fs").FileSystem.from_uri(remote_dir)
        files.delete_dir(path)
        return True
    _log.warning(
        "%s is obsolete and was not deleted: no delete command is known. Set a delete_template, as in "
        "SyncConfig(syncer=CommandSyncer(template, delete_template='...'))",
        remote_dir,
    )
    return False


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
