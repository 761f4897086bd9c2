"""ResourceChangingScheduler: who gets what when, and that nothing is lost or stuck on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from table import (
    INFO,
    Population,
    Script,
    Table,
    assert_never_hangs,
    folded,
    play,
    play_with_crashes,
    random_population,
    retold,
)

from holdfast.config import TuneConfig
from holdfast.config.resources import PlacementGroupFactory
from holdfast.controller.algorithms import check_algorithms
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.schedulers import FIFOScheduler, TrialScheduler, create_scheduler
from holdfast.schedulers.resource_changing import (
    DistributeResources,
    DistributeResourcesToTopJob,
    ResourceChangingScheduler,
)
from simulator.schedulers_under_test import CopyingScheduler


@pytest.fixture(autouse=True)
def trainable_is_a_class(monkeypatch):
    """Most of these trials save when they pause."""
    monkeypatch.setattr(INFO, "is_class", True)


def resized(table: Table, n: int | None = None) -> list[Any]:
    """The sizes that were granted: of one trial, or (trial, size) of all."""
    found = [(e.n, (e.request or {"CPU": 1.0}).get("CPU")) for e in table.events(ev.TrialResized)]
    return found if n is None else [size for m, size in found if m == n]


def most_used(table: Table) -> float:
    """The most CPUs that were in use at any moment, by the history alone."""
    sizes: dict[int, float] = {}
    running: set[int] = set()
    most = 0.0
    for event in table.history:
        if isinstance(event, ev.TrialCreated | ev.TrialResized):
            sizes[event.n] = (event.request or {"CPU": 1.0}).get("CPU", 0.0)
        elif isinstance(event, ev.TrialStarted):
            running.add(event.n)
            most = max(most, sum(sizes[n] for n in running))
        elif isinstance(
            event, ev.TrialPaused | ev.TrialTerminated | ev.TrialErrored | ev.AttemptFailed | ev.AttemptInterrupted
        ):
            running.discard(event.n)
    return most


def always(size: Any) -> Any:
    return lambda view, trial, result, scheduler: size


# --- equal parts


def test_a_trial_that_is_alone_gets_everything():
    table = play(ResourceChangingScheduler, Population([Script([1] * 4)], slots=4, is_class=True))
    assert resized(table) == [(0, 4.0)]
    assert table.statuses() == ["TERMINATED"]
    assert table.rows(0) == 4


def test_trials_share_equally_and_the_last_ones_grow():
    population = Population([Script([1] * 6), Script([1] * 12)], slots=4, is_class=True)
    table = play(ResourceChangingScheduler, population)
    assert resized(table, 0) == [2.0]
    assert resized(table, 1) == [2.0, 4.0]
    assert most_used(table) == 4


def test_nobody_grows_while_others_wait_for_room():
    population = Population([*(Script([1] * 3) for _ in range(5)), Script([1] * 6)], slots=2, is_class=True)
    table = play(ResourceChangingScheduler, population)
    assert resized(table) == [(5, 2.0)]
    first = table.history.index(next(e for e in table.history if isinstance(e, ev.TrialResized)))
    started = {e.n for e in table.history[:first] if isinstance(e, ev.TrialStarted)}
    assert started == set(range(6))


def test_a_trial_gives_back_what_a_later_one_needs():
    """Alone on the machine the first trial takes it all, until the second is created."""
    population = Population([Script([1] * 12), Script([1] * 3)], slots=4, is_class=True)

    class SecondComesLate(Table):
        def _say(self, delay: float, observation: ob.Observation) -> None:
            late = isinstance(observation, ob.Exhausted) or (isinstance(observation, ob.Proposed) and self.state.trials)
            super()._say(4.5 if late else delay, observation)

    # One at a time, so that the second is asked for when the first is there.
    table = SecondComesLate(ResourceChangingScheduler, replace(population, rules={"lookahead": 1})).play()
    assert resized(table, 0) == [4.0, 2.0, 4.0]
    assert resized(table, 1) == [2.0]
    assert most_used(table) == 4


def test_steps_limits_and_reserves_are_respected():
    def sizes(slots: int, **settings: Any) -> list[Any]:
        make = lambda: ResourceChangingScheduler(None, DistributeResources(**settings))  # noqa: E731
        return resized(play(make, Population([Script([1] * 5)], slots=slots, is_class=True)))

    assert sizes(8, increase_by={"CPU": 3}) == [(0, 7.0)]
    assert sizes(8, increase_by={"CPU": 1}, increase_by_times=2) == [(0, 3.0)]
    assert sizes(8, increase_by_times=2) == [(0, 8.0)]  # without increase_by there is no limit
    assert sizes(8, reserve_resources={"cpu": 3}) == [(0, 5.0)]
    assert sizes(8, reserve_resources={"CPU": 0}) == [(0, 8.0)]
    assert sizes(8, increase_by={"CPU": 2, "GPU": 1}) == []  # there is no GPU
    assert sizes(1) == []


def test_bundles_are_added_in_the_size_that_trials_begin_with():
    make = lambda: ResourceChangingScheduler(None, DistributeResources(add_bundles=True))  # noqa: E731
    population = Population([Script([1] * 3, request={"CPU": 2.0})], slots=7, is_class=True)
    assert resized(play(make, population)) == [(0, 6.0)]


def test_trials_with_gpus_grow_by_gpus():
    scheduler = ResourceChangingScheduler()
    scheduler._base_request = {"CPU": 2.0, "GPU": 1.0}
    assert DistributeResources()._step(scheduler.base_trial_resources) == {"GPU": 1.0}
    assert DistributeResources()._request(scheduler.base_trial_resources, 2) == PlacementGroupFactory(
        [{"CPU": 2, "GPU": 3}]
    )
    assert DistributeResources(add_bundles=True)._request(scheduler.base_trial_resources, 1) == PlacementGroupFactory(
        [{"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}]
    )


def test_two_trials_that_report_together_do_not_get_the_same_resources_twice():
    population = Population([Script([1] * 5), Script([1] * 5), Script([1] * 5)], slots=4, is_class=True)
    table = play(ResourceChangingScheduler, population)
    assert sorted(resized(table)[:1]) == [(0, 2.0)]
    assert most_used(table) <= 4


# --- the best one gets it


@pytest.mark.parametrize(("mode", "mine"), [("max", 1), ("min", 3)])
def test_all_that_is_free_goes_to_the_best_trial(mode, mine):
    """Both may grow by one CPU, and two are free; the worse one gets nothing before the better one has ended."""
    best = DistributeResourcesToTopJob(increase_by={"CPU": 1}, increase_by_times=1)
    scripts = [Script([mine] * 9, step_s=1.5), Script([2] * 4)]
    population = Population(scripts, slots=4, mode=mode, is_class=True)
    table = play(lambda: ResourceChangingScheduler(None, best), population)
    assert resized(table) == [(1, 2.0), (0, 2.0)]
    ended = table.history.index(table.events(ev.TrialTerminated)[0])
    assert ended < table.history.index(table.events(ev.TrialResized)[1])


def test_a_trial_that_was_best_keeps_what_it_has():
    make = lambda: ResourceChangingScheduler(None, DistributeResourcesToTopJob(increase_by={"CPU": 1}))  # noqa: E731
    scripts = [Script([5] * 6), Script([9] * 9)]
    table = play(make, Population(scripts, slots=4, is_class=True))
    assert resized(table, 0) == [3.0]
    assert resized(table, 1) == [4.0]  # when the other one had ended


def test_the_best_is_judged_by_its_own_metric_if_it_has_one():
    own = DistributeResourcesToTopJob(metric="other", mode="min")
    scripts = [Script([5] * 4, extra={"other": 3}), Script([9] * 4, extra={"other": 7})]
    table = play(lambda: ResourceChangingScheduler(None, own), Population(scripts, slots=4, is_class=True))
    assert resized(table, 0)[0] == 3.0


def test_scores_that_cannot_be_compared_are_nobodys_best():
    make = lambda: ResourceChangingScheduler(None, DistributeResourcesToTopJob())  # noqa: E731
    scripts = [Script([float("nan")] * 3), Script([None] * 3), Script(["high"] * 3)]
    assert resized(play(make, Population(scripts, slots=8, is_class=True))) == []


def test_the_best_trial_needs_a_metric_and_a_mode():
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob())
    with pytest.raises(InvalidInputError, match="metric"):
        scheduler.check_ready()
    scheduler.set_search_properties("loss", "min", seed=1)
    scheduler.check_ready()
    with pytest.raises(InvalidInputError, match=r"\['min', 'max'\]"):
        DistributeResourcesToTopJob(mode="least")


# --- functions of the user's


@pytest.mark.parametrize("size", [{"cpu": 3}, {"CPU": 3.0}, PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}])])
def test_a_function_may_return_a_dict_or_a_factory(size):
    table = play(lambda: ResourceChangingScheduler(None, always(size)), Population([Script([1] * 3)], 4, is_class=True))
    assert resized(table) == [(0, 3.0)]


@pytest.mark.parametrize("size", [None, {"cpu": 1}, {"CPU": 1}])
def test_a_trial_that_has_what_it_should_have_goes_on(size):
    table = play(lambda: ResourceChangingScheduler(None, always(size)), Population([Script([1] * 3)], 4, is_class=True))
    assert table.events(ev.TrialResized, ev.TrialPaused) == []


def test_the_function_is_asked_with_the_view_the_trial_the_result_and_the_scheduler():
    asked = []

    def allocate(view: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> None:
        asked.append((dict(view.capacity), trial.n, result["score"], scheduler.base_trial_resources))

    play(lambda: ResourceChangingScheduler(None, allocate), Population([Script([7])], slots=4, is_class=True))
    assert asked == [({"CPU": 4.0}, 0, 7, PlacementGroupFactory([{"CPU": 1}]))]


def test_a_function_that_returns_nonsense_is_named():
    with pytest.raises(InvalidTypeError, match="resources_allocation_function returned 3"):
        play(lambda: ResourceChangingScheduler(None, always(3)), Population([Script([1])], is_class=True))


def test_a_function_that_raises_is_named():
    def greedy(view: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> None:
        raise KeyError("gpus")

    with pytest.raises(InvalidInputError, match=r"resources_allocation_function .*greedy raised KeyError .*'gpus'"):
        play(lambda: ResourceChangingScheduler(None, greedy), Population([Script([1])], is_class=True))


def test_more_than_there_is_is_not_given():
    make = lambda: ResourceChangingScheduler(None, always({"cpu": 99}))  # noqa: E731
    with pytest.warns(UserWarning, match=r"wants \{'CPU': 99.0\}"):
        table = play(make, Population([Script([1] * 3)], slots=2, is_class=True))
    assert table.statuses() == ["TERMINATED"]
    assert resized(table) == []


def test_without_a_function_nothing_changes_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="resources_allocation_function is None"):
        scheduler = ResourceChangingScheduler(FIFOScheduler(), None)
    table = play(lambda: scheduler, Population([Script([1] * 3)], slots=4, is_class=True))
    assert resized(table) == []


@pytest.mark.parametrize("arguments", [("fifo",), (None, 3)])
def test_arguments_of_another_kind_are_refused(arguments):
    with pytest.raises(InvalidTypeError):
        ResourceChangingScheduler(*arguments)


@pytest.mark.parametrize("settings", [{"increase_by": {"CPU": 0}}, {"increase_by": {"CPU": -1}}])
def test_steps_that_add_nothing_are_refused(settings):
    with pytest.raises(InvalidInputError):
        DistributeResources(**settings)


# --- rules


def test_functions_are_left_alone_until_they_have_a_checkpoint(monkeypatch):
    monkeypatch.setattr(INFO, "is_class", False)
    never = play(ResourceChangingScheduler, Population([Script([1] * 4, saves_every=0)], slots=4))
    assert resized(never) == []
    later = play(ResourceChangingScheduler, Population([Script([1] * 6, saves_every=2)], slots=4))
    assert resized(later) == [(0, 4.0)]
    # Asked at the third report, when the checkpoint of the second was committed: the third step is done again.
    assert len(later.reports()) == 7
    assert later.rows(0) == 6


def test_trials_must_begin_with_equal_resources():
    scripts = [Script([1]), Script([1], request={"CPU": 2.0})]
    with pytest.raises(RuntimeError, match="equal resources"):
        play(ResourceChangingScheduler, Population(scripts, slots=4))


def test_a_resized_trial_that_runs_again_is_not_taken_for_an_unequal_one():
    population = Population([Script([1] * 5, fails_at=(4,)), Script([1] * 5)], slots=4, is_class=True)
    table = play(ResourceChangingScheduler, population)
    assert table.statuses() == ["ERROR", "TERMINATED"]
    table.play_again(errored="resume")
    assert table.statuses() == ["TERMINATED"] * 2
    assert table.rows(0) == 5


def test_workers_cannot_be_used_again():
    config = TuneConfig(scheduler=ResourceChangingScheduler(), reuse_actors=True)
    with pytest.raises(ValueError, match=r"reuse_actors=True"):
        check_algorithms(config, {}, seed=0)
    check_algorithms(TuneConfig(scheduler=ResourceChangingScheduler()), {}, seed=0)
    check_algorithms(TuneConfig(scheduler="resource_changing"), {}, seed=0)


def test_the_base_scheduler_decides_about_metric_mode_and_searchers():
    class Chooser(FIFOScheduler):
        works_with_searchers = False
        _needs_metric = True

    scheduler = ResourceChangingScheduler(Chooser())
    assert scheduler.works_with_searchers is False
    with pytest.raises(InvalidInputError, match="without a valid `metric`"):
        scheduler.check_ready()
    assert scheduler.set_search_properties("loss", "min", seed=3)
    assert (scheduler.metric, scheduler.mode, scheduler.base_scheduler._seed) == ("loss", "min", 3)
    assert not scheduler.set_search_properties("other", None)
    scheduler.check_ready()
    assert "Chooser" in scheduler.debug_string()
    assert ResourceChangingScheduler().works_with_searchers


class Diary(TrialScheduler):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("on_", "choose_")):
            self.calls.append(name)
        return super().__getattribute__(name)


def test_the_base_scheduler_hears_everything():
    diary = Diary()
    population = Population([Script([1] * 3), Script([1] * 3, fails_at=(2,))], slots=4, is_class=True)
    play(lambda: ResourceChangingScheduler(diary), population)
    heard = {"on_trial_add", "on_trial_start", "on_trial_result", "on_trial_pause", "on_trial_save"}
    assert heard | {"on_trial_complete", "on_trial_error", "choose_trial_to_run"} <= set(diary.calls)
    scheduler: Any = ResourceChangingScheduler(diary)
    scheduler.on_standstill(None)
    assert diary.calls[-1] == "on_standstill"


class Holding(TrialScheduler):
    """Starts pending trials and never one that is paused, as a scheduler does that has paused none."""

    def choose_trial_to_run(self, view: Any) -> Any:
        return view.first_that_fits(view.pending)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def test_a_trial_that_was_paused_for_its_size_goes_on_whatever_the_base_scheduler_starts():
    population = Population([Script([1] * 5), Script([1] * 5)], slots=4, is_class=True)
    table = play(lambda: ResourceChangingScheduler(Holding()), population)
    assert table.events(ev.StoodStill) == []
    assert table.statuses() == ["TERMINATED"] * 2
    assert resized(table)


class Sleepy(TrialScheduler):
    """Pauses each trial once, at its second report, and wakes it when nothing else can happen."""

    def __init__(self) -> None:
        self.awake = False

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        return self.PAUSE if result["training_iteration"] == 2 else self.CONTINUE

    def choose_trial_to_run(self, view: Any) -> Any:
        return view.first_that_fits(view.pending) or (view.first_that_fits(view.paused) if self.awake else None)

    def on_standstill(self, view: Any) -> None:
        self.awake = True

    def get_state(self) -> dict[str, Any]:
        return {"awake": self.awake}

    def set_state(self, state: dict[str, Any]) -> None:
        self.awake = state["awake"]


def test_a_pause_of_the_base_scheduler_stays_its_own():
    population = Population([Script([1] * 4), Script([1] * 4)], slots=2, is_class=True)
    table = play(lambda: ResourceChangingScheduler(Sleepy()), population)
    assert len(table.events(ev.StoodStill)) == 1
    assert table.statuses() == ["TERMINATED"] * 2


# --- crashes

POPULATIONS = [
    Population([Script([1] * 4), Script([2] * 6, step_s=1.3), Script([3] * 5)], slots=5, is_class=True),
    Population([Script([1] * 5, lost_at=(3,)), Script([2] * 6)], slots=4, max_failures=1),
]


def make_top() -> ResourceChangingScheduler:
    return ResourceChangingScheduler(CopyingScheduler(3, remembers=True), DistributeResourcesToTopJob())


@pytest.mark.parametrize("make", [ResourceChangingScheduler, make_top])
@pytest.mark.parametrize("population", POPULATIONS)
def test_from_its_stored_memory_it_goes_on_exactly(make, population):
    """At each turn's end the adapter is replaced by one that knows nothing but what was stored."""
    expected = [ev.encode(event) for event in play(make, population).history]

    class Reborn(Table):
        def _turn(self, observations: Any) -> None:
            super()._turn(observations)
            memory = self.adapter.get_state()
            self.adapter = retold(self.make_scheduler, self.population, [])
            self.adapter.set_state(memory)

    assert [ev.encode(event) for event in Reborn(make, population).play().history] == expected


