"""Between the core and a scheduler: the same calls live and after a crash, verdicts, requests, memory."""

from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.core.policies import Reconfigure, Resize, Stop
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

INFO = ExperimentInfo(root=Path("/"), name="exp", trainable_name="train")
BOOM = ev.ErrorFacts("ValueError", "boom")


class Scripted(TrialScheduler):
    """Says what it was told to, and writes down every call.

    Attributes:
        verdicts: What it says next.
        acts: Called with the view and the trial before each verdict.
    """

    def __init__(self, verdicts=(), acts=lambda view, trial: None):
        self.verdicts = list(verdicts)
        self.acts = acts
        self.calls = []
        self.memory = {}

    def on_trial_result(self, view, trial, result):
        self.calls.append(("result", trial.n, result))
        self.acts(view, trial)
        return self.verdicts.pop(0) if self.verdicts else self.CONTINUE

    def get_state(self):
        return self.memory

    def set_state(self, state):
        self.memory = state

    def on_trial_add(self, view, trial):
        self.calls.append(("add", trial.n))

    def on_trial_start(self, view, trial):
        self.calls.append(("start", trial.n))

    def on_trial_pause(self, view, trial):
        self.calls.append(("pause", trial.n))

    def on_trial_save(self, view, trial):
        self.calls.append(("save", trial.n))

    def on_trial_complete(self, view, trial, result):
        self.calls.append(("complete", trial.n, result))

    def on_trial_error(self, view, trial):
        self.calls.append(("error", trial.n))

    def on_trial_remove(self, view, trial):
        self.calls.append(("remove", trial.n))

    def on_standstill(self, view):
        self.calls.append(("standstill",))


class Told:
    """A adapter, and a state that it is told about."""

    def __init__(self, scheduler, trials=2):
        self.scheduler = scheduler
        self.results = ResultBuilder()
        self.adapter = SchedulerAdapter(scheduler, INFO, self.results)
        self.state = State()
        self.memory = DriverMemory()
        self.history = []
        self.at = 0.0
        for n in range(trials):
            self.add(ev.TrialCreated, n, f"t{n}", {"x": n}, f"{n}")

    def add(self, kind, *facts):
        self.at += 1.0
        event = kind(self.at, *facts)
        apply(self.state, event, Retention())
        self.history.append(event)
        self.adapter.tell(self.state, self.memory, event)

    def start(self, n):
        self.add(ev.TrialStarted, n, self.state.trials[n].attempt + 1, 0, None)

    def judge(self, n, **metrics):
        state, trial, at = self.state, self.state.trials[n], self.at + 1.0
        return self.adapter.judge(state, self.memory, trial, lambda: self.results(state, trial, metrics, 0.5, at, 1))

    def report(self, n, **metrics):
        verdict, why = self.judge(n, **metrics)
        self.add(ev.Reported, n, self.state.trials[n].attempt, 1, 0.5, metrics, verdict, why)
        return verdict, why

    def requests(self):
        return list(self.adapter.requests(self.state))

    def retold(self, scheduler):
        """The same history, told to another scheduler as when an experiment is opened."""
        adapter, state = SchedulerAdapter(scheduler, INFO, ResultBuilder()), State()
        for event in self.history:
            adapter.before(state, event)
            apply(state, event, Retention())
            adapter.after(state, event)
        return adapter, state


@pytest.mark.parametrize(("answer", "verdict"), [("CONTINUE", ""), ("NOOP", ""), ("PAUSE", "pause"), ("STOP", "stop")])
def test_a_verdict_is_recorded_with_the_name_of_who_gave_it(answer, verdict):
    told = Told(Scripted([answer]))
    told.start(0)
    assert told.judge(0, loss=1) == (verdict, "Scripted" if verdict else "")


