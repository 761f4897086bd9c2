"""What an import adds to the start of a bare interpreter, by the wall clock of the whole process."""

from __future__ import annotations

import statistics

from benchmarks.harness import OURS, Bench, Call, at_most

BARE = "bare interpreter"
FIRST_USE = "holdfast, Tuner"


def run(bench: Bench) -> None:
    """Measure; every peer is compared with a bare interpreter of its own environment."""
    calls = [
        _import(BARE, "pass"),
        _import(OURS, "import holdfast"),
        _import(FIRST_USE, "import holdfast; holdfast.Tuner"),
        _import("bare, ray", "pass", "ray"),
        _import("ray tune", "from ray import tune", "ray"),
        _import("bare, optuna", "pass", "optuna"),
        _import("optuna", "import optuna", "optuna"),
    ]
    for call in calls:  # byte code and page cache: an import's first run on a machine is another question
        bench.alternate([call], 1)
    found = bench.figures(bench.alternate(calls, 5 if bench.quick else 15), "wall_s", 1000)
    bare = {OURS: BARE, FIRST_USE: BARE, "ray tune": "bare, ray", "optuna": "bare, optuna"}
    added = {
        label: [wall - statistics.median(found[base]) for wall in found[label]]
        for label, base in bare.items()
        if label in found
    }
    peers: dict[str, list[float]] = {label: added[label] for label in ("ray tune", "optuna") if label in added}
    bench.row("import, added to a bare interpreter", "ms", {OURS: added[OURS], **peers}, at_most(100))
    bench.row("import and first use of Tuner, added", "ms", {OURS: added[FIRST_USE], **peers})


def _import(label: str, code: str, peer: str = "") -> Call:
    return Call(label, command=("-c", code), peer=peer)
