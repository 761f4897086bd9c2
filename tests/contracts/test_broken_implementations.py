"""The suites find what is wrong: each class here breaks one promise, and the check of that promise must fail."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from simulated_fakes import SimulatedPlace, simulated_engine

from holdfast.core.observations import Capacity, Joined
from holdfast.schedulers import TrialScheduler
from holdfast.search import Searcher
from holdfast.storage.store import Replaced, Stat
from holdfast.testing import (
    engine_contract,
    journal_contract,
    scheduler_contract,
    searcher_contract,
    store_contract,
)
from holdfast.testing.memory_store import MemoryStore
from simulator.engine import FakeEngine
from simulator.fake_world import SimJournal


class OverwritingStore(MemoryStore):
    """Lets every creator win."""

    def create(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class UnsortedStore(MemoryStore):
    def list(self, prefix: str) -> list[Stat]:
        return super().list(prefix)[::-1]


class CarelessStore(MemoryStore):
    """Replaces whatever is there."""

    def _replace(self, path: str, key: str, version: str) -> Replaced:
        there = self._objects.get(key)
        return super()._replace(path, key, "" if there is None else there.version)


class RepeatingEngine(FakeEngine):
    """Launches an attempt as often as it is told to."""

    def launch(self, run: Any) -> None:
        self._launched.pop(run.n, None)
        super().launch(run)


class EagerEngine(FakeEngine):
    """Speaks of workers before it says what there is."""

    def open(self, setup: Any) -> None:
        self._inbox.append(Joined(1, "host", "10.0.0.1", 100))
        self._inbox.append(Capacity({"CPU": 4.0}))


class BoastingJournal(SimJournal):
    """Calls records durable that are in the page cache."""

    @property
    def synced_seq(self) -> int:
        return self.written_seq

    local_seq = durable_seq = synced_seq


class UnfencedJournal(SimJournal):
    """Does not look for a successor."""

    def _check_fence(self) -> None:
        pass


class Stopping(TrialScheduler):
    """The base of the broken ones: stops the trial that brings every fourth report."""

    def __init__(self) -> None:
        self._seen = 0

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        self._seen += 1
        return self.STOP if self._seen % 4 == 0 else self.CONTINUE

    def get_state(self) -> dict[str, Any] | None:
        return {"seen": self._seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]


class ForgetfulScheduler(Stopping):
    def get_state(self) -> dict[str, Any]:
        return {"seen": max(0, self._seen - 1)}


class DependentScheduler(Stopping):
    """Decides by something that is not part of history."""

    made = 0

    def __init__(self) -> None:
        DependentScheduler.made += 1
        self._seen = DependentScheduler.made


class AskedScheduler(Stopping):
    """Changes its memory when it is asked what to start."""

    def choose_trial_to_run(self, view: Any) -> Any:
        self._seen += 1
        return view.first_waiting()


class GreedyScheduler(TrialScheduler):
    """Wants more for a trial than there is, so that it never runs again."""

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        view.resize_trial(trial, {"CPU": 99.0})
        return self.PAUSE


class RollingScheduler(TrialScheduler):
    """Uses random numbers of the process."""

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        return self.STOP if random.random() < 0.3 else self.CONTINUE


class LosingScheduler(Stopping):
    """Takes nothing of what it has stored."""

    def set_state(self, state: dict[str, Any]) -> None:
        self._seen = 0


class Sampling(Searcher):
    """The base of the broken ones: a right searcher, of a space with ``x`` and ``y``."""

    def __init__(self) -> None:
        super().__init__("loss", "min")
        self.count = 0

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self.seed = spec["seed"]
        return True

    def suggest(self, trial_id: str) -> Any:
        self.count += 1
        rng = random.Random(f"{self.seed}-{self.count}")
        return {"x": rng.uniform(-5, 5), "y": rng.uniform(0, 1)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class WideSearcher(Sampling):
    def suggest(self, trial_id: str) -> Any:
        return {**super().suggest(trial_id), "y": 1.5}


class RollingSearcher(Sampling):
    def suggest(self, trial_id: str) -> Any:
        return {"x": random.uniform(-5, 5), "y": random.uniform(0, 1)}


class ForgetfulSearcher(Sampling):
    def set_state(self, state: dict[str, Any]) -> None:
        self.count = 0


class FragileSearcher(Sampling):
    """Believes that every trial has reported a number."""

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        assert error or math.isfinite(result["loss"])


class CountingSearcher(Sampling):
    """Does not survive the second end of a trial."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: set[str] = set()

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        assert trial_id not in self.ended
        self.ended.add(trial_id)


STORE, ENGINE, JOURNAL = store_contract, engine_contract, journal_contract
SCHEDULER, SEARCHER = scheduler_contract, searcher_contract

BROKEN: list[tuple[Any, Any]] = [
    (OverwritingStore, STORE.check_create_keeps_what_is_there),
    (OverwritingStore, STORE.check_of_many_creators_one_wins),
    (UnsortedStore, STORE.check_listings_are_in_order_and_go_by_prefix),
    (CarelessStore, STORE.check_a_replacement_keeps_what_somebody_else_has_written),
    (lambda: simulated_engine(RepeatingEngine), ENGINE.check_the_same_attempt_is_launched_once),
    (lambda: simulated_engine(EagerEngine), ENGINE.check_capacity_is_told_before_anything_runs),
    (lambda: SimulatedPlace(kind=BoastingJournal), JOURNAL.check_records_become_durable_when_asked_for),
    (lambda: SimulatedPlace(kind=UnfencedJournal), JOURNAL.check_a_driver_that_was_taken_over_cannot_write),
    (ForgetfulScheduler, SCHEDULER.check_it_decides_the_same_with_its_memory),
    (DependentScheduler, SCHEDULER.check_it_decides_the_same_when_it_is_told_everything_again),
    (AskedScheduler, SCHEDULER.check_every_experiment_ends),
    (GreedyScheduler, SCHEDULER.check_every_experiment_ends),
    (RollingScheduler, SCHEDULER.check_it_leaves_the_global_generator_alone),
    (DependentScheduler, SCHEDULER.check_killed_drivers_change_nothing_where_nothing_depends_on_time),
    (LosingScheduler, SCHEDULER.check_its_memory_is_plain_data),
    (WideSearcher, SEARCHER.check_it_suggests_values_of_the_space),
    (RollingSearcher, SEARCHER.check_the_same_seed_gives_the_same_search),
    (RollingSearcher, SEARCHER.check_it_leaves_global_generators_alone),
    (RollingSearcher, SEARCHER.check_it_suggests_the_same_when_it_is_told_everything_again),
    (ForgetfulSearcher, SEARCHER.check_it_suggests_the_same_with_its_memory),
    (FragileSearcher, SEARCHER.check_it_survives_results_that_are_no_numbers),
    (CountingSearcher, SEARCHER.check_a_failed_trial_may_run_again_and_succeed),
]


@pytest.mark.parametrize(("make", "check"), BROKEN, ids=lambda each: getattr(each, "__name__", "made"))
def test_a_broken_promise_is_noticed(make: Any, check: Any) -> None:
    with pytest.raises((AssertionError, TypeError)):
        check(make)


@pytest.mark.parametrize("check", SCHEDULER.CHECKS)
def test_the_scheduler_that_they_derive_from_is_right(check: Any) -> None:
    check(Stopping)


@pytest.mark.parametrize("check", SEARCHER.CHECKS)
def test_the_searcher_that_they_derive_from_is_right(check: Any) -> None:
    check(Sampling)
