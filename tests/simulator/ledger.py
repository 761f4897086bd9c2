"""Ground truth: what the fake workers and the fake store know for themselves, whatever the driver believes.

The checkers compare this with the journal's bytes and the final state. Nothing here comes from the driver, except the
promises it has made: a reply is the promise that a report is accepted, ``synced_seq`` the one that it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.controller.request_files import UserRequest


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        invariant: "I1" to "I10", or "liveness".
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Weights(NamedTuple):
    """A trial's training state: how many steps made it, and which report came last.

    Attributes:
        n: The trial.
        step: Steps behind it.
        link: Number of the report of the last step; 0 before the first. Each report's number is unique in a story.
    """

    n: int
    step: int
    link: int


@dataclass
class Sent:
    """A report as its worker knows it."""

    n: int
    attempt: int
    epoch: int
    ordinal: int
    step: int
    before: int  # the link that its training state came from
    acked: bool = False
    sealed: str = ""  # the stage that went along
    accepted_seq: float = 0  # the journal's last record when the reply left; infinite before it has
    ahead: bool = False  # its worker keeps it itself, and waits for no reply


@dataclass
class Life:
    """An attempt as its process knows it."""

    start: Weights  # whoever saved it
    began: bool = False  # it has loaded that
    reports: list[int] = field(default_factory=list)  # links
    end: str = ""  # a cause of ``core.events.Cause``, or "returned", "stopped", "halted", "driver gone"
    hung: bool = False
    waited_s: float = 0.0  # for space


class Ledger:
    """Everything that really happened in a story."""

    def __init__(self) -> None:
        self.reports: dict[int, Sent] = {}
        self.lives: dict[tuple[int, int, int], Life] = {}  # (epoch, n, attempt)
        self.void: set[int] = set()  # acknowledged, then lost with the power before any durability was promised
        self.resumes: dict[int, tuple[str, str, str]] = {}  # what each epoch was to do with old trials
        self.told_to_end: set[int] = set()  # epochs whose driver somebody interrupted
        self.failed_callbacks: set[tuple[int, int]] = set()  # (epoch, n)
        self.asked: dict[str, UserRequest] = {}  # what users asked for, by the id of the request
        self.acknowledged: set[str] = set()  # requests whose files a driver has removed
        self.lived_s = 0.0
        self.blamed: dict[tuple[int, int], int] = {}  # (n, checkpoint) -> how often the trainable failed to load it

    def begin(self, epoch: int, n: int, attempt: int, start: Weights) -> Life:
        """A process runs this attempt, from this training state."""
        life = self.lives[epoch, n, attempt] = Life(start)
        return life

    def send(self, epoch: int, attempt: int, weights: Weights, ordinal: int) -> Weights:
        """One more step was trained and is about to be reported; returns the new training state."""
        link = len(self.reports) + 1
        self.reports[link] = Sent(weights.n, attempt, epoch, ordinal, weights.step + 1, weights.link)
        life = self.lives[epoch, weights.n, attempt]
        life.reports.append(link)
        return Weights(weights.n, weights.step + 1, link)

    def power_cut(self, durable_seq: int) -> None:
        """Only reports up to ``durable_seq`` were ever promised to survive this."""
        for link, sent in self.reports.items():
            if sent.acked and sent.accepted_seq > durable_seq:
                self.void.add(link)
