"""OptunaSearch, with the real Optuna: it continues exactly, and survives whatever trials report."""

from __future__ import annotations

import logging
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import optuna
import pytest
from optuna.samplers import (
    BruteForceSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import TrialState
from optuna_world import MANY, NUMBERS, SAMPLERS, SPACE, learned, mostly_slow, quiet, score, told, tpe_with_everything
from search_world import MODEL

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search import create_searcher
from holdfast.search.optuna import OptunaSearch
from holdfast.search.replayable import Asked, Completed, NoMoreSuggestions, Suggested
from holdfast.search.searcher import can_snapshot, hears_results
from holdfast.space.domains import Float
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live, retold, trial_name

# --- exact resume


@pytest.mark.parametrize("name", mostly_slow("tpe", "nsga-ii", "random"))
def test_every_sampler_continues_exactly_from_any_moment(name: str) -> None:
    """The samplers are given no seed: they get the experiment's."""
    search = OptunaSearch(sampler=SAMPLERS[name]())
    assert can_snapshot(search)

    def make() -> SearcherHarness:
        return SearcherHarness(search, SPACE)

    history = live(make(), score, trials=24)
    assert_exact_resume(make, history, every=3, ahead=24)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpe", "cma-es"])
def test_memories_may_be_taken_at_every_single_event(name: str) -> None:
    space = NUMBERS if name == "cma-es" else SPACE
    search = OptunaSearch(sampler=SAMPLERS[name]())

    def make() -> SearcherHarness:
        return SearcherHarness(search, space)

    assert_exact_resume(make, live(make(), score, trials=16), ahead=12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Clip non-finite values")
def test_gaussian_processes_continue_exactly() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # of no use for so few numbers, and every other test here would wait for them
    search = OptunaSearch(sampler=quiet(GPSampler, n_startup_trials=3))

    def make() -> SearcherHarness:
        return SearcherHarness(search, {"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5)})

    history = live(make(), score, trials=6, slots=2)
    assert_exact_resume(make, history, every=7, ahead=6)


@pytest.mark.parametrize("name", ["nsga-ii", *(pytest.param(name, marks=pytest.mark.slow) for name in MANY)])
def test_several_objectives_continue_exactly(name: str) -> None:
    search = OptunaSearch(metric=["loss", "size"], mode=["min", "max"], sampler=SAMPLERS[name]())

    def make() -> SearcherHarness:
        return SearcherHarness(search, SPACE, None, None)

    history = live(make(), lambda config: {**score(config), "size": config["depth"]}, trials=24)
    assert_exact_resume(make, history, every=5, ahead=24)


@pytest.mark.slow
def test_conditional_spaces_continue_exactly() -> None:
    search = OptunaSearch(sampler=tpe_with_everything())

    def make() -> SearcherHarness:
        return SearcherHarness(search, MODEL)

    assert_exact_resume(make, live(make(), score, trials=20), every=4, ahead=20)


@pytest.mark.slow
def test_another_process_with_another_order_of_hashes_answers_the_same(tmp_path: Path) -> None:
    searches = {name: OptunaSearch(sampler=make()) for name, make in SAMPLERS.items()}
    story = {}
    for name, search in searches.items():
        history = live(SearcherHarness(search, SPACE), score, trials=14)
        story[name] = (search, history, retold(SearcherHarness(search, SPACE), history))
    (tmp_path / "story.pkl").write_bytes(cloudpickle.dumps((SPACE, story)))
    code = (
        "import pickle, sys, warnings\n"
        "from holdfast.testing.searcher_contract import SearcherHarness, retold\n"
        "space, story = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for name, (search, history, expected) in story.items():\n"
        "    assert retold(SearcherHarness(search, space), history) == expected, name\n"
    )
    paths = os.pathsep.join([str(Path(tune.__file__).parent.parent), str(Path(__file__).parent)])
    for hashes in ("1", "77"):
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hashes}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "story.pkl")], env=environment, check=True)


