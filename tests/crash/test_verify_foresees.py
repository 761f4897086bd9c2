"""``holdfast verify`` says what a resume will do; then a real one does it.

The driver is killed in the middle of its commits. Then the disk is left as a power cut may leave it: of what was not
synced, files are whole, empty, full of zeros or missing, renames have happened or not, the journal lacks its last
records. On top of that some committed checkpoints rot.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from experiments import Plan
from lab import Lab, driver_crash

import holdfast as tune
from holdfast.checkpoints.names import MANIFEST, SEAL, index_of
from holdfast.cli.main import main
from holdfast.controller.opening import open_state
from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.core.state import State, Stored
from holdfast.journal.durable_mark import published
from holdfast.journal.reader import read_journal
from holdfast.storage.layout import Root
from holdfast.storage.local import REAL_DISK

BASES = {
    "no commit yet": (Plan(trials=4, steps=12, every=2, pause_s=0.0, copied="always"), "L2.after"),
    "before the rename": (Plan(trials=3, steps=12, every=2, pause_s=0.0, copied="always"), "L4.after:5"),
    "after the rename": (Plan(trials=3, steps=12, every=2, pause_s=0.0), "L5.after:6"),
    "one kept": (Plan(trials=3, steps=12, every=2, pause_s=0.0, keep=1, copied="always"), "L4.after:5"),
    "before it is journaled": (Plan(trials=2, steps=12, every=3, pause_s=0.0), "L6.after:4"),
}
FAST = 3
CASES = 24


def chain(config: dict[str, Any]) -> None:
    """What is left of the training: enough to see that it was started."""
    tune.report({"step": 0, "loss": 0.0, "hash": "", "token": ""})


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose driver was killed at a place of the commit protocol."""
    plan, point = BASES[request.param]
    lab = Lab(tmp_path_factory.mktemp("base"))
    try:
        assert lab.run(plan, **driver_crash(point)).process.returncode == -9
        lab.check_no_process_left()
    finally:
        lab.close()
    assert lab.state().staged, "nothing was being committed"
    return lab.root


@pytest.mark.parametrize("case", [n if n < FAST else pytest.param(n, marks=pytest.mark.slow) for n in range(CASES)])
def test_what_verify_says_is_what_the_resume_does(
    base: Path, tmp_path: Path, case: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "exp"
    shutil.copytree(base, root)
    chosen = random.Random(f"{base.parent.parent.name}/{case}")
    if case:
        cut_the_power(root, chosen)
        rot(root, chosen, share=chosen.choice([0.0, 0.0, 0.3, 1.0]))
    before = [ev.decode(payload) for _, payload in read_journal(root)]
    main(["verify", str(root), "--json"])
    said = json.loads(capsys.readouterr().out)
    foreseen = {
        fact["trial_id"]: (fact["then"], fact["checkpoint"] and Path(fact["checkpoint"]).name)
        for fact in said["resume"]
    }
    lost = [finding["file"] for finding in said["findings"] if finding["level"] == "lost"]

    tune.Tuner.restore(str(root), trainable=chain).fit()
    after = [ev.decode(payload) for _, payload in read_journal(root)]
    assert after[: len(before)] == before
    trials = state_of(root).trials
    done = {trials[n].id: deed for n, deed in deeds(after[len(before) :]).items()}
    assert foreseen == done
    assert len(lost) == sum(then == "error" for then, _ in done.values())


def state_of(root: Path) -> State:
    return open_state(root, read_spec(Root(root)).retention).state


def deeds(events: list[ev.AnyEvent]) -> dict[int, tuple[str, str | None]]:
    """What the driver that wrote these events did first with each trial that it found unfinished."""
    found: dict[int, tuple[str, str | None]] = {}
    created = {event.n for event in events if isinstance(event, ev.TrialCreated)}
    for event in events:
        n = getattr(event, "n", -1)
        if n in found or n in created:
            continue
        if isinstance(event, ev.TrialStarted):
            found[n] = (
                ("restarts", None) if event.source is None else ("continues", f"checkpoint_{event.source[1]:06d}")
            )
        elif isinstance(event, ev.TrialErrored):
            assert event.cause == ev.Cause.DAMAGED
            found[n] = ("error", None)
        elif isinstance(event, ev.TrialTerminated):
            found[n] = ("ends", None)
    return found


def cut_the_power(root: Path, chosen: random.Random) -> None:
    """Leave of what was never synced what a disk may leave."""
    state = state_of(root)
    durable = {(n, r.index) for n, t in enumerate(state.trials) for r in t.checkpoints if r.stored == Stored.COMMITTED}
    for trial in state.trials:
        for folder in root.glob(f"*_{trial.id}_*"):
            for directory in list(folder.iterdir()):
                index = index_of(directory.name)
                if directory.name.startswith(".sealed-"):
                    lose_something(directory, chosen)
                elif index is not None and (trial.n, index) not in durable and chosen.random() < 0.3:
                    record = trial.find(index)
                    if record is not None:  # its files are synced, its new name is not
                        directory.rename(folder / record.sealed)
    if chosen.random() < 0.5:
        cut_the_journal(root, chosen)


def lose_something(stage: Path, chosen: random.Random) -> None:
    kind = chosen.choice(["nothing", "nothing", "a file", "a file", "the seal", "all"])
    if kind == "all":
        shutil.rmtree(stage)
        return
    files = [path for path in stage.rglob("*") if path.is_file() and (path.name == SEAL) == (kind == "the seal")]
    if kind == "nothing" or not files:
        return
    file = chosen.choice(sorted(files))
    left = chosen.choice([b"", bytes(file.stat().st_size), None])
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left)


def cut_the_journal(root: Path, chosen: random.Random) -> None:
    """Take away some of the records that were never synced."""
    (epoch,) = [int(path.name) for path in (root / ".holdfast" / "epochs").iterdir() if path.name.isdigit()]
    position = published(str(root), epoch, REAL_DISK)
    segment = max((root / ".holdfast" / "journal").glob("*.hfj"))
    if position is not None and position.offset < segment.stat().st_size:
        with open(segment, "r+b") as file:
            file.truncate(chosen.randint(position.offset, segment.stat().st_size))


def rot(root: Path, chosen: random.Random, share: float) -> None:
    """Damage some of the checkpoints that exist."""
    for directory in sorted(root.glob("*/checkpoint_*")):
        if chosen.random() < share:
            file = directory / chosen.choice([MANIFEST, "state.json", "sub/weights.bin"])
            file.write_bytes(b"?" + file.read_bytes()[1:])
