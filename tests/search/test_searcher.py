"""The interface of searchers: defaults, memory in files, and what is asked about them."""

import os

import pytest

from holdfast.errors import InvalidInputError
from holdfast.search.searcher import PickledSearcher, Searcher, can_snapshot, hears_results


class Bare(Searcher):
    def suggest(self, trial_id):
        return {}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


class Remembering(PickledSearcher):
    _not_saved = ("model",)

    def __init__(self):
        super().__init__("loss", "min")
        self.points = []
        self.model = object()

    def on_trial_result(self, trial_id, result):
        self.points.append(result)


class Wrapping(Searcher):
    def __init__(self, searcher):
        super().__init__()
        self.searcher = searcher

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def test_what_a_searcher_must_have_is_missing_in_the_base():
    searcher = Searcher()
    for call in (
        lambda: searcher.suggest("t0"),
        lambda: searcher.on_trial_complete("t0"),
        lambda: searcher.save("f"),
        lambda: searcher.restore("f"),
        searcher.get_state,
        lambda: searcher.set_state({}),
    ):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(NotImplementedError, match="Searcher cannot learn from points"):
        searcher.add_evaluated_point({"x": 1}, 0.5)


def test_what_a_searcher_may_have_does_nothing_in_the_base():
    searcher = Searcher()
    assert searcher.set_search_properties("loss", "min", {}) is False
    assert searcher.set_max_concurrency(3) is False
    searcher.on_trial_result("t0", {})
    searcher.on_pause("t0")
    searcher.on_unpause("t0")
    assert (searcher.metric, searcher.mode) == (None, None)


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [
        ("loss", "best", r"must be one of \['min', 'max'\] .*got 'best'"),
        (["a", "b"], "min", "both one name or lists of equal length"),
        (["a", "b"], ["min"], "both one name or lists of equal length"),
        ("a", ["min"], "both one name or lists of equal length"),
    ],
)
def test_objectives_that_do_not_go_together_are_refused(metric, mode, message):
    with pytest.raises(InvalidInputError, match=message):
        Searcher(metric, mode)


def test_several_objectives_are_allowed():
    searcher = Searcher(["a", "b"], ["min", "max"])
    assert (searcher.metric, searcher.mode) == (["a", "b"], ["min", "max"])


def test_attributes_are_the_memory_of_a_pickled_searcher(tmp_path):
    searcher, other = Remembering(), Remembering()
    searcher.on_trial_result("t0", {"loss": 1})
    searcher.save(str(tmp_path / "memory"))
    model = other.model
    other.restore(str(tmp_path / "memory"))
    assert other.points == [{"loss": 1}]
    assert other.model is model


def test_the_newest_memory_of_a_directory_is_read(tmp_path):
    searcher, other = Remembering(), Remembering()
    for number, session in enumerate(("b", "a")):
        searcher.points = [number]
        searcher.save_to_dir(str(tmp_path), session)
        os.utime(tmp_path / f"searcher-state-{session}.pkl", (number, number))
    other.restore_from_dir(str(tmp_path))
    assert other.points == [1]


def test_a_directory_without_a_memory_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=f"no searcher state in '{tmp_path}'"):
        Remembering().restore_from_dir(str(tmp_path))


def test_a_wrapper_can_be_stored_if_what_it_wraps_can():
    assert can_snapshot(Remembering())
    assert not can_snapshot(Bare())
    assert can_snapshot(Wrapping(Remembering()))
    assert not can_snapshot(Wrapping(Bare()))


def test_a_wrapper_hears_results_if_what_it_wraps_does():
    assert hears_results(Remembering())
    assert not hears_results(Bare())
    assert hears_results(Wrapping(Remembering()))
    quiet = Remembering()
    quiet.uses_intermediate_results = False
    assert not hears_results(quiet)