def test_a_scheduler_may_say_why():
    told = Told(Scripted(["STOP"], lambda view, trial: setattr(view, "reason", "the worst of 3")))
    told.start(0)
    assert told.judge(0, loss=1) == ("stop", "Scripted: the worst of 3")
    told.scheduler.acts = lambda view, trial: None
    told.scheduler.verdicts = ["STOP"]
    assert told.judge(0, loss=1) == ("stop", "Scripted")


def test_an_answer_that_is_none_says_what_it_must_be():
    told = Told(Scripted(["stop it"]))
    told.start(0)
    with pytest.raises(InvalidInputError, match=r"Scripted.on_trial_result returned 'stop it' for trial t0; it must"):
        told.judge(0, loss=1)


def test_a_scheduler_sees_the_report_before_it_counts_and_nested_metrics_flat():
    seen = []
    told = Told(Scripted(acts=lambda view, trial: seen.append(trial.last_result.get("loss"))))
    told.start(0)
    told.report(0, loss=1, nested={"a": 2})
    told.report(0, loss=3)
    assert seen == [None, 1]
    first = told.scheduler.calls[-2][2]
    assert (first["loss"], first["nested/a"], first["config"]) == (1, 2, {"x": 0})


def test_everything_that_happens_to_a_trial_is_told_once():
    told = Told(Scripted())
    told.start(0)
    told.report(0, loss=1)
    told.add(ev.CheckpointStaged, 0, 1, 0, "s", 1, 1)
    told.add(ev.CheckpointCommitted, 0, 0, "d", 1)
    told.scheduler.verdicts = ["PAUSE"]
    told.report(0, loss=2)
    told.add(ev.TrialPaused, 0, 1)
    told.add(ev.TrialTerminated, 0, 1, "over")
    told.start(1)
    told.add(ev.TrialTerminated, 1, 1, "returned")
    told.add(ev.TrialErrored, 1, 1, "callback", BOOM)  # it had ended before
    told.add(ev.TrialRequeued, 1, "resume")
    told.start(1)
    told.add(ev.TrialErrored, 1, 2, "exception", BOOM)
    told.add(ev.StoodStill)
    names = [(call[0], call[1]) if len(call) > 1 else call for call in told.scheduler.calls]
    assert names == [
        *[("add", 0), ("add", 1), ("start", 0), ("result", 0), ("save", 0), ("result", 0), ("pause", 0)],
        *[("remove", 0), ("start", 1), ("complete", 1), ("add", 1), ("start", 1), ("error", 1), ("standstill",)],
    ]


def test_a_request_to_stop_the_trial_at_hand_is_a_verdict():
    told = Told(Scripted(acts=lambda view, trial: view.stop_trial(trial, "below the median")))
    told.start(0)
    assert told.report(0, loss=1) == ("stop", "below the median")
    assert told.requests() == [Stop(0, "below the median")]
    told.add(ev.TrialTerminated, 0, 1, "below the median")
    assert told.requests() == []


def test_a_reason_that_others_use_is_not_taken_for_theirs_later():
    told = Told(Scripted(acts=lambda view, trial: view.stop_trial(trial, "done")))
    told.start(0)
    assert told.report(0, loss=1) == ("stop", "Scripted")
    retold = Scripted()
    told.retold(retold)
    assert [call[0] for call in retold.calls] == ["add", "add", "start", "result"]


def test_a_pause_of_another_trial_is_its_verdict_at_its_next_report():
    told = Told(Scripted(acts=lambda view, trial: trial.n or view.pause_trial(view.trials[1])))
    told.start(0)
    told.start(1)
    assert told.report(0, loss=1) == ("", "")
    assert told.report(1, loss=1) == ("pause", "Scripted")
    told.add(ev.TrialPaused, 1, 1)
    told.add(ev.TrialResumed, 1)
    told.start(1)
    told.report(1, loss=1)
    assert told.report(1, loss=1) == ("", "")


