"""Asking and telling a searcher in the order of the journal, and what its adapter remembers."""

import pytest

from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.search.replayable import (
    ALL_SUGGESTED,
    FINISHED,
    Asked,
    Completed,
    NoMoreSuggestions,
    NotNow,
    Paused,
    ReplayableSearcher,
    ResultTold,
    Script,
    Suggested,
    Unpaused,
    plain,
)
from holdfast.search.searcher import PickledSearcher, Searcher
from holdfast.views.results import ResultBuilder

BOOM = ev.ErrorFacts("ValueError", "boom")


class Listed(Searcher):
    """Answers from a list, and writes down every call."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)
        self.calls = []

    def suggest(self, trial_id):
        self.calls.append(("suggest", trial_id))
        return self.answers.pop(0)

    def on_trial_result(self, trial_id, result):
        self.calls.append(("result", trial_id, result))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.calls.append(("complete", trial_id, result, error))

    def on_pause(self, trial_id):
        self.calls.append(("pause", trial_id))

    def on_unpause(self, trial_id):
        self.calls.append(("unpause", trial_id))


class Counting(PickledSearcher):
    """Suggests how often it was told something."""

    def __init__(self):
        super().__init__()
        self.told = 0

    def suggest(self, trial_id):
        return {"x": self.told}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told += 1


class InFiles(Counting):
    """The same, with a memory that is written to files only."""

    get_state = Searcher.get_state
    set_state = Searcher.set_state

    def save(self, checkpoint_path):
        with open(checkpoint_path, "w") as file:
            file.write(str(self.told))

    def restore(self, checkpoint_path):
        with open(checkpoint_path) as file:
            self.told = int(file.read())


def make_adapter(searcher, limit=None):
    return ReplayableSearcher(searcher, "t{}".format, limit)


def test_as_many_suggestions_are_made_as_were_asked_for():
    adapter = make_adapter(Listed({"x": 1}, {"x": 2}, {"x": 3}))
    assert adapter.hear(Asked(2)) == [Suggested(0, {"x": 1}), Suggested(1, {"x": 2})]
    assert adapter.hear(Asked(1)) == [Suggested(2, {"x": 3})]
    assert [call[1] for call in adapter.searcher.calls] == ["t0", "t1", "t2"]


def test_a_question_is_open_until_the_searcher_knows_more():
    adapter = make_adapter(Listed(None, None, {"x": 1}))
    assert adapter.hear(Asked(1)) == [NotNow()]
    assert adapter.hear(ResultTold("t0", {})) == [NotNow()]
    assert adapter.hear(Completed("t0", None, False)) == [Suggested(0, {"x": 1})]
    assert adapter.hear(ResultTold("t0", {})) == []


def test_news_alone_ask_for_nothing():
    adapter = make_adapter(Listed())
    assert adapter.hear(Completed("t0", {"loss": 1}, True)) == []
    assert adapter.searcher.calls == [("complete", "t0", {"loss": 1}, True)]
    adapter.hear(Paused("t0"))
    adapter.hear(Unpaused("t0"))
    assert adapter.searcher.calls[1:] == [("pause", "t0"), ("unpause", "t0")]


def test_a_searcher_that_has_finished_is_not_asked_again():
    adapter = make_adapter(Listed({"x": 1}, Searcher.FINISHED))
    assert adapter.hear(Asked(3)) == [Suggested(0, {"x": 1}), NoMoreSuggestions(FINISHED)]
    assert adapter.hear(Asked(1)) == []
    assert adapter.unclaimed() == [Suggested(0, {"x": 1}), NoMoreSuggestions(FINISHED)]


def test_the_limit_ends_the_search_without_asking():
    adapter = make_adapter(Listed({"x": 1}), limit=1)
    assert adapter.hear(Asked(2)) == [Suggested(0, {"x": 1}), NoMoreSuggestions(ALL_SUGGESTED)]
    assert len(adapter.searcher.calls) == 1


def test_what_became_a_trial_is_not_offered_again():
    adapter = make_adapter(Listed({"x": 1}, {"x": 2}, None))
    adapter.hear(Asked(3))
    assert adapter.claim(0) == Suggested(0, {"x": 1})
    assert adapter.unclaimed() == [Suggested(1, {"x": 2}), NotNow()]
    adapter.forget(2)
    assert adapter.unclaimed() == [NotNow()]


def test_a_trial_that_exists_although_the_searcher_says_not_now_is_taken_as_answered():
    """It is not deterministic. What was recorded stands, and it does not owe that answer any more."""
    adapter = make_adapter(Listed(None, {"x": 2}))
    adapter.hear(Asked(1))
    assert adapter.claim(0) is None
    assert adapter.unclaimed() == []
    assert adapter.hear(Asked(1)) == [Suggested(1, {"x": 2})]


@pytest.mark.parametrize("kind", [Counting, InFiles])
def test_a_memory_and_what_came_later_is_the_same_searcher(kind):
    adapter = make_adapter(kind(), limit=9)
    adapter.hear(Asked(2))
    adapter.hear(Completed("t0", None, False))
    stored = adapter.get_state(1)
    later = [Asked(1), Completed("t1", None, True), Asked(1)]
    answers = [adapter.hear(item) for item in later]
    other = make_adapter(kind(), limit=9)
    other.set_state(stored, 1, later)
    assert other.unclaimed() == [Suggested(1, {"x": 0}), *answers[0], *answers[2]]
    assert other.searcher.told == 2
    assert other.hear(Asked(1)) == adapter.hear(Asked(1)) == [Suggested(4, {"x": 2})]


def test_an_open_question_is_part_of_the_memory():
    adapter = make_adapter(Counting())
    adapter._owed = 1
    other = make_adapter(Counting())
    other.set_state(adapter.get_state(0), 0, [])
    assert other.unclaimed() == [NotNow()]
    assert other.hear(Completed("t0", None, False)) == [Suggested(0, {"x": 1})]


def test_suggestions_are_made_of_plain_values():
    np = pytest.importorskip("numpy")
    assert plain({"a": np.float64(0.5), 1: (np.int32(2), "x"), "b": {"c": np.bool_(True)}}) == {
        "a": 0.5,
        "1": [2, "x"],
        "b": {"c": True},
    }
    assert type(plain(np.int64(3))) is int


# --- what is heard of events


class Told:
    """A script, and a state that it follows."""

    def __init__(self, with_results=True):
        self.script = Script(ResultBuilder().last, with_results=with_results)
        self.state = State()
        self.items = []
        self.at = 0.0
        for n in range(2):
            self.add(ev.TrialCreated, n, f"t{n}", {"x": n}, f"{n}")

    def add(self, kind, *facts):
        self.at += 1.0
        event = kind(self.at, *facts)
        apply(self.state, event, Retention())
        item = self.script.item(self.state, event)
        if item is not None:
            self.items.append(item)

    def names(self):
        return [(type(item).__name__, getattr(item, "trial_id", "")) for item in self.items]


def test_questions_results_pauses_and_ends_are_heard_and_nothing_else():
    told = Told()
    told.add(ev.SearchAsked, 2)
    told.add(ev.TrialStarted, 0, 1, 0, None)
    told.add(ev.Reported, 0, 1, 1, 0.5, {"loss": 1, "nested": {"a": 2}}, "pause", "wait")
    told.add(ev.TrialPaused, 0, 1)
    told.add(ev.TrialResumed, 0)
    told.add(ev.TrialStarted, 0, 2, 0, None)
    told.add(ev.TrialTerminated, 0, 2, "returned")
    told.add(ev.TrialTerminated, 1, 0, "not resumed")
    told.add(ev.SearchEnded, "no more")
    assert told.names() == [
        *[("Asked", ""), ("ResultTold", "t0"), ("Paused", "t0"), ("Unpaused", "t0"), ("Completed", "t0")],
        ("Completed", "t1"),
    ]
    result = told.items[1].result
    assert (result["loss"], result["nested/a"], result["config"]) == (1, 2, {"x": 0})
    assert told.items[-1].result is None


def test_repeated_rows_and_unwanted_results_are_not_heard():
    for with_results, heard in ((True, 2), (False, 0)):
        told = Told(with_results)
        told.add(ev.TrialStarted, 0, 1, 0, None)
        told.add(ev.Reported, 0, 1, 1, 0.5, {"loss": 1})
        told.add(ev.AttemptFailed, 0, 1, "exception", BOOM)
        told.add(ev.TrialStarted, 0, 2, 0, None)
        told.add(ev.Reported, 0, 2, 1, 0.5, {"loss": 1})
        told.add(ev.Reported, 0, 2, 1, 0.5, {"loss": 1})
        assert len(told.items) == heard


def test_a_failed_trial_is_heard_of_once():
    told = Told()
    told.add(ev.TrialStarted, 0, 1, 0, None)
    told.add(ev.TrialErrored, 0, 1, "exception", BOOM)
    told.add(ev.TrialStarted, 1, 1, 0, None)
    told.add(ev.TrialTerminated, 1, 1, "returned")
    told.add(ev.TrialErrored, 1, 1, "callback", BOOM)
    assert [(item.trial_id, item.error) for item in told.items] == [("t0", True), ("t1", False)]
