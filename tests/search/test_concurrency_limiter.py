"""ConcurrencyLimiter: who waits, for whom, and never for nobody."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from search_world import Notebook

import holdfast as tune
from holdfast.errors import CannotWrapError, InvalidInputError
from holdfast.search.basic_variant import BasicVariantGenerator
from holdfast.search.concurrency_limiter import ConcurrencyLimiter
from holdfast.search.optuna import OptunaSearch
from holdfast.search.replayable import Asked, Completed, NoMoreSuggestions, NotNow, Suggested
from holdfast.search.searcher import Searcher, can_snapshot, hears_results
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live, trial_name

SPACE = {"x": tune.uniform(-5, 5), "kind": tune.choice(["a", "b"])}


class FilesOnly(Searcher):
    """Can be saved to a file and in no other way."""

    count = 0

    def suggest(self, trial_id: str) -> Any:
        self.count += 1
        return {"x": self.count}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(str(self.count))

    def restore(self, checkpoint_path: str) -> None:
        self.count = int(Path(checkpoint_path).read_text())


def score(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"] ** 2}


def test_no_more_than_so_many_are_live() -> None:
    limiter = ConcurrencyLimiter(Notebook(), 2)
    assert limiter.suggest("a")
    assert limiter.suggest("b")
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"loss": 1.0})
    assert limiter.searcher.heard == [("a", {"loss": 1.0}, False)]
    assert limiter.suggest("c")
    assert limiter.suggest("d") is None


def test_every_way_to_end_makes_room() -> None:
    """Also that of trials which were removed while they waited, or given up by a restore: they have no result."""
    limiter = ConcurrencyLimiter(Notebook(), 1)
    for n, (result, error) in enumerate([({"loss": 1.0}, False), (None, False), (None, True), ({"loss": 1.0}, True)]):
        assert limiter.suggest(str(n))
        assert limiter.suggest("no") is None
        limiter.on_trial_complete(str(n), result, error)
    assert limiter.suggest("last")


def test_a_trial_that_ends_twice_makes_room_once() -> None:
    limiter = ConcurrencyLimiter(Notebook(), 2)
    limiter.suggest("a")
    limiter.suggest("b")
    limiter.on_trial_complete("a", None, error=True)
    limiter.suggest("c")
    limiter.on_trial_complete("a", {"loss": 1.0})  # it was resumed, and ended in order
    assert limiter.suggest("d") is None
    assert [heard[0] for heard in limiter.searcher.heard] == ["a", "a"]


def test_not_now_and_never_again_do_not_count_as_live() -> None:
    limiter = ConcurrencyLimiter(Notebook(patience=1), 3)
    assert limiter.suggest("a")
    assert limiter.suggest("b") is None
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"loss": 1.0})
    assert limiter.suggest("b")
    ended = ConcurrencyLimiter(Notebook(total=1), 3)
    assert ended.suggest("a")
    assert ended.suggest("b") == Searcher.FINISHED
    assert ended.suggest("c") == Searcher.FINISHED


# --- batches


def test_a_batch_is_told_when_all_of_it_has_ended() -> None:
    limiter = ConcurrencyLimiter(Notebook(), 3, batch=True)
    inner = limiter.searcher
    limiter.suggest("a")
    limiter.on_trial_complete("a", {"loss": 1.0})
    limiter.suggest("b")
    limiter.suggest("c")
    assert limiter.suggest("d") is None
    limiter.on_trial_complete("c", None, error=True)
    assert inner.heard == []
    assert limiter.suggest("d") is None
    limiter.on_trial_complete("b", {"loss": 2.0})
    assert inner.heard == [("a", {"loss": 1.0}, False), ("c", None, True), ("b", {"loss": 2.0}, False)]
    assert limiter.suggest("d")


def test_a_batch_that_the_searcher_does_not_fill_ends_all_the_same() -> None:
    """It wants to hear of the first two before it suggests more, and would wait for ever."""
    limiter = ConcurrencyLimiter(Notebook(patience=2), 5, batch=True)
    limiter.suggest("a")
    limiter.suggest("b")
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"loss": 1.0})
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("b", {"loss": 1.0})
    assert limiter.suggest("c")
    limiter.on_trial_complete("c", {"loss": 1.0})
    assert limiter.suggest("d")


def test_the_last_batch_is_told_too() -> None:
    limiter = ConcurrencyLimiter(Notebook(total=4), 3, batch=True)
    for name in "abc":
        limiter.suggest(name)
    for name in "abc":
        limiter.on_trial_complete(name, {"loss": 1.0})
    assert limiter.suggest("d")
    assert limiter.suggest("e") == Searcher.FINISHED
    limiter.on_trial_complete("d", {"loss": 1.0})
    assert [heard[0] for heard in limiter.searcher.heard] == ["a", "b", "c", "d"]


def test_a_trial_of_the_batch_that_was_resumed_counts_as_it_ended_last() -> None:
    limiter = ConcurrencyLimiter(Notebook(), 2, batch=True)
    limiter.suggest("a")
    limiter.suggest("b")
    limiter.on_trial_complete("a", None, error=True)
    limiter.on_trial_complete("a", {"loss": 3.0})
    limiter.on_trial_complete("b", {"loss": 4.0})
    assert limiter.searcher.heard == [("a", {"loss": 3.0}, False), ("b", {"loss": 4.0}, False)]


@pytest.mark.parametrize("batch", [False, True])
def test_nothing_hangs_in_hundreds_of_random_stories(batch: bool) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        total, patience, limit = rng.randint(1, 12), rng.randint(1, 5), rng.randint(1, 5)
        adapter = SearcherHarness(
            ConcurrencyLimiter(Notebook(total, patience), limit, batch), {"x": tune.uniform(0, 1)}
        )
        live(adapter, score, trials=1000, slots=rng.randint(1, 6), seed=seed)
        assert len(adapter.configs) == total, f"seed {seed}"


# --- memory


@pytest.mark.parametrize("batch", [False, True])
def test_it_continues_exactly_around_tpe(batch: bool) -> None:
    search = ConcurrencyLimiter(OptunaSearch(), 4, batch)
    assert can_snapshot(search)

    def make() -> SearcherHarness:
        return SearcherHarness(search, SPACE)

    assert_exact_resume(make, live(make(), score, trials=20, slots=6), every=3, ahead=16)


def test_it_remembers_for_searchers_that_only_know_files(tmp_path: Path) -> None:
    limiter = ConcurrencyLimiter(FilesOnly(), 2)
    limiter.suggest("a")
    limiter.suggest("b")
    assert can_snapshot(limiter)
    limiter.save(str(tmp_path / "memory"))
    again = ConcurrencyLimiter(FilesOnly(), 2)
    again.restore(str(tmp_path / "memory"))
    assert again.suggest("c") is None
    again.on_trial_complete("a", {"loss": 1.0})
    assert again.suggest("c") == {"x": 3}


def test_the_limiter_owes_an_answer_until_there_is_room() -> None:
    adapter = SearcherHarness(ConcurrencyLimiter(OptunaSearch(), 1), SPACE, limit=2)
    answers = adapter.hear(Asked(3))
    assert [type(answer) for answer in answers] == [Suggested, NotNow]
    adapter.hear(0)
    answers = adapter.hear(Completed(trial_name(0), None, True))
    assert [type(answer) for answer in answers] == [Suggested, NoMoreSuggestions]


# --- what it passes on


def test_everything_else_is_passed_on() -> None:
    limiter = ConcurrencyLimiter(Notebook(), 2)
    inner = limiter.searcher
    assert limiter.set_search_properties("a", "min", {"x": 1}, seed=3)
    limiter.on_trial_result("t", {"loss": 1})
    limiter.on_pause("t")
    limiter.on_unpause("t")
    limiter.add_evaluated_point({"x": 1}, 2.0, pruned=True)
    assert inner.other == [
        ("a", "min", {"x": 1}, {"seed": 3}),
        ("t", {"loss": 1}),
        ("pause", "t"),
        ("unpause", "t"),
        ({"x": 1}, 2.0, False, True, None),
    ]
    assert (limiter.metric, limiter.mode) == ("loss", "min")
    assert hears_results(limiter)
    assert not hears_results(ConcurrencyLimiter(OptunaSearch(), 2))


def test_a_searcher_that_sees_to_it_itself_is_left_alone() -> None:
    class Careful(Notebook):
        def set_max_concurrency(self, max_concurrent: int) -> bool:
            self.limit = max_concurrent
            return True

    limiter = ConcurrencyLimiter(Careful(), 2)
    assert limiter.searcher.limit == 2
    assert all(limiter.suggest(str(n)) for n in range(4))


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, None])
def test_a_limit_that_is_no_number_above_zero_is_refused(number: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_concurrent"):
        ConcurrencyLimiter(Notebook(), number)


def test_what_is_no_searcher_is_refused() -> None:
    with pytest.raises(CannotWrapError, match="only works with `Searcher` objects") as caught:
        ConcurrencyLimiter(BasicVariantGenerator(), 2)  # type: ignore[arg-type]
    assert isinstance(caught.value, RuntimeError)
