"""Decisions of the pure core: lists of facts in, lists of facts and commands out."""

import pytest
from world import StopAt, World, kinds

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.plan import drained, finished
from holdfast.core.policies import Rules
from holdfast.core.state import Status
from holdfast.errors import MetricMissingError


def test_a_trial_that_returns_is_terminated():
    world = World()
    world.report(loss=0.5)
    turn = world.tell(ob.Returned(0, 1, 1))
    assert turn.events == [ev.TrialTerminated(world.at, 0, 1, "returned")]
    assert finished(world.state, world.memory)


def test_trials_start_in_order_while_resources_allow():
    world = World(cpus=2, trials=3)
    assert [trial.status for trial in world.state.trials] == [Status.RUNNING, Status.RUNNING, Status.PENDING]
    turn = world.tell(ob.Returned(0, 1, 1))
    assert cmd.Launch(2, 1) in turn.commands


def test_max_concurrent_limits_running_trials():
    world = World(cpus=8, trials=5, max_concurrent=2)
    assert len(world.state.running) == 2


def test_fractions_of_a_cpu_add_up_exactly():
    world = World(cpus=1, trials=0)
    world.state.search_ended = ""
    for n in range(11):
        world.tell(ob.Proposed(f"f{n}", {}, "", (), None, {"CPU": 0.1}))
    assert len(world.state.running) == 10


def test_a_report_is_answered_after_it_became_a_fact():
    world = World()
    turn = world.report(loss=0.5)
    assert turn.events == [ev.Reported(world.at, 0, 1, 1, 0.5, {"loss": 0.5})]
    assert turn.commands == [cmd.Reply(0, 1, 1)]


def test_the_same_report_again_counts_once_and_is_answered_again():
    world = World()
    report = ob.Report(0, 1, 1, 1, 0.5, {"loss": 0.5})
    world.tell(report)
    turn = world.tell(report)
    assert turn.events == []
    assert turn.commands == [cmd.Reply(0, 1, 1)]
    assert world.trial().rows == 1


def test_reports_of_an_old_attempt_are_refused_and_the_attempt_is_ended():
    world = World(max_failures=1)
    world.fail()
    assert world.trial().attempt == 2
    turn = world.report(attempt=1)
    assert turn.events == []
    assert turn.commands == [cmd.Halt(0, 1)]


def test_stop_rule_ends_the_trial_once_its_worker_has_unwound():
    world = World(stop=StopAt(2))
    world.report()
    turn = world.report()
    assert turn.events[0].verdict == "stop"
    assert cmd.Reply(0, 1, 2, "stop") in turn.commands
    assert world.trial().status == Status.RUNNING
    world.tell(ob.Stopped(0, 1, 1))
    assert world.trial().status == Status.TERMINATED
    assert world.trial().reason == "enough"


def test_a_worker_that_dies_after_the_stop_verdict_does_not_fail_the_trial():
    world = World(stop=StopAt(1))
    world.report()
    world.tell(ob.Died(0, 1, ev.Cause.SIGNAL, "killed by SIGKILL"))
    assert world.trial().status == Status.TERMINATED
    assert world.trial().total_failures == 0


def test_done_in_the_result_ends_the_trial():
    world = World()
    turn = world.report(loss=1.0, done=True)
    assert (turn.events[0].verdict, turn.events[0].why) == ("stop", "done")


def test_missing_metric_names_the_metric_and_what_was_reported():
    world = World(required_metrics=(("acc", "tune.TuneConfig()"),))
    with pytest.raises(MetricMissingError, match=r"`acc`.*TuneConfig.*'loss'.*TUNE_DISABLE_STRICT_METRIC_CHECKING"):
        world.report(loss=1.0)


def answer(turn):
    (reply,) = [command for command in turn.commands if isinstance(command, cmd.Reply)]
    return reply


def test_a_trial_may_run_ahead_where_nothing_can_stop_it():
    world = World(ahead=64, required_metrics=(("acc", "tune.TuneConfig()"),))
    assert answer(world.report(acc=1.0)).ahead == 64
    assert answer(World().report(loss=1.0)).ahead == 0


