"""What one seed means: the experiment, its trials, and how much may go wrong.

Everything is drawn here from one generator, before the story begins, except the moments at which faults strike (see
``chaos``), which come from the same generator while it runs. So a seed repeats its story exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from holdfast.core.retention import Retention
from holdfast.space import choice, uniform
from holdfast.space.rng import Rng
from holdfast.space.variants import VariantPlan
from holdfast.views.results import ResultBuilder
from simulator.fake_search import SEARCHERS, FakeSearch
from simulator.fake_trials import FakeTraining
from simulator.schedulers_under_test import NEED_EQUAL_TRIALS, NEED_THEIR_SEARCHER, SCHEDULERS

T = TypeVar("T")
SPACE = {"lr": uniform(0, 1), "width": choice([16, 32, 64])}
QUICK_S = 0.0004
"""A step of trials that need not wait for answers: several fit into the time that one takes."""

SCHEDULED = 0.4
"""Share of the stories that have a scheduler from the roster."""
PASSING = 8
"""In one of so many stories nothing can tell a trial to stop."""
BACKLOGS = (None, None, 0, 10, 25, 60)
"""Bytes that may wait to be committed, by the seed; a checkpoint has ten."""
MORE_SAMPLES = 2
"""The most samples that users of a story add."""
LEARNING = 0.25
"""Share of the stories that have a searcher which learns."""


@dataclass(frozen=True, kw_only=True)
class FaultBudget:
    """How often each kind of fault may strike in one story; the table in ``simulate`` says what each one is."""

    driver_kills: int = 6
    power_cuts: int = 2
    takeovers: int = 2
    interrupts: int = 2
    second_interrupts: int = 1
    third_interrupts: int = 1
    worker_deaths: int = 4
    worker_exceptions: int = 3
    hangs: int = 2
    late_messages: int = 6
    repeated_messages: int = 8
    lost_replies: int = 4
    failed_writes: int = 2
    failed_syncs: int = 3
    full_disks: int = 2
    store_troubles: int = 3
    slow_stores: int = 2
    full_stores: int = 2
    spoiled_stages: int = 1
    rotten_checkpoints: int = 3
    stubborn_checkpoints: int = 1
    failed_loads: int = 4
    clock_jumps: int = 2
    damaged_snapshots: int = 2
    slow_searches: int = 1
    failed_callbacks: int = 2

    @classmethod
    def none(cls) -> FaultBudget:
        """Nothing goes wrong."""
        return cls(**{each.name: 0 for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An experiment and its settings."""

    seed: int
    samples: int
    steps: tuple[int, ...]  # of each trial, repeated
    step_s: float
    checkpoint_every: int
    is_class: bool
    at_end: bool
    returns_last: bool
    scores: tuple[float | None, ...]
    retention: Retention
    max_failures: int
    fail_fast: bool
    free_load_failures: int
    max_concurrent: int
    lookahead: int
    cpus: float
    wide_trials: bool  # every second trial asks for two CPUs
    durability: str
    stop_at: int  # iteration; 0: no such rule
    stop_after_good: int  # rows with a good score; 0: no such rule
    stop_rule_remembers: bool  # it can be stored in snapshots
    stop_all_after: int  # rows of the whole experiment; 0: never
    time_budget_s: float | None
    pause_at: int  # iteration; 0: never
    stall_timeout_s: float | None
    grace_s: float
    restart: tuple[str, str, str]  # what the second driver does with finished, unfinished and errored trials
    snapshot_chance: float
    save_chance: float  # a callback asks for a checkpoint after a report
    scheduler: str = ""  # of the roster; "": none
    searcher: str = ""  # of the roster; "": one that does not learn

    @property
    def max_backlog_bytes(self) -> int | None:
        """How many bytes of checkpoints may wait to be committed; None: no limit."""
        return BACKLOGS[self.seed % len(BACKLOGS)]

    @property
    def capacity_varies(self) -> bool:
        """Whether machines come and go."""
        return False

    def with_scheduler(self, name: str) -> Scenario:
        """The same story with a scheduler of the roster."""
        wide = self.wide_trials and name not in NEED_EQUAL_TRIALS
        searcher = name if name in NEED_THEIR_SEARCHER else self.searcher
        return replace(self, scheduler=name, searcher=searcher, pause_at=0, wide_trials=wide)

    @property
    def ahead(self) -> int:
        """How many reports need not wait for their answers: none where something may say "stop"; see ``Rules``."""
        rules = self.stop_at or self.stop_after_good or self.time_budget_s or self.pause_at
        chosen = self.scheduler or self.searcher or self.save_chance
        waits = rules or chosen or self.is_class or self.durability == "sync"
        return 0 if waits else (6, 2, 2)[self.seed % 3]

    def letting_all_pass(self) -> Scenario:
        """The same story with nothing that could tell a trial to stop, so that it need not wait for answers."""
        quiet = replace(self, scheduler="", searcher="", pause_at=0, save_chance=0.0, is_class=False, at_end=False)
        quiet = replace(quiet, stop_at=0, stop_after_good=0, stop_all_after=0, time_budget_s=None, durability="group")
        return replace(quiet, checkpoint_every=4 if quiet.checkpoint_every == 1 else quiet.checkpoint_every)

    def training(self, n: int) -> FakeTraining:
        """How trial ``n`` trains."""
        return FakeTraining(
            steps=self.steps[n % len(self.steps)],
            step_s=min(self.step_s, QUICK_S) if self.ahead else self.step_s,
            checkpoint_every=self.checkpoint_every,
            is_class=self.is_class,
            at_end=self.at_end,
            returns_last=self.returns_last,
            scores=self.scores,
        )

    def plan(self, samples: int | None = None) -> VariantPlan:
        """The search: a function of the seed alone, and of how many samples users want by now."""
        return VariantPlan(SPACE, seed=self.seed, num_samples=samples or self.samples)

    def configs(self, samples: int | None = None) -> list[dict[str, Any]]:
        """The configurations of that search, in order."""
        plan, configs, mark = self.plan(samples), [], None
        while (variant := plan.next(mark)) is not None:
            configs.append(variant.config)
            mark = variant.mark
        return configs

    def learner(self, results: ResultBuilder) -> FakeSearch | None:
        """A searcher that learns, and knows nothing yet; None if the story has none."""
        return FakeSearch(self.searcher, self.seed, self.samples, SPACE, results) if self.searcher else None


