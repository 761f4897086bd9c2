"""Writes real experiments without an engine: spec, journal and checkpoints as a driver would, from a short script.

Every event is folded as it is written, so a script that no driver could have written fails at once.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoints.commit import commit
from holdfast.checkpoints.stage import Stage
from holdfast.controller.opening import archive_record, is_settled, snapshot_payload
from holdfast.controller.spec import Spec, write_spec
from holdfast.core import events as ev
from holdfast.core.state import State, Trial
from holdfast.core.transitions import apply
from holdfast.journal.claims import Claim, encode_claim
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.layout import Root
from holdfast.views.trials import ExperimentInfo, trial_dirname

START = 1_700_000_000.0


class RootWriter:
    """One experiment and its drivers: ``open`` makes one, ``finish`` or ``die`` ends it."""

    def __init__(self, path: Path, **facts: Any) -> None:
        self.path = path
        self.state = State()
        self.at = START
        self.claim: Claim
        self.journal: Journal
        known = {"metric": "loss", "mode": "min", "trainable": "train", "is_class": False, **facts}
        self.spec = Spec(
            uid="abcdef0123456789",
            name=path.name,
            created_at=START,
            seed=7,
            num_samples=1,
            **known,
        )
        self.info = ExperimentInfo(
            root=path,
            name=path.name,
            trainable_name=self.spec.trainable,
            is_class=self.spec.is_class,
            metric=self.spec.metric,
            mode=self.spec.mode,
            max_identifier_len=self.spec.max_identifier_len,
            utc_offset_s=self.spec.utc_offset_s,
        )
        write_spec(Root(path), self.spec)

    # --- drivers

    def open(self, *, takeover: bool = False) -> RootWriter:
        """A driver claims the experiment and says so."""
        self.claim = claim_epoch(self.path, takeover=takeover)
        self.journal = Journal.create_or_append(self.path, self.claim, threaded=False)
        claim = self.claim
        self.add(ev.EpochStarted(self.tick(), claim.epoch, claim.writer, claim.host, claim.pid))
        self.add(ev.WorkerJoined(self.tick(), claim.epoch * 100 + 1, "node1", "10.0.0.1", 4242))
        return self

    def finish(self, reason: str = "finished") -> RootWriter:
        """The driver shuts down gracefully; trials that still run are put back in the queue."""
        for n in list(self.state.running):
            attempt = self.state.trials[n].attempt
            self.add(ev.AttemptInterrupted(self.tick(), n, attempt, ev.Cause.DRIVER_STOPPED))
        self.add(ev.DriverStopped(self.tick(), reason))
        self.journal.close()
        return self

    def die(self) -> RootWriter:
        """The driver exited without shutting down: its claim names a process that is not there any more."""
        self.journal.close(release=False)
        dead = msgspec.structs.replace(self.claim, process_start=self.claim.process_start + 1)
        file = self.path / ".holdfast" / "epochs" / f"{self.claim.epoch:08d}"
        file.write_bytes(encode_claim(dead))
        return self

    def snapshot(self) -> None:
        """Write what the state is now beside the journal."""
        self.journal.sync()
        store = SnapshotStore(self.path, epoch=self.claim.epoch)
        store.load()
        settled = [trial for trial in self.state.trials if is_settled(trial)]
        live = [trial for trial in self.state.trials if not is_settled(trial)]
        store.archive([archive_record(trial) for trial in settled])
        position = self.journal.position
        store.write(position.next_seq - 1, position, snapshot_payload(self.state, live, {}))
        store.close()

    def tick(self, seconds: float = 1.0) -> float:
        self.at += seconds
        return self.at

    def add(self, *events: ev.AnyEvent) -> None:
        for event in events:
            apply(self.state, event, self.spec.retention)
        self.journal.append([ev.encode(event) for event in events])

    # --- trials

    def trial_dir(self, n: int) -> Path:
        return self.path / trial_dirname(self.info, self.state.trials[n])

    def create(self, config: dict[str, Any], **more: Any) -> int:
        n = len(self.state.trials)
        tag = f"{n}_" + ",".join(f"{key}={value}" for key, value in config.items())
        identity = more.pop("id", f"abcde_{n:05d}")
        params = more.pop("params", tuple(config))
        self.add(ev.TrialCreated(self.tick(), n, identity, config, tag, params, **more))
        return n

    def start(self, n: int, *, scratch: bool = False, source: tuple[int, int] | None = None) -> None:
        """A new attempt, from the latest checkpoint unless told otherwise."""
        trial = self.state.trials[n]
        latest = None if scratch else trial.latest()
        rows = latest.row if latest is not None else 0
        if source is None and latest is not None:
            source = (n, latest.index)
        self.add(ev.TrialStarted(self.tick(), n, trial.attempt + 1, rows, source))

    def report(self, n: int, metrics: dict[str, Any], verdict: str = "", why: str = "") -> None:
        worker = self.claim.epoch * 100 + 1
        self.add(ev.Reported(self.tick(), n, self.attempt(n), worker, 0.5, metrics, verdict, why))

    def save(self, n: int, files: dict[str, str]) -> int:
        """A checkpoint of these files, committed."""
        index = self.stage(n, files)
        trial, record = self.state.trials[n], self.state.trials[n].find(index)
        assert record is not None
        done = commit(self.trial_dir(n), record.sealed, index, trial_id=trial.id, attempt=trial.attempt)
        self.add(ev.CheckpointCommitted(self.tick(), n, index, done.digest, done.bytes))
        return index

    def stage(self, n: int, files: dict[str, str]) -> int:
        """A checkpoint that was sealed and never committed."""
        trial = self.state.trials[n]
        stage = Stage(self.trial_dir(n), trial.id, trial.attempt)
        directory = stage.new_directory()
        for name, text in files.items():
            (directory / name).write_text(text)
        sealed = stage.seal(directory)
        index = trial.next_index
        self.add(ev.CheckpointStaged(self.tick(), n, trial.attempt, index, sealed.name, sealed.bytes, sealed.files))
        return index

    def attempt(self, n: int) -> int:
        return self.state.trials[n].attempt

    def end(self, n: int, reason: str = "returned") -> None:
        self.add(ev.TrialTerminated(self.tick(), n, self.attempt(n), reason))

    def retry(self, n: int, cause: str, **error: str) -> None:
        """A failure after which the trial is tried again."""
        self.add(ev.AttemptFailed(self.tick(), n, self.attempt(n), cause, ev.ErrorFacts(**error)))

    def error(self, n: int, cause: str = ev.Cause.EXCEPTION, **error: str) -> None:
        """A failure that ends the trial."""
        self.add(ev.TrialErrored(self.tick(), n, self.attempt(n), cause, ev.ErrorFacts(**error)))

    def cut(self, n: int, cause: str, detail: str = "") -> None:
        self.add(ev.AttemptInterrupted(self.tick(), n, self.attempt(n), cause, detail))

    def reject(self, n: int, index: int, reason: str) -> None:
        self.add(ev.CheckpointRejected(self.tick(), n, index, reason))

    def drop(self, n: int) -> None:
        """Checkpoints that the rule no longer keeps go."""
        indexes = self.spec.retention.obsolete(self.state, self.state.trials[n])
        if indexes:
            self.add(ev.CheckpointsDropped(self.tick(), n, indexes))
            for index in indexes:
                shutil.rmtree(self.checkpoint_dir(n, index))
            self.add(ev.CheckpointsDeleted(self.tick(), n, indexes))

    def trial(self, n: int) -> Trial:
        return self.state.trials[n]

    def checkpoint_dir(self, n: int, index: int) -> Path:
        return self.trial_dir(n) / f"checkpoint_{index:06d}"


def many_trials(path: Path, count: int, *, reports: int = 1, snapshot: bool = False) -> RootWriter:
    """A finished experiment of small trials, without a file for any of them."""
    writer = RootWriter(path, total=count).open()
    for n in range(count):
        writer.create({"lr": n / count, "layers": n % 7})
        writer.start(n)
        for step in range(reports):
            writer.report(n, {"loss": 1.0 / (n + step + 1), "accuracy": 0.5})
        writer.end(n)
    writer.add(ev.SearchEnded(writer.tick(), "all samples"))
    if snapshot:
        writer.snapshot()
    return writer.finish()


def small_experiment(path: Path) -> RootWriter:
    """Four trials: finished, failed, failed once and finished, and one whose driver died while it ran."""
    writer = RootWriter(path, total=4, max_failures=1).open()
    for n in range(4):
        writer.create({"lr": 0.1 * (n + 1)})
    for n in range(4):
        writer.start(n)
    for step in range(3):
        writer.report(0, {"loss": 3.0 - step, "nested": {"deep": step}})
        writer.save(0, {"model.txt": f"weights {step}"})
    writer.end(0)
    writer.report(1, {"loss": 9.0})
    writer.error(
        1,
        type="ValueError",
        message="lr is too large",
        location=f"{os.sep}home{os.sep}me{os.sep}train.py:17",
        traceback='Traceback (most recent call last):\n  File "/home/me/train.py", line 17\nValueError: too large',
    )
    writer.report(2, {"loss": 5.0})
    writer.save(2, {"model.txt": "early"})
    writer.report(2, {"loss": 4.5})
    writer.retry(2, ev.Cause.SIGNAL, message="killed by SIGKILL, which holdfast did not send")
    writer.start(2)
    writer.report(2, {"loss": 4.0})
    writer.end(2)
    writer.report(3, {"loss": 2.5})
    writer.save(3, {"model.txt": "three"})
    writer.report(3, {"loss": 2.0})
    return writer


def experiment_with_early_damage(path: Path) -> Path:
    """The four trials with a snapshot, and a hole in the records before it."""
    writer = small_experiment(path)
    writer.snapshot()
    writer.die()
    (segment,) = (path / ".holdfast" / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 40] = bytes(40)
    segment.write_bytes(data)
    return path
