"""A table at which schedulers are played: the real core and adapter, scripted trials, no engine, disk or clock.

Describe the trials, play, and look at what happened::

    population = Population([Script([1, 2, 3]), Script([5, math.nan, "x"], fails_at=(2,))], slots=1, max_failures=1)
    table = play(lambda: MyScheduler(max_t=3), population)
    table.rows(0)         # how far trial 0 came
    table.statuses()      # ["TERMINATED", "TERMINATED"]
    table.history         # every event

Two checks that every scheduler must pass::

    assert_exact_resume(make_scheduler, population)      # rebuilt after any event, it continues as if nothing happened
    assert_never_hangs(make_scheduler, range(300))       # random populations, some of them with crashes, all end

``make_scheduler`` takes no arguments and makes a new object. It is told the population's ``seed`` and, unless it was
made with a metric or mode of its own, ``metric="score"`` and the population's ``mode``. Reports hold ``score`` and what
a script adds. Asking the scheduler what to start next is checked to change nothing that ``get_state`` shows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.plan import finished
from holdfast.core.policies import Policies, Rules
from holdfast.core.state import DriverMemory, State, Status, Trial
from holdfast.core.transitions import apply
from holdfast.core.turn import Turn
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.space.rng import Rng
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

ABSENT = object()
"""A score that is not reported at all."""

Maker = Callable[[], TrialScheduler]

UNWINDING_S = 0.001
MAX_EVENTS = 20_000
INFO = ExperimentInfo(root=Path("/table"), name="table", trainable_name="scripted")


@dataclass(frozen=True)
class Script:
    """What one trial does."""

    scores: Sequence[Any] | Callable[[Mapping[str, Any], int], Any]
    """Its score at step 1, 2, ...; or a function of its config (which schedulers may change) and the step."""

    steps: int = -1
    """It ends by itself after this many; -1: after the last score."""

    step_s: float = 1.0
    stride: int = 1
    """Its ``training_iteration`` grows by this much per step."""

    fails_at: tuple[int, ...] = ()
    """Steps at which it raises instead of reporting; a step that is named twice fails twice."""

    lost_at: tuple[int, ...] = ()
    """Steps at which its machine goes away, which does not count as a failure."""

    saves_every: int = 1
    """It comes with a checkpoint at each step that this divides; 0: never."""

    commit_s: float = 0.0
    """How long a checkpoint takes to be committed."""

    config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Reported with every score."""

    request: dict[str, float] | None = None
    """The resources it asks for; None: one CPU."""

    @property
    def last(self) -> int:
        if self.steps >= 0:
            return self.steps
        assert not callable(self.scores), "say how many steps a script with a function has"
        return len(self.scores)

    def metrics(self, config: Mapping[str, Any], step: int) -> dict[str, Any]:
        score = self.scores(config, step) if callable(self.scores) else self.scores[step - 1]
        metrics = dict(self.extra) if score is ABSENT else {"score": score, **self.extra}
        return metrics if self.stride == 1 else {**metrics, "training_iteration": step * self.stride}


@dataclass(frozen=True)
class Population:
    """All trials of an experiment, in the order in which the searcher proposes them."""

    scripts: Sequence[Script]
    slots: int = 2
    mode: str = "max"
    seed: int = 0
    max_failures: int = 0
    is_class: bool = False
    """Class trainables save when they are asked to, and when they pause."""

    max_live: int = 0
    """The searcher learns, and proposes nothing while so many trials are unfinished; 0: it is never at a loss."""

    rules: Mapping[str, Any] = field(default_factory=dict)
    """More of ``core.policies.Rules``, such as ``lookahead`` and ``max_concurrent``."""


class _CheckedAdapter(SchedulerAdapter):
    def choose(self, state: State, memory: DriverMemory, fits: Callable[[int], bool]) -> int | None:
        before = self.get_state()
        chosen = super().choose(state, memory, fits)
        assert before == self.get_state(), "choose_trial_to_run has changed something"
        return chosen


class _NeverStop:
    def why_stop(self, trial: Trial, result: Any) -> str:
        return ""

    def why_stop_all(self, lived_s: float) -> str:
        return ""


class _Crash(Exception):
    pass


