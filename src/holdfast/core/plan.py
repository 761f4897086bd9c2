"""What to do next, as far as the state alone says so: what to start, what to ask for, and when to end."""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.state import CheckpointRecord, State, Status, Stored, Trial, units
from holdfast.core.turn import Turn


def schedule(turn: Turn) -> None:
    """Start what fits, and ask the searcher for more when the queue runs low."""
    state, session = turn.state, turn.state.session
    if session.draining:
        return
    while _has_room(turn):
        n = turn.policies.scheduler.choose(state, lambda n: _fits(turn, n))
        if n is None:
            break
        if state.trials[n].status == Status.PAUSED:
            turn.add(ev.TrialResumed(turn.at, n))
        _start(turn, state.trials[n])
    if not state.search_ended and not session.asked:
        session.asked = _room_for_new(turn)
        if session.asked:
            turn.commands.append(cmd.Propose(session.asked))


def _has_room(turn: Turn) -> bool:
    limit = turn.policies.rules.max_concurrent
    return not limit or len(turn.state.running) < limit


def _room_for_new(turn: Turn) -> int:
    """How many trials to ask for: none until the queue is half empty, so that asking happens in batches."""
    state, rules = turn.state, turn.policies.rules
    waiting = len(state.pending) + len(state.session.parked)
    wanted = rules.lookahead - waiting
    if rules.max_concurrent:
        return max(0, min(wanted, rules.max_concurrent - waiting - len(state.running)))
    return wanted if 2 * waiting <= rules.lookahead else 0


def _fits(turn: Turn, n: int) -> bool:
    session = turn.state.session
    until = session.held_until.get(n)
    if until is not None:
        if turn.at < until:
            return False
        del session.held_until[n]
    used, capacity = session.used, session.capacity
    return all(
        used.get(name, 0) + amount <= capacity.get(name, 0)
        for name, amount in units(turn.state.trials[n].request).items()
    )


def _source_of(trial: Trial) -> tuple[int, int] | None:
    record = trial.latest()
    return None if record is None else (trial.n, record.index)


def _start(turn: Turn, trial: Trial) -> None:
    """Give the trial to the engine, after its checkpoint has been committed and verified."""
    session = turn.state.session
    if trial.staging:
        _park(turn.state, trial)
        return
    source = _source_of(trial)
    if source is None and any(record.digest for record in _lost(trial)):
        _all_damaged(turn, trial)
        return
    if source is not None and source not in session.verified:
        _park(turn.state, trial)
        session.awaited.setdefault(source, set()).add(trial.n)
        turn.commands.append(cmd.Verify(*source))
        return
    rows = 0
    if source is not None:
        session.verified.discard(source)  # once per start: bytes can rot while a trial runs
        record = trial.find(source[1])
        rows = record.row if record is not None else 0
    elif any(record.attempt == trial.attempt for record in _lost(trial)):
        _note_nothing_saved(turn, trial)
    session.storage_trouble.pop(trial.n, None)
    turn.add(ev.TrialStarted(turn.at, trial.n, trial.attempt + 1, rows, source))
    turn.commands.append(cmd.Launch(trial.n, trial.attempt))


def _park(state: State, trial: Trial) -> None:
    if state.pending and state.pending[0] == trial.n:
        state.pending.popleft()
    else:
        state.pending.remove(trial.n)
    state.session.parked.add(trial.n)


def _lost(trial: Trial) -> list[CheckpointRecord]:
    """Checkpoints of this life that cannot be used; one without a digest was never committed."""
    return [record for record in trial.checkpoints if record.stored == Stored.BAD and record.index >= trial.floor]


def _reasons(records: list[CheckpointRecord]) -> str:
    return "; ".join(f"checkpoint_{record.index:06d}: {record.reason}" for record in records)


def _note_nothing_saved(turn: Turn, trial: Trial) -> None:
    """There is no progress to give up: what was reported was never committed, as after a power cut."""
    text = (
        "no checkpoint of it was ever committed, and what was staged cannot be used "
        f"({_reasons(_lost(trial))}): it starts again from the beginning"
    )
    turn.add(ev.Noted(turn.at, trial.n, text))


def _all_damaged(turn: Turn, trial: Trial) -> None:
    bad = _lost(trial)
    reasons = _reasons(bad)
    repair = "repair the files and restore with resume_errored=True, or " if any(r.digest for r in bad) else ""
    message = (
        f"every checkpoint of this trial is damaged ({reasons}). It is not restarted from scratch by itself: "
        f"{repair}give up its progress with restart_errored=True."
    )
    turn.add(ev.TrialErrored(turn.at, trial.n, trial.attempt, ev.Cause.DAMAGED, ev.ErrorFacts(message=message)))


def finished(state: State) -> bool:
    """Nothing is left to do: every trial ended, the search too, and storage has caught up."""
    waiting = state.pending or state.paused or state.running or state.session.parked
    deleting = len(state.dropping) > len(state.session.undeleted)
    return bool(state.search_ended) and not waiting and not state.staged and not deleting


def drained(state: State) -> bool:
    """This driver may leave: nothing runs and what was staged is committed, or storage would not do it in time.

    A stage that is left behind is a durable fact: the next driver finishes its commit.
    """
    return not state.running and (not state.staged or state.session.grace_over)
