"""Small experiments written to order: a journal as a driver would have left it, without running one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.controller.spec import Root, Spec, write_spec
from holdfast.core import events as ev
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal

START = 1_700_000_000.0
TURN_S = 10.0
SPACE: dict[str, Any] = {
    "lr": {"kind": "float", "lower": 0.001, "upper": 0.3, "log": True},
    "layers": {"kind": "int", "lower": 1, "upper": 9, "log": False},
    "act": {"kind": "choice", "options": ["relu", "gelu", None]},
}


class Written(NamedTuple):
    """A trial: its configuration, what it reports at each step, and how it ends.

    Attributes:
        config: All its parameters.
        rows: One dict of metrics for each report.
        reason: Why it ended.
        error: What ended it, if it failed.
    """

    config: dict[str, Any]
    rows: Sequence[dict[str, float]]
    reason: str = "returned"
    error: ev.ErrorFacts | None = None


def write_trials(path: Path, trials: Sequence[Written], *, space: dict[str, Any] | None = None) -> Path:
    """Make an experiment of these trials at ``path``, which does not exist yet."""
    space = SPACE if space is None else space
    write_spec(
        Root(path),
        Spec(
            uid=path.name.encode().hex()[:16].ljust(16, "0"),
            name=path.name,
            trainable="train",
            is_class=False,
            created_at=START,
            seed=7,
            num_samples=len(trials),
            total=len(trials),
            metric="loss",
            mode="min",
            space_keys=list(space),
            space=space,
        ),
    )
    claim = claim_epoch(path)
    journal = Journal.create_or_append(path, claim, threaded=False)
    told: list[ev.AnyEvent] = [
        ev.EpochStarted(START, claim.epoch, claim.writer, claim.host, claim.pid),
        ev.WorkerJoined(START, 1, "node", "10.0.0.1", 4242),
    ]
    for n, trial in enumerate(trials):
        told += _events_of(n, trial)
    end = START + TURN_S * len(trials)
    told += [ev.SearchEnded(end, "all samples"), ev.DriverStopped(end, "finished")]
    journal.append([ev.encode(event) for event in told])
    journal.close()
    return path


def _events_of(n: int, trial: Written) -> list[ev.AnyEvent]:
    at = START + TURN_S * n
    found: list[ev.AnyEvent] = [
        ev.TrialCreated(at, n, f"abcde_{n:05d}", trial.config, f"{n}", tuple(trial.config)),
        ev.TrialStarted(at, n, 1),
    ]
    found += [ev.Reported(at + k, n, 1, 1, 1.0, dict(row)) for k, row in enumerate(trial.rows, start=1)]
    if trial.error is not None:
        return [*found, ev.TrialErrored(at + TURN_S - 1, n, 1, "exception", trial.error)]
    return [*found, ev.TrialTerminated(at + TURN_S - 1, n, 1, trial.reason)]