class Table:
    """One experiment. ``on_event`` is called after each event with this table; it may replace the adapter or crash."""

    def __init__(
        self, make_scheduler: Maker, population: Population, on_event: Callable[[Table], None] = lambda table: None
    ) -> None:
        self.make_scheduler = make_scheduler
        self.population = population
        self.history: list[ev.AnyEvent] = []
        self.memories: list[tuple[int, bytes | None]] = []
        """After each turn: how many events there were, and what the adapter remembered."""

        self.state = State()
        self.memory = DriverMemory()
        self.at = 0.0
        self._on_event = on_event
        self._due: list[tuple[float, int, ob.Observation]] = []
        self._sent = 0
        self._owed = 0
        self._proposed = 0
        self._waits_since = -1  # what it had been told when it last was at a loss
        self._failing = [list(script.fails_at) for script in population.scripts]
        self._losing = [list(script.lost_at) for script in population.scripts]
        self._policies = Policies(
            rules_of(population),
            new_adapter(make_scheduler, population),
            _NeverStop(),
            ResultBuilder(INFO),
            lambda state, event: bool(population.max_live) and type(event) in (ev.TrialTerminated, ev.TrialErrored),
        )

    @property
    def adapter(self) -> SchedulerAdapter:
        assert isinstance(self._policies.scheduler, SchedulerAdapter)
        return self._policies.scheduler

    @adapter.setter
    def adapter(self, adapter: SchedulerAdapter) -> None:
        self._policies.scheduler = adapter

    @property
    def scheduler(self) -> Any:
        return self.adapter.scheduler

    # --- what happened

    def statuses(self) -> list[str]:
        return [trial.status for trial in self.state.trials]

    def rows(self, n: int) -> int:
        """How many reports of the trial survive."""
        return self.state.trials[n].rows

    def reports(self, n: int | None = None) -> list[ev.Reported]:
        """Reports, of one trial or all, with the verdicts on them (``verdict`` is "", "stop" or "pause")."""
        return [e for e in self.history if isinstance(e, ev.Reported) and n in (None, e.n)]

    def events(self, *kinds: type) -> list[Any]:
        return [event for event in self.history if isinstance(event, kinds)]

    def story(self) -> str:
        """For messages: the last events and what is left."""
        left = {trial.n: trial.status for trial in self.state.unfinished()}
        return "\n".join([*(repr(event) for event in self.history[-12:]), f"unfinished: {left}"])

    # --- playing

    def play(self) -> Table:
        """To the end, through every crash."""
        return self._play([ob.Capacity({"CPU": self.population.slots})])

    def play_again(self, **actions: str) -> Table:
        """Open the experiment again, with the actions of ``observations.Resumed``, and play to the end."""
        return self._play(self._open_again(**actions))

    def _play(self, observations: list[ob.Observation]) -> Table:
        while True:
            try:
                self._turn(observations)
            except _Crash:
                observations = self._open_again()
                continue
            if finished(self.state, self.memory):
                return self
            observations = self._next()

    def _turn(self, observations: Iterable[ob.Observation]) -> None:
        turn = decide_all(Turn(self.state, self.memory, self._policies, self.at, self._watch), observations)
        self.memories.append((len(self.history), self.adapter.get_state()))
        for command in turn.commands:
            self._obey(command)
        self._propose()

    def _watch(self, event: ev.AnyEvent) -> None:
        self.history.append(ev.decode(ev.encode(event)))
        assert len(self.history) < MAX_EVENTS, f"it does not end:\n{self.story()}"
        self._on_event(self)

    def _next(self) -> list[ob.Observation]:
        """What the world says next. Things that are said at the same moment arrive together."""
        if not self._due:
            held = self.memory.held_until
            assert held, f"nothing can happen any more, and the experiment has not ended:\n{self.story()}"
            self.at = max(self.at, min(held.values()))
            return []
        self.at, _, first = heapq.heappop(self._due)
        observations = [first]
        while self._due and self._due[0][0] <= self.at:
            observations.append(heapq.heappop(self._due)[2])
        return observations

    def _open_again(self, **actions: str) -> list[ob.Observation]:
        """The driver left or died after the last event of the history, and another one takes over."""
        self._due.clear()
        self.at += 1.0
        self.state = folded(self.history, self._policies.rules)
        self.memory = DriverMemory()
        self._proposed, self._waits_since = len(self.state.trials), -1
        self._owed = max(0, self.state.asks - self._proposed)
        self.adapter = retold(self.make_scheduler, self.population, self.history)
        return [ob.Capacity({"CPU": self.population.slots}), ob.Resumed(lost="crashed", **actions)]

    # --- the world: workers, checkpoint jobs and searcher

    def _say(self, delay: float, observation: ob.Observation) -> None:
        self._sent += 1
        heapq.heappush(self._due, (self.at + delay, self._sent, observation))

    def _obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.Launch(n, attempt):
                self._work(n, attempt, 1)
            case cmd.Reply(n, attempt, ordinal, go, save):
                if save:
                    stage = ob.SealedStage(f"saved.{n}.{attempt}.{ordinal}", 1, 10, True)
                    self._say(UNWINDING_S, ob.Saved(n, attempt, 1, stage, ordinal))
                if go == "go":
                    self._work(n, attempt, ordinal + 1)
                else:
                    self._say(2 * UNWINDING_S, ob.Stopped(n, attempt, 1))
            case cmd.Commit(n, index):
                self._say(self._script(n).commit_s, ob.CommitEnded(n, index, f"digest{index}", 10))
            case cmd.Verify(n, index):
                self._say(0.0, ob.VerifyEnded(n, index, True))
            case cmd.Delete(n, index):
                self._say(0.0, ob.DeleteEnded(n, index, True))
            case cmd.Propose(count):
                self._owed += count

    def _work(self, n: int, attempt: int, ordinal: int) -> None:
        """The trial makes one step, as far as it gets."""
        script, trial = self._script(n), self.state.trials[n]
        step = trial.iteration // script.stride + 1
        if step > script.last:
            self._say(UNWINDING_S, ob.Returned(n, attempt, 1))
        elif step in self._failing[n]:
            self._failing[n].remove(step)
            self._say(script.step_s, ob.Raised(n, attempt, 1, ev.ErrorFacts("ValueError", f"boom at step {step}")))
        elif step in self._losing[n]:
            self._losing[n].remove(step)
            self._say(script.step_s, ob.Died(n, attempt, ev.Cause.PREEMPTED, "preempted"))
        else:
            saves = script.saves_every and step % script.saves_every == 0
            stage = ob.SealedStage(f"stage.{n}.{attempt}.{ordinal}", 1, 10, True) if saves else None
            metrics = script.metrics(trial.config, step)
            self._say(script.step_s, ob.Report(n, attempt, 1, ordinal, script.step_s, metrics, stage))

    def _script(self, n: int) -> Script:
        return self.population.scripts[n]

    def _propose(self) -> None:
        """Answer what the searcher was asked for, as far as it can tell by now."""
        most, total = self.population.max_live, len(self.population.scripts)
        ended = sum(self.state.counts[status] for status in Status.FINAL)
        while self._owed and self._proposed < total and not (most and self._proposed - ended >= most):
            script, n = self._script(self._proposed), self._proposed
            config = {"n": n, **script.config}
            self._say(0.0, ob.Proposed(f"t{n}", config, f"{n}", tuple(config), [n, 0], script.request))
            self._owed, self._proposed = self._owed - 1, n + 1
        if self._owed and self._proposed == total:
            self._owed = 0
            self._say(0.0, ob.Exhausted("no more"))
        elif self._owed and self._waits_since != self.memory.told:
            self._waits_since = self.memory.told
            self._say(0.0, ob.NotYet(self._waits_since))


