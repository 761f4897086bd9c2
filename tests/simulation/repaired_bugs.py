"""Bugs that the simulator has found: each stands here as it was before its repair, with stories that tell of it."""

from __future__ import annotations

from typing import Any

from simulated_bugs import COPYING, LEARNING, PASSING, SELDOM_SAVED, Patch, RareBug

from holdfast.controller import lifecycle
from holdfast.controller.checkpoint_jobs import CheckpointJobEdge
from holdfast.controller.lifecycle import OPENING, LifeStep, Spools
from holdfast.controller.loop import Controller
from holdfast.controller.watches import Watches
from holdfast.core import decide, plan, requests, resuming, transitions
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.policies import Verdict
from holdfast.core.retention import Retention
from holdfast.core.turn import Turn
from holdfast.journal import epoch
from holdfast.journal.log import Journal
from holdfast.schedulers.view import ExperimentView
from simulator import fake_driver
from simulator.chaos import Moment
from simulator.checkpoint_store import CheckpointStore


def silence_while_the_driver_was_away(patch: Patch) -> None:
    """While the journal waited for space nobody could be heard, and then all trials were called stalled."""
    patch.setattr(Watches, "_forgive_absence", lambda self, at: None)


def silence_while_waiting_for_space(patch: Patch) -> None:
    """A trial that waited for space for its checkpoint, and said so, was called stalled."""

    def stalled(self: Any, state: Any, memory: Any, at: float) -> list[ob.Observation]:
        limit = self._stall_timeout_s
        if limit is None or memory.draining:
            return []
        silent = {n: at - self._heard.get(n, at) for n in state.running}
        return [ob.StalledAttempt(n, state.trials[n].attempt, s) for n, s in silent.items() if s > limit]

    patch.setattr(Watches, "_stalled", stalled)


def one_deletion_twice(patch: Patch) -> None:
    """A deletion that was asked for twice ended twice; if the second one failed, its job was not known any more."""

    def submit(self: Any, command: Any) -> None:
        job = self._job(command)
        if job is not None:
            self._jobs[type(job), job.n, job.index] = job
            self._workers.submit(job)

    patch.setattr(CheckpointJobEdge, "submit", submit)


def releasing_on_a_full_disk(patch: Patch) -> None:
    """A finished driver failed because the mark of its release, which nobody needs, found no space."""

    def release(root: Any, claim: Any, *, end: bytes = b"", disk: Any) -> None:
        disk.create_exclusive(f"{root}/.holdfast/epochs/{claim.epoch:08d}.released", end)

    patch.setattr(epoch, "release", release)


def trying_again_after_the_stop(patch: Patch) -> None:
    """A trial that raised after the experiment was stopped was started again."""

    def raised(turn: Turn, o: ob.Raised) -> None:
        trial = decide._current(turn, o)
        if trial is None or trial.verdict or turn.memory.draining or not turn.state.stopping:
            now(turn, o)
        else:
            decide._fail(turn, trial, ev.Cause.EXCEPTION, decide._without_root(turn, o.error))

    now = decide._raised
    patch.setitem(decide._HANDLERS, ob.Raised, raised)


def loading_again_after_the_stop(patch: Patch) -> None:
    """A trial that failed to load its checkpoint after the experiment was stopped was started again."""

    def raised(turn: Turn, o: ob.Raised) -> None:
        stopping = turn.state.stopping
        if o.restoring:
            turn.state.stopping = ""
        now(turn, o)
        turn.state.stopping = stopping

    now = decide._raised
    patch.setitem(decide._HANDLERS, ob.Raised, raised)


def a_new_trial_after_the_stop(patch: Patch) -> None:
    """A configuration that a slow searcher found after the experiment was stopped became a trial, and ran."""

    def proposed(turn: Turn, o: ob.Proposed) -> None:
        stopping, turn.state.stopping = turn.state.stopping, ""
        now(turn, o)
        turn.state.stopping = stopping

    now = decide._proposed
    patch.setitem(decide._HANDLERS, ob.Proposed, proposed)


def pausing_after_the_stop(patch: Patch) -> None:
    """A trial that was told to pause just before the experiment was stopped was paused, and ran once more."""

    def unwound(turn: Turn, trial: Any, cause: str, detail: str, worker: int = 0) -> None:
        if trial.verdict == Verdict.PAUSE:
            turn.add(ev.TrialPaused(turn.at, trial.n, trial.attempt))
        else:
            now(turn, trial, cause, detail, worker)

    now = decide._unwound
    patch.setattr(decide, "_unwound", unwound)


def a_checkpoint_that_comes_twice(patch: Patch) -> None:
    """The copy of a class's checkpoint became a second one, of the row that had come meanwhile."""
    patch.setattr(decide, "_is_news", lambda trial, o, sealed: True)