def test_a_trial_does_not_run_ahead_while_its_end_is_near():
    assert answer(World(ahead=64).report(loss=1.0, done=True)).ahead == 0
    world = World(ahead=64)
    world.tell(ob.Interrupted("SIGINT"))
    assert answer(world.report(loss=1.0)).ahead == 0


def test_a_metric_that_must_be_looked_for_deeper_is_looked_for_each_time():
    world = World(ahead=64, required_metrics=(("a/b", "tune.TuneConfig()"),))
    assert answer(world.report(a={"b": 1.0})).ahead == 0


def test_a_report_that_an_earlier_driver_let_pass_counts_whatever_is_required_now():
    world = World(required_metrics=(("acc", "tune.TuneConfig()"),))
    world.tell(ob.Report(0, 1, 1, 1, 0.1, {"loss": 1.0}, passed=True))
    assert world.trial().rows == 1


def test_failures_are_retried_until_the_budget_is_spent():
    world = World(max_failures=2)
    assert [kinds(world.fail().events)[0] for _ in range(3)] == ["AttemptFailed", "AttemptFailed", "TrialErrored"]
    assert world.trial().status == Status.ERROR
    assert world.trial().total_failures == 3


def test_negative_max_failures_retries_for_ever():
    world = World(max_failures=-1)
    for _ in range(20):
        world.fail()
    assert world.trial().attempt == 21


@pytest.mark.parametrize("cause", [ev.Cause.ENGINE_LOST, ev.Cause.PREEMPTED, ev.Cause.STORAGE, ev.Cause.DRIVER_STOPPED])
def test_what_is_not_the_trials_fault_is_not_counted(cause):
    world = World(max_failures=0)
    world.tell(ob.Died(0, 1, cause, "gone"))
    assert world.trial().status in (Status.PENDING, Status.RUNNING)
    assert world.trial().total_failures == 0


@pytest.mark.parametrize("cause", [ev.Cause.SIGNAL, ev.Cause.EXIT, ev.Cause.OUT_OF_MEMORY])
def test_process_deaths_that_may_be_the_trials_fault_are_counted(cause):
    world = World(max_failures=0)
    world.tell(ob.Died(0, 1, cause, "gone"))
    assert world.trial().status == Status.ERROR


def test_a_stalled_trial_is_killed_and_retried():
    world = World(max_failures=1)
    turn = world.tell(ob.StalledAttempt(0, 1, 61.0))
    assert kinds(turn.events) == ["AttemptFailed", "TrialStarted"]
    assert cmd.Halt(0, 1) in turn.commands


def test_fail_fast_interrupts_the_others_and_leaves_them_resumable():
    world = World(cpus=2, trials=4, fail_fast=True)
    world.fail(0)
    assert world.memory.draining
    world.tell(ob.Died(1, 1, ev.Cause.DRIVER_STOPPED, ""))
    assert [trial.status for trial in world.state.trials] == [Status.ERROR, *[Status.PENDING] * 3]


def test_retry_starts_from_the_committed_checkpoint_after_verifying_it():
    world = World(max_failures=1)
    world.save(loss=0.9)
    world.report(loss=0.8)
    turn = world.fail()
    assert cmd.Verify(0, 0) in turn.commands
    assert world.trial().status == Status.PENDING
    turn = world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert turn.events == [ev.TrialStarted(world.at, 0, 2, 1, (0, 0))]
    assert world.trial().rows == 1
    assert world.trial().metrics == {"loss": 0.9}


def test_retry_waits_for_a_commit_that_is_under_way():
    world = World(max_failures=1)
    world.report(sealed="s")
    world.fail()
    assert world.trial().status == Status.PENDING
    assert 0 in world.memory.parked
    world.commit()
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial().source == (0, 0)


def test_damaged_checkpoint_falls_back_to_the_one_before():
    world = World(max_failures=1)
    world.save(name="a")
    world.save(name="b")
    world.fail()
    turn = world.tell(ob.VerifyEnded(0, 1, ok=False, damaged=True, message="model.pkl: wrong hash"))
    assert kinds(turn.events) == ["CheckpointRejected"]
    assert cmd.Verify(0, 0) in turn.commands
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial().source == (0, 0)


