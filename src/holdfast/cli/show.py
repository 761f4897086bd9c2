"""``holdfast show``: the trials of an experiment in a table, or one of them in detail, or what happened to it."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from typing import Any

from holdfast.cli.printing import complain, print_json, say, size_text, when
from holdfast.cli.status import note_line
from holdfast.core.retention import lookup
from holdfast.core.state import Trial
from holdfast.display.experiment_facts import DisplayOptions
from holdfast.display.table import TableMaker
from holdfast.display.tracker import ended_reason, make_row
from holdfast.display.words import duration, metrics_text, one_line, param_text, plural
from holdfast.errors import InvalidInputError
from holdfast.results.history import History, open_history
from holdfast.results.html import display_facts
from holdfast.results.report_data import claim_damage, trial_details, trial_facts
from holdfast.results.resume import on_resume
from holdfast.results.story import StoryLine, experiment_story, failure_words, trial_story
from holdfast.space.exact import children, shown
from holdfast.space.value_names import named

MAX_NAMED = 5
MAX_DIGITS = 18


def run(arguments: argparse.Namespace) -> int:
    """Show trials."""
    history = open_history(arguments.path)
    trial = find_trial(history, arguments.trial) if arguments.trial is not None else None
    chosen = _chosen(history, arguments)
    if damage := claim_damage(history):
        complain(f"{damage}.")
    if arguments.json:
        print_json(_as_data(history, trial, chosen, arguments.story))
    elif arguments.story:
        say(*story_lines(_story(history, trial)))
    elif trial is not None:
        say(*detail_lines(history, trial))
    else:
        say(*_table_lines(history, chosen, arguments.limit))
    return 0


def _chosen(history: History, arguments: argparse.Namespace) -> list[Trial]:
    """The trials that were asked for, in the order that was asked for."""
    trials = history.state.trials
    if arguments.best is None:
        return trials if arguments.sort is None else sorted_trials(history, arguments.sort, descending=arguments.desc)
    key, mode = arguments.sort or history.info.metric, history.info.mode
    if arguments.best < 1:
        raise InvalidInputError(f"--best needs a number of trials of at least 1, got {arguments.best}.")
    if key is None or mode is None:
        raise InvalidInputError(
            f"{history.shown} has no metric and mode, so no trial is the best. Sort by a metric instead: "
            f"--sort METRIC, with --desc if larger is better, and --limit {arguments.best}."
        )
    descending = arguments.desc if arguments.sort else mode == "max"
    return sorted_trials(history, key, descending=descending, only_with=True)[: arguments.best]


def sorted_trials(history: History, key: str, *, descending: bool, only_with: bool = False) -> list[Trial]:
    """Trials by a metric, a parameter or a fact of their own; those without it come last.

    Args:
        history: Whose trials.
        key: ``a/b`` for nested ones; ``config/a`` if a metric and a parameter are called the same.
        descending: From large to small.
        only_with: Leave out trials that do not have it.

    Raises:
        InvalidInputError: No trial has it.
    """
    values = {trial.n: sort_value(trial, key) for trial in history.state.trials}
    having = [trial for trial in history.state.trials if values[trial.n] is not None]
    if history.state.trials and not having:
        known = sorted(
            {name for trial in history.state.trials for name in (*(trial.metrics or ()), *shown(trial.config))}
        )
        raise InvalidInputError(
            f"No trial of {history.shown} has {key!r} to sort by. The keys are: "
            f"{', '.join(map(str, [*known, 'status', 'iteration', 'trial_id']))}."
        )
    are_numbers = all(isinstance(values[trial.n], int | float) for trial in having)
    having.sort(key=lambda trial: values[trial.n] if are_numbers else str(values[trial.n]), reverse=descending)
    return having if only_with else having + [trial for trial in history.state.trials if values[trial.n] is None]


def sort_value(trial: Trial, key: str) -> Any:
    """What a trial is sorted by; None if it does not have it, or nothing that could be compared."""
    own = {"status": trial.status, "iteration": trial.iteration, "trial_id": trial.id, "name": trial.n}
    if key in own:
        return own[key]
    value = lookup(trial.metrics, key) if trial.metrics else None
    if value is None:
        value = lookup(shown(trial.config), key.removeprefix("config/"))
    return None if isinstance(value, float) and math.isnan(value) else value


def find_trial(history: History, text: str) -> Trial:
    """The trial that the user means: by id, name, directory, number, or the unique beginning of an id or a name."""
    state = history.state
    if text in state.by_id:
        return state.trials[state.by_id[text]]
    wanted = text.rstrip("/").rpartition("/")[2]
    for trial in state.trials:
        if wanted in (history.name(trial), trial.dirname):
            return trial
    if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and int(text) < len(state.trials):
        return state.trials[int(text)]
    found = [trial for trial in state.trials if _begins(history, trial, wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(trial.id for trial in found[:MAX_NAMED]) + (", .." if len(found) > MAX_NAMED else "")
        raise InvalidInputError(f"{text!r} matches {len(found)} trials: {some}. Type more of the id.")
    known = f"{history.shown} has {plural(len(state.trials), 'trial')}"
    last = f" Their ids go from {state.trials[0].id} to {state.trials[-1].id}." if state.trials else ""
    raise InvalidInputError(f"{known}, but none named {text!r}.{last}")


def _begins(history: History, trial: Trial, wanted: str) -> bool:
    # The whole directory name begins with the trial's name, so that a pasted path finds its trial.
    name = history.name(trial)
    return trial.id.startswith(wanted) or name.startswith(wanted) or wanted.startswith(f"{name}_")


def _story(history: History, trial: Trial | None) -> list[StoryLine]:
    return experiment_story(history) if trial is None else trial_story(history, trial)


def story_lines(story: list[StoryLine]) -> list[str]:
    """A story for people."""
    return [f"{when(line.at)}  {line.text}" for line in story] or ["Nothing has happened yet."]


def _as_data(history: History, trial: Trial | None, chosen: list[Trial], story: bool) -> Any:
    told = [line._asdict() for line in _story(history, trial)] if story else None
    if trial is None:
        return told if story else [trial_facts(history, each) for each in chosen]
    facts = trial_details(history, trial)
    return {**facts, "story": told} if story else facts


def _table_lines(history: History, chosen: list[Trial], limit: int) -> list[str]:
    state, facts = history.state, display_facts(history)
    shown = chosen[: limit or None]
    if not shown:
        return [f"{history.shown} has no trials yet."]
    rows = [make_row(state, trial, facts, state.last_at) for trial in shown]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = TableMaker(DisplayOptions(max_column_length=32)).make(rows, history.info.metric, width)
    rest = len(chosen) - len(shown)
    more = [f"and {plural(rest, 'more trial')}: --limit 0 shows all, `holdfast export` writes them to a file"]
    return table.lines() + (more if rest else [])


def detail_lines(history: History, trial: Trial) -> list[str]:
    """One trial for people."""
    why = f" ({one_line(ended_reason(trial), 400)})" if ended_reason(trial) else ""
    lost = "; it was running when its driver exited" if trial.n in history.lost else ""
    lines = [f"{one_line(history.name(trial), 400)} (number {trial.n}): {trial.status}{why}{lost}"]
    lines.append(f"  path        {one_line(history.place(trial), 4000)}")
    if trial.tags:
        lines.append(f"  tags        {one_line(', '.join(trial.tags), 4000)}")
    lines += [f"  {note_line(note)}" for note in trial.notes]
    lines += [
        f"  config      {one_line(str(key), 200)} = {param_text(value, 200)}"
        for key, value in (children(named(trial.config, history.info.value_names)) or {}).items()
    ]
    if trial.started_at:
        ended = f", ended {when(trial.ended_at)}" if trial.ended_at and trial.final else ""
        lines.append(f"  started     {when(trial.started_at)}{ended}; {plural(trial.attempt, 'attempt')}")
    if trial.metrics is not None:
        objective = (history.info.metric, "") if history.info.metric else None
        lines.append(f"  iteration   {trial.iteration}, {duration(trial.time_total)} of training")
        lines.append(f"  result      {metrics_text(trial.metrics, objective, limit=20)}")
    lines += _checkpoint_lines(trial)
    then = on_resume(history, trial)
    if then is not None and not (history.owner is not None and history.owner.alive):
        lines.append(f"  on resume   {then}")
    return lines + _failure_lines(trial)


def _checkpoint_lines(trial: Trial) -> list[str]:
    return [
        f"  checkpoint  checkpoint_{record.index:06d} at iteration {record.iteration}, {size_text(record.bytes)}, "
        f"{record.stored}" + (f": {one_line(record.reason, 400)}" if record.reason else "")
        for record in trial.checkpoints
    ]


def _failure_lines(trial: Trial) -> list[str]:
    if trial.error is None:
        return []
    count = "once" if trial.total_failures == 1 else f"{trial.total_failures} times"
    lines = [f"  failed      {count}; last: {one_line(failure_words(trial.cause, trial.error), 1000)}"]
    text = trial.error.traceback or trial.error.output
    return lines + [f"    {line}" for line in text.rstrip().split("\n")]
