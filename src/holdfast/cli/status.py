"""``holdfast status``: where an experiment stands, in at most forty lines or one JSON object."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.callbacks.progress_facts import DisplayOptions, ProgressView
from holdfast.callbacks.progress_words import (
    best_text,
    counts_text,
    duration,
    failure_count,
    failure_text,
    lag_text,
    never_started_lines,
    one_line,
    plural,
    rough_duration,
)
from holdfast.cli.facts import (
    Phase,
    experiment_facts,
    overview,
    phase_of,
    resume_call,
    resume_command,
    trial_facts,
    why_of,
)
from holdfast.cli.output import print_json, say
from holdfast.cli.shipped import ship_command, unshipped, unshipped_text
from holdfast.core import events as ev
from holdfast.core.transitions import apply
from holdfast.errors import FencedError
from holdfast.journal.epoch import holder
from holdfast.journal.reader import Position, read_journal
from holdfast.results.history import History, open_history

MAX_ROWS = 10
MAX_FAILURES = 7
WATCH_PERIOD_S = 1.0
FAR_WATCH_PERIOD_S = 5.0  # of an experiment in a store, which is listed each time


def run(arguments: argparse.Namespace) -> int:
    """Show the status, once or until the experiment does not run any more."""
    history = open_history(arguments.path)
    if arguments.watch:
        return _watch(arguments.path, history, as_json=arguments.json)
    if arguments.json:
        print_json(full_facts(history))
    else:
        say(*status_lines(history, time.time()))
    return 0


def full_facts(history: History) -> dict[str, Any]:
    """The object that ``status --json`` prints."""
    trials = [trial_facts(history, trial) for trial in history.state.trials]
    return {**experiment_facts(history), "trials": trials}


def status_lines(history: History, now: float) -> list[str]:
    """The status for people."""
    view = overview(history, now, rows=MAX_ROWS)
    lines = [_headline(history, view, now), f"  {history.shown}", f"  {_trials_text(view)}"]
    lines += [f"  {line}" for line in never_started_lines(history.state)]
    if view.best is not None:
        lines.append(f"  best: {best_text(view.best)}")
    if history.lost:
        lines.append(f"  {_lost_text(len(history.lost))}")
    if lag_text(view):
        lines.append(f"  {lag_text(view)}")
    lines += _failure_lines(view)
    if phase_of(history) == Phase.RUNNING and view.rows:
        import shutil

        from holdfast.callbacks.progress_table import TableMaker

        width = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None
        table = TableMaker(DisplayOptions()).make(view.rows, history.info.metric, width)
        lines += ["", *(f"  {line}" for line in table.lines())]
        if view.hidden:
            lines.append(f"  and {plural(view.hidden, 'more running trial')}")
    return lines + _ship_lines(history) + _resume_lines(history)


def _ship_lines(history: History) -> list[str]:
    left = unshipped(history) if phase_of(history) != Phase.RUNNING else None
    if left is None:
        return []
    return [f"{unshipped_text(left)} are on this machine only. Send them: {ship_command(history.shown)}"]


def _headline(history: History, view: ProgressView, now: float) -> str:
    phase, owner, name = phase_of(history), history.owner, one_line(history.info.name, 80)
    if owner is None:
        return f"{name}: not started yet"
    if phase == Phase.RUNNING:
        claim = owner.claim
        since = rough_duration(now - claim.claimed_at)
        return f"{name}: running for {since} by pid {claim.pid} on {one_line(claim.host, 60)}"
    why = one_line(why_of(history), 160)
    ago = f"{rough_duration(max(0.0, now - history.state.last_at))} ago" if history.state.last_at else ""
    said = f"{name}: {phase}" + (f" ({why})" if why else "")
    return f"{said}, {duration(view.lived_s)} of work, last event {ago}" if ago else said


def _trials_text(view: ProgressView) -> str:
    of = "" if view.total is None else f" of {view.total:,}"
    return f"{view.finished:,}{of} trials ended: {counts_text(view.counts)}; {plural(view.reports, 'report')}"


def _lost_text(count: int) -> str:
    were = "trial was" if count == 1 else "trials were"
    return f"{count:,} {were} running when the driver went; a resume continues from what is recorded here"


def _failure_lines(view: ProgressView) -> list[str]:
    if not view.failures:
        return []
    lines = ["  failures:"]
    lines += [f"    {failure_text(group)} ({failure_count(group)})" for group in view.failures[:MAX_FAILURES]]
    rest = len(view.failures) - MAX_FAILURES + view.more_failures
    return [*lines, f"    and {plural(rest, 'other kind')} of errors"] if rest > 0 else lines


def _resume_lines(history: History) -> list[str]:
    command, call = resume_command(history), resume_call(history)
    if command is None:
        return []
    what = {Phase.NEW: "start it", Phase.FINISHED: "try the failed trials again"}.get(phase_of(history), "resume")
    return [f"{what}: {command}", f"{' ' * len(what)}  {call}"]


# --- watching


def _watch(path: str, history: History, *, as_json: bool) -> int:
    show, close = _watcher(as_json)
    follower = Follower(path, history)
    try:
        while True:
            show(follower.history)
            if phase_of(follower.history) != Phase.RUNNING:
                return 0
            time.sleep(WATCH_PERIOD_S if follower.history.hydrated is None else FAR_WATCH_PERIOD_S)
            follower.advance()
    finally:
        close()


class Follower:
    """Keeps a state up to date by reading what the journal has gained, at the price of just that."""

    def __init__(self, path: str, history: History) -> None:
        self.history = history
        self._path = path
        self._position: Position | None = history.position

    def advance(self) -> None:
        """Take in what happened since the last time."""
        history = self.history
        owner = holder(history.root) if history.hydrated is None else None
        if owner is None or not owner.alive or self._position is None:
            self._reopen()
            return
        try:
            contents = read_journal(history.root, after=self._position)
            for _, payload in contents:
                apply(history.state, ev.decode(payload), history.retention)
        except FencedError:
            self._reopen()
            return
        self._position = contents.position
        history.owner = owner

    def _reopen(self) -> None:
        self.history = open_history(self._path)
        self._position = self.history.position


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
        live.update(Text("\n".join(status_lines(history, time.time()))), refresh=True)

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
