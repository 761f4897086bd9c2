"""The trials that population based training compares: who they are, who is good, and whose turn it is."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


class Member(msgspec.Struct, array_like=True):
    """What is remembered of one unfinished trial."""

    n: int
    turn: int
    """When it last came to a decision; of trials of the same age the one that has waited longest continues first."""

    score: float | None = None
    time: float = 0.0
    """``time_attr`` at its last decision, or in the checkpoint that it continues from as a copy."""

    perturbed_at: float = 0.0
    copied: bool = False
    """It will start from another trial's checkpoint."""

    arrived: bool = False
    """It waits for all others to reach the moment at which they are compared."""


msgspec.json.Decoder(Member)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


class Population:
    """The unfinished trials: ranked by score, and lined up by age."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._members = {member.n: member for member in members}
        self._ranking = sorted((m.score, m.n) for m in self if m.score is not None)
        self._line = sorted((m.time, m.turn, m.n) for m in self if not m.arrived)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, n: int) -> Member | None:
        return self._members.get(n)

    def add(self, member: Member) -> None:
        self.drop(member.n)
        self._members[member.n] = member
        self._put(member)

    def drop(self, n: int) -> None:
        member = self._members.pop(n, None)
        if member is not None:
            self._take_out(member)

    def change(self, member: Member, **values: Any) -> None:
        """Set fields of a member."""
        self._take_out(member)
        for name, value in values.items():
            setattr(member, name, value)
        self._put(member)

    def _take_out(self, member: Member) -> None:
        if member.score is not None:
            del self._ranking[bisect_left(self._ranking, (member.score, member.n))]
        if not member.arrived:
            del self._line[bisect_left(self._line, (member.time, member.turn, member.n))]

    def _put(self, member: Member) -> None:
        if member.score is not None:
            insort(self._ranking, (member.score, member.n))
        if not member.arrived:
            insort(self._line, (member.time, member.turn, member.n))

    def by_age(self) -> Iterator[int]:
        """Numbers of those that need not wait for others, the youngest first."""
        return (n for _, _, n in self._line)

    @property
    def all_arrived(self) -> bool:
        return not self._line

    def lower(self, fraction: float) -> list[int]:
        """Numbers of the worst, worst first."""
        return [n for _, n in self._ranking[: quantile_size(len(self._ranking), fraction)]]

    def upper(self, fraction: float) -> list[int]:
        """Numbers of the best, best last."""
        size = quantile_size(len(self._ranking), fraction)
        return [n for _, n in self._ranking[len(self._ranking) - size :]]

    def standing(self, member: Member, fraction: float) -> int:
        """-1 if the member is among the worst, 1 if it is among the best, else 0."""
        if member.score is None:
            return 0
        size, count = quantile_size(len(self._ranking), fraction), len(self._ranking)
        place = bisect_left(self._ranking, (member.score, member.n))
        return -1 if place < size else int(place >= count - size)


def quantile_size(count: int, fraction: float) -> int:
    """How many of ``count`` ranked trials are the best, and how many the worst.

    Example:
        >>> [quantile_size(4, 0.25), quantile_size(5, 0.25), quantile_size(3, 0.5), quantile_size(1, 0.5)]
        [1, 2, 1, 0]
    """
    if count < 2:
        return 0
    size = math.ceil(count * fraction)
    return count // 2 if size > count / 2 else size
