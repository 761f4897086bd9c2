"""Settings that the user has changed since the experiment was begun: a fold of ``SettingsChanged`` events.

What the experiment was begun with is never rewritten. Whoever wants to know what holds now, to drive the experiment or
to look at it, puts ``State.settings`` over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.core.events import SettingsChanged
    from holdfast.core.retention import Retention
    from holdfast.core.state import State

STOPPED = "stop: "
"""How the reason begins if a stop rule has ended the search."""


KEPT_REQUESTS = 1000


class ChangedSettings(msgspec.Struct, array_like=True, frozen=True):
    """What differs from the beginning. None: nothing."""

    metric: str | None = None
    mode: str | None = None
    num_samples: int | None = None
    total: int | None = None  # trials that ``num_samples`` makes; None if nobody knows
    time_budget_s: float | None = None
    max_concurrent: int | None = None
    objects: dict[str, str] = {}  # setting -> key of the value that it has now
    retold: int = 0  # how often stop rules, schedulers and searchers had to be told everything again
    relearned: int = 0  # how often because another metric counts
    times: int = 0  # how often anything was changed

    def after(self, event: SettingsChanged) -> ChangedSettings:
        """With one more change."""
        new: dict[str, Any] = {}
        for name in ("metric", "mode", "time_budget_s", "max_concurrent"):
            value = getattr(event, name)
            new[name] = getattr(self, name) if value is None else value
        if event.num_samples is not None:
            new |= {"num_samples": event.num_samples, "total": event.total}
        return msgspec.structs.replace(
            self,
            **new,
            objects={**self.objects, **event.objects},
            retold=self.retold + (event.retold or event.relearned),
            relearned=self.relearned + event.relearned,
            times=self.times + 1,
        )


def remember_request(state: State, request: str) -> None:
    """A request of a user was answered. The latest are remembered: the files of older ones are gone."""
    state.requests[request] = None
    if len(state.requests) > KEPT_REQUESTS:
        del state.requests[next(iter(state.requests))]


def settings_changed(state: State, event: SettingsChanged, _: Retention) -> None:
    """Fold a change into the state."""
    if event.request:
        remember_request(state, event.request)
    state.settings = state.settings.after(event)
    if _reopens(state.search_ended, event):
        state.reopened = state.stopping or state.reopened
        state.search_ended = state.stopping = ""


def _reopens(search_ended: str, event: SettingsChanged) -> bool:
    """May there be more trials because of this change, though the search had ended?

    A search that a stop rule has ended is reopened by another rule or budget: if the new one has been reached as well,
    it ends the search again. One that had made all its trials is reopened by a larger number.
    """
    if search_ended.startswith(STOPPED):
        return event.time_budget_s is not None or "stop" in event.objects
    return event.num_samples is not None
