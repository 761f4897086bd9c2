"""A small experiment made of events, and readers of the files that share no code with the loggers."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.callbacks import CallbackList, CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback
from holdfast.callbacks.file_writer import FileWriter
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State, Trial
from holdfast.core.transitions import apply
from holdfast.views.results import ResultBuilder, rows_from_events
from holdfast.views.trials import ExperimentInfo, TrialList, TrialView

RETENTION = Retention()
T0 = 1_700_000_000.0


class World:
    """Folds events into a real state and remembers them as a journal would."""

    def __init__(self, root: Path, **info: Any) -> None:
        self.state = State()
        self.events: list[ev.AnyEvent] = []
        self.at = T0
        facts = {"root": root, "name": "exp", "trainable_name": "train", "load_rows": self.load_rows, **info}
        self.info = ExperimentInfo(**facts)
        self.builder = ResultBuilder(self.info)
        self.trials = TrialList(self.state, self.info, self.builder)
        self.loads = 0
        self.begin()

    def add(self, kind: type[Any], *fields: Any) -> None:
        self.at += 0.25
        event = kind(self.at, *fields)
        apply(self.state, event, RETENTION)
        self.events.append(event)

    def begin(self) -> None:
        """A driver claims the experiment, with one worker."""
        self.add(ev.EpochStarted, self.state.epoch + 1, "w", "head", 1)
        self.add(ev.WorkerJoined, 7, "node", "10.0.0.7", 700)

    def create(self, config: dict[str, Any] | None = None, **fields: Any) -> TrialView:
        n = len(self.state.trials)
        config = {"lr": 0.5, "net": {"width": 8}} if config is None else config
        self.at += 0.25
        event = ev.TrialCreated(self.at, n, f"abcde_{n:05d}", config, f"{n}_lr=0.5", **fields)
        apply(self.state, event, RETENTION)
        self.events.append(event)
        return self.trials[n]

    def start(self, n: int = 0, index: int | None = None) -> TrialView:
        trial = self.state.trials[n]
        record = trial.find(index) if index is not None else None
        source = (n, index) if index is not None else None
        self.add(ev.TrialStarted, n, trial.attempt + 1, record.row if record else 0, source)
        return self.trials[n]

    def report(self, n: int = 0, dt: float = 0.125, verdict: str = "", **metrics: Any) -> dict[str, Any]:
        """Report, and return the row that was made before the event was applied."""
        trial = self.state.trials[n]
        event = ev.Reported(self.at + 0.25, n, trial.attempt, 7, dt, metrics, verdict)
        row = self.builder.of(self.state, trial, event)
        self.at += 0.25
        apply(self.state, event, RETENTION)
        self.events.append(event)
        return row

    def save(self, n: int = 0) -> int:
        """Commit a checkpoint of the last report; returns its index."""
        trial = self.state.trials[n]
        index = trial.next_index
        self.add(ev.CheckpointStaged, n, trial.attempt, index, f".sealed-{index}", 10, 1)
        self.add(ev.CheckpointCommitted, n, index, "digest", 10)
        return index

    def cut(self, n: int = 0) -> None:
        self.add(ev.AttemptInterrupted, n, self.state.trials[n].attempt, ev.Cause.DRIVER_LOST)

    def end(self, n: int = 0) -> None:
        self.add(ev.TrialTerminated, n, self.state.trials[n].attempt, "returned")

    def trial(self, n: int = 0) -> Trial:
        return self.state.trials[n]

    def load_rows(self, n: int) -> Sequence[dict[str, Any]]:
        self.loads += 1
        return rows_from_events(self.events, {n}, self.builder, RETENTION).get(n, [])


class Loggers:
    """The three file loggers of one driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.writer = FileWriter(linger_s=3600)
        self.callbacks = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
        self.list = CallbackList(self.callbacks, self.writer)

    def start(self, n: int = 0, index: int | None = None) -> None:
        trial = self.world.start(n, index)
        self.list.call("on_trial_start", iteration=1, trials=self.world.trials, trial=trial)

    def report(self, n: int = 0, dt: float = 0.125, save: bool = False, **metrics: Any) -> dict[str, Any]:
        row = self.world.report(n, dt, **metrics)
        if save:
            self.world.builder.add_checkpoint(row, self.world.save(n))
        self.list.on_trial_result(1, self.world.trials, self.world.trials[n], row)
        return row

    def end(self, n: int = 0) -> None:
        self.world.end(n)
        self.list.call("on_trial_complete", iteration=1, trials=self.world.trials, trial=self.world.trials[n])

    def sync(self, n: int = 0) -> None:
        trial = self.world.trials[n]
        for callback in self.callbacks:
            callback.sync_rows(trial, trial.record.rows, trial.load_rows)

    def close(self) -> None:
        assert self.writer.close()

    def crash(self) -> None:
        """Everything that is not written yet is lost."""
        self.writer._waiting.clear()
        self.writer._settled = self.writer._queued
        self.writer.close()