def test_a_seed_of_its_own_wins_over_the_experiments() -> None:
    def first(seed: int | None, experiment: int) -> Any:
        return retold(SearcherHarness(OptunaSearch(seed=seed), SPACE, seed=experiment), [Asked(3)])

    assert first(None, 1) == first(None, 1)
    assert first(None, 1) != first(None, 2)
    assert first(5, 1) == first(5, 2)


def test_a_sampler_with_a_seed_keeps_it() -> None:
    def first(experiment: int) -> Any:
        return retold(SearcherHarness(OptunaSearch(sampler=RandomSampler(seed=3)), SPACE, seed=experiment), [Asked(3)])

    assert first(1) == first(2)


def test_memory_survives_in_a_file(tmp_path: Path) -> None:
    def make() -> OptunaSearch:
        return OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss", mode="min", seed=3)

    one = make()
    for n in range(12):
        told(one, str(n), n * 0.1)
    one.save(str(tmp_path / "memory"))
    for two in (make(), OptunaSearch()):
        two.restore(str(tmp_path / "memory"))
        assert two.suggest("12") == pickle.loads(cloudpickle.dumps(one)).suggest("12")


def test_a_restored_search_takes_only_the_space_that_it_knows() -> None:
    search, space = OptunaSearch(seed=3), {"x": tune.uniform(0, 1)}
    assert search.set_search_properties("loss", "min", space)
    told(search, "0", 0.5)
    expected = pickle.loads(cloudpickle.dumps(search)).suggest("1")
    assert not search.set_search_properties("loss", "min", {"x": tune.uniform(0, 2)})
    assert search.set_search_properties("loss", "min", space)
    assert search.suggest("1") == expected


# --- results that are none


NOTHING = object()
INVALID = {
    "nan": math.nan,
    "infinitely good": -math.inf,
    "none": None,
    "missing": NOTHING,
    "text": "0.1",
    "list": [0.1],
    "complex": 1j,
    "no float": 10**400,
    "dict": {"a": 1},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_nine_kinds_of_invalid_results_are_survived_by_every_sampler(name: str) -> None:
    adapter = SearcherHarness(OptunaSearch(sampler=SAMPLERS[name]()), SPACE)
    for n in range(30):
        adapter.hear(Asked(1))
        result: dict[str, Any] = {"other": 1, **score(adapter.configs[n])}
        if n % 3 == 2:
            value = list(INVALID.values())[n // 3 % len(INVALID)]
            result["loss"] = value
            if value is NOTHING:
                del result["loss"]
        adapter.searcher.on_trial_complete(trial_name(n), result)
    states = [trial.state for trial in learned(adapter.searcher)]
    assert states == [TrialState.FAIL if n % 3 == 2 else TrialState.COMPLETE for n in range(30)]


@pytest.mark.parametrize("value", [math.nan, -math.inf, None, "x"])
def test_one_bad_value_of_several_objectives_spoils_the_trial(value: Any) -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, ["loss", "size"], ["min", "min"], seed=1)
    assert told(search, "a", 1.0, size=2).values == [1.0, 2.0]
    assert told(search, "b", 1.0, size=value).state == TrialState.FAIL


def test_infinitely_bad_results_are_learned_from() -> None:
    low = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", seed=1)
    high = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "max", seed=1)
    assert told(low, "a", math.inf).values == [math.inf]
    assert told(high, "a", -math.inf).values == [-math.inf]
    assert told(high, "b", math.inf).state == TrialState.FAIL


@pytest.mark.parametrize(("result", "error"), [(None, False), (None, True), ({}, False), ({"loss": 0.1}, True)])
def test_trials_that_failed_or_never_reported_are_failed_trials(result: Any, error: bool) -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", seed=1)
    search.suggest("a")
    search.on_trial_complete("a", result, error)
    assert learned(search)[0].state == TrialState.FAIL


