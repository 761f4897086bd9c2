"""What fake workers do: train, report, save, and fail when the story wants it.

Owns the behaviour of a trainable, function or class, as a worker process shows it to its driver. Must never look at the
driver: a program knows what it was launched with, what is in the store, and the answers to its reports.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.core.events import Cause, ErrorFacts
from holdfast.core.observations import Raised, Report, Returned, Saved, SealedStage, Stopped, Waiting
from holdfast.trainable.worker_messages import Decision, Run
from simulator.engine import Ahead, Ask, Die, FakeProcess, Hang, Program, SchedulerRequest, Sleep, Tell
from simulator.ledger import Ledger, Life, Weights

SPACE_RETRY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class FakeTraining:
    """How one trial trains."""

    steps: int
    step_s: float
    checkpoint_every: int  # 0: never
    is_class: bool
    at_end: bool
    returns_last: bool  # a function returns its last metrics instead of reporting them
    scores: tuple[float | None, ...]  # by step, repeated; None: not reported


class Mishaps(Protocol):
    """What happens to workers."""

    def in_step(self) -> str:
        """What goes wrong in this step: a cause, "hang", or ""."""

    def unwinding_fails(self) -> bool:
        """Does the user's code raise when it is told to stop?"""

    def loading_fails(self) -> bool:
        """Does the user's code fail to load a good checkpoint?"""

    def space_returns_in(self) -> float:
        """Seconds until there is room for checkpoints; 0 if there is."""

    def stage_is_spoiled(self) -> bool:
        """Is the stage damaged before it can be committed?"""


class Stages(Protocol):
    """Where an attempt stages checkpoints, and loads them from."""

    def stage(self, home: str, run: Run, weights: Weights) -> str:
        """Seal a stage; returns its name."""

    def spoil_stage(self, place: tuple[str, str]) -> None:
        """Damage a stage."""

    def load(self, path: str) -> Weights | None:
        """What is in a checkpoint; None if it is not whole."""


