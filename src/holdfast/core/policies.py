"""What the core asks others: stop rules and schedulers. They answer; they do not act.

A policy's memory must be a function of what it was told, in order (I5): after a crash it is rebuilt by being told the
same things again, or from a snapshot of its state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Union

import msgspec

from holdfast.core.events import AnyEvent
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State, Trial


class Verdict:
    """A scheduler's answer to a report."""

    CONTINUE = ""
    STOP = "stop"
    PAUSE = "pause"


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End a trial that waits."""

    n: int
    why: str


class Reconfigure(msgspec.Struct, frozen=True, tag="config"):
    """Let a trial that waits, or was told to pause, resume with another config; with ``donor``, as a copy."""

    n: int
    config: dict[Any, Any]
    tag: str = ""
    donor: tuple[int, int] | None = None  # the committed checkpoint that ``parent`` would start from
    parent: int = -1
    params: tuple[str, ...] = ()
    why: str = ""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """Give a trial other resources when it next starts."""

    n: int
    request: dict[str, float] | None
    why: str = ""


SchedulerRequest = Union[Stop, Reconfigure, Resize]


class Scheduler(Protocol):
    """Judges running trials, picks which waiting trial runs next, and requests for changes of others.

    What the core may rely on after a crash: a scheduler that was told the same events in the same order, and asked to
    judge the same reports between them, gives the same answers and has the same requests. The driver's memory is not
    part of that: it is empty while the past is told again.
    """

    def judge(
        self, state: State, memory: DriverMemory, trial: Trial, result: Callable[[], dict[str, Any]]
    ) -> tuple[str, str]:
        """A verdict on a report that is about to be accepted, and a few words why. Once per step of a trial."""
        ...

    def tell(self, state: State, memory: DriverMemory, event: AnyEvent) -> None:
        """``event`` has become a fact."""
        ...

    def requests(self, state: State) -> Iterable[SchedulerRequest]:
        """What should become of other trials. A request stands until an event has fulfilled it."""
        ...

    def wants_save(self, n: int) -> bool:
        """Must the trial save before it continues? Asked once per answer."""
        ...

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        """The number of the PENDING or PAUSED trial to start now, or None to wait. Asking must not change anything."""
        ...


class StopRule(Protocol):
    """Ends trials (``why_stop``) or the whole experiment (``why_stop_all``); "" means continue."""

    def why_stop(self, trial: Trial, result: Callable[[], dict[str, Any]]) -> str: ...

    def why_stop_all(self, lived_s: float) -> str: ...


NO_LIMIT = 2**63 - 1


class Rules(msgspec.Struct, frozen=True):
    """The user's settings, as far as decisions depend on them."""

    retention: Retention = Retention()
    max_failures: int = 0
    fail_fast: bool = False
    is_class: bool = False
    max_concurrent: int = 0  # 0: no limit but resources
    lookahead: int = 16  # trials created before there is room for them
    searcher_learns: bool = False  # when it is asked is part of history, and it may not know what to answer yet
    required_metrics: tuple[tuple[str, str], ...] = ()  # (metric, who needs it)
    free_load_failures: int = 0  # TUNE_RESTORE_RETRY_NUM
    count_preemption: bool = False
    unwind_grace_s: float = 600.0  # for a trial that was told to stop
    max_uncommitted: int = 4  # staged checkpoints of one trial before its next report waits
    max_backlog_bytes: int | None = None  # of all staged checkpoints; None: a share of the disk's free space
    ahead: int = 0  # reports of a trial that need not wait for an answer, because nothing can tell it to stop
    roots: tuple[str, ...] = ()  # where the experiment is now, in every spelling that a path may have
    spans_machines: bool = False  # a trial may ask for several bundles, which need not be on one machine
    num_samples: int = 1  # as the experiment was begun; see ``State.settings`` for later changes
    mode: str | None = None
    schedulers: tuple[str, ...] = ()  # names of the scheduler's classes
    restore: str = "Tuner.restore(path"  # how a call begins that continues with it; "": the script does
    trainable: str = "..."  # and how the trainable is written in it

    def relative(self, text: str) -> str:
        """``text`` with paths below the root made relative to it."""
        for root in self.roots:
            if root in text:
                # Not within a longer path or name: "/data/exp" is neither in "/mnt/data/exp/a" nor in "/data/exp2".
                own = re.compile(rf"(?<![\w./-]){re.escape(root)}(?:(/+)(?=[\w.])|/*(?![\w/-]|\.\w))")
                text = own.sub(lambda found: "" if found[1] else "./", text)
        return text


def ignore(state: State, event: AnyEvent) -> bool:
    """For those who need not be told anything."""
    return False


class Policies(msgspec.Struct):
    """Everything that decisions are asked of."""

    rules: Rules
    scheduler: Scheduler
    stop: StopRule
    result: Callable[[State, Trial, Mapping[str, Any], float, float, int], dict[str, Any]]
    """(state, trial, metrics, dt, at, worker) -> the full result with the auto-filled keys, before it is applied."""
    tell_searcher: Callable[[State, AnyEvent], bool] = ignore
    """A searcher that learns hears each event right after it has become a fact; whether it is news to it."""