def test_a_trial_that_failed_and_was_resumed_is_learned_from_after_all() -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", seed=1)
    config = search.suggest("a")
    search.on_trial_complete("a", None, error=True)
    search.on_trial_complete("a", {"loss": 0.5})
    search.on_trial_complete("a", {"loss": 0.7})
    search.on_trial_complete("unknown", {"loss": 0.7})
    assert [(trial.params, trial.value) for trial in learned(search)] == [(config, None), (config, 0.5)]


# --- objectives and constraints


def test_metrics_may_be_nested() -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "eval/loss", "max", seed=1)
    search.suggest("a")
    search.on_trial_complete("a", {"eval/loss": 3})
    assert learned(search)[0].value == 3.0
    assert search._study.direction == optuna.study.StudyDirection.MAXIMIZE


@pytest.mark.parametrize("sampler", [TPESampler, NSGAIISampler, NSGAIIISampler, GPSampler])
def test_constraints_see_the_last_result(sampler: Any) -> None:
    seen = []

    def constraints(trial: Any) -> tuple[float]:
        seen.append(dict(trial.user_attrs))
        return (trial.user_attrs["memory"] - 10.0,)

    search = OptunaSearch(
        {"x": tune.uniform(0, 1)}, "loss", "min", sampler=quiet(sampler, constraints_func=constraints), seed=1
    )
    trial = told(search, "a", 0.5, memory=12, config={"x": 1}, note="hi", many=[1, 2])
    assert seen == [{"loss": 0.5, "memory": 12, "note": "hi"}]
    assert tuple(trial.system_attrs["constraints"]) == (2.0,)


def test_metrics_that_are_only_observed_are_kept() -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, ["loss", "memory"], ["min", "obs"], seed=1)
    trial = told(search, "a", 0.5, memory=12, other=3)
    assert (trial.values, trial.user_attrs) == ([0.5], {"memory": 12})


def test_constraints_are_kept_to() -> None:
    """Without the constraint the best loss is at x = 0."""

    def make() -> SearcherHarness:
        sampler = quiet(TPESampler, constraints_func=lambda trial: (1.0 - trial.user_attrs["x"],), n_startup_trials=8)
        return SearcherHarness(OptunaSearch(sampler=sampler), {"x": tune.uniform(0, 5)})

    adapter = make()
    history = live(adapter, lambda config: {"loss": config["x"], "x": config["x"]}, trials=50, slots=1)
    late = [config["x"] for n, config in adapter.configs.items() if n >= 30]
    assert sum(1.0 <= x < 2.0 for x in late) > len(late) / 3  # a fifth, if it knew nothing
    assert_exact_resume(make, history, every=40, ahead=30)


def test_a_constraint_that_fails_does_not_end_the_search() -> None:
    sampler = quiet(TPESampler, constraints_func=lambda trial: (trial.user_attrs["memory"],))
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", sampler=sampler, seed=1)
    with pytest.warns(RuntimeWarning, match="constraints_func failed for trial 0: KeyError"):
        trial = told(search, "a", 0.5)
    assert trial.state == TrialState.COMPLETE
    with pytest.warns(RuntimeWarning, match="NaN"):
        told(search, "b", 0.5, memory=math.nan)
    assert search.suggest("c")


@pytest.mark.parametrize("make", [GridSampler, BruteForceSampler])
def test_samplers_that_have_tried_everything_end_the_search(make: Any) -> None:
    sampler = make({"x": [0, 1, 2]}) if make is GridSampler else quiet(make)
    adapter = SearcherHarness(OptunaSearch(sampler=sampler), {"x": tune.randint(0, 3)})
    history = live(adapter, lambda config: {"loss": config["x"]}, trials=10, slots=1, seed=3)
    assert sorted(config["x"] for config in adapter.configs.values()) == [0, 1, 2]
    assert adapter.adapter.unclaimed() == [NoMoreSuggestions("the searcher has finished")]
    assert_exact_resume(lambda: SearcherHarness(OptunaSearch(sampler=sampler), {"x": tune.randint(0, 3)}), history)


