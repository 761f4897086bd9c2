"""What to do next, as far as the state alone says so: what to start, what to ask for, and when to end."""

from __future__ import annotations

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.backlog import may_start
from holdfast.core.requests import apply_requests
from holdfast.core.state import CheckpointRecord, DriverMemory, State, Status, Stored, Trial, units
from holdfast.core.turn import Turn

STOOD_STILL = "nothing else could run, and the scheduler had started none of the trials that waited"
WAITS_IN_VAIN = "the searcher waits for a result before it suggests another trial, and no trial is left"


def schedule(turn: Turn) -> None:
    """Start what fits, and ask the searcher for more when the queue runs low."""
    if turn.memory.draining:
        return
    _start_verified(turn)
    _start_chosen(turn)
    _ask(turn)
    if _stands_still(turn):
        turn.add(ev.StoodStill(turn.at))
        apply_requests(turn)
        if not _start_chosen(turn) and _stands_still(turn):
            _start_oldest(turn)
    _end_hopeless_search(turn)


def _start_chosen(turn: Turn) -> bool:
    started = False
    while _has_room(turn):
        n = turn.policies.scheduler.choose(turn.state, turn.memory, lambda n: _fits(turn, n))
        if n is None:
            break
        _start_waiting(turn, n)
        started = True
    return started


def _stands_still(turn: Turn) -> bool:
    """No event would ever come again: everything that is left waits, and the scheduler starts none of it."""
    state, memory = turn.state, turn.memory
    if state.running or memory.parked or state.staged or memory.awaited or not _is_search_silent(turn):
        return False
    if any(memory.held_until.get(n, 0.0) > turn.at for n in (*state.pending, *state.paused)):
        return False  # it will be tried again soon
    return _oldest_that_fits(turn) is not None


def _is_search_silent(turn: Turn) -> bool:
    """Is no further configuration under way?"""
    return bool(turn.state.search_ended) or not turn.memory.asked or turn.memory.search_waits


def _oldest_that_fits(turn: Turn) -> int | None:
    """Of the trials that wait; paused ones first, for they have got further."""
    state = turn.state
    return next((n for n in (*state.paused, *state.pending) if _fits(turn, n)), None)


def _start_oldest(turn: Turn) -> None:
    """Whatever a scheduler waits for cannot happen, so that one trial must continue."""
    n = _oldest_that_fits(turn)
    if n is not None:
        _start_waiting(turn, n, STOOD_STILL)


def _start_waiting(turn: Turn, n: int, why: str = "") -> None:
    if turn.state.trials[n].status == Status.PAUSED:
        turn.add(ev.TrialResumed(turn.at, n, why))
    start(turn, turn.state.trials[n])


def _end_hopeless_search(turn: Turn) -> None:
    """A searcher that waits for results of trials will wait for ever when there is none left to have any."""
    state, memory = turn.state, turn.memory
    left = state.pending or state.paused or state.running
    if memory.asked and memory.search_waits and not state.search_ended and not left:
        memory.asked = 0
        turn.add(ev.SearchEnded(turn.at, WAITS_IN_VAIN))


def _ask(turn: Turn) -> None:
    state, memory = turn.state, turn.memory
    if state.search_ended or memory.asked:
        return
    if state.asks > len(state.trials):
        memory.asked = state.asks - len(state.trials)  # what a driver before this one has asked for is still owed
        return
    memory.asked = _room_for_new(turn)
    if not memory.asked:
        return
    if turn.policies.rules.searcher_learns:
        turn.add(ev.SearchAsked(turn.at, memory.asked))
    turn.commands.append(cmd.Propose(memory.asked))


def _has_room(turn: Turn) -> bool:
    limit = turn.policies.rules.max_concurrent
    if limit and len(turn.state.running) + len(turn.memory.reserved) >= limit:
        return False
    return may_start(turn)


def _room_for_new(turn: Turn) -> int:
    """How many trials to ask for: none until the queue is half empty, so that asking happens in batches."""
    state, rules = turn.state, turn.policies.rules
    waiting = len(state.pending)
    wanted = rules.lookahead - waiting
    if rules.max_concurrent:
        return max(0, min(wanted, rules.max_concurrent - waiting - len(state.running)))
    return wanted if 2 * waiting <= rules.lookahead else 0


