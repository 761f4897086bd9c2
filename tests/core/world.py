"""A tiny world around the pure core: feed observations, look at events and commands. No engine, no disk, no clock."""

from __future__ import annotations

from typing import Any

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.policies import Policies, Rules
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.core.turn import Turn
from holdfast.schedulers.fifo import FirstInFirstOut


class NeverStop:
    def why_stop(self, trial, result):
        return ""

    def why_stop_all(self, lived_s):
        return ""


class StopAt:
    """Ends trials whose iteration reaches a number."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def why_stop(self, trial, result):
        return "enough" if trial.iteration + 1 >= self.iteration else ""

    def why_stop_all(self, lived_s):
        return ""


class World:
    def __init__(
        self, *, cpus: float = 2, trials: int = 1, stop: Any = None, scheduler: Any = None, **rules: Any
    ) -> None:
        self.state = State()
        self.memory = DriverMemory()
        self.policies = Policies(Rules(**rules), scheduler or FirstInFirstOut(), stop or NeverStop(), lambda *args: {})
        self.at = 0.0
        self.history: list[ev.AnyEvent] = []
        self.left = trials
        self.tell(ob.Capacity({"CPU": cpus}))

    def tell(self, *observations: ob.Observation) -> Turn:
        """One turn; the searcher answers at once, as often as it is asked."""
        self.at += 1.0
        turn = decide_all(Turn(self.state, self.memory, self.policies, self.at), observations)
        self.history += turn.events
        for command in turn.commands:
            if isinstance(command, cmd.Propose):
                self.tell_more(turn, command.count)
        return turn

    def tell_more(self, turn: Turn, count: int) -> None:
        answers: list[ob.Observation] = []
        for _ in range(min(count, self.left)):
            n = len(self.state.trials) + len(answers)
            answers.append(ob.Proposed(f"t{n}", {"x": n}, f"{n}_x={n}", ("x",), [n, 0], None))
        self.left -= len(answers)
        if not self.left:
            answers.append(ob.Exhausted("no more"))
        more = self.tell(*answers)
        turn.events += more.events
        turn.commands += more.commands

    def trial(self, n: int = 0):
        return self.state.trials[n]

    def report(self, n: int = 0, *, sealed: str | None = None, attempt: int | None = None, **metrics: Any) -> Turn:
        trial = self.trial(n)
        stage = ob.SealedStage(sealed, 1, 10, True) if sealed else None
        number = trial.attempt if attempt is None else attempt
        return self.tell(ob.Report(n, number, 1, trial.ordinal + 1, 0.5, metrics or {"loss": 1.0}, stage))

    def save(self, n: int = 0, name: str = "s", **metrics: Any) -> Turn:
        """Report with a checkpoint and let its commit succeed."""
        self.report(n, sealed=name, **metrics)
        return self.commit(n)

    def commit(self, n: int = 0) -> Turn:
        (index,) = [i for m, i in self.state.staged if m == n]
        return self.tell(ob.CommitEnded(n, index, f"digest{index}", 10))

    def fail(self, n: int = 0, **facts: Any) -> Turn:
        trial = self.trial(n)
        error = ev.ErrorFacts("ValueError", "boom", "train.py:3", "Traceback ...")
        return self.tell(ob.Raised(n, trial.attempt, 1, error, **facts))

    def copy(self, donor: int, *, into: int) -> None:
        """Trial ``into`` continues from the latest checkpoint of ``donor`` when it next starts."""
        point = self.state.start_point(self.trial(donor))
        assert point is not None
        turn = Turn(self.state, self.memory, self.policies, self.at)
        turn.add(ev.TrialReconfigured(self.at, into, {"x": -1}, "copied", point[0], donor))
        self.history += turn.events

    def replayed(self) -> State:
        """The state that folding the recorded events gives."""
        state = State()
        for event in self.history:
            apply(state, ev.decode(ev.encode(event)), self.policies.rules.retention)
        return state


def kinds(events) -> list[str]:
    return [type(event).__name__ for event in events]
