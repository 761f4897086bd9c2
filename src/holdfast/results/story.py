"""What happened, in plain sentences: one pass over the journal, which is folded on the way.

Events carry their causes, or have one by definition (`core.events`); the fold adds numbers, such as the iteration.
Owns the wording of events. Long runs of reports and saves are told in one sentence. Must never guess a cause, nor
decide anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.core import events as ev
from holdfast.core.ending import RETURNED
from holdfast.core.retention import lookup
from holdfast.core.state import State, Trial
from holdfast.core.transitions import check_known
from holdfast.core.user_facts import STOPPED_BY_USER
from holdfast.display.clipping import advice_line
from holdfast.display.words import duration, param_text, plural, size_text, value_text, with_tuples
from holdfast.journal.trial_index import EXPERIMENT
from holdfast.results.history import History
from holdfast.space.value_names import named

MAX_TEXT = 400

_CUTS = {
    ev.Cause.DRIVER_LOST: "its driver was lost",
    ev.Cause.DRIVER_STOPPED: "the driver stopped",
    ev.Cause.ENGINE_LOST: "the engine that ran it was lost",
    ev.Cause.NODE_LOST: "its machine was lost",
    ev.Cause.STORAGE: "storage failed",
    ev.Cause.PREEMPTED: "its worker was preempted",
    ev.Cause.LOADING: "its checkpoint could not be loaded",
}

_ENDS = {
    RETURNED: "It finished: the training function returned",
    "done": 'It finished: it reported "done"',
    "not resumed": "The user ended it with resume_unfinished=False",
    STOPPED_BY_USER: "It ended, because the user had stopped it",
}


PROGRESS = "progress"
"""The kind of sentences that sum up many events."""


class StoryLine(NamedTuple):
    """A sentence and when it came true.

    Attributes:
        at: Wall time.
        text: The sentence.
        kind: The type of event that it tells, such as "AttemptFailed"; "progress" if it sums up several, "" if none.
    """

    at: float
    text: str
    kind: str = ""


class _Run:
    """Reports and saves of one attempt, until something else happens."""

    def __init__(self, at: float, iteration: int, value: Any) -> None:
        self.at = self.until = at
        self.first = self.last = iteration
        self.values = (value, value)
        self.reports = 0
        self.saved: list[int] = []
        self.open: list[int] = []
        self.dropped: Counter[str] = Counter()  # by cause

    def text(self, metric: str | None) -> str:
        parts = []
        if self.reports == 1:
            parts.append(f"It reported iteration {self.last}{self._value(metric)}")
        elif self.reports:
            took = f" in {duration(self.until - self.at)}" if self.until > self.at else ""
            parts.append(f"It reported iterations {self.first} to {self.last}{took}{self._value(metric)}")
        if self.saved:
            parts.append(f"{'saved' if parts else 'It saved'} {checkpoints(self.saved)}")
        if self.open:
            parts.append(f"{'wrote' if parts else 'It wrote'} {checkpoints(self.open)}, not committed yet")
        for why, count in self.dropped.items():
            of_rule = "" if why else " no longer kept by CheckpointConfig"
            parts.append(f"{plural(count, 'checkpoint')}{of_rule} deleted{f' ({why})' if why else ''}")
        return ", ".join(parts)

    def _value(self, metric: str | None) -> str:
        first, last = self.values
        if metric is None or last is None:
            return ""
        if self.reports == 1 or first is None:
            return f" ({metric}={value_text(last)})"
        return f" ({metric} from {value_text(first)} to {value_text(last)})"


class _TrialTeller:
    """Tells the story of one trial."""

    def __init__(self, history: History, n: int) -> None:
        self.lines: list[StoryLine] = []
        self._history = history
        self._n = n
        self._metric = history.info.metric
        self._run: _Run | None = None
        self._rows_before = 0
        self._known = False
        self._kind = ""

    def before(self, state: State, event: Any) -> None:
        trial = state.trial(self._n)
        self._rows_before = trial.rows if trial is not None else 0

    def tell(self, state: State, event: Any) -> None:
        """Take an event that was just applied to ``state``."""
        about = getattr(event, "n", None)
        if about == self._n:
            self._known = True
        elif about is not None or not self._known or state.trials[self._n].final:
            return
        teller = _TRIAL_TELLERS.get(type(event))
        if teller is not None:
            self._kind = type(event).__name__
            teller(self, state.trials[self._n], event)

    def say(self, at: float, text: str) -> None:
        self.flush()
        self.lines.append(StoryLine(at, f"{advice_line(text, MAX_TEXT)}.", self._kind))

    def flush(self) -> None:
        run, self._run = self._run, None
        if run is not None and (text := run.text(self._metric)):
            self.lines.append(StoryLine(run.at, f"{text}.", PROGRESS))

    def _running(self, trial: Trial, at: float) -> _Run:
        if self._run is None:
            self._run = _Run(at, trial.iteration, self._value(trial))
        return self._run

    def _value(self, trial: Trial) -> Any:
        return lookup(trial.metrics, self._metric) if trial.metrics and self._metric else None

    def _named(self, config: Any) -> Iterable[tuple[Any, Any]]:
        """The values of a config as they are shown."""
        values: dict[Any, Any] = with_tuples(named(config, self._history.info.value_names))
        return values.items()

    # --- the events

    def _created(self, trial: Trial, event: ev.TrialCreated) -> None:
        chosen = ", ".join(f"{key}={param_text(value, 40)}" for key, value in self._named(event.config))
        self.say(event.at, f"Trial {trial.id} was created" + (f" with {chosen}" if chosen else ""))

    def _started(self, trial: Trial, event: ev.TrialStarted) -> None:
        text = f"Attempt {event.attempt} started"
        if event.source is None:
            text += " from the beginning"
        else:
            donor, index = event.source
            whose = "" if donor == trial.n else f" of {self._history.state.trials[donor].id}"
            text += f" from checkpoint_{index:06d}{whose} (iteration {trial.iteration})"
        gone = self._rows_before - event.rows
        if gone > 0:
            text += f"; {plural(gone, 'later report')} of the earlier attempt {'does' if gone == 1 else 'do'} not count"
        self.say(event.at, text)

    def _reported(self, trial: Trial, event: ev.Reported) -> None:
        run = self._running(trial, event.at)
        run.reports += 1
        run.last, run.until = trial.iteration, event.at
        run.values = (run.values[0], self._value(trial))
        if event.verdict:
            order = "stop" if event.verdict == "stop" else "pause"
            self.say(event.at, f"It had to {order}" + (f": {event.why}" if event.why else ""))

    def _staged(self, trial: Trial, event: ev.CheckpointStaged) -> None:
        self._running(trial, event.at).open.append(event.index)

    def _committed(self, trial: Trial, event: ev.CheckpointCommitted) -> None:
        run = self._running(trial, event.at)
        if event.index in run.open:
            run.open.remove(event.index)
        run.saved.append(event.index)

    def _dropped(self, trial: Trial, event: ev.CheckpointsDropped) -> None:
        self._running(trial, event.at).dropped[event.why] += len(event.indexes)

    def _rejected(self, _: Trial, event: ev.CheckpointRejected) -> None:
        self.say(event.at, f"checkpoint_{event.index:06d} was rejected: {event.reason}")

    def _failed(self, trial: Trial, event: ev.AttemptFailed) -> None:
        text = f"Attempt {event.attempt} failed: {failure_words(event.cause, event.error)}"
        self.say(event.at, f"{text}; the trial is retried (failure {trial.failures})")

    def _cut(self, _: Trial, event: ev.AttemptInterrupted) -> None:
        self.say(event.at, f"Attempt {event.attempt} was interrupted (not counted as a failure): {cut_words(event)}")

    def _errored(self, _: Trial, event: ev.TrialErrored) -> None:
        why = failure_words(event.cause, event.error)
        self.say(event.at, f"Attempt {event.attempt} failed, and with it the trial: {why}")

    def _terminated(self, _: Trial, event: ev.TrialTerminated) -> None:
        self.say(event.at, _ENDS.get(event.reason, f"It was stopped: {event.reason}"))

    def _paused(self, _: Trial, event: ev.TrialPaused) -> None:
        self.say(event.at, f"It was paused{_because(event.why)}")

    def _resumed(self, _: Trial, event: ev.TrialResumed) -> None:
        self.say(event.at, f"It was resumed{_because(event.why)}")

    def _reconfigured(self, _: Trial, event: ev.TrialReconfigured) -> None:
        config = ", ".join(f"{key}={param_text(value, 40)}" for key, value in self._named(event.config))
        if event.donor is None:
            self.say(event.at, f"It was given another config{_in_brackets(event.why)}: {config}")
            return
        parent, (donor, index) = self._history.state.trials[event.parent], event.donor
        whose = "its" if donor == event.parent else f"{self._history.state.trials[donor].id}'s"
        copied = f"a copy of {parent.id}{_in_brackets(event.why)}, from {whose} checkpoint_{index:06d}"
        self.say(event.at, f"It continues as {copied}, with {config}")

    def _resized(self, _: Trial, event: ev.TrialResized) -> None:
        request = ", ".join(f"{name}={amount:g}" for name, amount in (event.request or {"CPU": 1.0}).items())
        why = "the user" if event.by_user else event.why or "the scheduler"
        self.say(event.at, f"It was given other resources{_in_brackets(why)}: {request}")

    def _requeued(self, _: Trial, event: ev.TrialRequeued) -> None:
        how = "from the beginning; its earlier reports no longer count"
        if event.mode != "restart":
            how = "from its latest checkpoint"
        self.say(event.at, f"It runs again {how}{_because(event.why or 'the user asked for it')}")

    def _noted(self, _: Trial, event: ev.Noted) -> None:
        self.say(event.at, event.text)

    def _user_asked(self, _: Trial, event: ev.UserRequested) -> None:
        self.say(event.at, user_words(event, "it"))

    def _driver_came(self, _: Trial, event: ev.EpochStarted) -> None:
        self.say(event.at, driver_words(event))

    def _driver_left(self, _: Trial, event: ev.DriverStopped) -> None:
        self.say(event.at, f"The driver stopped: {event.reason}")


_TRIAL_TELLERS: dict[type, Callable[[_TrialTeller, Trial, Any], None]] = {
    ev.TrialCreated: _TrialTeller._created,
    ev.TrialStarted: _TrialTeller._started,
    ev.Reported: _TrialTeller._reported,
    ev.CheckpointStaged: _TrialTeller._staged,
    ev.CheckpointCommitted: _TrialTeller._committed,
    ev.CheckpointsDropped: _TrialTeller._dropped,
    ev.CheckpointRejected: _TrialTeller._rejected,
    ev.AttemptFailed: _TrialTeller._failed,
    ev.AttemptInterrupted: _TrialTeller._cut,
    ev.TrialErrored: _TrialTeller._errored,
    ev.TrialTerminated: _TrialTeller._terminated,
    ev.TrialPaused: _TrialTeller._paused,
    ev.TrialResumed: _TrialTeller._resumed,
    ev.TrialReconfigured: _TrialTeller._reconfigured,
    ev.TrialResized: _TrialTeller._resized,
    ev.TrialRequeued: _TrialTeller._requeued,
    ev.Noted: _TrialTeller._noted,
    ev.UserRequested: _TrialTeller._user_asked,
    ev.EpochStarted: _TrialTeller._driver_came,
    ev.DriverStopped: _TrialTeller._driver_left,
}


def trial_story(history: History, trial: Trial) -> list[StoryLine]:
    """What happened to a trial, in order."""
    teller, index = _TrialTeller(history, trial.n), history.index()
    events = index.events([EXPERIMENT, *index.kin(trial.n)])
    with history.partial_state() as part, events.folding():
        for event in events:
            teller.before(part.state, event)
            part.prepare(events.seq, event)
            part.apply(event)
            teller.tell(part.state, event)
    teller.flush()
    return teller.lines + (_silence(history) if trial.n in history.lost else [])


def _silence(history: History) -> list[StoryLine]:
    """The end of a story whose driver died."""
    owner, state = history.owner, history.state
    if owner is None or owner.alive or state.stopped:
        return []
    text = f"Nothing more is known: the driver ({owner.who}) exited without shutting down."
    return [StoryLine(state.last_at, text)]


class ExperimentTeller:
    """Tells what happened to an experiment: drivers, failures and notes; the rest is counted."""

    def __init__(self, history: History) -> None:
        self.lines: list[StoryLine] = []
        self._history = history
        self._quiet: Counter[tuple[str, str]] = Counter()
        self._since = 0.0

    def tell(self, event: Any) -> None:
        line = self.sentence(event)
        if line is not None:
            self.flush()
            self.lines.append(line)
            return
        counted = _COUNTED.get(type(event))
        if counted:
            self._since = self._since or event.at
            self._quiet[counted] += 1

    def flush(self) -> None:
        counted = [f"{plural(count, noun)} {verb}" for (noun, verb), count in self._quiet.items()]
        if counted:
            self.lines.append(StoryLine(self._since, f"{', '.join(counted)}.", PROGRESS))
        self._quiet.clear()
        self._since = 0.0

    def sentence(self, event: Any) -> StoryLine | None:
        """The sentence for an event that is worth one; None for those that are only counted."""
        text = self._sentence(event)
        return StoryLine(event.at, f"{advice_line(text, MAX_TEXT)}.", type(event).__name__) if text else None

    def _sentence(self, event: Any) -> str:
        if isinstance(event, ev.EpochStarted):
            return driver_words(event)
        if isinstance(event, ev.DriverStopped):
            return f"The driver stopped: {event.reason}"
        if isinstance(event, ev.SearchEnded):
            return f"No more trials will be created: {event.reason}"
        if isinstance(event, ev.BacklogFilled):
            waiting = f"{size_text(event.bytes)} of checkpoints waited for storage, limit {size_text(event.limit)}"
            return f"Trials had to wait: {waiting}"
        if isinstance(event, ev.BacklogEased):
            return f"Trials continued: {size_text(event.bytes)} of checkpoints waited for storage"
        if isinstance(event, ev.StorageLagged):
            why = f": {event.detail}" if event.detail else ""
            return f"Storage fell behind: records have waited {duration(event.at - event.since)} to be durable{why}"
        if isinstance(event, ev.StorageCaughtUp):
            return f"Storage has caught up after {duration(event.at - event.since)}"
        if isinstance(event, ev.SearchReopened):
            return f"The search was reopened: {event.reason}"
        if isinstance(event, ev.SettingsChanged):
            return f"{_user(event.by)} changed: {'; '.join(event.words)}"
        return self._trial_sentence(event) if getattr(event, "n", None) is not None else ""

    def _trial_sentence(self, event: Any) -> str:
        name = self._history.state.trials[event.n].id if event.n >= 0 else ""
        if isinstance(event, ev.AttemptFailed):
            return f"{name} failed and is retried: {failure_words(event.cause, event.error)}"
        if isinstance(event, ev.TrialErrored):
            return f"{name} failed with no retry left: {failure_words(event.cause, event.error)}"
        if isinstance(event, ev.CheckpointRejected):
            return f"checkpoint_{event.index:06d} of {name} was rejected: {event.reason}"
        if isinstance(event, ev.Noted):
            return f"{name}: {event.text}" if name else event.text
        if isinstance(event, ev.UserRequested):
            return user_words(event, name or "the experiment")
        return ""


_COUNTED: dict[type, tuple[str, str]] = {
    ev.TrialCreated: ("trial", "created"),
    ev.TrialStarted: ("attempt", "started"),
    ev.Reported: ("report", "made"),
    ev.CheckpointCommitted: ("checkpoint", "saved"),
    ev.AttemptInterrupted: ("attempt", "interrupted"),
    ev.TrialTerminated: ("trial", "ended"),
    ev.TrialRequeued: ("trial", "restarted"),
}


def experiment_story(history: History) -> list[StoryLine]:
    """What happened to an experiment, in order."""
    teller = ExperimentTeller(history)
    events = history.events()
    with events.folding():
        for event in events:
            check_known(history.state, event)
            teller.tell(event)
    teller.flush()
    return teller.lines + _silence(history)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _in_brackets(why: str) -> str:
    return f" ({why})" if why else ""


def driver_words(event: ev.EpochStarted) -> str:
    """A driver came."""
    verb = "started" if event.epoch == 1 else "took over"
    return f"Driver {event.epoch} (pid {event.pid} on {event.host}) {verb} the experiment"


def user_words(event: ev.UserRequested, subject: str) -> str:
    """What a person asked for, and whether it was done."""
    tags = ", ".join(event.tags)
    asked = {
        ev.Action.STOP: f"stopped {subject}",
        ev.Action.NOTE: f"noted about {subject}: {event.text}",
        ev.Action.TAG: f"tagged {subject}: {tags}",
        ev.Action.UNTAG: f"removed tags from {subject}: {tags}",
    }
    if event.refused:
        what = f" ({event.action})" if event.action else ""
        return f"A request of {_user(event.by, 'the user')}{what} about {subject} was refused: {event.refused}"
    return f"{_user(event.by)} {asked.get(event.action, event.action)}"


def _user(by: str, name: str = "The user") -> str:
    return f"{name} ({by})" if by else name


def failure_words(cause: str, error: ev.ErrorFacts) -> str:
    """Why an attempt failed, with the user's own line if it is known."""
    where = f" at {error.location}" if error.location else ""
    if error.type:
        return f"{error.type}: {error.message}{where}"
    return (error.message or cause.replace("_", " ")) + where


def cut_words(event: ev.AttemptInterrupted) -> str:
    """Why an attempt was cut short."""
    known = _CUTS.get(event.cause, event.cause.replace("_", " "))
    return f"{known} ({event.detail})" if event.detail else known


def checkpoints(indexes: list[int]) -> str:
    """Names of checkpoints, in short."""
    first, last = indexes[0], indexes[-1]
    if len(indexes) == 1:
        return f"checkpoint_{first:06d}"
    if last - first == len(indexes) - 1:
        return f"checkpoint_{first:06d} to checkpoint_{last:06d}"
    return ", ".join(f"checkpoint_{index:06d}" for index in indexes[:5]) + (", .." if len(indexes) > 5 else "")
