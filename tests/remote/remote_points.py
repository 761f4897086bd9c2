"""The named places at which drivers and agents of experiments in stores die in these tests (``storage/crashpoint.py``).

Imported by the tests here, and read by the test that knows all places of the code.
"""

from __future__ import annotations

RUNNING_POINTS = [
    "O3.before:2",
    "O3.after:2",
    "D2.remote",
    "ship.before_put:3",
    "ship.after_put:3",
    "ship.before_note:4",
    "merge.before_put",
    "merge.before_delete",
]
"""Of a driver at work."""

OPENING_POINTS = ["restore_mirror.file", "restore_mirror.file:3", "restore_mirror.before_move", "fetch.before_rename"]
"""Of a driver that opens the experiment on an empty machine."""

CATCHING_UP_POINTS = ["restore_mirror.before_move:1", "restore_mirror.before_move:2"]
"""Of a driver whose mirror is behind the store: before it is moved away, and before the new one is moved in."""

AGENT_POINTS = ["store.before_create:4", "store.after_create:5", "store.file_sent:3", "store.part_sent:2"]
"""Of the storage agent, which is started again."""

ALL_POINTS = [*RUNNING_POINTS, *OPENING_POINTS, *CATCHING_UP_POINTS, *AGENT_POINTS]