def sweeping_before_writing(patch: Patch) -> None:
    """A driver that was taken over while it opened removed the stages of its successor."""

    patch.setattr(fake_driver, "OPENING", moved(OPENING, "sweep_stages", before="record_epoch"))


def moved(steps: tuple[LifeStep, ...], name: str, before: str) -> tuple[LifeStep, ...]:
    """The steps of a driver's life with one of them taken too early."""
    (step,) = [each for each in steps if each.name == name]
    others = [each for each in steps if each.name != name]
    place = [each.name for each in others].index(before)
    return (*others[:place], step, *others[place:])


def sweeping_the_stages_of_later_attempts(patch: Patch) -> None:
    """A driver that was taken over removed the stages of attempts that it had never heard of."""
    now = CheckpointStore.sweep
    patch.setattr(CheckpointStore, "sweep", lambda self, home, keep, up_to: now(self, home, keep, 10**9))


def forgetting_what_a_commit_made_obsolete(patch: Patch) -> None:
    """A write that was cut between a commit and what it made obsolete left a checkpoint that was never dropped."""
    patch.setattr(resuming, "_drop_what_was_forgotten", lambda turn: None)


def parked_trials_that_a_scheduler_does_not_see(patch: Patch) -> None:
    """A trial whose checkpoint was being verified was not there for a scheduler; when it was told again, it was."""

    def live(self: Any) -> list[Any]:
        pending = (n for n in self._state.pending if n not in self._memory.parked)
        return self._views([*self._state.running, *pending, *self._state.paused])

    patch.setattr(ExperimentView, "get_live_trials", live)


def a_question_that_is_asked_twice(patch: Patch) -> None:
    """A driver that died before there was any trial had asked the searcher; the next one asked again."""

    def ask(turn: Turn) -> None:
        if not turn.state.trials:
            asks, turn.state.asks = turn.state.asks, 0
            now(turn)
            turn.state.asks += asks
        else:
            now(turn)

    now = plan._ask
    patch.setattr(plan, "_ask", ask)


def a_not_now_that_is_no_longer_true(patch: Patch) -> None:
    """A searcher had said "not now", was told more, and was given up before it could answer to that."""

    def not_yet(turn: Turn, o: ob.NotYet) -> None:
        turn.memory.search_waits = True

    patch.setitem(decide._HANDLERS, ob.NotYet, not_yet)


def a_searcher_that_waits_for_ever(patch: Patch) -> None:
    """A searcher wanted to hear of a trial first, and there was none left."""
    patch.setattr(plan, "_end_hopeless_search", lambda turn: None)


def steps_of_a_copy_that_nobody_judged(patch: Patch) -> None:
    """A trial that became a copy while it repeated steps continued unseen until it had as many as before."""

    def reconfigured(state: Any, event: Any, retention: Any) -> None:
        judged = state.trials[event.n].judged
        now(state, event, retention)
        state.trials[event.n].judged = judged

    now = transitions._trial_reconfigured
    patch.setitem(transitions._APPLY, ev.TrialReconfigured, reconfigured)


def what_a_copy_left_behind(patch: Patch) -> None:
    """When a copy became one of another trial, or was restarted, the first donor's checkpoint stayed for ever."""
    patch.setattr(requests, "drop_released", lambda turn, origin: None)
    patch.setattr(resuming, "drop_released", lambda turn, origin: None)


def an_origin_that_was_released_too_early(patch: Patch) -> None:
    """A copy whose own checkpoint turned out to be damaged, or that ran again, continued from one that nobody held."""

    def hold(state: Any, trial: Any, *, needed: bool = True) -> None:
        if trial.origin_held or trial.origin not in released:
            now(state, trial, needed=needed)
        if trial.origin is not None and not trial.origin_held:
            released.add(trial.origin)

    released: set[Any] = set()
    now = transitions._hold_origin
    patch.setattr(transitions, "_hold_origin", hold)


def what_ran_ahead_in_an_attempt_that_never_was(patch: Patch) -> None:
    """A power cut made the journal forget an attempt; what that had left was told as of the next one of its number."""

    def hear(controller: Controller, journal: Journal, spools: Spools) -> None:
        state = controller.state
        ours = [owner for owner in spools.owners() if owner.attempt <= getattr(state.trial(owner.n), "attempt", 0)]
        for owner in ours:
            if owner.n in state.running and state.trials[owner.n].attempt == owner.attempt:
                controller.turn(spools.read(owner, state.trials[owner.n].ordinal))
        if ours and journal.sync():
            journal.flush()
            spools.forget(ours)

    patch.setattr(lifecycle, "hear_spools", hear)


STOPPED_SOON = {"stop_at": 0, "stop_after_good": 99, "stop_all_after": 12, "time_budget_s": None, "pause_at": 0}
"""Settings under which a rule stops the experiment while trials run."""

