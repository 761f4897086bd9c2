"""What a checkpoint's manifest holds of its report, in case the journal is lost.

Owns these facts and reading them back. Must never be needed while the journal exists, which has precedence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoints.manifest import Manifest
from holdfast.core.state import CheckpointRecord

MAX_METRICS_BYTES = 16 * 1024
"""Metrics that need more are left out: they would make every manifest slow to read."""


class ReportFacts(msgspec.Struct, forbid_unknown_fields=False):
    """Which report it was, and what it said."""

    row: int
    iteration: int
    time_total_s: float
    at: float
    metrics: dict[str, Any] = {}


msgspec.json.Decoder(ReportFacts)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


def report_facts(record: CheckpointRecord) -> dict[str, Any]:
    """What the manifest of a checkpoint is to tell."""
    facts: dict[str, Any] = msgspec.structs.asdict(
        ReportFacts(record.row, record.iteration, record.time_total, record.at, _plain(record.metrics))
    )
    return facts


def facts_of(manifest: Manifest) -> ReportFacts | None:
    """What a manifest tells; None if an older holdfast has written it."""
    try:
        return msgspec.convert(manifest.meta, ReportFacts)
    except msgspec.ValidationError:
        return None


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that JSON gives back as they are."""
    if _survives(metrics):
        return metrics
    few = {key: value for key, value in metrics.items() if _survives({key: value})}
    return few if _survives(few) else {}


def _survives(value: dict[str, Any]) -> bool:
    try:
        text = msgspec.json.encode(value)
        return len(text) <= MAX_METRICS_BYTES and bool(msgspec.json.decode(text) == value)
    except (TypeError, ValueError, RecursionError):
        return False