def test_all_checkpoints_damaged_is_an_error_never_a_silent_restart():
    world = World(max_failures=5)
    world.save()
    world.fail()
    turn = world.tell(ob.VerifyEnded(0, 0, ok=False, damaged=True, message="model.pkl: missing"))
    assert kinds(turn.events) == ["CheckpointRejected", "TrialErrored"]
    assert "damaged" in world.trial().error.message
    assert "model.pkl: missing" in world.trial().error.message


def test_a_trial_whose_first_checkpoint_was_lost_before_its_commit_starts_again_and_says_so():
    """The report was journaled and durable, the stage was not: a power cut took it."""
    world = World()
    world.report(sealed="s", loss=0.5)
    world.tell(ob.Resumed(lost="the driver was lost"))
    assert world.memory.parked == {0}
    turn = world.tell(ob.CommitEnded(0, 0, damaged=True, message="the staged files are missing"))
    assert kinds(turn.events) == ["CheckpointRejected", "Noted", "TrialStarted"]
    assert (turn.events[1].n, turn.events[2]) == (0, ev.TrialStarted(world.at, 0, 2, 0, None))
    assert "checkpoint_000000: the staged files are missing" in turn.events[1].text
    assert "from the beginning" in turn.events[1].text
    assert (world.trial().rows, world.trial().metrics) == (0, None)


def test_that_nothing_was_saved_is_said_once():
    world = World(max_failures=3)
    world.report(sealed="a")
    world.tell(ob.CommitEnded(0, 0, damaged=True, message="spoiled"))
    assert kinds(world.fail().events) == ["AttemptFailed", "Noted", "TrialStarted"]
    assert kinds(world.fail().events) == ["AttemptFailed", "TrialStarted"]
    world.save(name="b")
    world.fail()
    world.tell(ob.VerifyEnded(0, 1, ok=True))
    assert world.trial().source == (0, 1)


def test_one_committed_checkpoint_is_progress_that_is_never_given_up_by_itself():
    world = World(max_failures=3)
    world.save(name="a")
    world.report(sealed="b")
    world.tell(ob.CommitEnded(0, 1, damaged=True, message="spoiled"))
    world.fail()
    turn = world.tell(ob.VerifyEnded(0, 0, ok=False, damaged=True, message="rotten"))
    assert kinds(turn.events) == ["CheckpointRejected", "TrialErrored"]
    assert "checkpoint_000000: rotten; checkpoint_000001: spoiled" in world.trial().error.message


def test_every_trial_that_waits_for_a_checkpoint_goes_on_when_it_is_verified():
    """As in population-based training: trials 1 and 2 start from a checkpoint of trial 0."""
    world = World(trials=3, max_failures=1, cpus=3)
    world.save(0)
    world.copy(0, into=1)
    world.copy(0, into=2)
    world.fail(1)
    turn = world.fail(2)
    assert world.memory.parked == {1, 2}
    assert [command for command in turn.commands if isinstance(command, cmd.Verify)] == [cmd.Verify(0, 0)]
    turn = world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert turn.events == [ev.TrialStarted(world.at, 1, 2, 0, (0, 0))]
    assert cmd.Verify(0, 0) in turn.commands  # bytes can rot: once for each start
    turn = world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert turn.events == [ev.TrialStarted(world.at, 2, 2, 0, (0, 0))]
    assert not world.memory.parked
    assert not world.memory.awaited


def test_a_damaged_checkpoint_of_another_trial_does_not_leave_those_waiting_that_wanted_it():
    world = World(trials=2, max_failures=1)
    world.save(0)
    world.copy(0, into=1)
    world.fail(1)
    turn = world.tell(ob.VerifyEnded(0, 0, ok=False, damaged=True, message="rotten"))
    assert kinds(turn.events) == ["CheckpointRejected", "Noted", "TrialStarted"]
    assert turn.events[2] == ev.TrialStarted(world.at, 1, 2)


