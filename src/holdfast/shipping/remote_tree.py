"""The store's journal, assembled in a directory next to the mirror, and its comparison with the mirror's.

Owns that directory. Must never change the mirror, and must never know of the store.
"""

from __future__ import annotations

import os
import shutil

from holdfast.errors import NewerFormatError
from holdfast.journal.reader import START, Position, read_link
from holdfast.journal.segments import BrokenChain, SegmentLink, read_chain, relative_path
from holdfast.shipping import parts
from holdfast.shipping.parts import Part
from holdfast.shipping.progress_file import FILE as NOTE
from holdfast.shipping.progress_file import Extent, Shipped, extent_of
from holdfast.storage.local import REAL_DISK, fsync_dir

_CHUNK = 1024 * 1024


class RemoteTree:
    """The files below ``.holdfast/journal`` and ``.holdfast/epochs`` that the store's plain files and parts make.

    Parts are applied to copies. Whether the mirror is behind the store, ahead of it or of another history is known only
    when the last part has been read, and any of them may be damaged or missing. A mirror that had been written to by
    then would be a mixture of two histories, and records that only it has would be lost instead of set aside.

    Attributes:
        path: The directory. Files that no part has touched come from the mirror, in `complete`.
    """

    def __init__(self, path: str, root: str, known: Shipped) -> None:
        """Begin with what the mirror holds.

        Args:
            path: A new directory.
            root: The mirror.
            known: What of the mirror is known to be in the store.
        """
        self.path = path
        self._root = root
        self._known = known
        self._touched: set[str] = set()

    def add_plain(self, file: str) -> str:
        """Return where a plain file of the store belongs."""
        self._touched.add(file)
        return os.path.join(self.path, file)

    def apply(self, part: Part, key: str) -> None:
        """Add the bytes of a part.

        Raises:
            JournalDamagedError: They do not fit to what is there.
        """
        for piece, data in part.contents():
            fd = os.open(self._own(piece.file), os.O_RDWR | os.O_CREAT, 0o644)
            with open(fd, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if piece.offset > size:
                    raise parts.damaged(key, f"continues at byte {piece.offset} of {piece.file}, which has {size}")
                file.seek(piece.offset)
                present = file.read(len(data))
                if present != data[: len(present)]:
                    raise parts.damaged(key, f"and the parts before it say different things of {piece.file}")
                file.write(data[len(present) :])

    def _own(self, file: str) -> str:
        """Return the path of a file that is about to change, having copied what is known of it."""
        path = os.path.join(self.path, file)
        if file not in self._touched:
            self._touched.add(file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            known = self._known.files.get(file)
            if known is not None:  # not a link, through which `apply` would write into the mirror
                _copy_start(os.path.join(self._root, file), path, known.size)
        return path

    def complete(self) -> None:
        """Copy what comes from the mirror."""
        for file in self._known.files:
            self._own(file)

    def shipped(self, newest: Part | None) -> Shipped:
        """Return what of a mirror that holds these files is in the store."""
        files = dict(self._known.files)
        for file in sorted(self._touched):
            files[file] = extent_of(os.path.join(self.path, file)) or Extent(0, "")
        if newest is None:
            return Shipped(seq=end_of(self.path).next_seq - 1, files=files)
        return Shipped(newest.header.number, newest.digest, newest.header.seq, files)

    def releases(self) -> list[tuple[str, bytes]]:
        """Return the files that say that drivers have let go, and what is in them."""
        files = [file for file in self._touched if file.endswith(".released")]
        return [(file, REAL_DISK.read(os.path.join(self.path, file))) for file in files]

    def holds(self, file: str, length: int) -> bool:
        """Tell whether the first ``length`` bytes of one of the mirror's files are in the store."""
        if file in self._touched:
            mine = os.path.join(self._root, file)
            return _is_start(mine, os.path.join(self.path, file), length)
        known = self._known.files.get(file)
        return known is not None and length <= known.size

    def is_held(self) -> bool:
        """Tell whether the mirror's files begin with everything that the store has."""
        for file in self._touched:
            path = os.path.join(self.path, file)
            size = os.path.getsize(path)
            if size and not _is_start(path, os.path.join(self._root, file), size):
                return False
        return True


def compare(root: str, tree: RemoteTree, seq: int) -> tuple[bool, bool]:
    """Compare a mirror's journal with the store's.

    Args:
        root: The mirror.
        tree: The store's.
        seq: Last record of the store's.

    Returns:
        Whether the mirror has records that the store does not have, and the other way round.
    """
    lacking = not tree.is_held()
    try:
        links = read_chain(root, REAL_DISK).links
    except (BrokenChain, NewerFormatError):
        return True, lacking  # whoever opens the mirror says what is wrong with it
    extra = False
    last_seq = 0
    for index, link in enumerate(links):
        length, next_seq = _counted(root, links[index:])
        last_seq = next_seq - 1
        if length > link.body and not tree.holds(relative_path(link.name.file), length):
            extra = True
    return extra, lacking or last_seq < seq


def end_of(root: str) -> Position:
    """Return the place behind the last record of a journal; the start if it is damaged: whoever opens it says so."""
    try:
        links = read_chain(root, REAL_DISK).links
    except BrokenChain:
        return START
    if not links:
        return START
    length, next_seq = _counted(root, links[-1:])
    return Position(links[-1].name.file, length, next_seq)


def _counted(root: str, links: list[SegmentLink]) -> tuple[int, int]:
    """Return how many bytes of a segment count, and the number of the record behind them."""
    link = links[0]
    if link.seal is not None and link.end_seq is not None:
        return link.seal.length, link.end_seq
    found = read_link(root, REAL_DISK, links, link.body, link.name.first_seq).found
    return link.body + found.offset, found.next_seq


def _copy_start(source: str, target: str, size: int) -> None:
    with open(source, "rb") as old, open(target, "wb") as new:
        while size > 0 and (chunk := old.read(min(size, _CHUNK))):
            new.write(chunk)
            size -= len(chunk)


def _is_start(path: str, longer: str, size: int) -> bool:
    """Tell whether two files have the same first ``size`` bytes, and as many."""
    try:
        with open(path, "rb") as one, open(longer, "rb") as other:
            while size > 0:
                chunk = one.read(min(size, _CHUNK))
                if not chunk or other.read(len(chunk)) != chunk:
                    return False
                size -= len(chunk)
    except FileNotFoundError:
        return False
    return True


def keep_own_files(mine: str, new: str) -> None:
    """Keep what only the mirror has: logs, snapshots.

    For a mirror that is behind the store. Any other has records that would be lost with the old directory.
    """
    for folder, _, names in os.walk(mine):
        inside = os.path.relpath(folder, mine)
        # Of these the new directory has all that counts. The mirror may have the same records in segments of other
        # names, which would break the chain of the store's. And an epoch file that the store does not have is of a
        # driver whose claim never arrived there: the next claim would ship it, as if that driver had been at work.
        if inside.split(os.sep)[0] in ("journal", "epochs"):
            continue
        for name in names:
            target = os.path.join(new, inside, name)
            if not os.path.lexists(target) and (inside, name) != (".", os.path.basename(NOTE)):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                # A link first: logs may need more space than is left. Nobody writes through the other name, because
                # the old directory is removed as soon as the new one has its place. Not every file system has links.
                try:
                    os.link(os.path.join(folder, name), target)
                except OSError:
                    shutil.copy2(os.path.join(folder, name), target)


def sync_tree(path: str) -> None:
    """Make everything below a directory survive a power cut."""
    for folder, _, names in os.walk(path):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_dir(folder)