def json_rows(directory: str) -> list[dict[str, Any]]:
    text = Path(directory, "result.json").read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.split("\n")[:-1]]


def csv_rows(directory: str) -> list[dict[str, str]]:
    with Path(directory, "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    for row in rows:
        assert None not in row  # more cells than columns
        assert None not in row.values()  # fewer
    return rows


def event_file(directory: str) -> Path:
    (path,) = Path(directory).glob("events.out.tfevents.*")
    return path


def tensorboard_rows(directory: str) -> list[tuple[int, dict[str, float]]]:
    """(step, values by tag) of each record after the first, every checksum verified."""
    records = list(read_records(event_file(directory).read_bytes()))
    if not records:
        return []
    head = dict(read_message(records[0]))
    assert head[3] == b"brain.Event:2"
    rows = []
    for record in records[1:]:
        event = dict(read_message(record))
        values = {}
        for field, value in read_message(event[5]):
            assert field == 1
            parts = dict(read_message(value))
            values[parts[1].decode()] = parts[2]
        rows.append((event[2], values))
    return rows


def read_records(data: bytes) -> list[bytes]:
    records = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == mask(slow_crc32c(data[:8]))
        record, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4])[0] == mask(slow_crc32c(record))
        records.append(record)
        data = data[4:]
    return records


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    return (((crc >> 15) | ((crc << 17) & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def read_message(data: bytes) -> list[tuple[int, Any]]:
    fields: list[tuple[int, Any]] = []
    while data:
        key, data = read_varint(data)
        value: Any
        if key & 7 == 0:
            value, data = read_varint(data)
        elif key & 7 == 1:
            value, data = struct.unpack("<d", data[:8])[0], data[8:]
        elif key & 7 == 5:
            value, data = struct.unpack("<f", data[:4])[0], data[4:]
        else:
            assert key & 7 == 2
            size, data = read_varint(data)
            assert size <= len(data)
            value, data = data[:size], data[size:]
        fields.append((key >> 3, value))
    return fields


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for position, byte in enumerate(data):
        value |= (byte & 127) << (7 * position)
        if byte < 128:
            return value, data[position + 1 :]
    raise AssertionError("unfinished number")


def shown_iterations(directory: str) -> dict[str, list[int]]:
    """Which iterations each of the three files shows."""
    return {
        "json": [row["training_iteration"] for row in json_rows(directory)],
        "csv": [int(row["training_iteration"]) for row in csv_rows(directory)],
        "tensorboard": [step for step, _ in tensorboard_rows(directory)],
    }


def shown_values(directory: str, key: str) -> dict[str, list[float]]:
    """The values of a metric that each of the three files shows, in single precision."""
    as_single = [
        [row[key] for row in json_rows(directory)],
        [float(row[key]) for row in csv_rows(directory)],
    ]
    tensorboard = [values[f"ray/tune/{key}"] for _, values in tensorboard_rows(directory)]
    return dict(zip(("json", "csv", "tensorboard"), [*as_single, tensorboard], strict=True))