def test_requests_stand_until_an_event_fulfils_them():
    def wanted(view, trial):
        view.reconfigure_trial(view.trials[1], {"x": 9}, tag="x=9")
        view.resize_trial(view.trials[1], {"CPU": 2.0}, "more is free")

    told = Told(Scripted(acts=wanted))
    told.start(0)
    told.report(0, loss=1)
    config = Reconfigure(1, {"x": 9}, "x=9", why="Scripted")
    size = Resize(1, {"CPU": 2.0}, "Scripted: more is free")
    assert told.requests() == [config, size]
    told.add(ev.TrialReconfigured, 1, {"x": 9}, "x=9")
    assert told.requests() == [size]
    told.add(ev.TrialResized, 1, {"CPU": 2.0})
    assert told.requests() == []


def test_a_later_request_of_the_same_kind_replaces_the_earlier_one():
    def wanted(view, trial):
        view.resize_trial(view.trials[1], {"CPU": 1.0 + trial.record.iteration})

    told = Told(Scripted(acts=wanted))
    told.start(0)
    told.report(0, loss=1)
    assert told.requests() == [Resize(1, None, "Scripted")]  # one CPU is what everybody gets
    told.report(0, loss=1)
    assert told.requests() == [Resize(1, {"CPU": 2.0}, "Scripted")]


def test_nothing_can_be_requested_for_a_trial_that_has_ended():
    def wanted(view, trial):
        view.stop_trial(view.trials[1])
        view.reconfigure_trial(view.trials[1], {"x": 9})

    told = Told(Scripted(acts=wanted))
    told.start(1)
    told.add(ev.TrialTerminated, 1, 1, "returned")
    told.start(0)
    told.report(0, loss=1)
    assert told.requests() == []


def test_requests_for_a_life_that_the_user_ended_are_forgotten():
    told = Told(Scripted(acts=lambda view, trial: view.stop_trial(view.trials[1])))
    told.start(0)
    told.report(0, loss=1)
    told.add(ev.TrialRequeued, 1, "restart")
    assert told.requests() == []


def test_a_copy_of_a_trial_without_a_checkpoint_is_refused():
    answers = []
    wanted = lambda view, trial: answers.append(view.reconfigure_trial(trial, {}, copy_of=view.trials[1]))  # noqa: E731
    told = Told(Scripted(acts=wanted))
    told.start(0)
    told.report(0, loss=1)
    assert answers == [False]
    assert told.requests() == []


def test_a_request_to_save_is_good_for_one_answer():
    told = Told(Scripted(acts=lambda view, trial: view.save_trial(trial)))
    told.start(0)
    told.report(0, loss=1)
    assert told.adapter.wants_save(0)
    assert not told.adapter.wants_save(0)


def test_a_save_of_the_past_is_not_asked_for_again():
    told = Told(Scripted(acts=lambda view, trial: view.save_trial(trial)))
    told.start(0)
    told.report(0, loss=1)
    adapter, _ = told.retold(Scripted(acts=lambda view, trial: view.save_trial(trial)))
    assert not adapter.wants_save(0)


def test_retelling_makes_the_same_calls_with_the_same_results():
    """Live, nobody knows yet how the report will be answered; so it must not be in the result that is told again."""
    told = Told(Scripted(["CONTINUE", "STOP"]))
    told.start(0)
    told.report(0, loss=1)
    told.report(0, loss=2)
    told.add(ev.TrialTerminated, 0, 1, "Scripted")
    retold = Scripted(["CONTINUE", "STOP"])
    told.retold(retold)
    assert retold.calls == told.scheduler.calls


def test_what_others_decided_and_what_was_repeated_is_not_judged_again():
    told = Told(Scripted())
    told.start(0)
    told.report(0, loss=1)
    told.report(0, loss=1)
    told.add(ev.AttemptFailed, 0, 1, "exception", BOOM)
    told.start(0)
    told.add(ev.Reported, 0, 2, 1, 0.5, {"loss": 1})  # repeated, so nobody was asked
    told.add(ev.Reported, 0, 2, 1, 0.5, {"loss": 1}, "stop", "stop criterion")
    told.start(1)
    told.add(ev.Reported, 1, 1, 1, 0.5, {"done": True}, "stop", "done")
    retold = Scripted()
    told.retold(retold)
    assert [call[:2] for call in retold.calls if call[0] == "result"] == [("result", 0), ("result", 0)]


