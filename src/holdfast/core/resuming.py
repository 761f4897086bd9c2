"""What becomes of the trials of earlier runs when an experiment is opened again: the user says so."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.changed_settings import STOPPED
from holdfast.core.ending import drop_obsolete, drop_released, terminate_waiting
from holdfast.core.state import Status, Trial
from holdfast.core.turn import Turn

REOPENED = "the budget or stop rule that had ended it was changed"
RESTARTED = "the trial begins anew"


def resume_trials(turn: Turn, o: ob.Resumed) -> None:
    """Resume, restart or leave trials as the user chose, and take up what storage still has to do.

    Nothing runs when this is called: what the former driver left running has been settled.
    """
    state = turn.state
    turn.memory.held_until.clear()
    if state.reopened:
        _take_up_cut(turn, o)
    ended = [trial for trial in state.trials if trial.final]  # before the unfinished ones join them
    if o.unfinished == "restart":
        for trial in list(state.unfinished()):
            _restart(turn, trial, "the user restarted unfinished trials")
    elif o.unfinished == "skip":
        terminate_waiting(turn, "not resumed")
    if o.spent and (o.errored != "skip" or o.finished != "skip"):
        turn.add(ev.Noted(turn.at, -1, f"ended trials were not resumed: {o.spent}"))
    else:
        _requeue(turn, [trial for trial in ended if trial.status == Status.ERROR], o.errored, "failed")
        _requeue(turn, [trial for trial in ended if trial.status == Status.TERMINATED], o.finished, "finished")
    spent = o.spent if state.reopened and not state.stopping else ""
    turn.add(ev.BudgetRenewed(turn.at))
    if spent:  # the new rule is reached as well: nothing starts, and the next change finds these trials again
        turn.add(ev.SearchEnded(turn.at, f"{STOPPED}{spent}"))
    if state.stopping:
        terminate_waiting(turn, state.stopping)
    _resize(turn, o.requests)
    _drop_what_was_forgotten(turn)
    turn.commands.extend(cmd.Commit(n, index) for n, index in state.staged)
    turn.commands.extend(cmd.Delete(n, index) for n, index in state.dropping)


def _take_up_cut(turn: Turn, o: ob.Resumed) -> None:
    """The experiment has another budget or stop rule: what only the old one had ended is unfinished again."""
    state = turn.state
    if o.unfinished == "skip" or state.stopping:
        return
    for trial in state.trials:
        if trial.status == Status.TERMINATED and trial.reason == state.reopened:
            turn.add(ev.TrialRequeued(turn.at, trial.n, "resume", REOPENED))


def _requeue(turn: Turn, trials: list[Trial], action: str, kind: str) -> None:
    if action == "skip":
        return
    for trial in trials:
        if action == "restart":
            _restart(turn, trial, f"the user restarted {kind} trials")
        else:
            turn.add(ev.TrialRequeued(turn.at, trial.n, "resume", f"the user resumed {kind} trials"))
    if turn.state.search_ended.startswith(STOPPED) and turn.state.pending:
        turn.add(ev.SearchReopened(turn.at, "trials were resumed"))


def _restart(turn: Turn, trial: Trial, why: str) -> None:
    origin = trial.origin
    turn.add(ev.TrialRequeued(turn.at, trial.n, "restart", why))
    drop_obsolete(turn, trial, RESTARTED)
    drop_released(turn, origin)


def _resize(turn: Turn, requests: Mapping[int, dict[str, float] | None]) -> None:
    for n, request in requests.items():
        if turn.state.trials[n].status in (Status.PENDING, Status.PAUSED):
            turn.add(ev.TrialResized(turn.at, n, request, by_user=True))


def _drop_what_was_forgotten(turn: Turn) -> None:
    """A crash may have kept the record of a commit and lost the one of what that made obsolete."""
    for trial in turn.state.trials:
        drop_obsolete(turn, trial)
