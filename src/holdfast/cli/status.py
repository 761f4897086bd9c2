"""``holdfast status``: where an experiment stands, in at most forty lines or one JSON object."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.cli.printing import print_json, say, when
from holdfast.controller.user_requests import is_copy
from holdfast.core.state import State, UserNote
from holdfast.display.closing import resume_lines
from holdfast.display.experiment_facts import DisplayOptions, ProgressView
from holdfast.display.words import (
    best_text,
    counts_text,
    duration,
    failure_count,
    failure_text,
    full_text,
    lag_text,
    one_line,
    plural,
    rough_duration,
)
from holdfast.journal.epoch import Holder
from holdfast.messages.visible import visible_lines
from holdfast.results.early_records import check_early_records
from holdfast.results.follow import Follower, open_nearest
from holdfast.results.history import History
from holdfast.results.report_data import (
    Phase,
    claim_damage,
    experiment_facts,
    overview,
    phase_of,
    repair_command,
    resume_call,
    resume_command,
    trial_facts,
    why_of,
)
from holdfast.results.resume import glance
from holdfast.results.shipped import ship_command, unshipped, unshipped_text

MAX_ROWS = 10
MAX_FAILURES = 7
MAX_SHOWN_NOTES = 3
MAX_WHY = 400
WATCH_PERIOD_S = 1.0
FAR_WATCH_PERIOD_S = 5.0  # of an experiment in a store, which is listed each time


def run(arguments: argparse.Namespace) -> int:
    """Show the status, once or until the experiment does not run any more."""
    history = open_nearest(arguments.path, tolerant=not arguments.watch)
    if arguments.watch:
        return _watch(arguments.path, history, as_json=arguments.json)
    check_early_records(history)
    if arguments.json:
        print_json(full_facts(history))
    else:
        say(*status_lines(history, time.time()))
    if history.known_damage is not None:
        raise history.known_damage  # so that it is said on stderr too, and shows in the exit code
    return 0


def full_facts(history: History) -> dict[str, Any]:
    """The object that ``status --json`` prints."""
    trials = [trial_facts(history, trial) for trial in history.state.trials]
    return {**experiment_facts(history), "trials": trials}


def status_lines(history: History, now: float) -> list[str]:
    """The status for people."""
    view = overview(history, now, rows=MAX_ROWS)
    lines = [_headline(history, view, now), f"  {one_line(history.shown, 4000)}", f"  {_trials_text(view)}"]
    if history.unasked:
        lines.insert(1, f"  what this machine knows; the store cannot be reached: {one_line(history.unasked, 300)}")
    lines += [f"  {line}" for line in _warnings(history)]
    if view.best is not None:
        lines.append(f"  best: {best_text(view.best)}")
    lines += [f"  {line}" for line in said_lines(history.state)]
    if history.lost and history.damage is None:
        lines.append(f"  {_lost_text(history)}")
    if phase_of(history) == Phase.INTERRUPTED and history.known_damage is None:
        lines += [f"  {line}" for line in resume_lines(history.state, glance(history))]
    if lag_text(view):
        lines.append(f"  {lag_text(view)}")
    if phase_of(history) == Phase.RUNNING and full_text(view.backlog):
        lines.append(f"  {full_text(view.backlog)}")
    lines += _failure_lines(view)
    if phase_of(history) == Phase.RUNNING and view.rows:
        import shutil

        from holdfast.display.table import TableMaker

        width = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None
        table = TableMaker(DisplayOptions()).make(view.rows, history.info.metric, width)
        lines += ["", *(f"  {line}" for line in table.lines())]
        if view.hidden:
            lines.append(f"  and {plural(view.hidden, 'more running trial')}")
    return lines + _ship_lines(history) + _resume_lines(history)


def _warnings(history: History) -> list[str]:
    """What makes the rest less than the whole truth."""
    lines = []
    if phase_of(history) == Phase.RUNNING and history.restored is None and is_copy(history.root, history.owner):
        lines.append("This is a copy: that driver runs the original, and writes nothing here.")
    if damage := claim_damage(history):
        lines.append(damage)
    if history.damage is not None:
        lines.append("DAMAGED: the journal has lost records; only what is left is shown")
    elif history.early_damage is not None:
        lines.append("DAMAGED: the journal has records that cannot be read; what is shown is from a later snapshot")
    return lines


def _ship_lines(history: History) -> list[str]:
    left = unshipped(history) if phase_of(history) != Phase.RUNNING else None
    if left is None:
        return []
    return [f"{unshipped_text(left)} are on this machine only. Upload them: {ship_command(history.shown)}"]


def said_lines(state: State) -> list[str]:
    """What people have said about the experiment: all tags, and the latest notes."""
    lines = [f"tags: {one_line(', '.join(state.tags), 400)}"] if state.tags else []
    lines += [note_line(note) for note in state.notes[-MAX_SHOWN_NOTES:]]
    older = len(state.notes) - MAX_SHOWN_NOTES
    return [*lines, f"and {plural(older, 'older note')}: --json has all"] if older > 0 else lines


def note_line(note: UserNote) -> str:
    """One note for people."""
    by = f", {one_line(note.by, 60)}" if note.by else ""
    return f"note ({when(note.at)}{by}): {one_line(note.text, 400)}"


def _headline(history: History, view: ProgressView, now: float) -> str:
    phase, owner, name = phase_of(history), history.owner, one_line(history.info.name, 80)
    if owner is None:
        return f"{name}: not started yet"
    if phase == Phase.RUNNING:
        return f"{name}: {_driver_text(owner, now)}"
    why = one_line(why_of(history), MAX_WHY)
    ago = f"{rough_duration(max(0.0, now - history.state.last_at))} ago" if history.state.last_at else ""
    said = f"{name}: {phase}" + (f" ({why})" if why else "")
    return f"{said}, {duration(view.lived_s)} of work, last event {ago}" if ago else said


def _driver_text(owner: Holder, now: float) -> str:
    """The driver that runs the experiment; or that may run it, if its process cannot be seen from here."""
    heard = f"last heartbeat {rough_duration(owner.age_s)} ago"
    dead = "" if owner.dead_in_s is None else f"; counts as dead in {math.ceil(owner.dead_in_s)} s without one"
    if owner.damage:
        return f"perhaps running, by an unknown driver, {heard}{dead}"
    since = rough_duration(now - owner.claim.claimed_at)
    by = f"pid {owner.claim.pid} on {one_line(owner.claim.host, 60)}"
    if owner.certain:
        return f"running for {since} by {by}"
    return f"perhaps running, for {since} by {by}, another container or machine; {heard}{dead}"


def _trials_text(view: ProgressView) -> str:
    of = "" if view.total is None else f" of {view.total:,}"
    return f"{view.finished:,}{of} trials ended: {counts_text(view.counts)}; {plural(view.reports, 'report')}"


def _lost_text(history: History) -> str:
    count, trials = len(history.lost), history.state.trials
    were = "trial was" if count == 1 else "trials were"
    if history.state.stopped:  # by an error, perhaps that of a report
        recorded = "what the driver had accepted is recorded"
    elif any(trials[n].metrics is not None for n in history.lost):
        recorded = "all their reports are recorded"
    else:
        recorded = "none of their reports had arrived"
    return f"{count:,} {were} running when the driver exited; {recorded}"


def _failure_lines(view: ProgressView) -> list[str]:
    if not view.failures:
        return []
    lines = ["  failures:"]
    lines += [f"    {failure_text(group)} ({failure_count(group)})" for group in view.failures[:MAX_FAILURES]]
    rest = len(view.failures) - MAX_FAILURES + view.more_failures
    return [*lines, f"    and {plural(rest, 'other kind')} of errors"] if rest > 0 else lines


def _resume_lines(history: History) -> list[str]:
    command, call = resume_command(history), resume_call(history)
    if repair := repair_command(history):
        return [f"repair it: {repair}"]
    retries = command is not None and command.endswith("--resume-errored")
    if command is not None and retries and "--trainable" not in command:
        # The call runs the code as it is now, so it comes first.
        call, command = f"{command}   (with the stored code; --trainable MODULE:NAME runs yours)", call
    ways = [way for way in (command, call) if way is not None]
    what = {Phase.NEW: "start it", Phase.FINISHED: "retry the failed trials"}.get(phase_of(history), "resume")
    if retries:
        what = "retry the failed trials"
    return [f"{f'{what}:' if n == 0 else ' ' * (len(what) + 1)} {way}" for n, way in enumerate(ways)]


# --- watching


def _watch(path: str, history: History, *, as_json: bool) -> int:
    show, close = _watcher(as_json)
    follower = Follower(path, history)
    try:
        while True:
            show(follower.history)
            if phase_of(follower.history) != Phase.RUNNING:
                return 0
            time.sleep(WATCH_PERIOD_S if follower.history.restored is None else FAR_WATCH_PERIOD_S)
            follower.advance()
    finally:
        close()


def _watcher(as_json: bool) -> tuple[Callable[[History], None], Callable[[], None]]:
    """How to show a status again and again, and how to end that."""
    if as_json:
        return lambda history: print_json(experiment_facts(history), indent=False), lambda: None
    if not sys.stdout.isatty():
        return _print_changes(), lambda: None
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(console=Console(), auto_refresh=False)
    live.start()

    def show(history: History) -> None:
        live.update(Text(visible_lines("\n".join(status_lines(history, time.time())))), refresh=True)

    return show, live.stop


def _print_changes() -> Callable[[History], None]:
    last: list[str] = []

    def show(history: History) -> None:
        if phase_of(history) != Phase.RUNNING:
            say(*status_lines(history, time.time()))
            return
        line = f"{one_line(history.info.name, 80)}: {_trials_text(overview(history, time.time(), rows=0))}"
        if last != [line]:
            last[:] = [line]
            say(line)
            sys.stdout.flush()

    return show