@pytest.mark.parametrize("make", [ResourceChangingScheduler, make_top])
@pytest.mark.parametrize("population", POPULATIONS)
def test_told_the_past_it_remembers_all_but_asks_for_nothing(make, population):
    table = play(make, population)
    for count, memory in table.memories:
        adapter = retold(make, population, table.history[:count])
        assert not [wanted for wanted in adapter.requests(table.state) if type(wanted).__name__ == "Resize"]
        live = retold(make, population, [])
        live.set_state(memory)
        assert adapter.scheduler.get_state() == live.scheduler.get_state()


@pytest.mark.parametrize("population", POPULATIONS)
def test_a_crash_at_any_moment_loses_no_step_and_no_size(population):
    count = len(play(ResourceChangingScheduler, population).history)
    for after in range(1, count + 1, 3):
        table = play_with_crashes(ResourceChangingScheduler, population, [after])
        assert table.statuses() == ["TERMINATED"] * len(population.scripts)
        assert [table.rows(n) for n in range(len(population.scripts))] == [script.last for script in population.scripts]
        assert most_used(table) <= population.slots


def test_an_experiment_that_goes_on_on_a_smaller_machine_does_not_wait_for_ever():
    population = Population([Script([1] * 6), Script([1] * 6)], slots=8, is_class=True)
    undisturbed = play(ResourceChangingScheduler, population)
    grown = next(k for k, e in enumerate(undisturbed.history) if isinstance(e, ev.TrialResized)) + 1

    table = Table(ResourceChangingScheduler, population)
    table.history = undisturbed.history[: grown + 20]
    table.state = folded(table.history, table._policies.rules)
    table.adapter = retold(ResourceChangingScheduler, population, table.history)
    table.adapter.choose = lambda *asked: type(table.adapter).__mro__[1].choose(table.adapter, *asked)
    assert max(size for _, size in resized(table)) > 2
    table._turn([ob.Capacity({"CPU": 2}), ob.Resumed(lost="crashed")])
    for _ in range(200):
        if all(trial.final for trial in table.state.trials):
            break
        table._turn(table._next() if table._due else [])
    assert table.statuses() == ["TERMINATED"] * 2
    assert resized(table)[-1][1] <= 2


