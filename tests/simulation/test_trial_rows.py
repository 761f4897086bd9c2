"""A trial folded from its own records has the rows that it has when everything is folded."""

from __future__ import annotations

import pytest

from holdfast.core.retention import Retention
from holdfast.journal.records import read_events
from holdfast.journal.trial_index import TrialIndex
from holdfast.views.results import ResultBuilder, RowFolder, fold_rows
from holdfast.views.trial_rows import TrialRows
from simulator.disk import DiskView
from simulator.fake_world import ROOT
from simulator.simulate import Simulation, repeat_line, with_policies


def check(simulation: Simulation) -> int:
    """Compare both ways for all trials; how many of them continued from others."""
    disk, retention = DiskView(simulation.world.disk), simulation.world.scenario.retention
    whole = fold_rows(read_events(ROOT, disk=disk), None, ResultBuilder(), retention)
    index = TrialIndex(ROOT, disk=disk)
    reader = TrialRows(index, ResultBuilder(), retention)
    for n in reversed(range(len(index))):
        assert_same(n, reader.fold(n), whole)
        assert_same(n, TrialRows(index, ResultBuilder(), Retention()).fold(n), whole)  # what is kept does not matter
    return len(index.donors)


def assert_same(n: int, alone: RowFolder, whole: RowFolder) -> None:
    assert repr(alone.rows.get(n, [])) == repr(whole.rows.get(n, []))  # there is NaN among them
    assert alone.copies.get(n, []) == whole.copies.get(n, [])
    assert alone.rows.keys() <= {n}


@pytest.mark.parametrize("scheduler", ["", "pbt"])
def test_rows_of_single_trials_are_those_of_the_whole_history(scheduler: str) -> None:
    copied = 0
    for seed in range(30):
        simulation = Simulation(seed, change=with_policies(scheduler))
        simulation.run()
        try:
            copied += check(simulation)
        except Exception as error:
            pytest.fail(f"{repeat_line(seed, scheduler)}  # {type(error).__name__}: {str(error)[:500]}", pytrace=False)
    assert copied or not scheduler
