"""What every journal that the controller writes must do, as functions that take a factory of places.

Each check gets ``make``: a function that returns a ``JournalPlace``, where there is no journal yet. ``CHECKS`` is all
of them; give them to ``pytest.mark.parametrize``.

Owns the behaviour that ``controller.loop.JournalWriter`` promises. Must never know what is in a record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from holdfast.controller.loop import JournalWriter
from holdfast.errors import OwnershipError, StorageError
from holdfast.testing.expect import expect_error

DEADLINE_S = 60.0
"""How long a check waits before it fails; no check depends on it otherwise."""


class JournalPlace(Protocol):
    """Where one experiment's drivers open their journals, and what is found there. Written for each implementation."""

    def open(self) -> JournalWriter:
        """Open the journal as a new driver does, which takes over if the one before it still lives."""

    def leave(self, journal: JournalWriter) -> None:
        """Shut its driver down gracefully: everything that it has written is durable when this returns."""

    def wait(self) -> None:
        """Let a little time pass, in which background work may happen."""

    def records(self) -> Sequence[bytes]:
        """All records, as a reader finds them who comes after the death of every process."""

    def survivors(self) -> Sequence[bytes]:
        """All records that survive the worst that a durable record must survive here.

        A power cut for a journal on a disk, the loss of the machine for one in a store. Where that cannot be tried, as
        a power cut of the machine that runs the test, return ``records()``.
        """

    def close(self) -> None:
        """The check is over. Some drivers may not have left."""


MakePlace = Callable[[], JournalPlace]


@contextlib.contextmanager
def using(make: MakePlace) -> Iterator[JournalPlace]:
    """A place, closed at the end."""
    place = make()
    try:
        yield place
    finally:
        place.close()


def until(place: JournalPlace, reached: Callable[[], bool], what: str) -> None:
    """Let time pass until something is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline, f"{what} did not happen"
        place.wait()


def accepted(place: JournalPlace, journal: JournalWriter, payloads: Sequence[bytes]) -> int:
    """Append, and wait until a driver may reply; the number of the last record."""
    seq = journal.append(payloads)
    until(place, lambda: journal.accepted_seq >= seq or (journal.flush() and journal.accepted_seq >= seq), "acceptance")
    return seq


def make_durable(place: JournalPlace, journal: JournalWriter, seq: int) -> None:
    """Ask for it, as the loop does, and wait until record ``seq`` is durable in every sense."""
    journal.request_sync()
    until(place, lambda: journal.local_seq >= seq, "local durability")
    journal.request_durable(seq)
    until(place, lambda: min(journal.synced_seq, journal.durable_seq) >= seq, "durability")


def numbered(first: int, last: int) -> list[bytes]:
    """Distinct records."""
    return [b"record %d " % n + b"x" * (n % 50) for n in range(first, last + 1)]


def check_records_are_numbered_from_one_and_read_back(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        assert journal.written_seq == 0
        assert journal.append([b"one", b"two"]) == 2
        assert journal.append([b"three"]) == 3
        assert journal.written_seq == 3
        assert list(place.records()) == [b"one", b"two", b"three"]


def check_an_empty_append_changes_nothing(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        assert journal.append([]) == 0
        journal.append([b"one"])
        assert journal.append([]) == 1
        assert list(place.records()) == [b"one"]


def check_every_byte_is_read_back(make: MakePlace) -> None:
    payloads = [b"", bytes(range(256)), b"\n", b"\0" * 1000, bytes(range(256)) * 1500]
    with using(make) as place:
        journal = place.open()
        journal.append(payloads)
        assert list(place.records()) == payloads
        place.leave(journal)
        assert list(place.records()) == list(place.survivors()) == payloads


def check_the_next_driver_continues_the_numbers(make: MakePlace) -> None:
    with using(make) as place:
        for first in (1, 4, 7):
            journal = place.open()
            assert journal.written_seq == first - 1
            assert journal.append(numbered(first, first + 2)) == first + 2
            place.leave(journal)
        assert list(place.records()) == numbered(1, 9)


def check_what_was_accepted_survives_the_death_of_its_driver(make: MakePlace) -> None:
    """Nobody leaves: each driver but the last is dead when the next one opens."""
    with using(make) as place:
        for n in range(1, 4):
            accepted(place, place.open(), numbered(n, n))
        assert list(place.records()) == numbered(1, 3)
        assert place.open().written_seq == 3


def check_no_number_promises_more_than_it_may_or_takes_anything_back(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        last = (0, 0, 0, 0, 0)

        def look() -> bool:
            """Whether all is durable. Read in this order, because numbers grow in the background meanwhile."""
            nonlocal last
            durable, synced, local = journal.durable_seq, journal.synced_seq, journal.local_seq
            now = (durable, synced, local, journal.accepted_seq, journal.written_seq)
            assert durable <= synced <= local <= now[4], f"durable, synced, local, accepted, written: {now}"
            assert now[3] <= now[4], f"durable, synced, local, accepted, written: {now}"
            assert all(new >= old for new, old in zip(now, last, strict=True)), f"{now} after {last}"
            last = now
            return durable == 12

        for n in range(1, 13):
            look()
            journal.append(numbered(n, n))
        make_durable(place, journal, 12)
        until(place, look, "durability")


def check_records_become_durable_when_asked_for(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        for last in (2, 5):
            seq = journal.append(numbered(journal.written_seq + 1, last))
            make_durable(place, journal, seq)
            assert list(place.survivors())[:seq] == numbered(1, last)


def check_leaving_makes_everything_durable(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        journal.append(numbered(1, 20))
        place.leave(journal)
        assert list(place.survivors()) == numbered(1, 20)


def check_nothing_waits_while_nothing_is_wrong(make: MakePlace) -> None:
    with using(make) as place:
        journal = place.open()
        accepted(place, journal, numbered(1, 3))
        assert (journal.blocked, journal.fenced) == (None, False)
        assert journal.flush()
        assert isinstance(journal.left_behind(), StorageError)


def check_a_driver_that_was_taken_over_cannot_write(make: MakePlace) -> None:
    with using(make) as place:
        former = place.open()
        accepted(place, former, [b"one"])
        newer = place.open()
        with expect_error(OwnershipError):
            former.append([b"late"])
        with expect_error(OwnershipError):
            former.flush()
        assert former.fenced
        newer.append([b"two"])
        assert list(place.records()) == [b"one", b"two"]
        with expect_error(OwnershipError):
            former.append([b"later"])
        assert list(place.records()) == [b"one", b"two"]


CHECKS: list[Callable[[MakePlace], None]] = [
    check_records_are_numbered_from_one_and_read_back,
    check_an_empty_append_changes_nothing,
    check_every_byte_is_read_back,
    check_the_next_driver_continues_the_numbers,
    check_what_was_accepted_survives_the_death_of_its_driver,
    check_no_number_promises_more_than_it_may_or_takes_anything_back,
    check_records_become_durable_when_asked_for,
    check_leaving_makes_everything_durable,
    check_nothing_waits_while_nothing_is_wrong,
    check_a_driver_that_was_taken_over_cannot_write,
]
