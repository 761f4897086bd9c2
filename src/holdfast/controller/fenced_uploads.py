"""Files that a driver overwrites repeatedly in a store, unless another driver has taken over.

Checking the fence says nothing about the moment at which a request arrives: the driver may be suspended in between, or
the network may delay the request until a successor has written the same object. So each upload names the version that
it replaces, and that version was read before the check: either the check finds the successor, or the store refuses the
late upload. The other order would let a late upload replace the successor's file.

Owns the versions. Must never know what is in the files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from holdfast.errors import StorageError
from holdfast.storage.store import ABSENT, Replacing, Sending, Store

ROUNDS = 4
"""A driver's first upload of a file that is there already costs one, because it does not know the version. An answer
that is lost costs another, because then the version is that of its own upload. So three are enough, and one is spare.
Whoever needs more has met a writer that does not claim the experiment, such as a tool of the user's: without a limit
the two would replace each other's files for ever, and `fit()` would not return."""

REMEMBERED = 16_384
"""Versions in memory; others are found out again."""


class FencedUploads:
    """Replaces objects that belong to the experiment's driver.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versions: OrderedDict[str, str] = OrderedDict()

    def send(self, files: Sequence[Sending], *, is_void: Callable[[], bool]) -> bool:
        """Upload files.

        Args:
            files: Which ones.
            is_void: Asks the store whether somebody else has taken over.

        Returns:
            False if somebody else has taken over. Nothing that they have written is changed.

        Raises:
            StorageError: Some could not be uploaded.
        """
        left, rounds = files, 0
        while left:
            if rounds == ROUNDS:
                raise StorageError(f"{self._store.url}/{left[0].key} is written by somebody else, again and again.")
            if is_void():
                return False
            left = self._replace(left)
            rounds += 1
        return True

    def _replace(self, files: Sequence[Sending]) -> list[Sending]:
        """Return those that were not of the expected version; now it is known which one they have."""
        expected = [Replacing(file.path, file.key, self._versions.get(file.key, ABSENT)) for file in files]
        refused = []
        for file, replaced in zip(files, self._store.replace(expected), strict=True):
            self._remember(file.key, replaced.version)
            if not replaced.done:
                refused.append(file)
        return refused

    def _remember(self, key: str, version: str) -> None:
        self._versions[key] = version
        self._versions.move_to_end(key)
        if len(self._versions) > REMEMBERED:
            self._versions.popitem(last=False)
