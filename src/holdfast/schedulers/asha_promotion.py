"""ASHA that pauses: trials wait at rungs, and the best of them continue when there is room.

Owns rungs where trials wait. Nothing is stopped before it is clear that it would wait for ever.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.core.state import Status
from holdfast.schedulers.async_hyperband import BracketDraw, check_arguments, milestones
from holdfast.schedulers.base import TrialScheduler, number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView


class ASHAPromotionScheduler(TrialScheduler):
    """Lets trials wait at rungs, and continues with those in the best ``1 / reduction_factor`` of their rung.

    Whenever there is room: the best trial that may be promoted continues, from the highest rung at which there is one;
    otherwise the next new trial starts. Compared with ``ASHAScheduler``, which stops trials: early luck does not count,
    because nobody passes a rung before enough others came there, and a trial that once looked bad may continue later.
    The price are checkpoints: a trial that has none begins again from the start.

    - A trial that is next in line itself when it comes to a rung continues without a break.
    - A trial whose time jumps over rungs counts at all of them, and waits at the highest.
    - A result without the metric, or with None, is not compared: the next one is. A trial whose metric is NaN or no
      number at a rung can never be promoted, so it is stopped.
    - When no new trials will come and nobody may be promoted, rungs are settled from the lowest up: if nobody has got
      beyond a rung its best trial continues, so that at least one is trained to the end; otherwise those who still wait
      there are stopped.
    - When the searcher waits for results before it proposes more, as under a ``ConcurrencyLimiter``, and nobody may be
      promoted: the best trial of the highest rung continues, and the worst of the lowest is stopped.

    Args:
        time_attr: What in a result says how far a trial is: any number that grows.
        metric: What to compare trials by; None: the experiment's.
        mode: "min" or "max"; None: the experiment's.
        max_t: Where trials are stopped, in units of ``time_attr``.
        grace_period: The first rung.
        reduction_factor: Of how many trials at a rung one continues; also the ratio of rungs.
        brackets: Bracket 1 has its first rung where bracket 0 has its second, and so on. A trial is put in one of them
            at random; those with more rungs are likelier. One without a rung stops nobody before ``max_t``: a
            warning says so.
        stop_last_trials: Whether trials end at ``max_t``, or may continue by themselves.

    Durability: all rungs are part of the experiment's snapshot. After a crash it decides as if there had been none.
    """

    _needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        check_arguments(mode, max_t, grace_period, reduction_factor, brackets)
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode
        self._max_t = max_t
        self._reduction_factor = reduction_factor
        self._stop_last_trials = stop_last_trials
        self.rungs = [
            [WaitingRung(m) for m in milestones(max_t, grace_period, reduction_factor, s) if m < max_t]
            for s in range(brackets)
        ]
        """Of each bracket, from the lowest up. At ``max_t`` nobody waits."""
        self._from_the_top = sorted((rung for b in self.rungs for rung in b), key=lambda rung: -rung.milestone)
        self._draw = BracketDraw([len(rungs) for rungs in self.rungs])
        self._levels: dict[int, int] = {}
        """Trial -> how many rungs it has come to."""
        self._released: dict[int, None] = {}
        """Waiting trials that may continue whatever their rank."""

    # --- rungs

    def _rungs_of(self, n: int) -> list[WaitingRung]:
        return self.rungs[self._draw.of(n, self)]

    def _last_rung(self, n: int) -> WaitingRung | None:
        """The highest rung that the trial has come to."""
        level = self._levels.get(n, 0)
        return self._rungs_of(n)[level - 1] if level else None

    def _is_open(self, rung: WaitingRung) -> bool:
        """May trials be promoted from this rung?"""
        return True

    def _came_to(self, rung: WaitingRung, n: int) -> None:
        """The trial was entered at this rung. For those who derive from it."""

    def _quota(self, rung: WaitingRung) -> int:
        return int(len(rung.ordered) / self._reduction_factor)

    def _promotable(self, view: ExperimentView, rung: WaitingRung) -> Iterator[TrialView]:
        """Waiting trials in the best part of the rung, best first."""
        if not self._is_open(rung):
            return
        quota = self._quota(rung)
        for entry in rung.waiting:
            if rung.rank(entry) >= quota:
                return
            trial = view.trials[entry[1]]
            if trial.status == Status.PAUSED:  # it is PENDING between its choice and its start
                yield trial

    # --- what it is told

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        """Whoever continues from a rung is promoted, for whatever reason."""
        if not trial.record.judged:
            self._begin_again(trial.n)
            return
        rung = self._last_rung(trial.n)
        if rung is not None:
            rung.leave(trial.n)
        self._released.pop(trial.n, None)

    def _begin_again(self, n: int) -> None:
        """The user lets a trial begin from nothing: what it reported before is not what it will be compared by."""
        if self._levels.pop(n, 0):
            for rung in self._rungs_of(n):
                rung.forget(n)
        self._end(n)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        time = number(result.get(self._time_attr))
        if time is None or self._metric not in result:
            self.warn_without_time(self._time_attr, result)
            return self.CONTINUE
        if time >= self._max_t:
            view.reason = "reached max_t"
            return self.STOP if self._stop_last_trials else self.CONTINUE
        score = self.score_of(result)
        rung = None if result[self._metric] is None else self._reach(trial.n, time, score)
        if rung is None:
            return self.CONTINUE
        view.reason = f"at rung {rung.milestone:g}"
        if score is None:
            view.reason += f" without a number as {self._metric}"
            return self.STOP
        return self.CONTINUE if self._is_next(view, rung, trial.n) else self.PAUSE

    def _reach(self, n: int, time: float, score: float | None) -> WaitingRung | None:
        """Enter the trial at the rungs that it has come to. The highest of them; None if there is no new one."""
        rungs, level = self._rungs_of(n), self._levels.get(n, 0)
        reached = level
        while reached < len(rungs) and rungs[reached].milestone <= time:
            rungs[reached].enter(n, -math.inf if score is None else score)
            self._came_to(rungs[reached], n)
            reached += 1
        if reached == level:
            return None
        for passed in rungs[max(0, level - 1) : reached - 1]:
            passed.beyond.add(n)
        self._levels[n] = reached
        return rungs[reached - 1]

    def _is_next(self, view: ExperimentView, rung: WaitingRung, n: int) -> bool:
        """Would the trial be chosen at once if it left its place now?"""
        entry = (rung.keys[n], n)
        if not self._is_open(rung) or rung.rank(entry) >= self._quota(rung):
            return False
        for higher in self._from_the_top:
            if higher is rung:
                break
            if any(True for _ in self._promotable(view, higher)):
                return False
        rival = next(self._promotable(view, rung), None)
        return rival is None or entry < (rung.keys[rival.n], rival.n)

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        rung = self._last_rung(trial.n)
        if rung is not None:
            rung.wait(trial.n)

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        """What it last reported counts for others, also if nobody was asked about it."""
        time, score = number(result.get(self._time_attr)), self.score_of(result)
        if time is not None and score is not None:
            self._reach(trial.n, time, score)
            rung = self._last_rung(trial.n)
            if rung is not None:
                rung.beyond.add(trial.n)
        self._end(trial.n)

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        self._end(trial.n)

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        self._end(trial.n)

    def _end(self, n: int) -> None:
        self._released.pop(n, None)
        rung = self._last_rung(n)
        if rung is not None:
            rung.leave(n)

    def on_standstill(self, view: ExperimentView) -> None:
        if not view.search_ended:
            self._make_room(view)
            return
        for rungs in self.rungs:
            for rung in rungs:
                if rung.waiting and not rung.beyond and self._is_open(rung):
                    self._released[rung.waiting[0][1]] = None
                    break  # it will be among those who are compared at the rungs above
                self._stop_all(view, rung)

    def _make_room(self, view: ExperimentView) -> None:
        """The searcher proposes nothing while so many trials are unfinished: the best continues, the last one ends."""
        best = next((rung for rung in self._from_the_top if rung.waiting and self._is_open(rung)), None)
        if best is None:
            for rung in self._from_the_top:
                self._stop_all(view, rung)
            return
        n = best.waiting[0][1]
        self._released[n] = None
        lowest = next(rung for rung in reversed(self._from_the_top) if rung.waiting)
        if lowest.waiting[-1][1] != n:
            view.stop_trial(view.trials[lowest.waiting[-1][1]], "it made room for a new trial")

    @staticmethod
    def _stop_all(view: ExperimentView, rung: WaitingRung) -> None:
        for _, n in rung.waiting:
            view.stop_trial(view.trials[n], "it can never be promoted any more")

    # --- what it is asked

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        pending = view.pending
        if pending and pending[0].attempt and view.fits(pending[0]):
            return pending[0]  # promoted before, and its checkpoint has been verified meanwhile
        released = (view.trials[n] for n in self._released)
        chosen = view.first_that_fits(trial for trial in released if trial.status == Status.PAUSED)
        for rung in self._from_the_top:
            if chosen is not None:
                break
            chosen = view.first_that_fits(self._promotable(view, rung))
        return chosen or view.first_that_fits(pending)

    def debug_string(self) -> str:
        lines = [f"Using {type(self).__name__}."]
        for rungs in self.rungs:
            counts = [f"Iter {rung.milestone:.3f}: {len(rung.waiting)} of {len(rung.keys)} wait" for rung in rungs]
            lines.append(f"Bracket: {' | '.join(reversed(counts))}")
        return "\n".join(lines)

    # --- its memory

    def get_state(self) -> dict[str, Any]:
        return {
            "rungs": [[rung.get_state() for rung in rungs] for rungs in self.rungs],
            "levels": list(self._levels.items()),
            "released": list(self._released),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        for rungs, stored in zip(self.rungs, state["rungs"], strict=True):
            for rung, memory in zip(rungs, stored, strict=True):
                rung.set_state(memory)
        self._levels = dict(state["levels"])
        self._released = dict.fromkeys(state["released"])


class WaitingRung:
    """Who has come to a rung, in which order of merit, and who waits there."""

    def __init__(self, milestone: float) -> None:
        self.milestone = milestone
        self.keys: dict[int, float] = {}
        """Trial -> its score turned round, so that the best comes first."""
        self.ordered: list[tuple[float, int]] = []
        """(key, trial), best first; of equals the older trial."""
        self.waiting: list[tuple[float, int]] = []
        """Those of them that are paused here."""
        self.beyond: set[int] = set()
        """Those of them that came to the next rung, or to their end."""

    def enter(self, n: int, score: float) -> None:
        self.keys[n] = -score
        insort(self.ordered, (-score, n))

    def rank(self, entry: tuple[float, int]) -> int:
        """How many are better."""
        return bisect_left(self.ordered, entry)

    def wait(self, n: int) -> None:
        insort(self.waiting, (self.keys[n], n))

    def leave(self, n: int) -> None:
        _remove(self.waiting, (self.keys[n], n))

    def forget(self, n: int) -> None:
        if n in self.keys:
            self.leave(n)
            self.beyond.discard(n)
            _remove(self.ordered, (self.keys.pop(n), n))

    def get_state(self) -> list[Any]:
        return [list(self.keys.items()), [n for _, n in self.waiting], sorted(self.beyond)]

    def set_state(self, state: list[Any]) -> None:
        keys, waiting, beyond = state
        self.keys = dict(keys)
        self.beyond = set(beyond)
        self.ordered = sorted((key, n) for n, key in self.keys.items())
        self.waiting = sorted((self.keys[n], n) for n in waiting)


def _remove(ordered: list[tuple[float, int]], entry: tuple[float, int]) -> None:
    place = bisect_left(ordered, entry)
    if ordered[place : place + 1] == [entry]:
        del ordered[place]
