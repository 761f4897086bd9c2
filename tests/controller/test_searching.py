"""The edge of a searcher that learns: one queue, one thread, and a memory that is exact after any crash."""

import copy
import random
import threading
import time

import pytest

from holdfast.controller import searching
from holdfast.controller.proposing import Describer
from holdfast.controller.searching import LearningProposer
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.decide import decide_all
from holdfast.core.policies import Policies, Rules
from holdfast.core.retention import Retention
from holdfast.core.state import DriverMemory, State
from holdfast.core.transitions import apply
from holdfast.core.turn import Turn
from holdfast.errors import StorageFullError
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.search.replayable import ReplayableSearcher, Script
from holdfast.search.searcher import Searcher
from holdfast.search.spaces import Filler
from holdfast.space import uniform
from holdfast.space.naming import trial_id
from holdfast.views.results import ResultBuilder
from simulator.fake_search import StoredTellTale, TellTale

DEADLINE_S = 20.0
SPACE = {"lr": uniform(0, 1), "width": 16, "depth": 3}


class NeverStop:
    def why_stop(self, trial, result):
        return ""

    def why_stop_all(self, lived_s):
        return ""


class Plain(Searcher):
    """Suggests 0.0, 0.1, ...; subclasses do something else."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def suggest(self, trial_id):
        self.asked += 1
        return {"lr": self.asked / 10}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


class Lab:
    """One driver's life around the real core and a real proposer; the history outlives it.

    Args:
        searcher: It knows nothing yet.
        history: What happened before.
        memory: A snapshot of the proposer, and how many events it covers.
    """

    def __init__(self, searcher, history=(), memory=None, *, limit=None, threaded=False):
        results = ResultBuilder()
        self.proposer = LearningProposer(
            lambda: ReplayableSearcher(copy.deepcopy(searcher), lambda n: trial_id("cafe5", n), limit),
            Script(results.last, with_results=True),
            Filler(SPACE, "it"),
        )
        self.state = State()
        self.known = DriverMemory()
        self.history = list(history)
        self._remember(memory)
        self.woken = threading.Event()
        self.keep_value = lambda proposal: proposal.config
        describe = Describer(
            self.state,
            prefix="cafe5",
            request_of=lambda config: None,
            keep_value=lambda proposal: self.keep_value(proposal),
            names=lambda *facts: ("", ""),
        )
        self.proposer.start(describe, self.woken.set, threaded=threaded)
        rules = Rules(searcher_learns=True, lookahead=1, max_failures=9)
        self.policies = Policies(rules, FirstInFirstOut(), NeverStop(), results, self.proposer.tell)
        self.at = self.state.last_at

    @property
    def adapter(self):
        return self.proposer._adapter

    def _remember(self, memory):
        covered = 0
        if memory is not None:
            self.proposer.set_state(memory[0])
            covered = memory[1]
        for place, event in enumerate(self.history):
            apply(self.state, event, Retention())
            if place >= covered:
                self.proposer.after(self.state, event)

    def tell(self, *observations):
        self.at += 1.0
        turn = decide_all(Turn(self.state, self.known, self.policies, self.at), observations)
        self.history += [ev.decode(ev.encode(event)) for event in turn.events]
        return turn

    def begin(self):
        return self.tell(ob.Capacity({"CPU": 2}), *([ob.Resumed(lost="it was killed")] if self.state.trials else []))

    def pass_on(self):
        while self.proposer.is_behind:
            self.proposer.pass_on()

    def settle(self):
        """Everything is heard and answered."""
        while True:
            self.pass_on()
            answers = self.proposer.drain()
            if not answers and not self.proposer.is_behind:
                return
            self.tell(*answers)

    def report(self, n):
        trial = self.state.trials[n]
        metrics = {"link": len(self.history), "loss": n + trial.rows}
        return self.tell(ob.Report(n, trial.attempt, 1, trial.ordinal + 1, 0.5, metrics))

    def finish(self, n):
        return self.tell(ob.Returned(n, self.state.trials[n].attempt, 1))

    def memory(self):
        """All that the searcher knows, once it has heard everything."""
        adapter, searcher = self.adapter, self.adapter.searcher
        return (searcher._sum, searcher._left, searcher._live, adapter._owed, adapter._suggested, adapter._ended)

    @property
    def configs(self):
        return [trial.config for trial in self.state.trials]


def wait_for(found):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        answer = found()
        if answer:
            return answer
        time.sleep(0.001)
    pytest.fail("nothing happened")


def test_an_end_that_the_searcher_told_before_it_heard_of_more_samples_does_not_count():
    """The driver changes the number while the searcher's thread still answers to the old one."""
    lab = Lab(Plain(), limit=1)
    lab.begin()
    lab.settle()
    assert lab.state.search_ended
    lab.tell(ob.UserAsked("r1", ev.Action.SAMPLES, num_samples=2, total=2))
    lab.settle()
    assert len(lab.state.trials) == 2

    lab = Lab(Plain(), limit=1)
    lab.begin()
    lab.pass_on()
    lab.tell(*lab.proposer.drain())
    lab.pass_on()  # it has answered that there is no more, and nobody has heard that yet
    lab.tell(ob.UserAsked("r1", ev.Action.SAMPLES, num_samples=3, total=3))
    assert not lab.state.search_ended
    lab.settle()
    assert len(lab.state.trials) == 3


