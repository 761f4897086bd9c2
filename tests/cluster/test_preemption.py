"""How attempts end on nodes that the cluster takes away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.events import Cause, ErrorFacts
from holdfast.core.observations import Died, Raised, Returned, Stopped
from holdfast.engines.cluster.preemption import Preemption, patience_with

RAISED = Raised(0, 1, 7, ErrorFacts("SystemExit", "1"))


@pytest.mark.parametrize(
    ("end", "halted", "preempted"),
    [
        (None, True, True),
        (Stopped(0, 1, 7), True, True),
        (RAISED, True, True),  # while it unwinds after SIGTERM
        (RAISED, False, False),  # by itself, before
        (Returned(0, 1, 7), True, False),
    ],
)
def test_only_what_we_end_is_preempted(end: Any, halted: bool, preempted: bool) -> None:
    worker: Any = SimpleNamespace(number=7, halted=halted, output=lambda: "")
    preemption = Preemption()
    preemption._why[7] = "b is taken away"
    told = preemption.end_of(worker, (0, 1), end, Cause.SIGNAL, "ended")
    assert told == (Died(0, 1, Cause.PREEMPTED, "b is taken away", "", 7) if preempted else end)
    assert preemption.end_of(worker, None, None, "", "") is None


def test_half_of_the_time_that_is_left_is_for_saving() -> None:
    assert [patience_with(at, 100.0) for at in (120.0, 90.0, 1000.0, 0.0)] == [10.0, 0.0, 30.0, 30.0]
