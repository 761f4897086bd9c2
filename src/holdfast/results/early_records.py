"""Looks at the records that a snapshot stands for, which opening an experiment does not read.

A resume reads them, and refuses if one is damaged: whoever offers one looks first. Owns up to which size that is worth
its time. Must never decode a record: that its checksum fits is what is asked.
"""

from __future__ import annotations

from collections import deque

from holdfast.errors import FencedError, JournalDamagedError
from holdfast.journal.reader import bytes_behind, read_journal
from holdfast.results.history import History

CHECKED_BYTES = 32 << 20
"""Up to this size all records are read: less than a second of work."""


def check_early_records(history: History) -> None:
    """Set ``history.early_damage`` if a record that the state did not need is damaged, unless the journal is large."""
    if history.damage is not None or bytes_behind(history.root) > CHECKED_BYTES:
        return
    try:
        deque(read_journal(history.root).parts(), maxlen=0)
    except JournalDamagedError as error:
        history.early_damage = error
    except FencedError:
        pass  # a new driver has just sealed the journal, and reads all of it