def _fits(turn: Turn, n: int) -> bool:
    memory = turn.memory
    if n in memory.parked:
        return False
    until = memory.held_until.get(n)
    if until is not None:
        if turn.at < until:
            return False
        del memory.held_until[n]
    used, capacity, wanted = turn.state.used, memory.capacity, units(turn.state.trials[n].request)
    if memory.machines and not turn.policies.rules.spans_machines and not memory.could_hold(wanted):
        return False  # it would wait for a machine of its size, and nobody could use what it occupies meanwhile
    return all(
        used.get(name, 0) + _reserved(memory, name) + amount <= capacity.get(name, 0) for name, amount in wanted.items()
    )


def _reserved(memory: DriverMemory, name: str) -> int:
    return sum(request.get(name, 0) for request in memory.reserved.values()) if memory.reserved else 0


def start(turn: Turn, trial: Trial) -> None:
    """Give the trial to the engine, after its checkpoint has been committed and verified.

    Or end it, if it has progress that it cannot continue from: ``is_lost``.
    """
    memory = turn.memory
    if trial.staging:
        memory.parked.add(trial.n)
        return
    point = turn.state.start_point(trial)
    source, rows = (None, 0) if point is None else point
    if is_lost(turn.state, trial):
        _all_damaged(turn, trial)
        return
    if source is not None and source not in memory.verified:
        memory.parked.add(trial.n)
        memory.reserved[trial.n] = units(trial.request)  # it was chosen: nobody else takes its place meanwhile
        memory.awaited.setdefault(source, set()).add(trial.n)
        turn.commands.append(cmd.Verify(*source))
        return
    if source is not None:
        memory.verified.discard(source)  # once per start: bytes can rot while a trial runs
    elif trial.origin is not None:
        _note_origin_gone(turn, trial, trial.origin)
    elif any(record.attempt == trial.attempt for record in _lost(trial)):
        _note_nothing_saved(turn, trial)
    memory.storage_trouble.pop(trial.n, None)
    turn.add(ev.TrialStarted(turn.at, trial.n, trial.attempt + 1, rows, source))
    turn.commands.append(cmd.Launch(trial.n, trial.attempt))


def _start_verified(turn: Turn) -> None:
    """Start trials that were chosen, and whose checkpoints have been read meanwhile.

    Not before everything that has happened is dealt with: it may be that this driver ends, or the trial does.
    """
    state, memory = turn.state, turn.memory
    for n in [n for n in memory.reserved if n not in memory.parked]:
        del memory.reserved[n]
        if state.trials[n].status == Status.PENDING and _fits(turn, n):
            start(turn, state.trials[n])


def is_lost(state: State, trial: Trial) -> bool:
    """Whether all that a trial has ever committed is damaged: then it does not start over by itself (I2)."""
    return state.start_point(trial) is None and any(record.digest for record in _lost(trial))


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


def _note_origin_gone(turn: Turn, trial: Trial, origin: tuple[int, int]) -> None:
    donor, index = turn.state.trials[origin[0]], origin[1]
    text = (
        f"checkpoint_{index:06d} of trial {donor.id}, which it continued from, is damaged or gone, and it has saved "
        "nothing itself: it starts again from the beginning"
    )
    turn.add(ev.Noted(turn.at, trial.n, text))


def _all_damaged(turn: Turn, trial: Trial) -> None:
    bad = _lost(trial)
    reasons = _reasons(bad)
    repair = "repair the files and restore with resume_errored=True, or " if any(r.digest for r in bad) else ""
    message = (
        f"every checkpoint of this trial is damaged ({reasons}). It is not restarted from scratch automatically: "
        f"{repair}give up its progress with restart_errored=True."
    )
    turn.add(ev.TrialErrored(turn.at, trial.n, trial.attempt, ev.Cause.DAMAGED, ev.ErrorFacts(message=message)))


def finished(state: State, memory: DriverMemory) -> bool:
    """Nothing is left to do: every trial ended, the search too, and storage has caught up."""
    waiting = state.pending or state.paused or state.running
    deleting = len(state.dropping) > len(memory.undeleted)
    return bool(state.search_ended) and not waiting and not state.staged and not deleting


def drained(state: State, memory: DriverMemory) -> bool:
    """This driver may leave: nothing runs and what was staged is committed, or storage would not do it in time.

    A stage that is left behind is a durable fact: the next driver finishes its commit.
    """
    return not state.running and (not state.staged or memory.grace_over)
