"""I5: killed again and again, an experiment decides what it would have decided undisturbed.

One worker, so that reports come in the same order, and stop rules that remember: one whose memory is part of the
snapshots, and two that can only be told everything again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from experiments import Plan
from lab import Lab, driver_crash, surviving_rows

from holdfast.core import events as ev

MAX_LIVES = 80


class Decisions(NamedTuple):
    """Everything that was decided, by trial."""

    configs: list[dict[str, Any]]
    verdicts: dict[int, list[tuple[int, str, str]]]
    reasons: dict[int, str]
    dropped: dict[int, list[int]]
    order: list[int]


def decisions(history: list[ev.AnyEvent]) -> Decisions:
    """The verdicts on surviving rows: an abandoned attempt is judged too, and its verdicts go with it."""
    verdicts: dict[int, list[tuple[int, str, str]]] = {}
    found = Decisions([], verdicts, {}, {}, [])
    for event in history:
        if isinstance(event, ev.TrialCreated):
            found.configs.append(event.config)
        elif isinstance(event, ev.TrialStarted):
            del verdicts.setdefault(event.n, [])[event.rows :]
            if event.n not in found.order:
                found.order.append(event.n)
        elif isinstance(event, ev.Reported):
            verdicts[event.n].append((event.metrics["step"], event.verdict, event.why))
        elif isinstance(event, ev.TrialTerminated):
            found.reasons[event.n] = event.reason
        elif isinstance(event, ev.CheckpointsDropped):
            # In whatever order: one that an attempt had started from is kept a little longer.
            found.dropped[event.n] = sorted([*found.dropped.get(event.n, []), *event.indexes])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "snapshots"), [("plateau", True), ("plateau", False), ("no progress", False), ("counting", True)]
)
def test_an_experiment_killed_every_few_events_decides_the_same(lab: Lab, rule: str, snapshots: bool) -> None:
    plan = Plan(trials=3, steps=14, every=3, keep=1, cpus=1, pause_s=0.0, stop=rule)
    undisturbed = Lab(lab.folder / "undisturbed")
    try:
        undisturbed.run(plan).must_finish()
        expected = decisions(undisturbed.history())
    finally:
        undisturbed.close()
    assert 0 < sum(len(rows) for rows in expected.verdicts.values()) < plan.trials * plan.steps, "nothing was stopped"

    environment = {"TUNE_GLOBAL_CHECKPOINT_S": "0"} if snapshots else {}
    lives = 0
    while True:
        driver = lab.run(plan, **environment, **driver_crash("journal.after_write:10"))
        lives += 1
        if driver.process.returncode == 0:
            break
        assert driver.process.returncode == -9, driver.output
        assert lives < MAX_LIVES
        lab.check_nothing_lost()
    assert lives > 5
    found = decisions(lab.history())
    assert found == expected
    assert {n: len(rows) for n, rows in surviving_rows(lab.history()).items()} == {
        n: len(rows) for n, rows in expected.verdicts.items()
    }
    lab.check_finished(plan)
