"""Which experiment is meant by a name: a path as it is, or a name in the default results directory."""

from __future__ import annotations

import os

from holdfast.config.environment import default_storage_root
from holdfast.controller.remote_experiment import can_open
from holdfast.errors import ExperimentNotFoundError, InvalidInputError
from holdfast.storage.address import is_remote, join_address, parse


def locate(path: str) -> str:
    """The address of the experiment that the user means.

    What exists under the path as it was typed wins. Otherwise a path without a scheme that is not absolute is looked up
    in the default results directory, where experiments are that were given no ``storage_path``.

    Raises:
        ExperimentNotFoundError: A plain name is to be found in neither place.
    """
    if is_remote(path) or os.path.isabs(os.path.expanduser(path)) or can_open(path):
        return path
    root = default_storage_root()
    try:
        place = join_address(root, path) if is_remote(root) else os.path.join(root, path)
        if can_open(place):
            return place
    except InvalidInputError:  # a name such as ".." that cannot be below anything
        return path
    local = parse(path).path
    if os.path.exists(local) or "/" in path.rstrip("/"):
        return path  # whoever opens it tells better what is wrong
    raise ExperimentNotFoundError(
        f"There is no experiment at {local}: the path does not exist. There is none named {path!r} in {root} either. "
        "`holdfast list` lists the experiments in both directories."
    )
