"""The fakes behave like what they stand for."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
import simulator
from holdfast.testing.virtual_clock import FakeClock, Timeline
from holdfast.trainable.worker_messages import Run
from simulator.checkpoint_store import CheckpointStore
from simulator.disk import DiskView, Killed, MemoryDisk
from simulator.ledger import Weights
from simulator.simulate import main

NOTHING = 0


def keep_nothing(size):
    return NOTHING


def test_a_power_cut_keeps_what_was_synced_and_nothing_else():
    disk = MemoryDisk()
    view = DiskView(disk)
    assert view.create_exclusive("/d/a", b"header")
    view.sync_dir("/d")
    file = view.open_append("/d/a")
    file.write(b" synced")
    file.sync()
    file.write(b" lost")
    view.create_exclusive("/d/b", b"never named")
    assert view.read("/d/a") == b"header synced lost"
    disk.power_cut(keep_nothing)
    assert view.read("/d/a") == b"header synced"
    assert view.list("/d") == ["a"]


def test_what_a_failed_sync_should_have_covered_is_not_saved_by_the_next_one():
    class Faults:
        error = None

        def step(self, action):
            if action == "sync" and self.error is not None:
                raise self.error

        def arriving(self, size):
            return size, None

    faults, disk = Faults(), MemoryDisk()
    view = DiskView(disk, faults)
    view.create_exclusive("/d/a", b"x")
    view.sync_dir("/d")
    file = view.open_append("/d/a")
    file.write(b"12")
    faults.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    faults.error = None
    file.write(b"34")
    file.sync()
    assert view.read("/d/a") == b"x1234"
    assert disk.durable()["/d/a"] == b"x\0\x0034"


def test_a_replaced_file_is_the_old_or_the_new_one_after_a_power_cut():
    class Dies:
        def step(self, action):
            if action == "replaced":
                raise Killed

    disk = MemoryDisk()
    DiskView(disk).write_atomic("/d/s", b"old")
    with pytest.raises(Killed):
        DiskView(disk, Dies()).write_atomic("/d/s", b"new")
    assert DiskView(disk).read("/d/s") == b"new"
    disk.power_cut(keep_nothing)
    assert DiskView(disk).read("/d/s") == b"old"


def test_a_stage_that_nobody_synced_is_lost_with_the_power():
    store = CheckpointStore()
    run = Run(n=0, attempt=1, trial_id="a", trial_name="a", trial_dir="t0", tag="", config={})
    name = store.stage("/t0", run, Weights(0, 1, 1))
    store.power_cut(keep_nothing)
    assert store.stages == {}
    assert name in store.lost_stages


def test_a_driver_clock_does_not_follow_the_wall_clock():
    timeline = Timeline()
    clock = FakeClock(timeline)
    before = clock.now()
    timeline.wall_offset -= 7200
    clock.sleep(1.5)
    assert clock.now() == before + 1.5
    assert FakeClock(timeline, not_before=before).now() == before


def test_events_of_one_moment_happen_in_the_order_in_which_they_were_planned():
    timeline, seen = Timeline(), []
    timeline.later(1.0, lambda: seen.append("a"))
    timeline.later(1.0, lambda: seen.append("b"))
    timeline.later(0.5, lambda: seen.append("c"))
    timeline.pass_time(2.0, lambda: False)
    assert (seen, timeline.now) == (["c", "a", "b"], 2.0)


def test_the_command_line_tells_a_story(capsys):
    assert main(["--seed", "5", "--verbose"]) == 0
    told = capsys.readouterr().out
    assert "driver 1  starts" in told
    assert told.endswith("1 stories, no violation\n")


@pytest.mark.parametrize("options", [[], ["--remote"]], ids=["local", "remote"])
def test_the_folder_of_the_simulator_is_a_command(options, tmp_path):
    folder = Path(simulator.__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    line = [sys.executable, str(folder), "--seed", "5", *options]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1 stories, no violation\n"), done.stderr


def test_the_command_line_prints_the_line_that_repeats_a_failure(capsys, monkeypatch):
    from holdfast.core import decide
    from holdfast.core import events as ev
    from holdfast.core.plan import schedule

    def chatting(turn):
        schedule(turn)
        turn.add(ev.Noted(turn.at, -1, "still here"))

    monkeypatch.setattr(decide, "schedule", chatting)
    assert main(["--seed", "0", "--count", "20"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("python tests/simulator --seed ")
