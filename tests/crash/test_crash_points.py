"""A real experiment dies at every named place of the commit protocol and of the journal, and continues.

The places are in the shipped code (``storage/crashpoint.py``). Those of the worker's half of a commit are armed in
workers alone, the others in the driver alone.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import msgspec
import pytest
from experiments import Plan
from lab import Lab, driver_crash, mostly_slow, worker_crash

import holdfast
from holdfast.cli.main import main
from holdfast.core import events as ev

PLAN = Plan(trials=3, steps=12, every=2, keep=1, pause_s=0.0, segment_bytes=4_000)

DRIVER_POINTS = [
    "L2.mid:3",
    "L2.after",
    "L3.mid:4",
    "L3.after:2",
    "L4.after:3",
    "L5.after",
    "L6.after:2",
    "D2.after",
    "D4.after:2",
    "journal.before_write:15",
    "journal.after_write:16",
    "journal.before_sync:3",
    "journal.after_sync:3",
    "journal.rotate.created:2",
    "journal.rotate.synced:2",
    "snapshot.before_rename:2",
    "snapshot.after_rename",
]
OPENING_POINTS = ["epoch.claimed", "journal.rotate.created", "journal.rotate.synced", "journal.before_write"]
REPLACING_POINTS = ["objects.replacing:1", "objects.replaced:1", "objects.replaced:2", "objects.replaced:3"]
REPAIR_POINTS = ["repair.copied", "repair.marked", "repair.cut", "repair.rebuilt", "repair.complete"]
REQUEST_POINTS = ["request.read", "request.answered", "request.before_remove", "request.removed"]
ASKING_POINTS = ["request.before_create", "request.created"]
IMPORT_POINTS = ["import.written", "import.renamed"]
WORKER_POINTS = ["L0.after:3", "L1.mid:3", "L1.after:3", "L1.sealed:3"]

SNAPSHOTS = {"TUNE_GLOBAL_CHECKPOINT_S": "0"}


def test_every_place_in_the_code_is_visited_here_or_in_the_tests_of_stores() -> None:
    """``write_atomic`` is used with and without a label; without one there is no name to arm."""
    source = "\n".join(path.read_text() for path in Path(holdfast.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'\bcrashpoint\("([^"]+)"\)', source))
    named |= {f"snapshot{moment}" for moment in re.findall(r'\bcrashpoint\(label \+ "([^"]+)"\)', source)}
    here = [*DRIVER_POINTS, *OPENING_POINTS, *REPLACING_POINTS, *WORKER_POINTS]
    elsewhere = runpy.run_path(str(Path(__file__).parents[1] / "remote" / "remote_points.py"))["ALL_POINTS"]
    here += REPAIR_POINTS  # test_lost_journal.py
    here += [*REQUEST_POINTS, *ASKING_POINTS]  # test_user_requests.py
    here += IMPORT_POINTS  # ray_import/test_import_reads.py
    assert {point.partition(":")[0] for point in [*here, *elsewhere]} == named


@pytest.mark.parametrize("point", mostly_slow(DRIVER_POINTS, "L2.after", "L5.after", "D2.after"))
def test_a_driver_that_dies_here_is_continued_by_the_next(lab: Lab, point: str) -> None:
    """The second driver dies at the same place again, if it gets there; the third is left in peace."""
    first = lab.run(PLAN, **driver_crash(point), **SNAPSHOTS)
    assert first.process.returncode == -9, first.output
    lab.check_no_process_left()
    before = lab.check_nothing_lost()
    second = lab.run(PLAN, **driver_crash(point), **SNAPSHOTS)
    assert second.process.returncode in (0, -9), second.output
    assert lab.check_nothing_lost()[: len(before)] == before
    lab.run(PLAN, **SNAPSHOTS).must_finish()
    lab.check_finished(PLAN)
    lab.check_no_process_left()


@pytest.mark.parametrize("point", mostly_slow(OPENING_POINTS, "journal.rotate.created"))
def test_drivers_that_die_while_they_open_the_experiment_change_nothing(lab: Lab, point: str) -> None:
    """Three in a row, before there is any history and in the middle of it."""
    for _ in range(3):
        assert lab.run(PLAN, **driver_crash(point)).process.returncode == -9
    assert lab.check_nothing_lost() == []
    assert lab.run(PLAN, **driver_crash("L5.after:3")).process.returncode == -9
    before = lab.check_nothing_lost()
    for _ in range(3):
        assert lab.run(PLAN, **driver_crash(point)).process.returncode == -9
    assert lab.check_nothing_lost() == before
    lab.run(PLAN).must_finish()
    lab.check_finished(PLAN)


@pytest.mark.parametrize("point", mostly_slow(REPLACING_POINTS, "objects.replaced:1"))
def test_drivers_that_die_while_they_replace_stored_objects_leave_whole_files(lab: Lab, point: str) -> None:
    """Whichever files were replaced: each one matches its checksum, and the next driver resumes, given them or not."""
    assert lab.run(PLAN, **driver_crash("L5.after:3")).process.returncode == -9
    before = lab.check_nothing_lost()
    again = msgspec.structs.replace(PLAN, again=True)
    for _ in range(2):
        assert lab.run(again, **driver_crash(point)).process.returncode == -9
        assert main(["verify", str(lab.root)]) == 0
    assert lab.check_nothing_lost() == before
    lab.run(PLAN).must_finish()
    lab.check_finished(PLAN)
    assert main(["verify", str(lab.root)]) == 0


@pytest.mark.parametrize("point", mostly_slow(WORKER_POINTS, "L1.sealed:3"))
def test_workers_that_keep_dying_here_finish_their_trials_all_the_same(lab: Lab, point: str) -> None:
    """Every worker dies there at its third passage, so the trials need many attempts."""
    lab.run(PLAN, **worker_crash(point)).must_finish()
    state = lab.check_finished(PLAN)
    assert state.total_failures > 0
    assert {trial.cause for trial in state.trials if trial.total_failures} == {ev.Cause.SIGNAL}
    lab.check_no_process_left()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["L2.after:3", "L5.after:3", "D2.after:2", "journal.after_write:20"])
def test_an_experiment_whose_every_driver_dies_here_ends_nevertheless(lab: Lab, point: str) -> None:
    for _ in range(60):
        driver = lab.run(PLAN, **driver_crash(point), **SNAPSHOTS)
        if driver.process.returncode == 0:
            break
        assert driver.process.returncode == -9, driver.output
        lab.check_nothing_lost()
    driver.must_finish()
    lab.check_finished(PLAN)
