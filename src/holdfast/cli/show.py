"""``holdfast show``: the trials of an experiment in a table, or one of them in detail, or what happened to it."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from holdfast.callbacks.progress_facts import DisplayOptions
from holdfast.callbacks.progress_table import TableMaker
from holdfast.callbacks.progress_tracker import make_row
from holdfast.callbacks.progress_words import duration, metrics_text, plural, value_text
from holdfast.cli.facts import display_facts, on_resume, trial_facts
from holdfast.cli.output import print_json, say, size_text, when
from holdfast.cli.story import Line, experiment_story, failure_words, trial_story
from holdfast.core.state import Status, Trial
from holdfast.errors import InvalidInputError
from holdfast.results.history import History, open_history

MAX_NAMED = 5


def run(arguments: argparse.Namespace) -> int:
    """Show trials."""
    history = open_history(arguments.path)
    trial = find_trial(history, arguments.trial) if arguments.trial is not None else None
    if arguments.json:
        print_json(_as_data(history, trial, arguments.story))
    elif arguments.story:
        say(*story_lines(_story(history, trial)))
    elif trial is not None:
        say(*detail_lines(history, trial))
    else:
        say(*_table_lines(history, arguments.limit))
    return 0


def find_trial(history: History, text: str) -> Trial:
    """The trial that the user means: by id, name, directory, number, or the unique beginning of an id or a name."""
    state = history.state
    if text in state.by_id:
        return state.trials[state.by_id[text]]
    wanted = text.rstrip("/").rpartition("/")[2]
    for trial in state.trials:
        if wanted in (history.name(trial), trial.dirname):
            return trial
    if text.isdecimal() and int(text) < len(state.trials):
        return state.trials[int(text)]
    found = [trial for trial in state.trials if _begins(history, trial, wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(trial.id for trial in found[:MAX_NAMED]) + (", .." if len(found) > MAX_NAMED else "")
        raise InvalidInputError(f"{text!r} can mean {len(found)} trials: {some}. Give more of the id.")
    known = f"{history.shown} has {plural(len(state.trials), 'trial')}"
    last = f" Their ids go from {state.trials[0].id} to {state.trials[-1].id}." if state.trials else ""
    raise InvalidInputError(f"{known}, but none called {text!r}.{last}")


def _begins(history: History, trial: Trial, wanted: str) -> bool:
    # The whole directory name begins with the trial's name, so that a pasted path finds its trial.
    name = history.name(trial)
    return trial.id.startswith(wanted) or name.startswith(wanted) or wanted.startswith(f"{name}_")


def _story(history: History, trial: Trial | None) -> list[Line]:
    return experiment_story(history) if trial is None else trial_story(history, trial)


def story_lines(story: list[Line]) -> list[str]:
    """A story for people."""
    return [f"{when(line.at)}  {line.text}" for line in story] or ["Nothing has happened yet."]


def _as_data(history: History, trial: Trial | None, story: bool) -> Any:
    told = [line._asdict() for line in _story(history, trial)] if story else None
    if trial is None:
        return told if story else [trial_facts(history, each) for each in history.state.trials]
    facts = {**trial_facts(history, trial), "path": history.place(trial)}
    if trial.error is not None:
        facts["last_failure"].update(traceback=trial.error.traceback, output=trial.error.output)
    return {**facts, "story": told} if story else facts


def _table_lines(history: History, limit: int) -> list[str]:
    state, facts = history.state, display_facts(history)
    chosen = state.trials[: limit or None]
    if not chosen:
        return [f"{history.shown} has no trials yet."]
    rows = [make_row(state, trial, facts, state.last_at) for trial in chosen]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = TableMaker(DisplayOptions(max_column_length=32)).make(rows, history.info.metric, width)
    rest = len(state.trials) - len(chosen)
    more = [f"and {plural(rest, 'more trial')}: --limit 0 shows all, `holdfast export` writes them to a file"]
    return table.lines() + (more if rest else [])


def detail_lines(history: History, trial: Trial) -> list[str]:
    """One trial for people."""
    why = f" ({trial.reason})" if trial.reason and trial.status == Status.TERMINATED else ""
    lost = "; it was running when its driver went" if trial.n in history.lost else ""
    lines = [f"{history.name(trial)} (number {trial.n}): {trial.status}{why}{lost}"]
    lines.append(f"  path        {history.place(trial)}")
    lines += [f"  config      {key} = {value_text(value, 200)}" for key, value in trial.config.items()]
    if trial.started_at:
        ended = f", ended {when(trial.ended_at)}" if trial.ended_at and trial.final else ""
        lines.append(f"  started     {when(trial.started_at)}{ended}; {plural(trial.attempt, 'attempt')}")
    if trial.metrics is not None:
        objective = (history.info.metric, "") if history.info.metric else None
        lines.append(f"  iteration   {trial.iteration}, {duration(trial.time_total)} of training")
        lines.append(f"  result      {metrics_text(trial.metrics, objective, limit=20)}")
    lines += _checkpoint_lines(trial)
    if on_resume(trial) is not None and not (history.owner is not None and history.owner.alive):
        lines.append(f"  on resume   {on_resume(trial)}")
    return lines + _failure_lines(trial)


def _checkpoint_lines(trial: Trial) -> list[str]:
    return [
        f"  checkpoint  checkpoint_{record.index:06d} at iteration {record.iteration}, {size_text(record.bytes)}, "
        f"{record.stored}" + (f": {record.reason}" if record.reason else "")
        for record in trial.checkpoints
    ]


def _failure_lines(trial: Trial) -> list[str]:
    if trial.error is None:
        return []
    count = "once" if trial.total_failures == 1 else f"{trial.total_failures} times"
    lines = [f"  failed      {count}; last: {failure_words(trial.cause, trial.error)}"]
    text = trial.error.traceback or trial.error.output
    return lines + [f"    {line}" for line in text.rstrip().splitlines()]
