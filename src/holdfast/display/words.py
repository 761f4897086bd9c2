"""The words of the progress display: numbers, durations, sentences, and the call to paste after an interruption.

Owns the wording that all displays share. Plain ASCII, apart from what the user named; whatever comes from the user's
code is made printable first, because an error message may hold line breaks and terminal control codes.

Must never: write to a stream.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from holdfast.core.ending import RETURNED
from holdfast.core.events import Cause
from holdfast.core.state import State, Status
from holdfast.display.clipping import advice_line
from holdfast.display.experiment_facts import (
    NOT_STARTED,
    Backlog,
    Best,
    Ending,
    ExperimentFacts,
    FailureGroup,
    ProgressView,
    RunSummary,
    TableRow,
)
from holdfast.display.restore_calls import restore_call, retry_call
from holdfast.messages.visible import visible
from holdfast.space.exact import TAG, VALUE, is_exact, is_mapping, is_ours, shown
from holdfast.space.objects import is_marker

MAX_MESSAGE = 160
MAX_FAILURE = 320
"""Longer than other texts: it ends with what to do about it."""

MAX_PARAMS = 6
BACKLOG_S = 2.0
"""A checkpoint that has been on its way for less is not worth a word."""

MEMORY = "memory"
GIB = 2**30

NOUNS = {
    Status.RUNNING: "running",
    Status.PENDING: "pending",
    Status.PAUSED: "paused",
    Status.TERMINATED: "done",
    Status.ERROR: "failed",
    NOT_STARTED: "not started",
}

_SHORT = {"AsyncHyperBandScheduler": "ASHA", "ASHAScheduler": "ASHA", "PopulationBasedTraining": "PBT"}
"""What people call schedulers with long names."""

_CAUSES = {
    Cause.EXIT: "the process exited",
    Cause.SIGNAL: "the process was killed",
    Cause.OUT_OF_MEMORY: "out of memory",
    Cause.STALLED: "no report for too long",
    Cause.LOADING: "while loading a checkpoint",
    Cause.DAMAGED: "damaged checkpoints",
}


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """Text as one printable line of at most ``limit`` characters."""
    return clip(visible(" ".join(text[: 4 * limit].split())), limit)


def clip(text: str, limit: int) -> str:
    """The beginning of a text, marked if it was cut."""
    return text if len(text) <= limit else text[: max(0, limit - 2)] + ".."


def clip_front(text: str, limit: int) -> str:
    """The end of a text, marked if it was cut: what tells names and paths apart stands there."""
    return text if len(text) <= limit else ".." + text[len(text) - max(0, limit - 2) :]


def param_text(value: Any, limit: int = 20) -> str:
    """A parameter in a few characters; None is a value like any other, not a missing one."""
    return "None" if value is None else value_text(value, limit)


def value_text(value: Any, limit: int = 20) -> str:
    """A parameter or a metric in a few characters."""
    if is_exact(value) or isinstance(value, list):
        value = with_tuples(value)
    if isinstance(value, bool | int) or value is None:
        text = "" if value is None else str(value)
    elif isinstance(value, float):
        text = f"{value:.5g}"
    elif is_marker(value):
        text = f"<{str(value['type']).rpartition('.')[2]}>"
    else:
        text = str(value)
    return one_line(text, limit)


def with_tuples(node: Any) -> Any:
    """Packed data as people write it: as ``shown`` has it, but tuples are tuples."""
    if isinstance(node, list):
        return [with_tuples(value) for value in node]
    if not isinstance(node, dict):
        return node
    if TAG not in node:
        return {key: with_tuples(value) for key, value in node.items()}
    if not is_ours(node):
        return shown(node)
    if node[TAG] == "tuple":
        return tuple(map(with_tuples, node[VALUE]))
    return with_tuples(node[VALUE]) if is_mapping(node) else shown(node)


def duration(seconds: float) -> str:
    """Seconds in the two units that matter."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def rough_duration(seconds: float) -> str:
    """A guess, without pretending to know the seconds."""
    for size, name in ((86400, "day"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}{'s' if name == 'day' else ''}"
    return f"{max(1, round(seconds))} s"


def plural(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counts_text(counts: Mapping[str, int]) -> str:
    """How many trials are in which status; empty ones are left out."""
    shown = [f"{counts[status]:,} {noun}" for status, noun in NOUNS.items() if counts.get(status)]
    return ", ".join(shown) or "no trials yet"


def done_text(view: ProgressView) -> str:
    """How far it is, without the share that failed."""
    if view.total is None:
        return f"{plural(view.finished, 'trial')} ended"
    return f"{view.finished:,}/{view.total:,} trials"


def speed_text(view: ProgressView) -> str:
    """Speed and what is left, as far as known."""
    parts = []
    if view.trials_per_s:
        slow = view.trials_per_s < 0.1
        parts.append(f"{view.trials_per_s * 60:.2g} trials/min" if slow else f"{view.trials_per_s:.3g} trials/s")
    if view.reports_per_s:
        parts.append(f"{view.reports_per_s:.3g} reports/s")
    if view.eta_s is not None:
        parts.append(f"about {rough_duration(view.eta_s)} left")
    return ", ".join(parts)


def params_text(row: TableRow, limit: int = 100) -> str:
    """What the search chose for a trial."""
    names = short_names(in_space_order(row.params, row.config))
    chosen = islice(names.items(), MAX_PARAMS)
    shown = [f"{one_line(name, 60)}={value_text(at_path(row.config, path))}" for path, name in chosen]
    if len(row.params) > MAX_PARAMS:
        shown.append("..")
    return clip(", ".join(shown), limit)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """The last part of each path, and as much before it as tells it from the others: lr, but enc/lr and dec/lr."""
    paths = list(paths)
    names = {path: path.rpartition("/")[2] for path in paths}
    while len(set(names.values())) < len(paths):
        taken = Counter(names.values())
        longer = {path: _one_part_more(path, name) if taken[name] > 1 else name for path, name in names.items()}
        if longer == names:  # the same path twice, or one that is the end of another
            return {path: path for path in paths}
        names = longer
    return {path: one_line(name, 200) for path, name in names.items()}


def _one_part_more(path: str, name: str) -> str:
    before = path[: len(path) - len(name)].rstrip("/")
    return f"{before.rpartition('/')[2]}/{name}" if before else name


def in_space_order(paths: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Paths of parameters in the order in which the user wrote them down."""
    order = {path: i for i, path in enumerate(_leaves(config))}
    return sorted(paths, key=lambda path: order.get(path, len(order)))


def _leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """The paths of a config's values, in its own order."""
    items: Iterable[tuple[Any, Any]]
    if is_exact(node):
        node = shown(node)
    if isinstance(node, Mapping) and not is_marker(node):
        items = node.items()
    elif isinstance(node, list | tuple):
        items = enumerate(node)
    else:
        yield prefix
        return
    for key, value in items:
        yield from _leaves(value, f"{prefix}/{key}" if prefix else str(key))


def ended_words(reason: str) -> str:
    """Why a trial ended, in the fewest words."""
    if reason == RETURNED:
        return "finished"
    who, colon, why = reason.partition(": ")
    who = _SHORT.get(who, who.removesuffix("Scheduler"))
    return one_line(f"{who}{colon}{why}", 80)


def at_path(node: Any, path: str) -> Any:
    """The value at ``a/b/0`` in a config; None if there is nothing. Keys may hold slashes or be numbers themselves."""
    if is_exact(node):
        node = shown(node)
    if isinstance(node, Mapping):
        if path in node:
            return node[path]
        items = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, list | tuple):
        items = [(str(i), value) for i, value in enumerate(node)]
    else:
        return None
    for key, value in items:
        if key == path:
            return value
        if path.startswith(f"{key}/"):
            found = at_path(value, path[len(key) + 1 :])
            if found is not None:
                return found
    return None


def best_text(best: Best) -> str:
    """The best trial so far."""
    params = params_text(best.row)
    return f"{one_line(best.metric, 60)}={value_text(best.value)} by {one_line(best.row.name, 60)}" + (
        f" ({params})" if params else ""
    )


def resources_text(view: ProgressView) -> str:
    """What is in use of what there is."""
    return ", ".join(_resource_text(*each) for each in view.resources)


def _resource_text(name: str, used: float, amount: float) -> str:
    if name == MEMORY:
        return f"{used / GIB:.1f}/{amount / GIB:.1f} GiB memory"
    return f"{used:g}/{amount:g} {one_line(name, 20)}"


def lag_text(view: ProgressView) -> str:
    """How far the durable copy is behind, and which checkpoints it lacks, if that is worth a word."""
    parts = [f"durable {duration(view.lag_s)} behind"] if view.lag_s >= 0.05 else []
    if view.backlog is not None and view.backlog.oldest_s >= BACKLOG_S:
        parts.append(backlog_text(view.backlog))
    return ", ".join(parts)


def backlog_text(backlog: Backlog) -> str:
    """The checkpoints that are on their way."""
    count, verb = plural(backlog.checkpoints, "checkpoint"), "waits" if backlog.checkpoints == 1 else "wait"
    return f"{count} ({size_text(backlog.bytes)}) {verb} for storage, oldest {duration(backlog.oldest_s)}"


def full_text(backlog: Backlog | None) -> str:
    """Why trials that save wait; "" if they do not."""
    if backlog is None or backlog.limit is None:
        return ""
    return (
        f"Trials wait: {size_text(backlog.bytes)} of checkpoints are not yet in {one_line(backlog.place, 200)}, limit "
        f"{size_text(backlog.limit)} (SyncConfig(max_backlog_bytes=...)); since {duration(backlog.full_s)}."
    )


def size_text(count: int) -> str:
    """Bytes in the unit that fits."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def trouble_text(view: ProgressView) -> str:
    """What stands in the way right now."""
    parts = list(filter(None, [full_text(view.backlog)]))
    if view.draining:
        parts.append(f"Shutting down ({one_line(view.draining, 60)}): running trials save checkpoints.")
    elif view.stopping:
        parts.append(f"Stopping: {one_line(view.stopping, 60)}.")
    parts.extend(f"Waiting for storage: {one_line(text, 100)}" for text in view.storage_trouble)
    return " ".join(parts)


def failure_what(group: FailureGroup) -> str:
    """The name of a kind of failure."""
    return failure_title(group.cause, group.type)


def failure_title(cause: str, kind: str) -> str:
    """A failure in a few words, from its cause and the type of its exception, if there was one."""
    known, kind = _CAUSES.get(cause, ""), one_line(kind)
    return f"{kind} ({known})" if kind and known else kind or known or one_line(cause.replace("_", " ")) or "failure"


def failure_text(group: FailureGroup) -> str:
    """A kind of failure with the user's own file and line."""
    where = f" at {one_line(group.location, 200)}" if group.location else ""
    message = advice_line(group.message, MAX_FAILURE)
    return f"{failure_what(group)}{where}" + (f": {message}" if message else "")


def failure_count(group: FailureGroup) -> str:
    """How often a kind of failure happened."""
    parts = [plural(group.errored, "trial")] if group.errored else []
    if group.retried:
        parts.append("retried " + ("once" if group.retried == 1 else f"{group.retried:,} times"))
    return ", ".join(parts)


def first_failure_text(group: FailureGroup, state: State, facts: ExperimentFacts) -> str:
    """Said once, when a kind of failure first happens. The full path follows at the end, where it is looked for."""
    name = one_line(facts.name_of(state.trials[group.trial]), 60) + on_host(group, state, facts)
    file, _, line = group.location.rpartition(":")
    where = f" in line {line} of {one_line(os.path.basename(file), 60)}" if file else ""
    message = advice_line(group.message, MAX_FAILURE)
    outcome = "failed" if group.errored else "failed and is retried"
    return f"{name} {outcome}: {failure_what(group)}{where}" + (f": {message}" if message else "")


def on_host(group: FailureGroup, state: State, facts: ExperimentFacts) -> str:
    """Where it failed; on one machine that goes without saying."""
    worker = state.workers.get(state.trials[group.trial].worker)
    return "" if worker is None or facts.engine == "local" else f" on {one_line(worker.host, 60)}"


def progress_text(view: ProgressView) -> str:
    """Where the experiment stands, in one line."""
    parts = [done_text(view), counts_text(view.counts)]
    if view.best is not None:
        parts.append(f"best {best_text(view.best)}")
    parts.extend(filter(None, (speed_text(view), lag_text(view), trouble_text(view))))
    return f"[{duration(view.elapsed_s)}] " + "; ".join(parts)


def opening_lines(facts: ExperimentFacts, objective: tuple[str, str] | None) -> list[str]:
    """What is about to run, and where it is kept."""
    parts = [one_line(facts.name, 80)]
    parts.append(plural(facts.total, "trial") if facts.total is not None else "trials until it is stopped")
    if objective is not None:
        parts.append(f"{'minimising' if objective[1] == 'min' else 'maximising'} {one_line(objective[0], 60)}")
    parts.append(f"{facts.engine} engine")
    if facts.resumed:
        parts.append("resumed")
    return [f"holdfast: {', '.join(parts)}", f"Results: {one_line(facts.root, 1000)}"]


def resume_line(facts: ExperimentFacts) -> str:
    """How to continue after an interruption."""
    script = "the same script again, or " if facts.by_name else ""
    return f"Resume with: {script}{restore_call(facts.root)}.fit()"


def is_fail_fast(reason: str) -> bool:
    """Whether a driver has left because a trial failed, as ``FailureConfig(fail_fast=...)`` asks for."""
    return reason.startswith("fail_fast:")


def next_line(facts: ExperimentFacts, summary: RunSummary) -> str:
    """What to type after a run that did not finish."""
    if summary.outcome == Ending.TAKEN_OVER:
        return f"Follow it with: holdfast status {shlex.quote(facts.root)}"
    if is_fail_fast(summary.reason):  # a plain restore would not retry what has ended it
        return f"Retry what failed with: {retry_call(facts.root, facts.given_as, needs_space=False)}.fit()"
    if summary.outcome == Ending.INTERRUPTED:
        return resume_line(facts)
    changed_call = f"{restore_call(facts.root).removesuffix(')')}, {summary.change}).fit()"
    if summary.change.endswith("_creator=...)"):
        again = "correct the function and run the script again"
        if facts.by_name:
            return f"Resume: {again}; from elsewhere: {changed_call}"
        return f'Resume with: {changed_call}; or {again}, with if_exists="resume" or another name'
    # Somebody's code raised: without ``trainable`` the stored code would do so again.
    corrected = f"{restore_call(facts.root, facts.given_as)}.fit()"
    if facts.by_name:
        changed = f" with {summary.change}, or" if summary.change else ""
        return f"Resume: run the script again{changed} with corrected code; from elsewhere: {corrected}"
    if summary.change:
        return f"Resume with: {changed_call}; or with corrected code: {corrected}"
    return f"Resume with: {corrected}"


def ended_text(row: TableRow, objective: tuple[str, str] | None, error: FailureGroup | None) -> str:
    """One trial's end, in one line."""
    parts = [f"{one_line(row.name, 60)} {row.status}: {plural(row.iteration, 'iteration')} in {duration(row.time_s)}"]
    if error is not None:
        parts.append(failure_text(error))
    elif row.metrics:
        parts.append(metrics_text(row.metrics, objective))
    params = params_text(row)
    return "; ".join(filter(None, (*parts, params)))


def metrics_text(metrics: Mapping[str, Any], objective: tuple[str, str] | None, limit: int = 8) -> str:
    """Reported numbers in one line, the aim first."""
    names = [name for name in metrics if objective is None or name != objective[0]]
    if objective is not None and objective[0] in metrics:
        names.insert(0, objective[0])
    shown = [f"{one_line(str(name), 40)}={value_text(metrics[name])}" for name in names[:limit]]
    return ", ".join(shown + [".."] if len(names) > limit else shown)