ROOTS = ("/data/exp", "/mnt/disk7/exp")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "No space left on device: '/data/exp/t0/.stage-1-00c0ffee/a'",
            "No space left on device: 't0/.stage-1-00c0ffee/a'",
        ),
        ("copying /mnt/disk7/exp/t0 failed", "copying t0 failed"),
        ("the disk of /data/exp. Free some", "the disk of ./. Free some"),
        ("/data/exp", "./"),
        ("'/data/exp/'", "'./'"),
        ("/home/me/data/exp/t0, /data/exp2/t0, /data/exp-2, /data/exp.old", None),
        ("nothing of ours", None),
    ],
)
def test_where_the_experiment_is_now_does_not_enter_the_journal(said, told):
    told = said if told is None else told
    error = ev.ErrorFacts("StorageError", said, "train.py:3", f"Traceback ...\nStorageError: {said}\n")
    world = World(max_failures=9, roots=ROOTS)
    turn = world.tell(ob.Raised(0, 1, 1, error, storage=True))
    assert turn.events[0] == ev.AttemptInterrupted(world.at, 0, 1, "storage", f"StorageError: {told}", worker=1)
    turn = world.tell(ob.Raised(0, 2, 1, error))
    assert turn.events[0].error == ev.ErrorFacts(
        "StorageError", told, "train.py:3", f"Traceback ...\nStorageError: {told}\n"
    )
    turn = world.tell(ob.Waiting(0, 3, 1, said))
    assert turn.events[0] == ev.Noted(world.at, 0, told)
    world.tell(ob.Interrupted("SIGINT"))
    turn = world.tell(ob.Raised(0, 3, 1, error))
    assert turn.events[0].text == f"while it was being stopped: StorageError: {told}"


def test_a_checkpoint_that_cannot_be_loaded_twice_is_given_up_for_an_older_one():
    world = World(max_failures=-1)
    world.save(name="a")
    world.save(name="b")
    world.fail()
    for _ in range(2):
        world.tell(ob.VerifyEnded(0, 1, ok=True))
        world.fail(restoring=True)
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    assert world.trial().source == (0, 0)


def test_interrupt_lets_trials_save_and_leaves_them_unfinished():
    world = World()
    world.save()
    turn = world.tell(ob.Interrupted("SIGINT"))
    assert turn.commands == [cmd.SaveSoon(0, 1)]
    assert world.report().commands == [cmd.Reply(0, 1, 2)]  # it has saved before, so it may do so again
    turn = world.report(sealed="last")
    assert cmd.Reply(0, 1, 3, "stop") in turn.commands
    world.tell(ob.Stopped(0, 1, 1))
    assert world.trial().status == Status.PENDING


def test_interrupt_does_not_wait_for_functions_that_never_save():
    world = World()
    world.report()
    assert world.tell(ob.Interrupted("SIGINT")).commands == [cmd.Halt(0, 1)]


def test_stop_all_ends_waiting_trials_now_and_running_ones_at_their_next_report():
    world = World(cpus=1, trials=3)
    world.tell(ob.StopAll("budget"))
    assert [trial.status for trial in world.state.trials] == [Status.RUNNING, Status.TERMINATED, Status.TERMINATED]
    turn = world.report()
    assert turn.events[0].verdict == "stop"
    world.tell(ob.Stopped(0, 1, 1))
    assert finished(world.state, world.memory)


def test_resume_puts_running_trials_back_and_renews_the_retry_budget():
    world = World(max_failures=1)
    world.fail()
    assert world.trial().failures == 1
    turn = world.tell(ob.Resumed(lost="the driver was lost"))
    assert kinds(turn.events) == ["AttemptInterrupted", "BudgetRenewed", "TrialStarted"]
    assert world.trial().failures == 0


def test_resume_can_end_unfinished_trials_and_retry_errored_ones():
    world = World(cpus=1, trials=2)
    world.fail()
    world.tell(ob.Resumed(unfinished="skip", errored="resume"))
    assert [trial.status for trial in world.state.trials] == [Status.RUNNING, Status.TERMINATED]


