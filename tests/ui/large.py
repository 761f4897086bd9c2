"""An experiment of many trials, written in seconds: its journal as a driver would have left it, without running one."""

from __future__ import annotations

from pathlib import Path

from holdfast.controller.spec import Spec, write_spec
from holdfast.core import events as ev
from holdfast.journal.epoch import claim_epoch
from holdfast.journal.log import Journal
from holdfast.storage.layout import Root

TRIALS = 100_000
STEPS = 3
TURN = 1000
START = 1_700_000_000.0
_STRIDE = 7919  # has no divisor in common with TRIALS: every trial has another loss
_SHIFT = 12_345


def loss_of(n: int) -> float:
    """The last value of a trial; all are different, between 0 and 1."""
    return (n * _STRIDE + _SHIFT) % TRIALS / TRIALS


def trial_id(n: int) -> str:
    return f"abcde_{n:05d}"


def write_large(path: Path) -> Path:
    """Make the experiment at ``path``, which does not exist yet."""
    space = {"x": {"kind": "float", "lower": 0.0, "upper": 1.0, "log": False}}
    write_spec(
        Root(path),
        Spec(
            uid="0123456789abcdef",
            name=path.name,
            trainable="train",
            is_class=False,
            created_at=START,
            seed=7,
            num_samples=TRIALS,
            total=TRIALS,
            metric="loss",
            mode="min",
            space_keys=["x"],
            space=space,
        ),
    )
    claim = claim_epoch(path)
    journal = Journal.create_or_append(path, claim, threaded=False)
    opening: list[ev.AnyEvent] = [
        ev.EpochStarted(START, claim.epoch, claim.writer, claim.host, claim.pid),
        ev.WorkerJoined(START, 1, "node", "10.0.0.1", 4242),
    ]
    journal.append([ev.encode(event) for event in opening])
    for first in range(0, TRIALS, TURN):
        journal.append([ev.encode(event) for n in range(first, first + TURN) for event in _trial(n)])
    end = START + TRIALS
    ending: list[ev.AnyEvent] = [ev.SearchEnded(end, "all samples"), ev.DriverStopped(end, "finished")]
    journal.append([ev.encode(event) for event in ending])
    journal.close()
    return path


def _trial(n: int) -> list[ev.AnyEvent]:
    at, x = START + n, n / TRIALS
    return [
        ev.TrialCreated(at, n, trial_id(n), {"x": x}, f"{n}_x={x:.4f}", ("x",)),
        ev.TrialStarted(at, n, 1),
        *(ev.Reported(at + 0.2 * k, n, 1, 1, 0.2, {"loss": loss_of(n) + (STEPS - k)}) for k in range(1, STEPS + 1)),
        ev.TrialTerminated(at + 1.0, n, 1, "returned"),
    ]