FOUND: dict[str, RareBug] = {
    bug.plant.__name__: bug
    for bug in (
        RareBug(
            silence_while_the_driver_was_away,
            ("I8",),
            30,
            {"full_disks": 2},
            {"stall_timeout_s": 30.0, "step_s": 1.0, "steps": (12,), "samples": 4},
        ),
        RareBug(
            silence_while_waiting_for_space,
            ("I8",),
            20,
            {"full_stores": 2},
            {"stall_timeout_s": 30.0, "checkpoint_every": 1, "steps": (9,), "samples": 4},
        ),
        RareBug(
            one_deletion_twice,
            ("KeyError", "I3"),
            60,
            {"store_troubles": 30},
            {"checkpoint_every": 1, "steps": (3,), "restart": ("restart", "restart", "skip")},
        ),
        RareBug(
            releasing_on_a_full_disk,
            ("OSError",),
            300,
            {"full_disks": 2},
            {"steps": (1,), "samples": 1},
        ),
        RareBug(
            trying_again_after_the_stop,
            ("I5", "I8"),
            100,
            {"worker_exceptions": 3},
            {"time_budget_s": 2.0, "step_s": 3.0, "cpus": 4.0, "max_failures": 3, "fail_fast": False},
        ),
        RareBug(
            loading_again_after_the_stop,
            ("I5",),
            300,
            {"worker_deaths": 9, "failed_loads": 9},
            {
                **STOPPED_SOON,
                "is_class": True,
                "returns_last": False,
                "checkpoint_every": 1,
                "step_s": 1.0,
                "cpus": 4.0,
                "samples": 6,
                "steps": (12,),
                "max_failures": 3,
                "max_concurrent": 0,
                "fail_fast": False,
                "stop_all_after": 25,
            },
        ),
        RareBug(
            a_new_trial_after_the_stop,
            ("I5",),
            100,
            {"slow_searches": 1},
            {"time_budget_s": 5.0, "step_s": 1.0, "samples": 6, "steps": (1, 2), "lookahead": 1},
        ),
        RareBug(
            pausing_after_the_stop,
            ("I5",),
            20,
            {"lost_replies": 4, "late_messages": 6},
            {**STOPPED_SOON, "pause_at": 2, "cpus": 4.0, "samples": 6, "steps": (9,), "max_concurrent": 0},
        ),
        RareBug(
            a_checkpoint_that_comes_twice,
            ("I2", "I6"),
            20,
            {"repeated_messages": 8},
            {"is_class": True, "returns_last": False, "save_chance": 0.5, "steps": (12,), "step_s": 1.0},
        ),
        RareBug(
            forgetting_what_a_commit_made_obsolete,
            ("I3",),
            400,
            {},
            {"retention": Retention(num_to_keep_overall=1), "checkpoint_every": 1, "steps": (2,), "samples": 2},
            lambda seed: [(Moment(8 + seed % 4, "write"), None)],
        ),
        RareBug(
            sweeping_before_writing,
            ("I2",),
            60,
            {"late_messages": 40},
            {"checkpoint_every": 1, "steps": (12,), "samples": 4, "step_s": 0.2},
            lambda seed: [(Moment(60 + seed), None), (None, Moment(1, "open"))],
        ),
        RareBug(
            sweeping_the_stages_of_later_attempts,
            ("I2",),
            40,
            {"slow_stores": 2},
            {"checkpoint_every": 1, "steps": (12,), "samples": 4, "step_s": 0.2},
            lambda seed: [(Moment(60 + seed), None), (None, Moment(seed % 4, "sweep"))],
        ),
        RareBug(parked_trials_that_a_scheduler_does_not_see, ("I5",), 60, {"slow_stores": 2}, COPYING),
        RareBug(a_question_that_is_asked_twice, ("I5",), 60, {}, LEARNING, lambda seed: [(Moment(10 + seed), None)]),
        RareBug(a_not_now_that_is_no_longer_true, ("I5",), 60, {"slow_searches": 1}, LEARNING),
        RareBug(a_searcher_that_waits_for_ever, ("liveness",), 60, {}, LEARNING),
        RareBug(
            steps_of_a_copy_that_nobody_judged, ("I5", "I6"), 200, {"worker_deaths": 20}, {**COPYING, **SELDOM_SAVED}
        ),
        RareBug(what_a_copy_left_behind, ("I3",), 200, {}, COPYING),
        RareBug(
            an_origin_that_was_released_too_early,
            ("I2", "I3"),
            200,
            {"rotten_checkpoints": 9, "worker_deaths": 9},
            COPYING,
        ),
        RareBug(
            what_ran_ahead_in_an_attempt_that_never_was,
            ("I6",),
            150,
            {"power_cuts": 1},
            {**PASSING, "checkpoint_every": 0},
            lambda seed: [(Moment(40 + seed % 80), None), (Moment(40 + seed // 20), None)],
        ),
    )
}
