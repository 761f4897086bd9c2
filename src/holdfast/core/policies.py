"""What the core asks others: stop rules and schedulers. They answer; they do not act.

A policy's memory must be a function of what it was told, in order (I5): after a crash it is rebuilt by being told the
same things again, or from a snapshot of its state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial


class Verdict:
    """A scheduler's answer to a report."""

    CONTINUE = ""
    STOP = "stop"
    PAUSE = "pause"


class Scheduler(Protocol):
    """Judges running trials and picks which waiting trial runs next."""

    def judge(self, state: State, trial: Trial, result: Mapping[str, Any]) -> tuple[str, str]:
        """A verdict on the report just accepted, and a few words why."""
        ...

    def choose(self, state: State, fits: Callable[[int], bool]) -> int | None:
        """The number of the PENDING or PAUSED trial to start now, or None to wait."""
        ...


class StopRule(Protocol):
    """Ends trials (``why_stop``) or the whole experiment (``why_stop_all``); "" means go on."""

    def why_stop(self, trial: Trial, result: Callable[[], dict[str, Any]]) -> str: ...

    def why_stop_all(self, lived_s: float) -> str: ...


class Rules(msgspec.Struct, frozen=True):
    """The user's settings, as far as decisions depend on them."""

    retention: Retention = Retention()
    max_failures: int = 0
    fail_fast: bool = False
    is_class: bool = False
    max_concurrent: int = 0  # 0: no limit but resources
    lookahead: int = 16  # trials created before there is room for them
    required_metrics: tuple[tuple[str, str], ...] = ()  # (metric, who needs it)
    free_load_failures: int = 0  # TUNE_RESTORE_RETRY_NUM
    count_preemption: bool = False
    unwind_grace_s: float = 600.0  # for a trial that was told to stop
    max_uncommitted: int = 4  # staged checkpoints of one trial before its next report waits
    roots: tuple[str, ...] = ()  # where the experiment is now, in every spelling that a path may have

    def relative(self, text: str) -> str:
        """``text`` with paths below the root made relative to it."""
        for root in self.roots:
            if root in text:
                # Not within a longer path or name: "/data/exp" is neither in "/mnt/data/exp/a" nor in "/data/exp2".
                own = re.compile(rf"(?<![\w./-]){re.escape(root)}(?:(/+)(?=[\w.])|/*(?![\w/-]|\.\w))")
                text = own.sub(lambda found: "" if found[1] else "./", text)
        return text


class Policies(msgspec.Struct):
    """Everything that decisions are asked of."""

    rules: Rules
    scheduler: Scheduler
    stop: StopRule
    result: Callable[[State, Trial, Mapping[str, Any], float, float, int], dict[str, Any]]
    """(state, trial, metrics, dt, at, worker) -> the full result with the auto-filled keys, before it is applied."""
