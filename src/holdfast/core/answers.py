"""Answers to workers that wait in ``report()``, and the order to end that all of them get when this driver ends.

Owns what an answer says. Must never judge a report: the verdict stands when it is answered.
"""

from __future__ import annotations

from holdfast.core import backlog
from holdfast.core import commands as cmd
from holdfast.core.policies import Verdict
from holdfast.core.state import Trial
from holdfast.core.turn import Turn


def answer(turn: Turn, trial: Trial, ordinal: int, ahead: int = 0) -> None:
    """Answer all reports of the trial up to ``ordinal``; ``ahead`` more need not wait for theirs."""
    rules = turn.policies.rules
    go = trial.verdict or "go"
    save = _must_save(turn, trial)
    if not trial.verdict and turn.memory.draining and _may_leave(turn, trial):
        go = "stop"
    turn.commands.append(cmd.Reply(trial.n, trial.attempt, ordinal, go, save, ahead if go == "go" else 0))
    if go != "go":
        turn.commands.append(cmd.Halt(trial.n, trial.attempt, rules.unwind_grace_s))


def _must_save(turn: Turn, trial: Trial) -> bool:
    """Must a class trainable save before it follows the verdict?"""
    wanted = turn.policies.scheduler.wants_save(trial.n)
    if not turn.policies.rules.is_class or trial.checkpointed:
        return False
    # One that continues as a copy of another trial has nothing that anybody would load.
    exploits = trial.origin is not None and trial.origin_attempt == trial.attempt
    return not exploits if trial.verdict == Verdict.PAUSE else wanted and not trial.verdict


def _may_leave(turn: Turn, trial: Trial) -> bool:
    """While the driver drains: has this trial saved what it can save?"""
    return trial.checkpointed or not (turn.policies.rules.is_class or turn.state.any_checkpoint)


def answer_owed(turn: Turn, trial: Trial) -> None:
    """A trial that saves faster than storage commits waits in ``report()``: stages must not pile up without end."""
    owed = turn.memory.owed
    if trial.n in owed and not backlog.must_wait(turn, trial, saved=True):
        answer(turn, trial, owed.pop(trial.n))


def answer_crowded(turn: Turn) -> None:
    """There may be room in the backlog again: whoever has waited longest continues first."""
    state = turn.state
    if turn.memory.crowded and not backlog.is_full(turn):
        for n in list(turn.memory.crowded):
            answer_owed(turn, state.trials[n])


def interrupt(turn: Turn, reason: str) -> None:
    """This driver will end: nothing new starts, running trials save what they can; all of them stay unfinished."""
    state = turn.state
    turn.memory.draining = reason
    for n in state.running:
        attempt = state.trials[n].attempt
        # A function that has never saved anything has nothing that is worth waiting for.
        can_save = turn.policies.rules.is_class or state.any_checkpoint
        if n in turn.memory.owed:  # it waits for storage, which may take longer than this driver has
            turn.memory.crowded.pop(n, None)
            answer(turn, state.trials[n], turn.memory.owed.pop(n))
        turn.commands.append(cmd.SaveSoon(n, attempt) if can_save else cmd.Halt(n, attempt))
