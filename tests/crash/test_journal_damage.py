"""The journal of a real experiment is cut and damaged: opening it succeeds, or names the damage; nothing is made up."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from experiments import Plan
from lab import Lab, driver_crash, surviving_rows

from holdfast.cli.main import main as holdfast
from holdfast.controller.opening import SnapshotRecord, open_state, snapshot_payload
from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.errors import DamageError, JournalDamagedError, NewerFormatError
from holdfast.journal.frames import FRAME_OVERHEAD
from holdfast.journal.reach import newest_mark
from holdfast.journal.reader import read_journal
from holdfast.journal.recovery import verify_journal
from holdfast.journal.segments import read_chain
from holdfast.storage.layout import Root
from holdfast.storage.local import REAL_DISK

CUTS = 4096
FLIPS = 200
PLAN = Plan(pause_s=0.0)


class Specimen(NamedTuple):
    """An experiment whose drivers are gone, and what each prefix of its history adds up to."""

    root: Path
    retention: Retention
    prefixes: list[bytes]
    """The state after 0, 1, 2, ... records, in a form that can be compared."""

    def copy(self, target: Path, *, state_only: bool = True) -> Path:
        """Something to damage; ``state_only`` leaves out what trials wrote."""
        source = self.root / ".holdfast" if state_only else self.root
        shutil.copytree(source, target / ".holdfast" if state_only else target)
        return target

    def open(self, root: Path) -> bytes:
        return comparable(open_state(root, self.retention).state)


def comparable(state: State) -> bytes:
    """Everything that a snapshot holds. The order of waiting trials is no fact: whoever opens it makes a new one."""
    record = msgspec.msgpack.decode(snapshot_payload(state, state.trials, {}), type=SnapshotRecord)
    record.pending.sort()
    return msgspec.msgpack.encode(record)


def describe(root: Path) -> Specimen:
    retention = read_spec(Root(root)).retention
    state = State()
    prefixes = [comparable(state)]
    for _, payload in read_journal(root):
        apply(state, ev.decode(payload), retention)
        prefixes.append(comparable(state))
    return Specimen(root, retention, prefixes)


@pytest.fixture(scope="module", params=["finished", "killed"])
def specimen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Specimen]:
    """One experiment that finished, with its snapshot; one that was killed in the middle of its second life."""
    laboratory = Lab(tmp_path_factory.mktemp("specimen"))
    try:
        if request.param == "killed":
            plan = Plan(pause_s=0.003, cpus=1)  # one report is one write, so neither life comes to the end
            first = laboratory.run(plan, **driver_crash("journal.after_write:40"))
            second = laboratory.run(plan, TUNE_GLOBAL_CHECKPOINT_S="0", **driver_crash("journal.after_write:60"))
            assert (first.process.returncode, second.process.returncode) == (-9, -9), first.output + second.output
        else:
            laboratory.run(PLAN).must_finish()
        laboratory.check_no_process_left()
        yield describe(laboratory.root)
    finally:
        laboratory.close()


def open_or_damage(specimen: Specimen, root: Path) -> bytes | JournalDamagedError:
    try:
        return specimen.open(root)
    except JournalDamagedError as error:
        return error


def newest_segment(root: Path) -> Path:
    return max((root / ".holdfast" / "journal").iterdir())


@pytest.mark.slow
def test_a_journal_cut_at_any_of_its_last_bytes_is_the_history_up_to_there_or_known_to_be_shorter(
    specimen: Specimen, tmp_path: Path
) -> None:
    """What a driver or a snapshot knew to be durable and is gone is damage; what nobody vouched for is not."""
    root = specimen.copy(tmp_path / "cut")
    mark = newest_mark(str(root), REAL_DISK)
    assert mark is not None
    assert mark.position is not None
    durable = mark.position.next_seq - 1
    (*_, last) = read_chain(str(root), REAL_DISK).links
    path = newest_segment(root)
    assert path.name == last.name.file
    sizes = [FRAME_OVERHEAD + len(payload) for seq, payload in read_journal(root) if seq >= last.name.first_seq]
    ends = list(accumulate(sizes, initial=last.body))
    assert ends[-1] == path.stat().st_size
    assert ends[-1] > CUTS + last.body, "the experiment is too small for this test"
    whole = len(ends) - 1
    for size in range(ends[-1] - 1, ends[-1] - CUTS - 1, -1):
        with open(path, "r+b") as file:
            file.truncate(size)
        while ends[whole] > size:
            whole -= 1
        kept = last.name.first_seq - 1 + whole
        found = open_or_damage(specimen, root)
        if kept < durable:
            assert isinstance(found, JournalDamagedError), f"cut at byte {size}"
            assert (found.seq, found.missing) == (kept + 1, durable - kept)
            found = comparable(open_state(root, specimen.retention, tolerant=True).state)
        assert found == specimen.prefixes[kept], f"cut at byte {size}"


@pytest.mark.slow
def test_an_experiment_whose_journal_was_cut_is_repaired_and_goes_on(specimen: Specimen, tmp_path: Path) -> None:
    """Files tell most of what the cut took; nothing is told twice, whatever they tell."""
    size = newest_segment(specimen.root).stat().st_size
    for number, cut in enumerate([1, 7, 150, 900, 2000, 4000]):
        lab = Lab(tmp_path / str(number))
        specimen.copy(lab.root, state_only=False)
        with open(newest_segment(lab.root), "r+b") as file:
            file.truncate(size - cut)
        try:
            if holdfast(["verify", str(lab.root)]) == 1:
                refused = lab.run(PLAN)
                assert refused.process.returncode == 1
                assert "JournalDamagedError" in refused.output
                assert holdfast(["repair", str(lab.root), "--yes"]) == 0
                assert holdfast(["verify", str(lab.root)]) == 0
            lab.run(PLAN).must_finish()
            lab.check_finished(PLAN)
        finally:
            lab.close()


@pytest.mark.slow
@pytest.mark.parametrize("snapshots", [True, False], ids=["with snapshots", "without snapshots"])
def test_a_flipped_bit_is_named_or_was_never_acknowledged(
    specimen: Specimen, tmp_path: Path, snapshots: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening gives the whole history, or names the file; only what looks like a write cut short may be left out."""
    root = specimen.copy(tmp_path / "flipped", state_only=False)
    if not snapshots:
        shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)
    rng = random.Random(5)
    named = 0
    for _ in range(FLIPS):
        path = rng.choice(sorted((root / ".holdfast" / "journal").iterdir()))
        data = path.read_bytes()
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        story = f"bit {bit} of byte {place} of {path.name}"
        found = open_or_damage(specimen, root)
        if isinstance(found, JournalDamagedError):
            named += 1
            assert found.file == f".holdfast/journal/{path.name}", story
            assert found.file in str(found), story
        else:
            assert found in specimen.prefixes[-2 if path == newest_segment(root) else -1 :], story
        *_, finding = sorted(verify_journal(root), key=lambda each: each.level, reverse=True)
        assert finding.file == f".holdfast/journal/{path.name}", story
        code = holdfast(["verify", str(root)])
        assert (code, finding.level) in [(1, "damage"), (0, "note")], story
        assert path.name in capsys.readouterr().out, story
        path.write_bytes(data)
    assert verify_journal(root) == []
    assert snapshots or named > FLIPS / 2  # a snapshot spares the reading of what stands before it


