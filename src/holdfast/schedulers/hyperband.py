"""HyperBand: trials are put into brackets, and each bracket is cut down to its best at a few milestones.

Owns who is in which bracket and who waits there for whom. Must never make a trial wait for one that cannot come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.retention import lookup
from holdfast.core.state import Status
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler, check_numbers, number

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

NOWHERE = -1
MAX_SHARES = 8
MAX_AHEAD = 1024
"""Most trials that are created before there is room for them, so that a band can run in its best order."""


class Bracket(msgspec.Struct, array_like=True):
    """Trials that are compared with each other at the same milestones."""

    milestone: float
    halvings: int  # that are still to come
    capacity: int
    work: float  # of all trials, if none ends early
    size: int = 0  # trials that were let in; after a halving, how many it was to keep. Those that failed count
    closed: bool = False  # nobody else is let in
    done: float = 0.0  # of the work
    coming: dict[int, float] = {}  # trials on their way to the milestone, and their time
    arrived: dict[int, tuple[float, float | None]] = {}  # those that wait there: time and score
    released: dict[int, None] = {}  # of ``coming``: those that were paused and may continue

    @property
    def deserted(self) -> bool:
        return not self.coming and not self.arrived

    def take(self, n: int) -> None:
        self.size += 1
        self.closed = self.size == self.capacity
        self.coming[n] = 0.0

    def advance(self, n: int, time: float, limit: float) -> None:
        """The trial has come this far. One that was restarted, or was made to continue, is on its way again."""
        before = self.arrived.pop(n)[0] if n in self.arrived else self.coming[n]
        self.coming[n] = time
        self.done += max(0.0, min(time, limit) - before)

    def arrive(self, n: int, score: float | None) -> None:
        self.arrived[n] = (self.coming.pop(n), score)
        self.released.pop(n, None)

    def forget(self, n: int) -> None:
        for places in (self.coming, self.arrived, self.released):
            places.pop(n, None)

    def halve(self, eta: float, max_t: float, stop_last_trials: bool) -> list[int]:
        """Let the best continue to the next milestone.

        Returns:
            The others, and those that are too far for any milestone to come.
        """
        ranked = sorted(self.arrived, key=lambda n: (*_worse(self.arrived[n][1]), n))
        before, self.arrived = self.arrived, {}
        self.size = math.ceil(self.size / eta)
        self.halvings -= 1
        self.milestone = min(self.milestone * eta, max_t)
        ended = ranked[self.size :]
        for n in ranked[: self.size]:
            time = before[n][0]
            if time < self.milestone or not (self.halvings or stop_last_trials):
                self.coming[n] = time
                self.released[n] = None
            elif self.halvings:
                self.arrived[n] = before[n]
            else:
                ended.append(n)
        return ended


msgspec.json.Decoder(Bracket)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


def _worse(score: float | None) -> tuple[bool, float]:
    """Sorts scores: the best first, what cannot be compared last."""
    return (True, 0.0) if score is None else (False, -score)


class HyperBandScheduler(TrialScheduler):
    """Synchronous HyperBand: many trials that run for a short time, and few that run for long, in equal parts.

    A bracket takes a number of trials to a first milestone. There each pauses until all have arrived. The best
    ``1 / reduction_factor`` of them continue to a milestone that is ``reduction_factor`` times as far, the others end.
    Bracket ``s`` of a band does that ``s`` times, and its trials end at the milestone after the last time. When all
    brackets of a band are full, the next band begins.

    A bracket that is only partly full when no more trials can come continues with those it has.

    Args:
        time_attr: What time is measured by; a result's key that grows.
        metric: What trials are compared by; None takes the experiment's.
        mode: "min" or "max".
        max_t: Trials end at this time.
        reduction_factor: One of so many trials continues.
        stop_last_trials: Whether trials that were never among the worse ones end at their last milestone. If not, they
            end when they want to.
        largest_first: Whether a band is filled from the bracket that takes the most trials to the nearest milestone,
            and not from the one whose trials all run to the end. In both cases the bracket of the most trials runs
            first, then the next one, and its best trials continue first, because that finds good trials soonest.
            The difference: trials of a search algorithm that learns, and those beyond ``max_concurrent_trials``, do not
            exist yet when a bracket is to begin, so that the order of filling is then also the order of running.

    Raises:
        InvalidInputError: An argument makes no sense.

    Example:
        >>> scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=81)
        >>> [scheduler.bracket_shape(s) for s in range(5)]
        [(5, 81), (8, 27), (15, 9), (34, 3), (81, 1)]
    """

    _needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        *,
        largest_first: bool = False,
    ) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise InvalidInputError(f"`mode` must be one of ['min', 'max'], got {mode!r}.")
        check_numbers(max_t=max_t, reduction_factor=reduction_factor)
        if not 1 <= max_t < math.inf:
            raise InvalidInputError(f"`max_t` must be at least 1 (and finite), got {max_t!r}.")
        if not 1 < reduction_factor < math.inf:
            raise InvalidInputError(f"`reduction_factor` must be more than 1 (and finite), got {reduction_factor!r}.")
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode
        self._max_t = max_t
        self._eta = reduction_factor
        self._stop_last_trials = stop_last_trials
        self._largest_first = bool(largest_first)
        self._s_max = round(math.log(max_t) / math.log(reduction_factor))
        self._places = 0  # in bands, that were filled or left out
        self._open = NOWHERE  # the place of the bracket that takes new trials
        self._brackets: dict[int, Bracket] = {}  # those that are not deserted, by place
        self._place_of: dict[int, int] = {}  # trial -> place of its bracket
        self._ended = 0

    # --- the plan

    def bracket_shape(self, s: int) -> tuple[int, int]:
        """How many trials bracket ``s`` takes, and its first milestone (0: there is no such bracket)."""
        # Multiplied before it is divided, so that whole numbers stay exact.
        return math.ceil((self._s_max + 1) * self._eta**s / (s + 1)), int(self._max_t / self._eta**s)

    def _s_at(self, place: int) -> int:
        """Which bracket of its band stands at this place."""
        s = place % (self._s_max + 1)
        return self._s_max - s if self._largest_first else s

    def _open_next(self) -> None:
        first = 0
        while not first:
            s, self._open = self._s_at(self._places), self._places
            self._places += 1
            capacity, first = self.bracket_shape(s)
        work, size, start, milestone = 0.0, capacity, 0.0, float(first)
        for _ in range(s + 1):
            work += size * (milestone - start)
            size, start, milestone = math.ceil(size / self._eta), milestone, min(milestone * self._eta, self._max_t)
        self._brackets[self._open] = Bracket(float(first), s, capacity, work)

    @property
    def trials_ahead(self) -> int:
        """All trials of a band: which bracket runs first can be chosen only among trials that exist."""
        if self._largest_first:
            return 0
        shapes = map(self.bracket_shape, range(self._s_max + 1))
        return min(MAX_AHEAD, sum(capacity for capacity, first in shapes if first))

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        if trial.n in self._place_of:
            return
        if self._open == NOWHERE:
            self._open_next()
        bracket = self._brackets[self._open]
        bracket.take(trial.n)
        self._place_of[trial.n] = self._open
        if bracket.closed:
            self._open = NOWHERE

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        bracket = self._bracket_of(trial.n)
        if bracket is None:
            self.on_trial_add(view, trial)  # it was to end, but the user had it start over before that
        else:
            bracket.released.pop(trial.n, None)

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        bracket = self._bracket_of(trial.n)
        if bracket is not None and trial.n in bracket.coming:
            bracket.released[trial.n] = None  # somebody else paused it: here it need not wait for anybody

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        self._close_if_no_more(view)
        n, time, bracket = trial.n, self._time_of(result), self._bracket_of(trial.n)
        if bracket is None or time is None:
            self.warn_without_time(self._time_attr, result)
            return self.CONTINUE
        bracket.advance(n, time, self._max_t)
        end = self._max_t if bracket.halvings else bracket.milestone
        if self._stop_last_trials and time >= end:
            view.reason = f"has come to {self._time_attr}={end:g}"
            self._lose(view, n)
            return self.STOP
        if not bracket.halvings or time < bracket.milestone:
            return self.CONTINUE
        bracket.arrive(n, self.score_of(result))
        self._settle(view, self._place_of[n], judged=n)
        if n not in self._place_of:
            return self.STOP
        if n in bracket.arrived:
            view.reason = f"waits for others at {self._time_attr}={bracket.milestone:g}"
            return self.PAUSE
        bracket.released.pop(n)  # it runs
        return self.CONTINUE

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        self._lose(view, trial.n)

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        self._lose(view, trial.n)

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        self._lose(view, trial.n)

    def on_standstill(self, view: ExperimentView) -> None:
        self._close(view)

    def _lose(self, view: ExperimentView, n: int) -> None:
        place = self._place_of.pop(n, NOWHERE)
        if place != NOWHERE:
            self._brackets[place].forget(n)
            self._settle(view, place)
        self._close_if_no_more(view)

    def _close_if_no_more(self, view: ExperimentView) -> None:
        if view.search_ended:
            self._close(view)

    def _close(self, view: ExperimentView) -> None:
        """The bracket that is being filled continues with those it has."""
        place, self._open = self._open, NOWHERE
        if place != NOWHERE:
            self._brackets[place].closed = True
            self._settle(view, place)

    def _settle(self, view: ExperimentView, place: int, judged: int = -1) -> None:
        """Halve the bracket if all of it have arrived; trials that went too far may do so for several milestones.

        The one that is being judged gets its answer by other means than a request.
        """
        bracket = self._brackets[place]
        while bracket.closed and bracket.arrived and not bracket.coming:
            why = f"not among the best of its bracket at {self._time_attr}={bracket.milestone:g}"
            for n in bracket.halve(self._eta, self._max_t, self._stop_last_trials):
                del self._place_of[n]
                self._ended += 1
                if n == judged:
                    view.reason = why
                else:
                    view.stop_trial(view.trials[n], f"{type(self).__name__}: {why}")
        if bracket.closed and bracket.deserted:
            del self._brackets[place]

    def _bracket_of(self, n: int) -> Bracket | None:
        return self._brackets.get(self._place_of.get(n, NOWHERE))

    def _time_of(self, result: Mapping[str, Any]) -> float | None:
        time = number(lookup(result, self._time_attr))
        return None if time is None or math.isnan(time) else time

    # --- what it is asked

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        """Whoever was interrupted; else from the oldest band, of the bracket with the most trials, the best trial.

        The results of a trial that was interrupted count for its bracket already: others would get ahead of it.
        """
        pending = view.pending
        interrupted = view.first_that_fits(trial for trial in pending if trial.attempt)
        if interrupted is not None:
            return interrupted
        waiting: dict[int, list[TrialView]] = {}
        for trial in pending:
            waiting.setdefault(self._place_of.get(trial.n, NOWHERE), []).append(trial)
        for place, bracket in self._brackets.items():
            for n in bracket.released:
                if view.trials[n].status == Status.PAUSED:
                    waiting.setdefault(place, []).append(view.trials[n])
        for place in sorted(waiting, key=self._rank):
            chosen = view.first_that_fits(self._in_order(place, waiting[place]))
            if chosen is not None:
                return chosen
        return None

    def _in_order(self, place: int, trials: list[TrialView]) -> list[TrialView]:
        """New ones as they came; of those that continue the best first."""
        bracket = self._brackets.get(place)
        if bracket is None:
            return sorted(trials, key=lambda trial: trial.n)
        ranks = {n: rank for rank, n in enumerate(bracket.released)}
        return sorted(trials, key=lambda trial: (ranks.get(trial.n, -1), trial.n))

    def _rank(self, place: int) -> tuple[int, int]:
        """Of a band, the bracket of many short trials first, whatever the order in which the brackets were filled."""
        return place // (self._s_max + 1), -self._s_at(place)

    def debug_string(self) -> str:
        return (
            f"Using {type(self).__name__}: {self._ended} trials were not among the best of their brackets, "
            f"{len(self._brackets)} brackets are under way{self._progress()}."
        )

    def _progress(self) -> str:
        shares = [f"{bracket.done / bracket.work:.0%}" for bracket in self._brackets.values()]
        return f" ({', '.join(shares[:MAX_SHARES])} done)" if shares else ""

    # --- its memory

    def get_state(self) -> dict[str, Any]:
        return {
            "places": self._places,
            "open": self._open,
            "ended": self._ended,
            "brackets": msgspec.to_builtins(self._brackets, str_keys=True),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._places, self._open, self._ended = state["places"], state["open"], state["ended"]
        self._brackets = msgspec.convert(state["brackets"], dict[int, Bracket], strict=False, str_keys=True)
        self._place_of = {n: place for place, b in self._brackets.items() for n in (*b.coming, *b.arrived)}
