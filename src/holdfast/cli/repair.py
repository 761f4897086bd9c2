"""``holdfast repair``: lets an experiment whose journal is damaged go on, after asking."""

from __future__ import annotations

import argparse
import shlex
import sys

from holdfast.callbacks.progress_words import plural
from holdfast.cli.output import say
from holdfast.controller.remote import Remote, remote_of
from holdfast.controller.spec import Root, read_spec
from holdfast.errors import InvalidInputError, UsageError
from holdfast.journal.repair import repair_journal, verify_journal
from holdfast.storage.address import parse


def run(arguments: argparse.Namespace) -> int:
    """Repair the journal."""
    if (remote := remote_of(arguments.path)) is not None:
        raise _not_in_a_store(remote)
    root = Root(parse(arguments.path).path)
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


def _not_in_a_store(remote: Remote) -> InvalidInputError:
    copy = f"holdfast copy {shlex.quote(remote.url)} {shlex.quote(remote.name)}"
    return InvalidInputError(
        f"{remote.url} is in a store, whose journal is never changed. First look for an older version of the damaged "
        f"object in the bucket, or for the mirror on the machine that wrote it. Otherwise copy what stands before the "
        f"damage to a local directory and go on there: {copy} --before-damage. Nothing was changed."
    )