def test_restart_keeps_the_trial_and_drops_its_old_checkpoints():
    world = World()
    world.save()
    world.fail()
    turn = world.tell(ob.Resumed(errored="restart"))
    assert kinds(turn.events)[:2] == ["TrialRequeued", "CheckpointsDropped"]
    assert cmd.Delete(0, 0) in turn.commands
    assert (world.trial().id, world.trial().attempt, world.trial().rows) == ("t0", 2, 0)
    assert world.trial().source is None


def test_a_verdict_given_before_the_driver_was_lost_is_carried_out_after():
    world = World(stop=StopAt(1))
    world.report()
    world.tell(ob.Resumed(lost="the driver was lost"))
    assert world.trial().status == Status.TERMINATED


def test_lived_time_leaves_out_the_time_between_drivers():
    world = World(trials=0)
    world.state.epoch, world.state.epoch_at, world.state.last_at = 1, 100.0, 160.0
    world.history.clear()
    from holdfast.core.transitions import apply

    apply(world.state, ev.EpochStarted(1000.0, 2, "w", "h", 1), world.policies.rules.retention)
    assert world.state.lived(1010.0) == 70.0


def test_folding_the_recorded_events_gives_the_same_state():
    world = World(cpus=5, trials=5, max_failures=2)
    world.save(0, loss=1.0)
    world.fail(1)
    world.report(0)
    world.fail(0)
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    world.tell(ob.Returned(0, 2, 1))
    world.report(2, sealed="s")
    world.fail(2)
    assert world.memory.parked == {2}
    assert vars(world.replayed()) == vars(world.state)
    world.tell(ob.Resumed(lost="killed"))
    assert vars(world.replayed()) == vars(world.state)


def test_a_failure_while_everything_is_being_stopped_stays_a_failure():
    world = World(max_failures=3)
    world.report()
    world.tell(ob.StopAll("budget"))
    assert kinds(world.fail().events) == ["TrialErrored"]


def test_ended_trials_are_not_resumed_when_the_budget_is_spent():
    world = World()
    world.fail()
    turn = world.tell(ob.Resumed(errored="resume", spent="time budget used up"))
    assert world.trial().status == Status.ERROR
    assert "time budget used up" in turn.events[0].text


def test_a_class_trial_that_never_saved_gets_the_chance_before_the_driver_leaves():
    world = World(is_class=True)
    world.report()
    assert world.tell(ob.Interrupted("SIGTERM")).commands == [cmd.SaveSoon(0, 1)]
    assert world.report().commands == [cmd.Reply(0, 1, 2)]
    turn = world.tell(ob.Saved(0, 1, 1, ob.SealedStage("s", 1, 10, True)))
    assert cmd.Halt(0, 1) in turn.commands


def test_the_driver_leaves_with_a_stage_that_storage_would_not_commit_within_the_grace():
    world = World()
    world.report(sealed="s")
    world.tell(ob.Interrupted("SIGTERM"))
    world.tell(ob.Stopped(0, 1, 1))
    assert not drained(world.state, world.memory)
    world.tell(ob.GraceOver())
    assert drained(world.state, world.memory)


def test_totals_that_are_not_numbers_do_not_end_the_experiment():
    world = World()
    world.report(timesteps_total=float("nan"), episodes_this_iter=float("inf"))
    assert (world.trial().timesteps_total, world.trial().episodes_total) == (0, 0)


def test_a_callback_that_fails_at_the_end_counts_for_fail_fast():
    world = World(fail_fast=True)
    world.tell(ob.Returned(0, 1, 1))
    world.tell(ob.CallbackRaised(0, ev.ErrorFacts("ValueError", "boom")))
    assert world.memory.draining


def test_a_trial_that_saves_faster_than_storage_commits_waits_in_report():
    world = World()
    for number in range(Rules().max_uncommitted):
        assert cmd.Reply(0, 1, number + 1) in world.report(sealed=f"s{number}").commands
    turn = world.report(sealed="one too many")
    assert [command for command in turn.commands if isinstance(command, cmd.Reply)] == []
    turn = world.tell(ob.CommitEnded(0, 0, "digest", 10))
    assert cmd.Reply(0, 1, Rules().max_uncommitted + 1) in turn.commands