# --- rebuilding


def new_adapter(make_scheduler: Maker, population: Population) -> SchedulerAdapter:
    """A adapter with a scheduler that knows nothing yet."""
    scheduler = make_scheduler()
    scheduler.set_search_properties("score", population.mode, seed=population.seed)
    scheduler.check_ready()
    return _CheckedAdapter(scheduler, replace(INFO, is_class=population.is_class), ResultBuilder(INFO))


def rules_of(population: Population) -> Rules:
    return Rules(
        max_failures=population.max_failures,
        is_class=population.is_class,
        searcher_learns=bool(population.max_live),
        **population.rules,
    )


def folded(history: Iterable[ev.AnyEvent], rules: Rules) -> State:
    state = State()
    for event in history:
        apply(state, event, rules.retention)
    return state


def retold(
    make_scheduler: Maker,
    population: Population,
    history: Sequence[ev.AnyEvent],
    since: tuple[int, bytes] | None = None,
) -> SchedulerAdapter:
    """A new adapter that was told the history; with ``since``, one that knew the first events and is told the rest."""
    adapter = new_adapter(make_scheduler, population)
    retention = rules_of(population).retention
    state, known = State(), 0
    if since is not None:
        known = since[0]
        adapter.set_state(since[1])
    for k, event in enumerate(history):
        if k >= known:
            adapter.before(state, event)
        apply(state, event, retention)
        if k >= known:
            adapter.after(state, event)
    return adapter


# --- what tests call


def play(make_scheduler: Maker, population: Population) -> Table:
    """Play to the end and return the table."""
    return Table(make_scheduler, population).play()


def play_with_crashes(make_scheduler: Maker, population: Population, after: Iterable[int]) -> Table:
    """Play, and let the driver die after these events; what was at work then starts from its last checkpoint."""
    left = sorted(after)

    def crash(table: Table) -> None:
        if left and len(table.history) >= left[0]:
            del left[0]
            raise _Crash

    return Table(make_scheduler, population, crash).play()