def test_on_a_cluster_no_trial_is_given_more_than_one_machine_has():
    """The whole cluster has eight CPUs, but a trial cannot be on two machines."""
    population = Population([Script([1] * 6), Script([1] * 6)], slots=8, is_class=True)
    table = Table(ResourceChangingScheduler, population)
    table._play([ob.Capacity({"CPU": 8}, ({"CPU": 3}, {"CPU": 2}))])
    assert table.statuses() == ["TERMINATED"] * 2
    assert max(size for _, size in resized(table)) == 3


def test_on_a_cluster_a_trial_that_grew_on_a_lost_machine_gets_back_what_it_began_with():
    population = Population([Script([1] * 6)], slots=8, is_class=True)
    undisturbed = play(ResourceChangingScheduler, population)
    grown = next(k for k, e in enumerate(undisturbed.history) if isinstance(e, ev.TrialResized)) + 1

    table = Table(ResourceChangingScheduler, population)
    table.history = undisturbed.history[:grown]
    table.state = folded(table.history, table._policies.rules)
    table.adapter = retold(ResourceChangingScheduler, population, table.history)
    table.adapter.choose = lambda *asked: type(table.adapter).__mro__[1].choose(table.adapter, *asked)
    table._turn([ob.Capacity({"CPU": 8}, ({"CPU": 2},)), ob.Resumed(lost="crashed")])
    for _ in range(200):
        if all(trial.final for trial in table.state.trials):
            break
        table._turn(table._next() if table._due else [])
    assert table.statuses() == ["TERMINATED"]
    assert all(size <= 2 for _, size in resized(table)[1:])


