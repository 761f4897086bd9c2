"""The experiment's scheduler and searcher: refused with a clear message, or made ready for one driver's life."""

import warnings
from pathlib import Path

import pytest

from holdfast import uniform
from holdfast.config import TuneConfig
from holdfast.controller.algorithms import LOOKAHEAD, Algorithms, check_algorithms, make_scheduler, make_searcher
from holdfast.errors import InvalidInputError
from holdfast.schedulers import FIFOScheduler, TrialScheduler
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.search import BasicVariantGenerator, ConcurrencyLimiter, DEHBSearch, Repeater
from holdfast.search.searcher import Searcher
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

SPACE = {"lr": uniform(0, 1)}


class Comparing(TrialScheduler):
    _needs_metric = True

    def __init__(self, metric=None, mode=None):
        self._metric, self._mode = metric, mode
        self.seen = []


class Choosing(TrialScheduler):
    works_with_searchers = False


class Learning(Searcher):
    takes = True

    def __init__(self, metric=None, mode=None):
        super().__init__(metric, mode)
        self.spec = None

    def set_search_properties(self, metric, mode, config, **spec):
        self.spec = (metric, mode, config, spec)
        return self.takes

    def suggest(self, trial_id):
        return None

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


class Complete(Learning):
    takes = False


def algorithms(**settings):
    info = ExperimentInfo(root=Path("/"), name="exp", trainable_name="train")
    return Algorithms(TuneConfig(**settings), SPACE, 7, info, ResultBuilder(), "t{}".format)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheduler": 3}, "TuneConfig.scheduler=3 is not a scheduler. Give one of tune.schedulers, its name, or"),
        ({"scheduler": "best"}, "The `scheduler` argument must be one of .*fifo.*; got 'best'"),
        ({"scheduler": Comparing}, r"TuneConfig.scheduler must be an instance.* Write Comparing\(...\) instead of"),
        (
            {"scheduler": Comparing()},
            "Comparing has been instantiated without a valid `metric` .None. or `mode` .None.. Pass both to TuneConfig",
        ),
        (
            {"scheduler": Comparing("loss", "min"), "metric": "acc", "mode": "max"},
            "metric='acc' and mode='max', but Comparing was already instantiated with metric='loss' and mode='min'",
        ),
        ({"search_alg": 3}, "TuneConfig.search_alg=3 is not a searcher. Give one of tune.search, its name, or"),
        ({"search_alg": "best"}, "The `search_alg` argument must be one of .*; got 'best'"),
        ({"search_alg": Complete()}, "param_space has something to search, but Complete does not take it"),
        (
            {"search_alg": Learning(), "scheduler": Choosing()},
            "Search algorithms cannot be used with Choosing schedulers",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(settings, message):
    with pytest.raises(InvalidInputError, match=message):
        check_algorithms(TuneConfig(**settings), SPACE, 7)


POINTS = [{"lr": 0.1}, {"lr": 0.2}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"search_alg": DEHBSearch(points_to_evaluate=POINTS), "scheduler": "dehb", "num_samples": 1},
            "points to try first for 2 trials",
        ),
        (
            {"search_alg": Repeater(DEHBSearch(points_to_evaluate=POINTS), 3), "scheduler": "dehb", "num_samples": 3},
            "Repeater has points to try first for 6 trials, but num_samples=3 leaves the last ones",
        ),
        ({"search_alg": DEHBSearch()}, "suggests budgets, and without DEHBScheduler nothing ends trials there"),
        ({"search_alg": ConcurrencyLimiter(DEHBSearch(), 2)}, "without DEHBScheduler nothing ends trials there"),
    ],
)
def test_what_works_but_not_as_it_was_meant_is_warned_of(settings, message):
    with pytest.warns(UserWarning, match=message):
        check_algorithms(TuneConfig(metric="loss", mode="min", **settings), SPACE, 7)


@pytest.mark.parametrize("num_samples", [2, -1])
def test_all_points_that_are_tried_need_no_warning(num_samples):
    search = DEHBSearch(points_to_evaluate=POINTS)
    with warnings.catch_warnings(action="error"):
        config = TuneConfig(metric="loss", mode="min", num_samples=num_samples, search_alg=search, scheduler="dehb")
        check_algorithms(config, SPACE, 7)


def test_what_a_searcher_of_the_users_calls_its_attributes_is_its_own_business():
    searcher = Learning()
    searcher._points = 5
    check_algorithms(TuneConfig(search_alg=searcher, num_samples=2), SPACE, 7)


def test_a_searcher_of_its_own_space_is_taken_if_there_is_no_other():
    check_algorithms(TuneConfig(search_alg=Complete()), {"lr": 0.1}, 7)


def test_without_any_choice_trials_come_first_in_first_out_and_nothing_is_remembered():
    made = algorithms()
    assert type(made.scheduler) is FirstInFirstOut
    assert made.search is None
    assert made.memories == []
    assert made.lookahead == LOOKAHEAD
    assert made.needed_metrics == ()


def test_names_are_taken_for_both():
    assert type(make_scheduler(TuneConfig(scheduler="fifo"), 7)) is FIFOScheduler
    assert make_searcher(TuneConfig(search_alg="random"), SPACE, 7) is None
    assert make_searcher(TuneConfig(search_alg=BasicVariantGenerator()), SPACE, 7) is None


def test_every_driver_has_objects_of_its_own():
    """A second fit() with the same TuneConfig must not begin with what the first one learned."""
    mine = Comparing()
    config = TuneConfig(scheduler=mine, metric="loss", mode="min")
    made = make_scheduler(config, 7)
    made.seen.append(1)
    assert mine.seen == []
    assert mine.metric is None
    assert (made.metric, made.mode, made._seed) == ("loss", "min", 7)


def test_the_experiments_settings_reach_the_searcher():
    made = make_searcher(TuneConfig(search_alg=Learning(), metric="loss", mode="min", num_samples=5), SPACE, 7)
    assert made.spec == ("loss", "min", SPACE, {"seed": 7, "num_samples": 5})


def test_a_scheduler_and_a_searcher_are_told_the_past():
    made = algorithms(scheduler=Choosing(), search_alg=Learning("acc", "max"))
    assert isinstance(made.scheduler, SchedulerAdapter)
    assert [memory.name for memory in made.memories] == ["scheduler", "search"]
    assert made.lookahead == 1


def test_a_searcher_says_how_many_trials_it_has_at_once():
    searcher = Learning()
    searcher.max_concurrent = 4
    assert algorithms(search_alg=searcher).lookahead == 4


def test_reports_must_have_what_either_of_them_compares():
    made = algorithms(scheduler=Comparing("loss", "min"), search_alg=Learning(["a", "b"], ["min", "max"]))
    assert made.needed_metrics == (("loss", "Comparing"), ("a", "Learning"), ("b", "Learning"))
