"""The searcher's edge for variant generators: turns the next variant into a proposal with a name and resources.

Runs in the loop's thread, because the next variant is a matter of microseconds. A slow searcher gets an edge of its
own (``searching``) with the same methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.controller.imported import MARK
from holdfast.controller.loop import ProposerEdge
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.errors import StorageFullError
from holdfast.search.base import Proposal
from holdfast.space.naming import experiment_tag, trial_id

RECOMPUTED = "rebuilt by holdfast repair: the search chooses it again"
UNKNOWN_CONFIG = "the journal has lost this trial's record, no file has its parameters, and a searcher chose them"


class Plan(Protocol):
    """Where configurations come from: the one after a mark (``space.variants.VariantPlan``)."""

    def next(self, after: Any, /) -> Proposal | None: ...


class Describer:
    """Turns configurations into proposals with ids, names and resources.

    Args:
        state: The experiment; the number of a proposal is that of the trial it becomes.
        prefix: What ids begin with.
        request_of: Config -> the resources that its trial asks for.
        keep_value: A configuration as plain data that can be journaled.
        names: (number, id, tag, config) -> the user's name and directory name for a trial.
    """

    def __init__(
        self,
        state: State,
        *,
        prefix: str,
        request_of: Callable[[dict[str, Any]], dict[str, float] | None],
        keep_value: Callable[[Proposal], dict[str, Any]],
        names: Callable[[int, str, str, dict[str, Any]], tuple[str, str]],
    ) -> None:
        self._count = len(state.trials)
        self._prefix = prefix
        self._request_of = request_of
        self._keep_value = keep_value
        self._names = names

    def __call__(self, proposal: Proposal) -> ob.Proposed:
        """The next proposal."""
        n = self._count
        config = self._keep_value(proposal)
        identity, tag = trial_id(self._prefix, n), experiment_tag(n, proposal.evaluated)
        name, dirname = self._names(n, identity, tag, config)
        self._count += 1
        return ob.Proposed(
            identity,
            config,
            tag,
            tuple(proposal.evaluated),
            proposal.mark,
            self._request_of(config),
            name,
            dirname,
        )


class RunProposer(ProposerEdge, Protocol):
    """What a driver needs of its proposer, besides what the loop does."""

    @property
    def error(self) -> Exception | None:
        """What the search raised instead of a configuration. The driver then shuts down gracefully."""

    def replan(self, make_plan: Callable[[], Plan]) -> None:
        """The user has asked for more samples, and has got them: events say so too."""

    def close(self) -> None:
        """End its thread, if it has one."""


class VariantProposer:
    """Proposes the plan's variants in order, continuing after the last one that became a trial.

    Attributes:
        error: What a user's function raised instead of a configuration. The driver then shuts down gracefully.
    """

    def __init__(self, plan: Plan, state: State, describe: Describer) -> None:
        self._plan = plan
        self._mark, _ = after_rebuilt(plan, state)
        self._describe = describe
        self._owed = 0
        self.error: Exception | None = None

    def replan(self, make_plan: Callable[[], Plan]) -> None:
        """Continue with a plan that differs in its length only."""
        self._plan = make_plan()

    def ask(self, count: int) -> None:
        """Owe ``count`` more proposals."""
        self._owed += count

    def drain(self) -> list[ob.Observation]:
        """The proposals that can be had now."""
        ready: list[ob.Observation] = []
        while self._owed:
            try:
                proposal = self._plan.next(self._mark)
                if proposal is None:
                    ready.append(ob.Exhausted("all variants were created"))
                    self._owed = 0
                    break
                ready.append(self._describe(proposal))
            except StorageFullError:
                break  # its objects cannot be stored now: what is owed stays owed
            except Exception as error:
                self._owed = 0
                self.error = error
                ready.append(ob.Interrupted(f"the search failed: {type(error).__name__}: {error}"))
                break
            self._mark = proposal.mark
            self._owed -= 1
        return ready

    def close(self) -> None:
        """Nothing to stop: it works in the loop's thread."""


def after_rebuilt(plan: Plan, state: State) -> tuple[Any, dict[int, Proposal]]:
    """Count the last trials if a repair has rebuilt them, because their marks are lost.

    Imported trials stand for as many of the plan's first variants: grids are gone through in the same order.

    Returns:
        The mark of the last trial, and what the plan has proposed for the trials without one.
    """
    rebuilt: dict[int, Proposal] = {}
    first = len(state.trials)
    while first and state.trials[first - 1].mark is None:
        first -= 1
    mark = _after_imported(plan, state) if state.mark == MARK else state.mark
    for n in range(first, len(state.trials)):
        proposal = plan.next(mark)
        if proposal is None:
            break
        rebuilt[n], mark = proposal, proposal.mark
    return mark, rebuilt


def _after_imported(plan: Plan, state: State) -> Any:
    """The mark of the last variant that an imported trial stands for."""
    mark = None
    for trial in state.trials:
        proposal = plan.next(mark) if trial.mark == MARK else None
        if proposal is None:
            break
        mark = proposal.mark
    return mark


def complete_rebuilt(
    plan: Plan | None, state: State, keep_value: Callable[[Proposal], dict[str, Any]], at: float
) -> list[ev.AnyEvent]:
    """Give trials that a repair has rebuilt from files the parameters that the search had chosen for them.

    Files know parameters as JSON only, or not at all if the trial had not begun to report.

    Args:
        plan: Where configurations come from; None if they came from a searcher, which cannot be asked again.
        state: The experiment.
        keep_value: A configuration as plain data that can be journaled.
        at: When this is recorded.
    """
    events: list[ev.AnyEvent] = []
    proposals = {} if plan is None else after_rebuilt(plan, state)[1]
    for n, proposal in proposals.items():
        trial, config = state.trials[n], keep_value(proposal)
        if not trial.final and not trial.shown_tag and trial.config != config:
            tag = experiment_tag(n, proposal.evaluated)
            events.append(ev.TrialReconfigured(at, n, config, tag, params=tuple(proposal.evaluated), why=RECOMPUTED))
    if plan is None and state.trials and any(trial.config for trial in state.trials):
        error = ev.ErrorFacts(type="JournalDamagedError", message=UNKNOWN_CONFIG)
        lost = (trial for trial in state.unfinished() if not trial.config)
        events += [ev.TrialErrored(at, trial.n, trial.attempt, ev.Cause.DAMAGED, error) for trial in lost]
    return events
