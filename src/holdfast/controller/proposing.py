"""The searcher's edge for variant generators: turns the next variant into a proposal with a name and resources.

Runs in the loop's thread, because the next variant is a matter of microseconds. A slow searcher gets an edge of its
own (``searching``) with the same methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.core import observations as ob
from holdfast.core.state import State
from holdfast.errors import StorageFullError
from holdfast.search.base import Proposal
from holdfast.space.naming import experiment_tag, trial_id


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


class VariantProposer:
    """Proposes the plan's variants in order, continuing after the last one that became a trial.

    Attributes:
        error: What a user's function raised instead of a configuration. The experiment is then ended in order.
    """

    def __init__(self, plan: Plan, state: State, describe: Describer) -> None:
        self._plan = plan
        self._mark = state.mark
        self._describe = describe
        self._owed = 0
        self.error: Exception | None = None

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