def pick(rng: Rng, options: Sequence[T]) -> T:
    return options[rng.integers(0, len(options))]


def draw_scenario(seed: int, rng: Rng) -> Scenario:
    """An experiment of one to six trials, each of one to twelve steps."""
    is_class = rng.random() < 0.4
    scored = rng.random() < 0.6
    retention = Retention(
        num_to_keep=pick(rng, (None, 1, 1, 2, 3)),
        score_attribute=pick(rng, ("score", "score", "training_iteration", "min-score")) if scored else None,
        score_order=pick(rng, ("max", "min")),
        num_to_keep_overall=pick(rng, (None, None, None, 1, 2, 4)),
    )
    scenario = Scenario(
        seed=seed,
        samples=rng.integers(1, 7),
        steps=tuple(rng.integers(1, 13) for _ in range(3)),
        step_s=pick(rng, (0.02, 0.2, 1.0, 3.0)),
        checkpoint_every=pick(rng, (0, 1, 1, 2, 3, 5)),
        is_class=is_class,
        at_end=is_class and rng.random() < 0.6,
        returns_last=not is_class and rng.random() < 0.3,
        scores=_draw_scores(rng),
        retention=retention,
        max_failures=pick(rng, (0, 0, 1, 2, 3, -1)),
        fail_fast=rng.random() < 0.15,
        free_load_failures=pick(rng, (0, 0, 1)),
        max_concurrent=pick(rng, (0, 0, 1, 2, 3)),
        lookahead=pick(rng, (1, 2, 16)),
        cpus=pick(rng, (1.0, 2.0, 4.0)),
        wide_trials=rng.random() < 0.2,
        durability="sync" if rng.random() < 0.2 else "group",
        **_draw_rules(rng),
        grace_s=pick(rng, (0.0, 5.0, 30.0)),
        restart=_draw_restart(rng),
        snapshot_chance=pick(rng, (0.0, 0.05, 0.2)),
        save_chance=pick(rng, (0.0, 0.0, 0.2)),
    )
    if rng.random() < SCHEDULED:
        scenario = scenario.with_scheduler(pick(rng, sorted(SCHEDULERS)))
    if rng.random() < LEARNING and not scenario.searcher:
        scenario = replace(scenario, searcher=pick(rng, sorted(SEARCHERS)))
    return scenario.letting_all_pass() if seed % PASSING == 0 else scenario


def _draw_scores(rng: Rng) -> tuple[float | None, ...]:
    """Some scores are missing, some are no number, some are equal."""
    odd = (None, math.nan, math.inf, 0.5)
    return tuple(pick(rng, odd) if rng.random() < 0.25 else rng.uniform(-1.0, 1.0) for _ in range(7))


def _draw_rules(rng: Rng) -> dict[str, Any]:
    kind = pick(rng, ("none", "none", "iteration", "good", "all", "time"))
    return {
        "stop_at": rng.integers(1, 8) if kind == "iteration" else 0,
        "stop_after_good": rng.integers(1, 6) if kind in ("good", "all") else 0,
        "stop_rule_remembers": rng.random() < 0.5,
        "stop_all_after": rng.integers(3, 30) if kind == "all" else 0,
        "time_budget_s": rng.uniform(0.5, 40.0) if kind == "time" else None,
        "pause_at": rng.integers(1, 6) if rng.random() < 0.25 else 0,
        "stall_timeout_s": pick(rng, (30.0, 60.0)) if rng.random() < 0.5 else None,
    }


def _draw_restart(rng: Rng) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        return "skip", "resume", "skip"
    return (
        pick(rng, ("skip", "skip", "resume", "restart")),
        pick(rng, ("resume", "resume", "restart", "skip")),
        pick(rng, ("skip", "resume", "restart")),
    )


def draw_budget(rng: Rng, most: FaultBudget) -> dict[str, int]:
    """How many faults of each kind this story gets: half of the kinds none, so that stories differ in kind."""
    left = {}
    for each in fields(most):
        limit = getattr(most, each.name)
        left[each.name] = rng.integers(1, limit + 1) if limit and rng.random() < 0.5 else 0
    return left
