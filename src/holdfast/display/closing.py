"""What is said at the end of an experiment, and of what a resume will do.

Owns the order and the number of these lines; the words that all displays share are those of ``words``.
"""

from __future__ import annotations

from holdfast.checkpoints.names import checkpoint_name
from holdfast.core.events import Cause
from holdfast.core.foresight import Fate, IsThere, glimpse
from holdfast.core.state import State, Status
from holdfast.display.clipping import whole_sentences
from holdfast.display.experiment_facts import Ending, ExperimentFacts, FailureGroup, ProgressView, RunSummary
from holdfast.display.restore_calls import needs_space, retry_call
from holdfast.display.words import (
    best_text,
    counts_text,
    done_text,
    duration,
    failure_count,
    failure_text,
    next_line,
    on_host,
    one_line,
    plural,
)

CLOSING_LINES = 14
"""Most lines that the end of an experiment takes."""

CLOSING_KINDS = 7


def outcome_line(view: ProgressView, facts: ExperimentFacts, summary: RunSummary) -> str:
    """How it ended, in one sentence."""
    name, took = one_line(facts.name, 80), duration(view.elapsed_s)
    counts = f"{done_text(view)} ended" if view.total is not None else done_text(view)
    shown = dict(view.counts)
    if summary.outcome != Ending.TAKEN_OVER:  # nothing runs any more
        shown[Status.PENDING] = shown.get(Status.PENDING, 0) + shown.pop(Status.RUNNING, 0)
    details = f"({counts_text(shown)}) in {took}"
    if summary.outcome == Ending.FINISHED:
        why = f", stopped by {one_line(view.stopping, 80)}" if view.stopping else ""
        return f"{name} finished: {counts} {details}{why}."
    reason = whole_sentences(summary.reason, 200)
    if summary.outcome == Ending.INTERRUPTED:
        why = f" ({reason})" if reason else ""
        return f"{name} was interrupted{why}: {counts} {details}."
    if summary.outcome == Ending.TAKEN_OVER:
        return f"{name} was taken over by {reason}, which continues it. This process stops; nothing is lost."
    why = f": {reason}" if reason else ""
    return f"{name} ended with an error{why}. {counts} {details}; everything that was reported is kept."


def resume_lines(state: State, is_there: IsThere = lambda n, record: True) -> list[str]:
    """What a resume does with trials that have begun and not ended; nothing if there are none.

    Args:
        state: What the journal says.
        is_there: Looks for checkpoints; without it, all that the journal knows are believed to be there.
    """
    begun = [trial for trial in state.trials if not trial.final and trial.attempt]
    if not begun:
        return []
    fates = [glimpse(state, trial, is_there) for trial in begun]
    continuing = [fate for fate in fates if fate.kind == Fate.CONTINUES]
    behind = [fate for fate in continuing if fate.missing]
    restarting = [fate for fate in fates if fate.kind == Fate.RESTARTS]
    parts = []
    if count := len(continuing) - len(behind):
        parts.append(
            f"{plural(count, 'trial')} will continue from {'its' if count == 1 else 'their'} latest checkpoint"
        )
    if behind:
        parts.append(_fall_back_text(behind))
    if count := sum(not fate.missing for fate in restarting):
        why = "it has saved no checkpoint" if count == 1 else "they have saved no checkpoint"
        parts.append(f"{plural(count, 'trial')} will start again from the beginning, because {why}")
    if count := sum(fate.missing > 0 for fate in restarting):
        whose = "the checkpoint to continue from is" if count == 1 else "the checkpoints to continue from are"
        parts.append(f"{plural(count, 'trial')} will start again from the beginning, because {whose} missing")
    if count := sum(fate.kind == Fate.ENDS for fate in fates):
        parts.append(f"{plural(count, 'trial')} will end, as the user has asked")
    lines = [f"On resume, {' and '.join(parts) if len(parts) < 3 else '; '.join(parts)}."] if parts else []
    if count := sum(fate.kind == Fate.ERROR for fate in fates):
        lines.append(
            f"On resume, {plural(count, 'trial')} will end in ERROR, because no good checkpoint is left of what "
            f"{'it' if count == 1 else 'they'} had saved; `holdfast verify` names the files."
        )
    return lines


def _fall_back_text(behind: list[Fate]) -> str:
    sources = {fate.source for fate in behind}
    missing = sum(fate.missing for fate in behind)
    (_, index), *more = (source for source in sources if source is not None)
    to = "older checkpoints" if more else checkpoint_name(index)
    why = "a newer one is missing" if missing == 1 else "newer ones are missing"
    return f"{plural(len(behind), 'trial')} will fall back to {to}, because {why}"


def closing_lines(
    view: ProgressView, state: State, facts: ExperimentFacts, summary: RunSummary, unshown: int = 0
) -> list[str]:
    """The end of an experiment in at most ``CLOSING_LINES`` lines: what happened, what failed, what to type next."""
    lines = [outcome_line(view, facts, summary)]
    if summary.outcome in (Ending.INTERRUPTED, Ending.FAILED):
        lines += resume_lines(state)
    if view.best is not None:
        lines.append(f"Best: {best_text(view.best)}")
    if view.failures:
        lines.append("Failures:")
        lines.extend(_closing_failure(group, state, facts) for group in view.failures[:CLOSING_KINDS])
        rest = len(view.failures) - CLOSING_KINDS + view.more_failures
        if rest > 0:
            lines.append(f"  and {plural(rest, 'other kind')} of errors")
    if unshown:
        lines.append(f"{plural(unshown, 'more note')} not shown; verbose=2 shows all.")
    lines.append(f"Results: {one_line(facts.root, 1000)}")
    if summary.outcome != Ending.FINISHED:
        lines.append(next_line(facts, summary))
    elif view.counts[Status.ERROR]:
        errored = [group for group in view.failures if group.errored]
        # What is damaged stays so: only a new start helps.
        damaged = all(group.cause == Cause.DAMAGED for group in errored)
        lacking = needs_space(group.type for group in errored)
        again = retry_call(facts.root, facts.given_as, needs_space=lacking, restart=damaged)
        lines.append(f"Retry the failed trials with: {again}.fit()")
    return lines


def _closing_failure(group: FailureGroup, state: State, facts: ExperimentFacts) -> str:
    trial = state.trials[group.trial]
    first = f"first {one_line(facts.name_of(trial), 60)}{on_host(group, state, facts)}"
    details = [failure_count(group), first]
    error_file = facts.error_file_of(trial)
    if error_file:
        details.append(f"traceback in {one_line(error_file, 300)}")
    return f"  {failure_text(group)} ({', '.join(details)})"