def test_a_thread_asks_the_searcher_and_wakes_the_loop():
    lab = Lab(Plain(), threaded=True)
    lab.begin()
    assert lab.woken.wait(DEADLINE_S)
    (proposed,) = wait_for(lab.proposer.drain)
    assert proposed.config == {"lr": 0.1, "width": 16, "depth": 3}
    assert proposed.id == trial_id("cafe5", 0)
    assert proposed.params == ("lr",)
    lab.proposer.close()
    assert "holdfast-searcher" not in {thread.name for thread in threading.enumerate()}


def test_the_loop_does_not_wait_for_a_searcher_that_thinks(monkeypatch):
    class Slow(Plain):
        may_answer = threading.Event()

        def suggest(self, trial_id):
            assert self.may_answer.wait(DEADLINE_S)
            return super().suggest(trial_id)

    monkeypatch.setattr(searching, "CLOSE_S", 0.01)
    lab = Lab(Slow(), threaded=True)
    lab.begin()
    assert lab.proposer.drain() == []
    lab.proposer.close()  # it still thinks, and nobody waits for that either
    Slow.may_answer.set()
    wait_for(lab.proposer.drain)


def test_an_error_of_the_searcher_ends_the_run_in_order_and_is_kept():
    class Broken(Plain):
        def suggest(self, trial_id):
            raise KeyError("lr")

    lab = Lab(Broken(), threaded=True)
    lab.begin()
    assert wait_for(lab.proposer.drain) == [ob.Interrupted("the search failed: KeyError: 'lr'")]
    assert isinstance(lab.proposer.error, KeyError)
    lab.tell(ob.Interrupted("the search failed"))
    assert lab.known.draining
    assert lab.proposer.drain() == []
    lab.proposer.close()


def test_an_error_of_the_searcher_when_it_is_told_something_is_no_different():
    class Broken(Plain):
        def on_trial_complete(self, trial_id, result=None, error=False):
            raise ValueError(f"no result for {trial_id}")

    lab = Lab(Broken())
    lab.begin()
    lab.settle()
    lab.finish(0)
    lab.settle()
    assert isinstance(lab.proposer.error, ValueError)
    assert lab.known.draining.startswith("the search failed: ValueError: no result for cafe5")


def test_a_value_that_is_missing_from_a_suggestion_is_the_searchers_error():
    class Forgetful(Plain):
        def suggest(self, trial_id):
            return {"momentum": 1}

    lab = Lab(Forgetful())
    lab.begin()
    lab.settle()
    assert "did not suggest a value for 'lr'" in str(lab.proposer.error)


def test_a_suggestion_that_cannot_be_stored_now_is_proposed_later():
    lab = Lab(Plain())

    def full(proposal):
        raise StorageFullError("no space for its objects")

    kept, lab.keep_value = lab.keep_value, full
    lab.begin()
    lab.pass_on()
    assert lab.proposer.drain() == []
    lab.keep_value = kept
    (proposed,) = lab.proposer.drain()
    assert proposed.config["lr"] == 0.1


def test_not_now_says_what_was_known_then():
    class Patient(Plain):
        def suggest(self, trial_id):
            return None if self.asked else super().suggest(trial_id)

    lab = Lab(Patient())
    lab.begin()
    lab.settle()
    assert lab.known.search_waits
    lab.report(0)
    assert not lab.known.search_waits
    lab.pass_on()
    assert lab.proposer.drain() == [ob.NotYet(3)]  # two questions and a report