def assert_exact_resume(
    make_scheduler: Maker, population: Population, *, prefixes: Iterable[int] | None = None
) -> Table:
    """Whenever the scheduler is replaced by a rebuilt one, the rest of the history is the same.

    It is rebuilt twice: by telling everything again, and from its state at some earlier moment and telling the rest.

    Args:
        make_scheduler: Makes a new object each time.
        population: A small one: the work grows with the square of the number of events.
        prefixes: After how many events to rebuild it; None: after each one.

    Returns:
        The table of the undisturbed run.
    """
    first = play(make_scheduler, population)
    expected = [ev.encode(event) for event in first.history]
    stored = [(count, memory) for count, memory in first.memories if memory is not None]
    for k in range(1, len(expected) + 1) if prefixes is None else prefixes:
        _replay(make_scheduler, population, expected, k, None)
        # Not of the same count: that memory is of the end of the turn, and this event may be in the middle of it.
        earlier = [(count, memory) for count, memory in stored if count < k]
        if earlier:
            _replay(make_scheduler, population, expected, k, Rng([population.seed, k]).choice(earlier))
    return first


def _replay(
    make_scheduler: Maker, population: Population, expected: Sequence[bytes], k: int, since: tuple[int, bytes] | None
) -> None:
    def compare(table: Table) -> None:
        count = len(table.history)
        if count == k:
            former, table.adapter = table.adapter, retold(make_scheduler, population, table.history, since)
            table.adapter._view.saves |= former._view.saves  # the answer to the report at hand is not part of history
        how = "told everything" if since is None else f"restored from event {since[0]}"
        assert count <= len(expected), f"rebuilt after event {k} ({how}), it goes on longer:\n{table.story()}"
        assert ev.encode(table.history[-1]) == expected[count - 1], (
            f"rebuilt after event {k} ({how}), it departs at event {count}: expected "
            f"{ev.decode(expected[count - 1])!r}\n{table.story()}"
        )

    Table(make_scheduler, population, compare).play()


def assert_never_hangs(make_scheduler: Maker, seeds: Iterable[int], **settings: Any) -> list[Table]:
    """Random populations all come to an end, with and without crashes. ``settings`` are those of ``random_population``.

    A message names the seed: ``play(make_scheduler, random_population(seed))`` repeats it.
    """
    tables = []
    for seed in seeds:
        population = random_population(seed, **settings)
        try:
            table = play(make_scheduler, population)
            if seed % 3 == 0:
                rng = Rng([seed, 1])
                after = [rng.integers(1, len(table.history) + 1) for _ in range(rng.integers(1, 5))]
                play_with_crashes(make_scheduler, population, after)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        assert all(trial.final for trial in table.state.trials), f"seed {seed}:\n{table.story()}"
        assert len(table.state.trials) == len(population.scripts), f"seed {seed}"
        tables.append(table)
    return tables


def random_population(seed: int, *, max_trials: int = 12, max_steps: int = 12, odd: float = 0.5) -> Population:
    """Trials of all kinds. With chance ``odd`` a population has trials that fail, save late or report nonsense."""
    rng = Rng([seed, 0])
    strange = rng.random() < odd
    scripts = [_random_script(rng, max_steps, strange) for _ in range(rng.integers(1, max_trials + 1))]
    rules: dict[str, Any] = {"lookahead": rng.choice((1, 3, 16))}
    if rng.random() < 0.3:
        rules["max_concurrent"] = rng.integers(1, 4)
    return Population(
        scripts,
        slots=rng.integers(1, 5),
        mode=rng.choice(("min", "max")),
        seed=seed,
        max_failures=rng.choice((-1, 0, 1, 3)),
        is_class=rng.random() < 0.4,
        rules=rules,
        max_live=rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 5)),
    )


def _random_script(rng: Rng, max_steps: int, strange: bool) -> Script:
    steps = rng.integers(0 if strange else 1, max_steps + 1)
    level, slope = rng.random(), rng.random() - 0.5
    scores: list[Any] = [round(level + slope * step / max_steps, 3) for step in range(steps)]
    if not strange:
        return Script(scores, step_s=rng.choice((0.5, 1.0, 1.3)))
    for step in range(steps):
        if rng.random() < 0.1:
            scores[step] = rng.choice((None, math.nan, math.inf, -math.inf, "high", ABSENT, [1], True, 0))
    return Script(
        scores,
        step_s=rng.choice((0.5, 1.0, 1.3, 7.0)),
        stride=rng.choice((1, 1, 1, 2, 5)),
        fails_at=tuple(rng.integers(1, max_steps + 1) for _ in range(rng.choice((0, 0, 1, 3)))),
        lost_at=tuple(rng.integers(1, max_steps + 1) for _ in range(rng.choice((0, 0, 0, 2)))),
        saves_every=rng.choice((0, 1, 1, 2, 3)),
        commit_s=rng.choice((0.0, 0.0, 0.3, 4.0)),
    )
