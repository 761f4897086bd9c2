"""What is known of an experiment of Ray Tune: the records that its files are read into."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.events import ErrorFacts
from holdfast.core.retention import Retention
from holdfast.views.results import is_number

FINAL = ("TERMINATED", "ERROR")


class KnownCheckpoint(msgspec.Struct):
    """A checkpoint that a trial is known to have.

    Attributes:
        folder: The directory of the trial in which it lies; after an exploit that may be another trial's.
        name: Its own directory.
        iteration: Of the report that it came with; 0 if that is not known.
        row: That report; None if it is not known.
    """

    folder: str
    name: str
    iteration: int = 0
    row: dict[str, Any] | None = None


class RayTrial(msgspec.Struct):
    """One trial.

    Attributes:
        dirname: The name of its directory; "" if that cannot be used.
        folder: The same if there is such a directory, else "".
        saved: Its checkpoints as its driver knew them; None if that cannot be read.
        latest: The one that it would continue from.
        rows: What it has reported, in order, repeated iterations included.
        failures: The texts of its failures, in order.
    """

    id: str
    status: str
    trainable: str
    config: dict[str, Any]
    params: tuple[str, ...]
    tag: str
    name: str = ""
    dirname: str = ""
    folder: str = ""
    request: dict[str, float] | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    num_failures: int = 0
    saved: list[KnownCheckpoint] | None = None
    latest: KnownCheckpoint | None = None
    rows: list[dict[str, Any]] = []
    failures: list[ErrorFacts] = []


class RayExperiment(msgspec.Struct):
    """The experiment.

    Attributes:
        path: Its directory.
        state_file: The file of its state that was read.
        trials: In order of creation.
        space_keys: The keys of its search space; None if they are not known.
        is_class: Whether its trainable is a class; None if nothing tells.
        notes: What is not as it should be, in sentences.
        left: What cannot be taken over, in sentences.
    """

    path: str
    state_file: str
    digest: str
    trials: list[RayTrial]
    trainable: str
    started_at: float
    metric: str | None = None
    mode: str | None = None
    num_samples: int | None = None
    stop: dict[str, Any] | None = None
    max_failures: int = 0
    retention: Retention = Retention()
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None
    space_keys: list[str] | None = None
    is_class: bool | None = None
    notes: list[str] = []
    left: list[str] = []


def iteration_of(row: dict[str, Any]) -> int:
    """The iteration of a result; 0 if it has none."""
    value = row.get("training_iteration")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def time_of(row: dict[str, Any]) -> float:
    """When a result was reported; 0.0 if that is not known."""
    value = row.get("timestamp")
    return float(value) if is_number(value) and 0 <= value < 253_000_000_000 else 0.0