def test_it_learns() -> None:
    def late_losses(sampler: Any) -> list[float]:
        adapter = SearcherHarness(
            OptunaSearch(sampler=sampler), {"x": tune.uniform(-100, 100), "y": tune.uniform(-100, 100)}
        )
        live(adapter, lambda config: {"loss": config["x"] ** 2 + config["y"] ** 2}, trials=60, slots=1)
        return sorted(config["x"] ** 2 + config["y"] ** 2 for n, config in adapter.configs.items() if n >= 30)

    assert late_losses(None)[15] < late_losses(RandomSampler())[15] / 2


# --- manners


def test_optuna_says_nothing_and_the_users_logging_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in ("optuna", "optuna.study.study", "optuna.storages._in_memory")]
    before = [(logger.level, logger.disabled, logger.propagate, list(logger.handlers)) for logger in loggers]
    live(SearcherHarness(OptunaSearch(), SPACE), score, trials=12)
    assert capfd.readouterr() == ("", "")
    assert [(each.level, each.disabled, each.propagate, list(each.handlers)) for each in loggers] == before


def test_intermediate_results_are_not_asked_for_in_vain() -> None:
    assert not hears_results(OptunaSearch())
    assert not hears_results(OptunaSearch(metric=["a", "b"], mode=["min", "min"], storage="sqlite:///x.db"))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"sampler": "tpe"}, InvalidTypeError, "optuna.samplers.BaseSampler"),
        ({"storage": 3}, InvalidTypeError, "optuna.storages.BaseStorage"),
        ({"space": [1]}, InvalidTypeError, "dict of domains or a function"),
        ({"space": {"x": print}}, InvalidInputError, "param_space"),
        ({"mode": "best"}, InvalidInputError, r"\['min', 'max'\]"),
        ({"points_to_evaluate": {"x": 1}}, InvalidTypeError, "list of dicts"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        OptunaSearch(**arguments)


def test_it_needs_a_metric_a_mode_and_a_space() -> None:
    with pytest.raises(InvalidInputError, match="needs a metric and a mode"):
        OptunaSearch().set_search_properties(None, None, SPACE)
    with pytest.raises(InvalidInputError, match="needs a metric and a mode"):
        OptunaSearch(metric="loss").set_search_properties(None, None, SPACE)
    with pytest.raises(InvalidInputError, match="no search space yet"):
        OptunaSearch(metric="loss", mode="min").suggest("a")
    with pytest.raises(InvalidInputError, match="nothing to optimise"):
        OptunaSearch(metric=["loss"], mode=["obs"]).set_search_properties(None, None, SPACE)
    search = OptunaSearch(mode="min")
    search.set_search_properties(None, None, SPACE)
    assert search.metric == "_metric"


def test_its_own_metric_wins_over_the_experiments() -> None:
    search = OptunaSearch(metric=["a", "b"], mode=["min", "max"])
    assert search.set_search_properties("loss", "min", SPACE)
    assert (search.metric, search.mode) == (["a", "b"], ["min", "max"])


def test_without_optuna_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'holdfast\[optuna\]'"):
        create_searcher("optuna")


def test_it_can_be_made_by_its_name() -> None:
    assert isinstance(create_searcher("optuna", metric="loss", mode="min", algo="asracos"), OptunaSearch)


def test_more_trials_than_samples_are_never_suggested() -> None:
    adapter = SearcherHarness(OptunaSearch(), SPACE, limit=2)
    answers = adapter.hear(Asked(5))
    assert [type(answer) for answer in answers] == [Suggested, Suggested, NoMoreSuggestions]
    assert adapter.hear(Completed(trial_name(0), {"loss": 1.0}, False)) == []
    assert isinstance(SPACE["x"], Float)
