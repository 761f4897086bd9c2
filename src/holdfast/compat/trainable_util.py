"""``TrainableUtil``: what older programs use to find a checkpoint's directory."""

from __future__ import annotations

import os

from holdfast.checkpoints.names import MANIFEST, index_of
from holdfast.errors import ObjectMissingError
from holdfast.trainable import class_checkpoint


class TrainableUtil:
    """Helpers of class trainables under their older name."""

    @staticmethod
    def find_checkpoint_dir(checkpoint_path: str | os.PathLike[str]) -> str:
        """The checkpoint that a path is or lies in; the path itself need not exist, as TensorFlow's prefixes do not.

        Raises:
            FileNotFoundError: There is none.
        """
        path = os.path.abspath(os.fspath(checkpoint_path))
        place, below = path, None
        while place != below:
            if os.path.isdir(place) and _is_checkpoint(place):
                return place
            place, below = os.path.dirname(place), place
        raise ObjectMissingError(
            f"There is no checkpoint at {path}: neither this nor a parent directory is a saved checkpoint."
        )


def _is_checkpoint(directory: str) -> bool:
    named = index_of(os.path.basename(directory)) is not None
    return named or os.path.exists(os.path.join(directory, MANIFEST)) or class_checkpoint.is_checkpoint(directory)
