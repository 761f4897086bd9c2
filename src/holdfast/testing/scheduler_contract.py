"""What every scheduler must do, as functions that take a factory of schedulers.

Each check gets ``make``: a function that returns a new scheduler, always with the same arguments. It runs whole
experiments in virtual time, in which trials fail, end early and report nonsense. ``CHECKS`` is all of them; give them
to ``pytest.mark.parametrize``. Trials report ``score``, larger is better, and have ``lr`` and ``width`` to change; more
arguments of a check are those of ``VirtualExperiment``, for a scheduler that needs another space, metric or searcher.

Owns the rules of exact resume that ``schedulers.base.TrialScheduler`` states. Must never judge how good a scheduler is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.core.plan import finished
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.space import choice, randint, uniform
from holdfast.space.rng import Rng
from holdfast.testing.virtual import RETENTION, AttemptFails, CurvePoint, VirtualDriver, VirtualExperiment
from holdfast.views.results import ResultBuilder

MakeScheduler = Callable[[], TrialScheduler]

SPACE = {"lr": uniform(0, 1), "width": choice([16, 32, 64]), "nature": randint(0, 1 << 30)}
"""``nature`` decides how a trial behaves."""

NONSENSE = (None, math.nan, math.inf, -math.inf, "high", [1], True)
MAX_EVENTS = 20_000
MANY = range(16)
FEW = range(2)


@dataclass
class Trials:
    """The curve of trials that differ by their nature.

    Args:
        metric: What they report.
        max_steps: None of them makes more.
        odd: How likely a trial is one that fails now and then, or reports nonsense.
    """

    metric: str = "score"
    max_steps: int = 9
    odd: float = 0.5
    _failed: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, config: dict[str, Any], step: int, state: Any) -> tuple[float, dict[str, Any], Any] | None:
        nature = int(config.get("nature", 0))
        rng = Rng([nature, 0])
        steps, level, slope = rng.integers(1, self.max_steps + 1), rng.random(), rng.random() - 0.5
        cost, odd = (0.5, 1.0, 1.3)[rng.integers(0, 3)], rng.random() < self.odd
        if step > steps:
            return None
        luck = Rng([nature, step])
        if odd and luck.random() < 0.1 and (nature, step) not in self._failed:
            self._failed.add((nature, step))
            raise AttemptFails(f"at step {step}")
        score: Any = round(level + slope * step / self.max_steps, 3)
        if odd and luck.random() < 0.15:
            score = NONSENSE[luck.integers(0, len(NONSENSE))]
        metrics = {} if odd and luck.random() < 0.05 else {self.metric: score}
        return cost, metrics, step


class _FrozenAdapter(SchedulerAdapter):
    """Sees that a question changes nothing."""

    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        before = self.get_state()
        chosen = super().choose(state, memory, fits)
        assert before == self.get_state(), "choose_trial_to_run has changed what get_state returns"
        return chosen


@dataclass(kw_only=True)
class WatchedExperiment(VirtualExperiment):
    """An experiment whose scheduler can be replaced by a rebuilt one, at any event.

    Args:
        expected: What must happen, event by event; empty if that is not known.
        replace_after: After so many events the scheduler is replaced; 0 for never.
        since: How many of them the new one remembers by ``set_state``, and its memory; None tells it everything.
    """

    expected: list[bytes] = field(default_factory=list)
    replace_after: int = 0
    since: tuple[int, bytes] | None = None
    memories: list[tuple[int, bytes]] = field(default_factory=list)
    """After events at which the scheduler was told something: how many, and what it remembered."""
    last: VirtualDriver | None = None

    def driver(self) -> VirtualDriver:
        self.last = _WatchedDriver(self)
        return self.last

    def finish(self) -> list[CurvePoint]:
        """Run; fail unless every trial has ended."""
        points = self.run()
        assert self.last is not None
        left = {trial.n: trial.status for trial in self.last.state.unfinished()}
        assert finished(self.last.state, self.last.memory), (
            f"nothing can happen any more, and these have not ended: {left}"
        )
        return points


class _WatchedDriver(VirtualDriver):
    def __init__(self, experiment: WatchedExperiment) -> None:
        self._watched = experiment
        super().__init__(experiment)

    def adapter_of(self, make: MakeScheduler, results: ResultBuilder) -> SchedulerAdapter:
        made = super().adapter_of(make, results)
        return _FrozenAdapter(made.scheduler, made._info, results)

    def watch(self, event: ev.AnyEvent) -> None:
        super().watch(event)
        own = self._watched
        count = len(own.journal)
        assert count < MAX_EVENTS, f"it does not end; the last event was {event!r}"
        if count == own.replace_after:
            self.adapter = self.policies.scheduler = self._rebuilt()
        if own.expected:
            self._compare(event, count)

    def _settle(self, observations: Any) -> None:
        super()._settle(observations)
        memory = self.adapter.get_state() if self.adapter is not None else None
        if memory is not None and not self._watched.expected:
            self._watched.memories.append((len(self._watched.journal), memory))

    def _rebuilt(self) -> SchedulerAdapter:
        own = self._watched
        assert own.scheduler is not None
        adapter = self.adapter_of(own.scheduler, ResultBuilder())
        state, known = State(), 0
        if own.since is not None:
            known = own.since[0]
            adapter.set_state(own.since[1])
        for n, payload in enumerate(own.journal):
            event = ev.decode(payload)
            if n >= known:
                adapter.before(state, event)
            apply(state, event, RETENTION)
            if n >= known:
                adapter.after(state, event)
        return adapter

    def _compare(self, event: ev.AnyEvent, count: int) -> None:
        own = self._watched
        how = "told everything again" if own.since is None else f"given its memory of event {own.since[0]}"
        where = f"replaced after event {own.replace_after} by one that was {how}, the scheduler"
        assert count <= len(own.expected), f"{where} is longer: {event!r}"
        expected = own.expected[count - 1]
        assert own.journal[-1] == expected, f"{where} departs at event {count}: {event!r}, not {ev.decode(expected)!r}"


def experiment(make: MakeScheduler, seed: int, settings: dict[str, Any], **more: Any) -> WatchedExperiment:
    """A small experiment; ``settings`` win over everything."""
    rng = Rng([seed, 1])
    known: dict[str, Any] = {
        "space": SPACE,
        "metric": "score",
        "mode": "max",
        "seed": seed,
        "num_samples": rng.integers(1, 13),
        "slots": rng.integers(1, 5),
        "max_failures": (-1, 0, 1, 3)[rng.integers(0, 4)],
        "scheduler": make,
        **more,
        **settings,
    }
    known.setdefault("curve", Trials(known["metric"]))
    return WatchedExperiment(**known)


def check_every_experiment_ends(make: MakeScheduler, **settings: Any) -> None:
    """Whatever trials do, also if drivers are killed all the time."""
    for seed in MANY:
        for kill_every in (0, 3) if seed % 4 == 0 else (0,):
            try:
                experiment(make, seed, settings, kill_every=kill_every).finish()
            except Exception as error:
                error.add_note(f"seed {seed}, kill_every {kill_every}")
                raise


def check_it_decides_the_same_when_it_is_told_everything_again(make: MakeScheduler, **settings: Any) -> None:
    for seed in FEW:
        first = _undisturbed(make, seed, settings)
        for count in range(1, len(first.journal) + 1):
            _small(make, seed, settings, expected=first.journal, replace_after=count).finish()


def check_it_decides_the_same_with_its_memory(make: MakeScheduler, **settings: Any) -> None:
    """From ``get_state`` at some moment, and what happened later; nothing to do where it returns None."""
    for seed in FEW:
        first = _undisturbed(make, seed, settings)
        for count in range(1, len(first.journal) + 1):
            earlier = [memory for memory in first.memories if memory[0] < count]
            if earlier:
                since = earlier[Rng([seed, count]).integers(0, len(earlier))]
                _small(make, seed, settings, expected=first.journal, replace_after=count, since=since).finish()


def check_killed_drivers_change_nothing_where_nothing_depends_on_time(make: MakeScheduler, **settings: Any) -> None:
    """With one slot, and no trial that fails."""

    def reports(seed: int, kill_every: int) -> list[tuple[int, int]]:
        curve = Trials(settings.get("metric", "score"), odd=0.0)
        ended = experiment(make, seed, {"slots": 1, "curve": curve, **settings}, kill_every=kill_every)
        return [(point.trial, point.step) for point in ended.finish()]

    for seed in range(6):
        expected = reports(seed, 0)
        for kill_every in (1, 3):
            assert reports(seed, kill_every) == expected, f"seed {seed}, a driver dies after {kill_every} reports"


def check_its_memory_is_plain_data(make: MakeScheduler, **settings: Any) -> None:
    first = _undisturbed(make, 0, settings)
    assert first.last is not None
    assert first.last.adapter is not None
    memory = first.last.adapter.scheduler.get_state()
    if memory is None:
        return
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(memory))
    other = first.last.adapter_of(make, ResultBuilder()).scheduler
    other.set_state(plain)
    again = other.get_state()
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(memory), f"{again} instead of {memory}"


def check_it_leaves_the_global_generator_alone(make: MakeScheduler, **settings: Any) -> None:
    before = random.getstate()
    for seed in FEW:
        experiment(make, seed, settings).finish()
    assert random.getstate() == before, "random numbers of a scheduler come from self.rng(...)"


def _small(make: MakeScheduler, seed: int, settings: dict[str, Any], **more: Any) -> WatchedExperiment:
    """One of which each event can be looked at: the work grows with the square of their number."""
    curve = Trials(settings.get("metric", "score"), max_steps=5)
    return experiment(make, seed, {"curve": curve, "num_samples": 4, "slots": 2, **settings}, **more)


def _undisturbed(make: MakeScheduler, seed: int, settings: dict[str, Any]) -> WatchedExperiment:
    made = _small(make, seed, settings)
    made.finish()
    return made


CHECKS: list[Callable[..., None]] = [
    check_every_experiment_ends,
    check_it_decides_the_same_when_it_is_told_everything_again,
    check_it_decides_the_same_with_its_memory,
    check_killed_drivers_change_nothing_where_nothing_depends_on_time,
    check_its_memory_is_plain_data,
    check_it_leaves_the_global_generator_alone,
]
