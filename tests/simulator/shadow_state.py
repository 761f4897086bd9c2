"""A second bookkeeping of trials and their checkpoints, simpler than the core's and sharing no code with it.

Owns what a checker must know about one trial, and a second opinion on which checkpoints are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.core.retention import Retention


class TrainingProgress(NamedTuple):
    """Where training stands: the steps behind it, the report of the last one, and the number it goes by."""

    step: int = 0
    link: int = 0
    iteration: int = 0


@dataclass
class ShadowRow:
    link: int
    metrics: dict[str, Any]
    told: bool  # the stop rule was asked about it


@dataclass
class Kept:
    """A checkpoint, as far as the journal goes."""

    index: int
    sealed: str
    rows: int
    metrics: dict[str, Any]
    time_total: float
    attempt: int
    training: TrainingProgress
    stored: str = "staged"  # then "committed", "bad", "dropped"
    digest: str = ""


@dataclass
class Origin:
    """The checkpoint of another trial that one was told to continue from."""

    donor: int
    index: int
    rows: int  # of the copy, when it was told
    attempt: int  # of the copy; its checkpoints of later attempts are its own again


@dataclass
class Account:
    """One trial's story so far."""

    n: int
    cpus: float = 1.0
    status: str = "PENDING"
    attempt: int = 0
    epoch: int = 0  # of the driver that started it
    ordinal: int = 0
    rows: list[ShadowRow] = field(default_factory=list)
    time_total: float = 0.0
    kept: dict[int, Kept] = field(default_factory=dict)
    next_index: int = 0
    floor: int = 0
    failures: int = 0
    verdict: str = ""
    why: str = ""
    source: tuple[int, int] | None = None
    training: TrainingProgress = field(default_factory=TrainingProgress)
    shown: dict[str, Any] | None = None  # the last row, or what the attempt that has not reported yet began with
    judged: int = 0  # rows that the scheduler knows, also if an attempt repeats them
    origin: Origin | None = None
    cause: str = ""  # of the error it ended with
    given_up: set[int] = field(default_factory=set)  # checkpoints that were lost before they were committed
    user_stop: bool = False  # a user wants it to end
    told_before: int = 0  # rows of a life that the user ended, which stop rules forget when the next one starts

    def usable(self) -> list[Kept]:
        """Checkpoints that a new attempt could start from, oldest first."""
        return [k for k in self.kept.values() if k.stored == "committed" and k.index >= self.floor]

    def own(self) -> list[Kept]:
        """Those of them that it has made since it was last told to continue as a copy."""
        since = 0 if self.origin is None else self.origin.attempt
        return [k for k in self.usable() if k.attempt > since]

    @property
    def depends(self) -> tuple[int, int] | None:
        """The checkpoint of another trial that it would continue from, and that must stay for it."""
        if self.origin is None or self.status == "TERMINATED" or self.own():
            return None
        return self.origin.donor, self.origin.index


def start_of(trials: Sequence[Account], trial: Account) -> tuple[tuple[int, int], Kept, int] | None:
    """Where a new attempt must begin: (trial, checkpoint), what is in it, and how many rows survive."""
    origin, usable = trial.origin, trial.usable()
    if origin is not None and not trial.own():
        kept = trials[origin.donor].kept[origin.index]
        if kept.stored == "committed":
            return (origin.donor, origin.index), kept, origin.rows
    return ((trial.n, usable[-1].index), usable[-1], usable[-1].rows) if usable else None


def why_needed(rule: Retention, trials: Sequence[Account], trial: Account, kept: Kept) -> str:
    """Why a checkpoint must not be dropped; "" if nothing needs it (I3).

    Args:
        rule: What the user asked for.
        trials: All of them, for the limit on the whole experiment.
        trial: Whose checkpoint it is.
        kept: The checkpoint.
    """
    copies = [other.n for other in trials if other.depends == (trial.n, kept.index)]
    if copies:
        return f"what trials {copies} go on from"
    if kept.index < trial.floor:
        return ""
    usable = trial.usable()
    ended = trial.status == "TERMINATED" and rule.num_to_keep_overall is not None
    if usable[-1] is kept and not ended:
        return "the latest"
    newer = [other for other in usable if other.index > kept.index]
    if trial.status == "RUNNING" and trial.source == (trial.n, kept.index) and not newer:
        return "what the running attempt started from"
    mine = goodness(rule, kept)
    better = sum((goodness(rule, other), other.index) > (mine, kept.index) for other in usable)
    among_best = rule.num_to_keep is None or better < rule.num_to_keep
    if rule.num_to_keep_overall is None:
        return "one of the best" if among_best else ""
    others = [other for each in trials for other in each.usable() if other is not kept]
    as_good = sum(goodness(rule, other) >= mine for other in others)
    return "one of the best of all" if among_best and as_good < rule.num_to_keep_overall else ""


def is_obsolete(rule: Retention, trials: Sequence[Account], trial: Account, kept: Kept) -> bool:
    """Must a checkpoint have been dropped? Of those that are as good as each other, any may stay."""
    usable, limit, overall = trial.usable(), rule.num_to_keep, rule.num_to_keep_overall
    latest = usable[-1] is kept and (trial.status != "TERMINATED" or overall is None)
    if latest or any(other.depends == (trial.n, kept.index) for other in trials):
        return False
    mine = goodness(rule, kept)
    better = sum((goodness(rule, other), other.index) > (mine, kept.index) for other in usable)
    others = [other for each in trials for other in each.usable()]
    better_overall = sum(goodness(rule, other) > mine for other in others)
    return (limit is not None and better >= limit) or (overall is not None and better_overall >= overall)


def goodness(rule: Retention, kept: Kept) -> float:
    """Larger is better; a score that is missing or no number is the worst."""
    order, name = rule.score_order, rule.score_attribute
    if name is None:
        return float(kept.index)
    if name.startswith("min-"):
        order, name = "min", name[4:]
    value = kept.training.iteration if name == "training_iteration" else kept.metrics.get(name)
    if value is None or math.isnan(value):
        return -math.inf
    return float(value) if order == "max" else -float(value)
