from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.controller import history_reader as past_module
from holdfast.controller.history_reader import HistoryReader
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.errors import JournalDamagedError
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal
from holdfast.journal.segments import journal_dir
from holdfast.journal.trial_index import TrialIndex
from holdfast.storage import local
from holdfast.views.results import ResultBuilder


class Experiment:
    """A journal that a test writes by hand, and the past that it shows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = Journal.create_or_append(root, claim_epoch(root), threaded=False)
        self.add(ev.EpochStarted(1.0, 1, "w", "h", 1), ev.WorkerJoined(1.0, 1, "h", "i", 5))
        self.past = HistoryReader(root, Retention(), ResultBuilder())

    def add(self, *events: ev.AnyEvent) -> None:
        self.journal.append([ev.encode(event) for event in events])

    def start(self, n: int) -> None:
        self.add(ev.TrialCreated(2.0, n, f"t{n}", {}, str(n)), ev.TrialStarted(2.0, n, 1))

    def report(self, n: int, *losses: int) -> None:
        self.add(*(ev.Reported(3.0, n, 1, 1, 0.5, {"loss": loss}) for loss in losses))

    def end(self, n: int) -> None:
        self.add(ev.TrialTerminated(4.0, n, 1, "returned"))

    def fail(self, n: int) -> None:
        self.add(ev.TrialErrored(4.0, n, 1, "exception", ev.ErrorFacts("E", f"of {n}")))


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path)


def losses(rows: list[dict[str, object]]) -> list[object]:
    return [row["loss"] for row in rows]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each reading of the journal, whether it was from the start."""
    readings: list[bool] = []
    real: Callable[..., object] = past_module.read_events

    def read(root: Path, after: object = None) -> object:
        readings.append(after is None)
        return real(root, after=after)

    def index(root: Path) -> TrialIndex:
        readings.append(True)
        return TrialIndex(root)

    monkeypatch.setattr(past_module, "read_events", read)
    monkeypatch.setattr(past_module, "TrialIndex", index)
    return readings


def test_several_trials_cost_one_pass_and_nothing_is_kept(experiment: Experiment, passes: list[bool]) -> None:
    for n in range(4):
        experiment.start(n)
        experiment.report(n, n, n + 10)
        experiment.end(n) if n % 2 else experiment.fail(n)
    rows = experiment.past.rows_of({1, 2, 9})
    assert {n: losses(found) for n, found in rows.items()} == {1: [1, 11], 2: [2, 12], 9: []}
    assert experiment.past.failures_of({0, 1}) == {0: [(4.0, ev.ErrorFacts("E", "of 0"))], 1: []}
    assert passes == [True, True]
    assert experiment.past._folder.rows == {}


def test_a_trial_that_is_followed_costs_only_what_was_added(experiment: Experiment, passes: list[bool]) -> None:
    experiment.start(0)
    experiment.start(1)
    experiment.report(0, 1)
    assert losses(experiment.past.rows(0)) == [1]
    experiment.report(0, 2)
    experiment.report(1, 5)
    assert losses(experiment.past.rows(0)) == [1, 2]
    experiment.end(0)
    experiment.end(1)
    assert losses(experiment.past.rows(1)) == [5]
    assert losses(experiment.past.rows(0)) == [1, 2]
    assert passes == [True, False, False, False]


def test_rows_of_finished_trials_are_kept_only_if_somebody_asked(experiment: Experiment, passes: list[bool]) -> None:
    for n in range(5):
        experiment.start(n)
        experiment.report(n, n)
        experiment.end(n)
    assert losses(experiment.past.rows(3)) == [3]
    assert experiment.past._folder.rows.keys() == {3}
    assert losses(experiment.past.rows(1)) == [1]
    assert losses(experiment.past.rows(3)) == [3]
    assert experiment.past._folder.rows.keys() == {1, 3}
    assert passes == [True, True, False]


@pytest.mark.parametrize(("mode", "kept", "expected"), [("resume", 2, [1, 2, 9]), ("restart", 0, [9])])
def test_a_finished_trial_that_runs_again_has_all_its_surviving_rows(
    experiment: Experiment, mode: str, kept: int, expected: list[int]
) -> None:
    experiment.start(0)
    experiment.report(0, 1, 2)
    experiment.fail(0)
    experiment.start(1)
    assert experiment.past.rows(1) == []
    experiment.add(ev.TrialRequeued(5.0, 0, mode), ev.TrialStarted(5.0, 0, 2, kept))
    experiment.add(ev.Reported(6.0, 0, 2, 1, 0.5, {"loss": 9}))
    assert losses(experiment.past.rows(0)) == expected


def test_records_written_again_after_a_failed_sync_are_read_again(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of this very process seals its segment before a place that was read already."""
    experiment.start(0)
    experiment.report(0, 1)
    assert losses(experiment.past.rows(0)) == [1]
    real, failures = local._sync_data, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def sync(fd: int) -> None:
        if failures:
            raise failures.pop()
        real(fd)

    monkeypatch.setattr(local, "_sync_data", sync)
    experiment.journal.sync()
    assert not failures
    experiment.report(0, 2)
    assert losses(experiment.past.rows(0)) == [1, 2]


def test_a_reading_that_failed_midway_is_repeated_from_the_start(experiment: Experiment) -> None:
    experiment.start(0)
    experiment.report(0, 1, 2, 3)
    (segment,) = Path(journal_dir(str(experiment.root))).iterdir()
    whole = segment.read_bytes()
    middle = whole.index(b"loss", whole.index(b"loss") + 1)
    segment.write_bytes(whole[:middle] + b"LOSS" + whole[middle + 4 :])
    with pytest.raises(JournalDamagedError):
        experiment.past.rows(0)
    segment.write_bytes(whole)
    assert losses(experiment.past.rows(0)) == [1, 2, 3]
