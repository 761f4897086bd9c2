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
        cause: Why it failed, as the journal says it.
        lost: What the first attempt reported in vain: it is tried again from the beginning. None for one attempt.
    """

    config: dict[str, Any]
    rows: Sequence[dict[str, float]]
    reason: str = "returned"
    error: ev.ErrorFacts | None = None
    cause: str = ev.Cause.EXCEPTION
    lost: Sequence[dict[str, float]] | None = None


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
    attempt = 1
    if trial.lost is not None:
        found += _reports(at, n, attempt, trial.lost)
        at += len(trial.lost) + 1
        error = ev.ErrorFacts(message="killed by SIGKILL")
        found += [ev.AttemptFailed(at, n, attempt, ev.Cause.OUT_OF_MEMORY, error), ev.TrialStarted(at, n, attempt + 1)]
        attempt += 1
    found += _reports(at, n, attempt, trial.rows)
    end = START + TURN_S * (n + 1) - 1
    if trial.error is not None:
        return [*found, ev.TrialErrored(end, n, attempt, trial.cause, trial.error)]
    return [*found, ev.TrialTerminated(end, n, attempt, trial.reason)]


def _reports(at: float, n: int, attempt: int, rows: Sequence[dict[str, float]]) -> list[ev.AnyEvent]:
    return [ev.Reported(at + k, n, attempt, 1, 1.0, dict(row)) for k, row in enumerate(rows, start=1)]