def test_a_memory_holds_requests_in_their_order_and_pauses():
    def wanted(view, trial):
        view.resize_trial(view.trials[1], {"CPU": 3.0})
        view.stop_trial(view.trials[2], "why not")
        view.reconfigure_trial(view.trials[1], {"x": [1, {"y": None}]}, params=("x", "y"))
        view.pause_trial(trial)

    told = Told(Scripted(acts=wanted), trials=3)
    told.scheduler.memory = {"rungs": [1, 2.5, None], "nan": float("nan")}
    told.start(0)
    told.report(0, loss=1)
    stored = told.adapter.get_state()
    fresh = Scripted()
    other = SchedulerAdapter(fresh, INFO, ResultBuilder())
    other.set_state(stored)
    assert list(other.requests(told.state)) == told.requests()
    assert [type(wanted).__name__ for wanted in told.requests()] == ["Resize", "Stop", "Reconfigure"]
    assert fresh.memory["rungs"] == [1, 2.5, None]
    assert other.judge(told.state, told.memory, told.state.trials[0], dict) == ("pause", "Scripted")


def test_a_scheduler_that_cannot_be_stored_has_no_memory():
    class Forgetful(Scripted):
        def get_state(self):
            return None

    assert Told(Forgetful()).adapter.get_state() is None


def test_what_hooks_see_of_others_does_not_depend_on_this_driver():
    """The queue's order, who waits for a verification and who fits are this driver's own affair."""
    seen = []

    def look(view, trial):
        lists = (view.pending, view.running, view.get_live_trials())
        seen.append([[other.n for other in trials] for trials in lists])
        assert not view.fits(view.trials[4])
        assert view.first_waiting() is None

    told = Told(Scripted(acts=look), trials=6)
    for n in (2, 0):
        told.start(n)
    told.adapter.choose(told.state, told.memory, lambda n: True)
    told.judge(0, loss=1)
    state = told.state
    told.memory.parked.add(4)
    state.pending.rotate(1)
    state.running = dict.fromkeys(sorted(state.running))  # as from a snapshot
    told.judge(0, loss=1)
    assert seen[0] == [[1, 3, 4, 5], [0, 2], [0, 1, 2, 3, 4, 5]]
    assert seen[1] == seen[0]


def test_whoever_chooses_sees_the_queue_and_who_fits():
    class Chooser(Scripted):
        def choose_trial_to_run(self, view):
            self.queue = [trial.n for trial in view.pending]
            return view.first_that_fits(view.pending)

    told = Told(Chooser(), trials=4)
    told.state.uniform = False  # trial 3 asks for more than is free
    told.state.pending.rotate(1)
    told.memory.parked.add(0)
    assert told.adapter.choose(told.state, told.memory, lambda n: n != 3) == 1
    assert told.scheduler.queue == [3, 1, 2]


def test_a_choice_that_cannot_be_started_is_none():
    class Stubborn(Scripted):
        def choose_trial_to_run(self, view):
            return view.trials[self.n]

    told = Told(Stubborn(), trials=3)
    told.start(0)
    told.scheduler.n = 0
    assert told.adapter.choose(told.state, told.memory, lambda n: True) is None
    told.scheduler.n = 2
    assert told.adapter.choose(told.state, told.memory, lambda n: False) is None
    assert told.adapter.choose(told.state, told.memory, lambda n: True) == 2


def test_while_all_slots_are_taken_nobody_is_asked_whom_to_start():
    class Chooser(Scripted):
        def choose_trial_to_run(self, view):
            raise AssertionError("asked in vain")

    told = Told(Chooser(), trials=4)
    assert told.adapter.choose(told.state, told.memory, lambda n: False) is None