class Trainer:
    """Runs ``FakeTraining`` as the program of a process.

    Args:
        process: The attempt.
        life: Where what really happens is noted.
        epoch: Of the driver that launched it.
    """

    def __init__(
        self,
        process: FakeProcess,
        plan: FakeTraining,
        epoch: int,
        *,
        root: str,
        store: Stages,
        ledger: Ledger,
        mishaps: Mishaps,
    ) -> None:
        self._process = process
        self._run = process.run
        self._who = (*process.key, process.worker)
        self._plan = plan
        self._epoch = epoch
        self._root = root
        self._store = store
        self._ledger = ledger
        self._mishaps = mishaps
        self._weights = Weights(process.run.n, 0, 0)
        self._life: Life = ledger.begin(epoch, *process.key, self._weights)

    def program(self) -> Program:
        """The attempt from its start to its end."""
        if self._run.checkpoint is not None:
            yield Sleep(self._plan.step_s / 2)
            loaded = self._store.load(f"{self._root}/{self._run.checkpoint}")
            if loaded is None or self._mishaps.loading_fails():
                self._blame()
                self._life.end = Cause.LOADING if self._plan.is_class else Cause.EXCEPTION
                error = ErrorFacts("OSError", "cannot load the checkpoint", "train.py:9")
                # Only a class says when it loads; a function's failure is one of the user's code.
                return Raised(*self._who, error, restoring=self._plan.is_class)
            self._life.start = loaded
            self._weights = loaded._replace(n=self._run.n)
        self._life.began = True
        while self._plan.is_class or self._weights.step < self._plan.steps:
            yield Sleep(self._plan.step_s)
            mishap = self._mishaps.in_step()
            if mishap:
                return (yield from self._fail(mishap))
            if self._plan.returns_last and self._weights.step + 1 >= self._plan.steps:
                yield self._last_words()
                break
            decision = yield from self._report()
            if decision.go != "go":
                yield from self._save_last(decision)
                if self._mishaps.unwinding_fails():
                    return Raised(*self._who, ErrorFacts("RuntimeError", "while cleaning up", "train.py:21"))
                done = self._plan.is_class and self._weights.step >= self._plan.steps
                return Returned(*self._who) if done else Stopped(*self._who)
            if self._plan.is_class and (decision.save or self._process.save_soon):
                self._process.save_soon = False
                yield from self._send_saved()
        return Returned(*self._who)

    def _blame(self) -> None:
        home, _, index = str(self._run.checkpoint).partition("/checkpoint_")
        key = (int(home[1:]), int(index))
        self._ledger.blamed[key] = self._ledger.blamed.get(key, 0) + 1

    def _fail(self, mishap: str) -> Generator[SchedulerRequest, Any, Raised]:
        if mishap == "hang":
            self._life.hung = True
            yield Hang()
        self._life.end = mishap
        place = f"{self._root}/t{self._process.run.n}"  # messages of real failures name files
        if mishap == Cause.EXCEPTION:
            return Raised(*self._who, ErrorFacts("ValueError", f"boom: {place}/data", "train.py:3"))
        if mishap == Cause.STORAGE:
            return Raised(*self._who, ErrorFacts("OSError", f"No space left on device: {place}"), storage=True)
        yield Die(mishap, f"died of {mishap}: {place}")
        raise AssertionError("a dead process goes on")

    def _train(self) -> dict[str, Any]:
        """One step; returns its metrics."""
        plan = self._plan
        self._weights = weights = self._ledger.send(
            self._epoch, self._run.attempt, self._weights, self._process.ordinal + 1
        )
        metrics: dict[str, Any] = {"step": weights.step, "link": weights.link}
        score = plan.scores[(weights.step + weights.n) % len(plan.scores)]
        if score is not None:
            metrics["score"] = score
        if plan.is_class and weights.step >= plan.steps:
            metrics["done"] = True
        return metrics

    def _last_words(self) -> Tell:
        """What a function returns: nobody waits for an answer."""
        metrics = self._train()
        return Tell(Report(*self._who, self._process.ordinal + 1, self._plan.step_s, metrics, final=True))

    def _report(self) -> Generator[SchedulerRequest, Any, Decision]:
        plan, process = self._plan, self._process
        metrics = self._train()
        weights, done = self._weights, "done" in metrics
        due = plan.checkpoint_every and weights.step % plan.checkpoint_every == 0
        if not plan.is_class and process.save_soon and plan.checkpoint_every:
            due, process.save_soon = True, False
        sealed = None
        if due or (done and plan.at_end):
            sealed = yield from self._stage()
            self._ledger.reports[weights.link].sealed = sealed.name
        elif process.ordinal - process.answered < process.ahead and not done:
            yield Ahead(metrics, plan.step_s)
            return Decision(process.ordinal)
        decision: Decision = yield Ask(metrics, plan.step_s, sealed)
        self._saved_now = sealed is not None
        return decision

    def _save_last(self, decision: Decision) -> Generator[SchedulerRequest, Any, None]:
        """What a class saves when it is told to stop or pause."""
        plan = self._plan
        done = self._weights.step >= plan.steps
        at_end = decision.go == "stop" and plan.at_end and not done and not self._saved_now
        if plan.is_class and (decision.save or at_end):
            yield from self._send_saved()

    def _send_saved(self) -> Generator[SchedulerRequest, Any, None]:
        sealed = yield from self._stage()
        yield Tell(Saved(*self._who, sealed, self._process.ordinal))

    def _stage(self) -> Generator[SchedulerRequest, Any, SealedStage]:
        if self._mishaps.space_returns_in():
            yield Tell(Waiting(*self._who, "waiting for space"))
            while self._mishaps.space_returns_in():
                self._life.waited_s += SPACE_RETRY_S
                yield Sleep(SPACE_RETRY_S)
            yield Tell(Waiting(*self._who, ""))
        home = f"{self._root}/{self._run.trial_dir}"
        name = self._store.stage(home, self._run, self._weights)
        if self._mishaps.stage_is_spoiled():
            self._store.spoil_stage((home, name))
        return SealedStage(name, 1, 10, True)


def scripted(process: FakeProcess) -> Program:
    """The words of ``holdfast.testing.scripted``, for the contract of engines."""
    who = (*process.key, process.worker)
    for word, *arguments in process.run.config["script"]:
        if word == "raise":
            return Raised(*who, ErrorFacts("RuntimeError", arguments[0]))
        if word == "exit":
            yield Die(Cause.EXIT, f"exit code {arguments[0]}")
        if word == "hang":
            yield Hang()
        if word == "await_save":
            while not process.save_soon:
                yield Sleep(0.1)
        if word in ("report", "await_save"):
            decision: Decision = yield Ask(arguments[0] if arguments else {"saved": True})
            if decision.go != "go":
                return Stopped(*who)
    return Returned(*who)
