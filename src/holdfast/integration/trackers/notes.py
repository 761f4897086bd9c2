"""Notes beside the files that a tracker's library writes on this machine: how much of each run is in them.

For trackers that cannot be asked what they have. A run is written in *parts* (W&B's offline directories, Comet's zip
files). A note names a part before rows are written to it and says how many rows there are after it is complete; a part
that a killed process left half written is removed and written again. Owns the notes; must never remove anything else
than parts that a note names.
"""

from __future__ import annotations

import os
import shutil

import msgspec

from holdfast.storage.local import write_atomic

FOLDER = "holdfast"


class Note(msgspec.Struct):
    """What is known of one run."""

    rows: int = 0
    step: int = -1
    status: str = ""
    parts: list[str] = []
    writing: str = ""
    """The part that is being written."""
    stale: list[str] = []
    """Parts that a newer one has replaced; to be removed."""


_decode_note = msgspec.json.Decoder(Note).decode


class Notes:
    """The notes in one directory of parts."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)

    def read(self, run_id: str) -> Note:
        """The note of a run; an empty one if there is none, or it cannot be read."""
        try:
            with open(self._path(run_id), "rb") as file:
                return _decode_note(file.read())
        except (OSError, msgspec.DecodeError, ValueError):
            return Note()

    def write(self, run_id: str, note: Note) -> None:
        """Replace a note, atomically."""
        path = self._path(run_id)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, msgspec.json.encode(note))

    def clean(self, run_id: str) -> Note:
        """The note of a run, without parts that were never completed or that were replaced."""
        note = self.read(run_id)
        if note.writing or note.stale:
            for part in (*note.stale, note.writing):
                self._remove(part)
            note.writing, note.stale = "", []
            self.write(run_id, note)
        return note

    def drop(self, run_id: str) -> None:
        """Remove all parts of a run, and its note."""
        note = self.read(run_id)
        for part in (*note.parts, *note.stale, note.writing):
            self._remove(part)
        if os.path.exists(self._path(run_id)):
            os.unlink(self._path(run_id))

    def _path(self, run_id: str) -> str:
        return os.path.join(self.directory, FOLDER, f"{run_id}.json")

    def _remove(self, part: str) -> None:
        if not part or os.path.basename(part) != part or part in (".", ".."):
            return
        path = os.path.join(self.directory, part)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)