def test_a_searcher_that_has_finished_ends_the_search():
    class Short(Plain):
        def suggest(self, trial_id):
            return self.FINISHED if self.asked == 2 else super().suggest(trial_id)

    lab = Lab(Short())
    lab.begin()
    lab.settle()
    assert lab.state.search_ended == "the searcher has finished"
    assert len(lab.state.trials) == 2


def test_no_more_trials_than_samples_are_suggested():
    lab = Lab(Plain(), limit=1)
    lab.begin()
    lab.settle()
    assert lab.state.search_ended == "all samples were suggested"
    assert lab.adapter.searcher.asked == 1


def lived(kind, seed):
    """A life with questions, reports and ends in a random order; a searcher that lags; snapshots now and then."""
    rng = random.Random(seed)
    lab = Lab(kind(seed, 7))
    snapshots = [(0, None)]
    lab.begin()
    for _ in range(60):
        running = list(lab.state.running)
        move = rng.random()
        if move < 0.4 and lab.proposer.is_behind:
            lab.proposer.pass_on()
        elif move < 0.6:
            lab.tell(*lab.proposer.drain())
        elif move < 0.85 and running:
            lab.report(rng.choice(running))
        elif running:
            lab.finish(rng.choice(running))
        if rng.random() < 0.2:
            memory = lab.proposer.get_state()
            snapshots.append((len(lab.history), memory))
    return lab, snapshots


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5])
def test_a_memory_and_what_came_later_is_the_same_as_hearing_everything_again(seed):
    lab, snapshots = lived(StoredTellTale, seed)
    assert len(lab.state.trials) > 1
    for length in range(len(lab.history) + 1):
        past = lab.history[:length]
        again = Lab(StoredTellTale(seed, 7), past)
        covered, memory = max((s for s in snapshots if s[0] <= length), key=lambda s: s[0])
        if memory is not None:
            restored = Lab(StoredTellTale(seed, 7), past, (memory, covered))
            assert restored.memory() == again.memory()
            assert restored.proposer.drain() == again.proposer.drain()


@pytest.mark.parametrize("kind", [TellTale, StoredTellTale])
def test_a_searcher_that_hears_everything_again_knows_and_owes_the_same(kind):
    lab, _ = lived(kind, 3)
    lab.pass_on()
    again = Lab(kind(3, 7), lab.history)
    assert again.memory() == lab.memory()
    assert again.configs == lab.configs


def test_a_question_that_was_open_when_the_driver_died_is_not_asked_twice():
    lab = Lab(StoredTellTale(2, 5))
    lab.begin()  # asked, and killed before the searcher heard of it
    lab.pass_on()
    reference = lab.proposer.drain()
    after = Lab(StoredTellTale(2, 5), lab.history)
    turn = after.begin()
    assert "SearchAsked" not in [type(event).__name__ for event in turn.events]
    assert after.proposer.drain() == reference


def test_a_searcher_without_a_memory_is_told_everything_again():
    lab = Lab(TellTale(1, 5))
    lab.begin()
    lab.settle()
    assert lab.proposer.get_state() is None


def test_answers_that_differ_from_what_was_recorded_are_warned_about_once_and_do_not_count():
    lab = Lab(Plain())
    lab.begin()
    lab.settle()
    lab.finish(0)
    lab.settle()
    assert len(lab.configs) == 4

    class Other(Plain):
        def suggest(self, trial_id):
            return {"lr": super().suggest(trial_id)["lr"] + 0.5}

    with pytest.warns(RuntimeWarning, match="Other does not give the same suggestions on replay") as caught:
        after = Lab(Other(), lab.history)
    assert len(caught) == 1
    assert after.configs == lab.configs
    after.begin()
    after.settle()
    assert after.configs == lab.configs


def test_repeated_steps_are_not_told_again():
    class Listening(Plain):
        def __init__(self):
            super().__init__()
            self.heard = []

        def suggest(self, trial_id):
            return None if self.asked else super().suggest(trial_id)

        def on_trial_result(self, trial_id, result):
            self.heard.append(result["training_iteration"])

    lab = Lab(Listening())
    lab.begin()
    lab.settle()
    lab.report(0)
    lab.report(0)
    lab.tell(ob.Died(0, 1, ev.Cause.SIGNAL, "killed by SIGSEGV"))
    for _ in range(3):
        lab.report(0)
    lab.settle()
    assert lab.adapter.searcher.heard == [1, 2, 3]
