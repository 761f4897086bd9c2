"""``holdfast repair``: lets an experiment whose journal is damaged go on, after asking."""

from __future__ import annotations

import argparse
import sys

from holdfast.callbacks.progress_words import plural
from holdfast.cli.output import say
from holdfast.controller.spec import Root, read_spec
from holdfast.errors import UsageError
from holdfast.journal.repair import repair_journal, verify_journal
from holdfast.results.history import plain_path


def run(arguments: argparse.Namespace) -> int:
    """Repair the journal."""
    root = Root(plain_path(arguments.path))
    read_spec(root)
    damage = [finding for finding in verify_journal(root.path) if finding.level == "damage"]
    if not damage:
        say(
            f"The journal of {root.path} is whole: there is nothing to repair.",
            "Damaged checkpoints need no repair, trials fall back to older ones; to find them: "
            f"holdfast verify {root.path}",
        )
        return 0
    say(f"The journal of {root.path} is damaged:")
    say(*(f"  {found.file} at byte {found.offset}: {found.message}" for found in damage))
    say(
        "A repair copies the whole journal to .holdfast/damaged-<n>, then lets the history end before the damage.",
        "What happened after it is forgotten: those trials go on from what is known before. No checkpoint is deleted.",
    )
    if not arguments.yes and not _confirmed():
        say("Nothing was changed.")
        return 1
    report = repair_journal(root.path)
    say(
        f"Repaired: {plural(report.kept, 'record')} kept, {report.cut:,} behind the damage left out; everything is in "
        f"{root.path / report.copy}.",
        f"Go on with: holdfast resume {root.path}",
    )
    return 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("repair asks before it does anything, and nobody can answer here: add --yes.")
    return input("Repair it? [y/N] ").strip().lower() in ("y", "yes")
