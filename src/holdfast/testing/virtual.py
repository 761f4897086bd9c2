"""Experiments in virtual time: the real core, schedulers and searchers on learning curves that are known beforehand.

A curve says what each step of a configuration costs and reports. Thousands of trials on any number of workers take
seconds, so that schedules can be compared. Drivers can be killed on the way: then everything is forgotten but the
journal, and the next driver is told the past again.

Owns the virtual clock and the order of what happens at the same moment. Must never decide anything about trials.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.config.arguments import accepted
from holdfast.controller.proposing import Describer, VariantProposer
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.plan import finished
from holdfast.core.policies import Policies, Rules, Scheduler, ignore
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State, Trial
from holdfast.core.transitions import apply
from holdfast.core.turn import Turn
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.search.replayable import NoMoreSuggestions, ReplayableSearcher, Script, Suggested
from holdfast.search.searcher import Searcher, hears_results
from holdfast.search.spaces import Filler
from holdfast.space.naming import trial_id
from holdfast.space.variants import Variant, VariantPlan, leaves_of
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

PREFIX = "cafe5"
RETENTION = Retention(num_to_keep=1)
LOOKAHEAD = 16  # trials that are created before there is room for them, unless the scheduler wants more
TURNS_AT_ONCE = 10_000  # turns at one moment of virtual time; more would be a loop without end


class Curve(Protocol):
    """What training with one configuration is like."""

    def __call__(self, config: dict[str, Any], step: int, state: Any) -> tuple[float, dict[str, Any], Any] | None:
        """Step number ``step`` (from 1), after ``state`` was loaded: its cost, its metrics and the state to save.

        None if training has ended before it. Raise `AttemptFails` where user code would raise.
        """


class AttemptFails(Exception):
    """Raised by a curve: this attempt of the trial fails here."""


@dataclass(frozen=True)
class CurvePoint:
    """One report, in virtual time."""

    at: float
    trial: int
    step: int
    metrics: dict[str, Any]


@dataclass(kw_only=True)
class VirtualExperiment:
    """An experiment in virtual time.

    Args:
        curve: What training is like.
        space: The search space.
        scheduler: Makes the scheduler; None for first in, first out.
        searcher: Makes the searcher; None samples at random.
        num_samples: How many trials; -1 for any number.
        slots: How many run at once.
        metric: What to optimise.
        mode: "min" or "max".
        seed: Of every random choice.
        until: Virtual seconds after which it ends; None to run to the end.
        enough: Ends it after the first report for which this is true.
        kill_every: A driver dies after so many reports; 0 for never. What was being computed is lost.
        max_failures: How often a trial that fails is tried again; -1 for any number.

    Example:
        >>> experiment = VirtualExperiment(
        ...     curve=lambda config, step, state: (1.0, {"loss": config["x"] / step}, step) if step <= 3 else None,
        ...     space={"x": 2.0}, num_samples=1, slots=1, metric="loss", mode="min",
        ... )
        >>> [round(point.metrics["loss"], 2) for point in experiment.run()]
        [2.0, 1.0, 0.67]
    """

    curve: Curve
    space: Mapping[str, Any]
    scheduler: Callable[[], TrialScheduler] | None = None
    searcher: Callable[[], Searcher] | None = None
    num_samples: int
    slots: int
    metric: str
    mode: str
    seed: int = 0
    until: float | None = None
    enough: Callable[[CurvePoint], bool] | None = None
    kill_every: int = 0
    max_failures: int = 0
    journal: list[bytes] = field(default_factory=list)
    """Everything that happened, as a journal would hold it."""

    def run(self) -> list[CurvePoint]:
        """Run it; every report that counts, in the order of time."""
        self._saved: dict[tuple[int, int], Any] = {}
        self._points: list[CurvePoint] = []
        self._at = 0.0
        while not self.driver().drive():
            pass
        return self._points

    def driver(self) -> VirtualDriver:
        """The next driver; a subclass may use one of its own."""
        return VirtualDriver(self)

    def rules(self) -> Rules:
        """The settings of the core that follow from the fields."""
        learns = self.searcher is not None
        ahead = 0 if self.scheduler is None else getattr(self.scheduler(), "trials_ahead", 0)
        return Rules(
            retention=RETENTION,
            max_failures=self.max_failures,
            lookahead=1 if learns else max(LOOKAHEAD, ahead),
            searcher_learns=learns,
        )


class _InlineProposer:
    """A searcher that thinks in no time."""

    def __init__(self, adapter: ReplayableSearcher, script: Script, filler: Filler) -> None:
        self._adapter, self._script, self._filler = adapter, script, filler
        self._ready: deque[Any] = deque()
        self._heard = 0

    def after(self, state: State, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.TrialCreated):
            self._adapter.claim(event.n)
        else:
            item = self._script.item(state, event)
            if item is not None:
                self._adapter.hear(item)

    def start(self, describe: Describer) -> None:
        self._describe = describe
        self._ready = deque((0, answer) for answer in self._adapter.unclaimed())

    def tell(self, state: State, event: ev.AnyEvent) -> bool:
        item = self._script.item(state, event)
        if item is None:
            return False
        self._heard += 1
        self._ready.extend((self._heard, answer) for answer in self._adapter.hear(item))
        return True

    def ask(self, count: int) -> None:
        """The question was an event."""

    def drain(self) -> list[ob.Observation]:
        told: list[ob.Observation] = []
        while self._ready:
            heard, answer = self._ready.popleft()
            if isinstance(answer, Suggested):
                variant = Variant(self._filler.config(answer.values), leaves_of(answer.values), None)
                told.append(self._describe(variant))
            else:
                told.append(ob.Exhausted(answer.reason) if isinstance(answer, NoMoreSuggestions) else ob.NotYet(heard))
        return told


class VirtualDriver:
    """One driver's life, from opening the journal to the end of the experiment or its own.

    Attributes:
        state: What it knows of the trials.
        memory: What it knows for now.
        adapter: What stands between the core and the scheduler; None without one.
    """

    def __init__(self, experiment: VirtualExperiment) -> None:
        self._own = experiment
        self._results = ResultBuilder()
        self._rules = experiment.rules()
        self.adapter = self._make_adapter()
        self._search = self._make_search()
        self.state = self._open()
        self.memory = DriverMemory()
        self._queue: list[tuple[float, int, ob.Observation]] = []
        self._order = 0
        self._program: dict[int, tuple[int, Any]] = {}  # running trial -> step and state
        self._born = len(experiment._points)
        self._proposer = self._make_proposer()
        scheduler: Scheduler = self.adapter or FirstInFirstOut()
        tell = self._search.tell if self._search is not None else ignore
        self.policies = Policies(self._rules, scheduler, _NeverStop(), self._results, tell)

    def _make_adapter(self) -> SchedulerAdapter | None:
        return None if self._own.scheduler is None else self.adapter_of(self._own.scheduler, self._results)

    def adapter_of(self, make: Callable[[], TrialScheduler], results: ResultBuilder) -> SchedulerAdapter:
        """An adapter with a new scheduler that knows nothing yet."""
        own = self._own
        scheduler = make()
        given = None if scheduler.metric else own.metric
        take = scheduler.set_search_properties
        take(given, own.mode if given else None, **accepted(take, {"seed": own.seed}))
        scheduler.check_ready()
        info = ExperimentInfo(root=Path("virtual"), name="virtual", trainable_name="curve")
        return SchedulerAdapter(scheduler, info, results)

    def _make_search(self) -> _InlineProposer | None:
        own = self._own
        if own.searcher is None:
            return None
        searcher = own.searcher()
        take = searcher.set_search_properties
        spec = {"seed": own.seed, "num_samples": own.num_samples}
        take(own.metric, own.mode, dict(own.space), **accepted(take, spec))
        limit = None if own.num_samples == -1 else own.num_samples
        adapter = ReplayableSearcher(searcher, lambda n: trial_id(PREFIX, n), limit)
        has_budgets = self.adapter is not None and hasattr(self.adapter.scheduler, "hyperband_info")
        budget_of = self._budget_of if has_budgets else None
        script = Script(self._results.last, with_results=hears_results(searcher), budget_of=budget_of)
        return _InlineProposer(adapter, script, Filler(own.space, type(searcher).__name__))

    def _budget_of(self, n: int, result: Mapping[str, Any]) -> Mapping[str, Any]:
        scheduler: Any = self.adapter.scheduler if self.adapter is not None else None
        told: Mapping[str, Any] = scheduler.hyperband_info(n, result)
        return told

    def _open(self) -> State:
        state = State()
        for payload in self._own.journal:
            event = ev.decode(payload)
            if self.adapter is not None:
                self.adapter.before(state, event)
            apply(state, event, RETENTION)
            if self.adapter is not None:
                self.adapter.after(state, event)
            if self._search is not None:
                self._search.after(state, event)
        return state

    def _make_proposer(self) -> Any:
        own = self._own
        describe = Describer(
            self.state,
            prefix=PREFIX,
            request_of=lambda config: None,
            keep_value=lambda proposal: proposal.config,
            names=lambda n, identity, tag, config: ("", ""),
        )
        if self._search is not None:
            self._search.start(describe)
            return self._search
        return VariantProposer(VariantPlan(own.space, seed=own.seed, num_samples=own.num_samples), self.state, describe)

    # --- time

    def drive(self) -> bool:
        """Run; True if the experiment has ended, False if this driver was killed before."""
        own, state = self._own, self.state
        start: list[ob.Observation] = [ob.Capacity({"CPU": float(own.slots)})]
        if state.trials:
            start.append(ob.Resumed(lost="the driver was killed"))
        self._settle(start)
        while not finished(state, self.memory):
            if own.kill_every and len(own._points) - self._born >= own.kill_every:
                return False
            observations = self._next()
            if observations is None or (own.until is not None and own._at > own.until):
                return True
            seen = len(own._points)
            self._settle(observations)
            if own.enough is not None and any(map(own.enough, own._points[seen:])):
                return True
        return True

    def _next(self) -> list[ob.Observation] | None:
        """Let time pass until something happens; None if nothing will."""
        own = self._own
        if self._queue:
            own._at, _, first = heapq.heappop(self._queue)
            return [first]
        held = [until for until in self.memory.held_until.values() if until > own._at]
        if not held:
            return None
        own._at = min(held)  # somebody who has failed waits before it is tried again
        return []

    def watch(self, event: ev.AnyEvent) -> None:
        """An event is a fact: it goes into the journal. Called in the middle of a turn."""
        self._own.journal.append(ev.encode(event))

    def _settle(self, observations: list[ob.Observation]) -> None:
        """Turns until nothing more happens at this moment."""
        for _ in range(TURNS_AT_ONCE):
            self._told: list[ob.Observation] = []
            turn = Turn(self.state, self.memory, self.policies, self._own._at, self.watch)
            decide_all(turn, observations)
            for event in turn.events:
                if isinstance(event, ev.Reported) and not self.state.trials[event.n].again:
                    step = int(event.metrics["training_iteration"])
                    self._own._points.append(CurvePoint(self._own._at, event.n, step, event.metrics))
            for command in turn.commands:
                self._carry_out(command)
            observations = [*self._told, *self._proposer.drain()]
            if not observations:
                return
        raise RuntimeError(f"the experiment does not come to rest at {self._own._at}")

    def _later(self, delay: float, observation: ob.Observation) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self._own._at + delay, self._order, observation))

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.Launch(n, _):
                self._launch(self.state.trials[n])
            case cmd.Reply(n, attempt, _, go, _):
                if go == "go":
                    self._step(self.state.trials[n])
                else:
                    self._told.append(ob.Stopped(n, attempt, 1))
            case cmd.Commit(n, index):
                self._told.append(ob.CommitEnded(n, index, f"{n}-{index}", 1))
            case cmd.Verify(n, index):
                self._told.append(ob.VerifyEnded(n, index, ok=True))
            case cmd.Delete(n, index):
                self._own._saved.pop((n, index), None)
                self._told.append(ob.DeleteEnded(n, index, ok=True))
            case cmd.Propose(count):
                self._proposer.ask(count)

    def _launch(self, trial: Trial) -> None:
        state = None if trial.source is None else self._own._saved[trial.source]
        self._program[trial.n] = (trial.iteration, state)
        self._step(trial)

    def _step(self, trial: Trial) -> None:
        """The trial computes its next step: it will report it when the time has come."""
        done, state = self._program[trial.n]
        try:
            outcome = self._own.curve(trial.config, done + 1, state)
        except AttemptFails as error:
            self._later(0.0, ob.Raised(trial.n, trial.attempt, 1, ev.ErrorFacts("AttemptFails", str(error))))
            return
        if outcome is None:
            self._later(0.0, ob.Returned(trial.n, trial.attempt, 1))
            return
        cost, metrics, after = outcome
        self._program[trial.n] = (done + 1, after)
        index = trial.next_index
        self._own._saved[trial.n, index] = after
        sealed = ob.SealedStage(f"{trial.n}-{index}", 1, 1, True)
        told = {**metrics, "training_iteration": done + 1}
        self._later(cost, ob.Report(trial.n, trial.attempt, 1, trial.ordinal + 1, cost, told, sealed))


class _NeverStop:
    def why_stop(self, trial: Trial, result: Callable[[], dict[str, Any]]) -> str:
        return ""

    def why_stop_all(self, lived_s: float) -> str:
        return ""