def test_no_population_hangs():
    assert_never_hangs(ResourceChangingScheduler, range(100))
    assert_never_hangs(make_top, range(150, 220))
    assert_never_hangs(lambda: ResourceChangingScheduler(Holding()), range(250, 300))
    for table in assert_never_hangs(ResourceChangingScheduler, range(300, 330)):
        assert most_used(table) <= table.population.slots


@pytest.mark.parametrize(
    "make_base", [lambda: create_scheduler("asha", max_t=8), lambda: create_scheduler("hyperband", max_t=9)]
)
def test_schedulers_that_end_and_pause_trials_can_be_the_base(make_base):
    tables = assert_never_hangs(lambda: ResourceChangingScheduler(make_base()), range(40))
    assert sum(len(resized(table)) for table in tables) > 10
    assert all(most_used(table) <= table.population.slots for table in tables)


def test_sizes_at_random_hang_nothing_either():
    def whim(view: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> Any:
        rng = scheduler.rng(trial.n, trial.record.judged)
        return {"CPU": rng.integers(1, int(view.capacity["CPU"]) + 1)} if rng.random() < 0.5 else None

    for table in assert_never_hangs(lambda: ResourceChangingScheduler(None, whim), range(60)):
        assert most_used(table) <= table.population.slots


def test_it_is_made_by_name():
    scheduler = create_scheduler("resource_changing", base_scheduler=FIFOScheduler())
    assert isinstance(scheduler, ResourceChangingScheduler)
    assert play(lambda: scheduler, random_population(3)).statuses()
