"""Read reports from the spools of trials whose driver died before it had read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.controller.loop import Controller
from holdfast.core.observations import Report
from holdfast.core.state import State
from holdfast.journal.log import Journal
from holdfast.trainable.spool_writer import SpoolOwner


class Spools(Protocol):
    """Where attempts leave what they have reported ahead."""

    def owners(self) -> list[SpoolOwner]:
        """Those that have left something."""

    def read(self, owner: SpoolOwner, after: int) -> list[Report]:
        """What one has reported after the report of this number."""

    def forget(self, owners: Iterable[SpoolOwner]) -> None:
        """What they have left is not needed any more."""


def hear_spools(controller: Controller, journal: Journal, spools: Spools) -> None:
    """Journal what is in the spools and not yet there, and forget them when it is durable.

    Whoever could still add to them must have ended, and nothing that a later driver may need is touched.
    """
    state = controller.state
    owners = [owner for owner in spools.owners() if owner.epoch <= state.epoch]  # later ones are a successor's
    if not owners:
        return
    journal.flush()  # raises if somebody has taken over, who may not have read them yet
    needed = [owner for owner in owners if owner.epoch == state.epoch or _is_running(state, owner)]
    # At once, before there is an attempt of the same number: the journal does not know theirs, or knows its end.
    spools.forget(set(owners).difference(needed))
    for owner in needed:
        if _is_running(state, owner):
            controller.turn(spools.read(owner, state.trials[owner.n].ordinal))
    if needed and journal.sync():
        journal.flush()
        spools.forget(needed)


def _is_running(state: State, owner: SpoolOwner) -> bool:
    return owner.n in state.running and state.trials[owner.n].attempt == owner.attempt