def test_a_restore_of_a_damaged_journal_refuses_and_goes_on_after_a_repair(tmp_path: Path) -> None:
    """Not a new experiment in the old place, not a traceback without a word: what is wrong, where, and what to do."""
    lab = Lab(tmp_path)
    try:
        lab.run(PLAN, **driver_crash("L5.after:8"))
        before = lab.history()
        path = newest_segment(lab.root)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        driver = lab.run(PLAN)
        assert driver.process.returncode == 1
        (message,) = [line for line in driver.output.splitlines() if "JournalDamagedError" in line]
        assert f".holdfast/journal/{path.name}" in message
        assert f"holdfast repair {lab.root}" in message
        assert path.read_bytes() == data

        assert holdfast(["repair", str(lab.root), "--yes"]) == 0
        kept = next(n for n, (one, other) in enumerate(zip(before, lab.history(), strict=False)) if one != other)
        assert kept == int(message.split("damaged at record ")[1].split(":")[0]) - 1
        lab.run(PLAN).must_finish()
        rows = surviving_rows(lab.history())
        assert len(rows) == len(open_state(lab.root, Retention()).state.trials)
        for trial in rows.values():
            # What stood behind the damage and in no file is lost; what is there is there once, up to the end.
            steps = [row["step"] for row in trial]
            assert steps == sorted(set(steps))
            assert steps[-1] == PLAN.steps
    finally:
        lab.close()


def test_an_experiment_without_its_newest_snapshot_is_the_same(specimen: Specimen, tmp_path: Path) -> None:
    root = specimen.copy(tmp_path / "bare")
    assert specimen.open(root) == specimen.prefixes[-1]
    for path in (root / ".holdfast" / "snapshots").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert specimen.open(root) == specimen.prefixes[-1]
    shutil.rmtree(root / ".holdfast" / "snapshots")
    assert specimen.open(root) == specimen.prefixes[-1]


def test_a_missing_segment_is_damage_and_not_the_beginning_of_a_new_experiment(
    specimen: Specimen, tmp_path: Path
) -> None:
    root = specimen.copy(tmp_path / "holed")
    first, *others = sorted((root / ".holdfast" / "journal").iterdir())
    first.unlink()
    if others:
        shutil.rmtree(root / ".holdfast" / "snapshots")  # otherwise the first segment is not needed
    with pytest.raises(JournalDamagedError, match=first.name):
        specimen.open(root)
    assert [finding.level for finding in verify_journal(root)] == ["damage"]


def test_no_flipped_bit_in_the_facts_makes_another_experiment(specimen: Specimen, tmp_path: Path) -> None:
    """The seed, the number of samples and the names are in there: each bit counts."""
    root = Root(specimen.copy(tmp_path / "facts"))
    whole = read_spec(root)
    data = root.spec_file.read_bytes()
    for place in range(len(data)):
        root.spec_file.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with contextlib.suppress(DamageError, NewerFormatError):
            assert read_spec(root) == whole, f"bit {place % 8} of byte {place} is taken for a fact"
