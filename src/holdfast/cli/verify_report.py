"""What ``holdfast verify`` has found, and how it is printed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.cli.printing import size_text
from holdfast.display.words import plural


class Finding(msgspec.Struct):
    """Something noteworthy, and the file it is in, relative to the root."""

    level: Literal["damage", "lost", "note"]
    """``lost`` is a trial that has saved checkpoints and has no good one left."""

    file: str
    message: str
    offset: int | None = None


class VerifyReport:
    """What was looked at and what was found."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.checkpoints = 0
        self.bytes = 0
        self.resume: list[dict[str, Any]] = []
        """What the next driver does with each unfinished trial, as far as the files say."""

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged, and no trial has lost all that it had saved."""
        return all(finding.level == "note" for finding in self.findings)

    def count(self, level: str) -> int:
        """How many findings there are of this kind."""
        return sum(finding.level == level for finding in self.findings)

    def damage(self, file: str, message: str) -> None:
        self.findings.append(Finding("damage", file, message))

    def lost(self, file: str, message: str) -> None:
        self.findings.append(Finding("lost", file, message))

    def note(self, file: str, message: str) -> None:
        self.findings.append(Finding("note", file, message))


def as_data(report: VerifyReport) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    return {
        "whole": report.whole,
        "records": report.records,
        "checkpoints": report.checkpoints,
        "bytes": report.bytes,
        "findings": report.findings,
        "resume": report.resume,
    }


def report_lines(report: VerifyReport, *, quick: bool = False) -> list[str]:
    """The report as lines for people, the verdict last."""
    lines = []
    for finding in report.findings:
        place = "" if finding.offset is None else f" at byte {finding.offset}"
        lines.append(f"{finding.level}: {finding.file}{place}: {finding.message}")
    saved = f"{plural(report.checkpoints, 'checkpoint')} ({size_text(report.bytes)})"
    seen = f"{plural(report.records, 'record')} and {saved}"
    if report.whole and quick:
        return [*lines, f"intact: {seen}; of checkpoints, only names and sizes were compared"]
    if report.whole:
        return [*lines, f"intact: {seen} are as they were written"]
    counts = [plural(report.count("damage"), "damaged place")] if report.count("damage") else []
    if lost := report.count("lost"):
        counts.append(f"{plural(lost, 'trial')} without a good checkpoint")
    return [*lines, f"DAMAGED: {', '.join(counts)}; {seen} are as they were written. Nothing was changed."]
