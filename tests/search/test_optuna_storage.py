"""OptunaSearch with a storage of the user's: it is read once, and written as a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna_world import learned, score, told

import holdfast as tune
from holdfast.errors import InvalidInputError, StorageError
from holdfast.search.optuna import OptunaSearch
from holdfast.search.searcher import hears_results
from holdfast.testing.searcher_contract import SearcherHarness, assert_exact_resume, live, retold, trial_name


def storages(folder: Path) -> dict[str, Any]:
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    return {"url": f"sqlite:///{folder}/study.db", "journal": optuna.storages.JournalStorage(backend)}


@pytest.mark.parametrize("kind", [pytest.param("url", marks=pytest.mark.slow), "journal"])
def test_a_storage_gets_every_trial_once_however_often_the_past_is_told(kind: str, tmp_path: Path) -> None:
    storage = storages(tmp_path)[kind]
    search = OptunaSearch(storage=storage, study_name="mine")
    assert hears_results(search)

    def make() -> SearcherHarness:
        return SearcherHarness(
            search, {"x": tune.uniform(0, 1), "c": tune.choice([{"a": 1}, {"a": tune.uniform(0, 1)}])}
        )

    adapter = make()
    history = live(adapter, score, trials=8, slots=2, with_results=True)
    assert_exact_resume(make, history, every=9, ahead=20)
    study = optuna.load_study(study_name="mine", storage=storage)
    ours = [trial.user_attrs["holdfast_trial_id"] for trial in study.trials]
    assert sorted(ours) == [trial_name(n) for n in range(8)]
    by_id = {trial.user_attrs["holdfast_trial_id"]: trial for trial in study.trials}
    for n, config in adapter.configs.items():
        assert by_id[trial_name(n)].params["x"] == config["x"]
        assert list(by_id[trial_name(n)].intermediate_values.values()) == [score(config)["loss"]]


def test_what_a_storage_holds_at_the_beginning_is_learned_from_and_nothing_that_comes_later(tmp_path: Path) -> None:
    storage = storages(tmp_path)["url"]
    study = optuna.create_study(storage=storage, study_name="mine")
    for x in (0.1, 0.2):
        study.add_trial(
            optuna.trial.create_trial(
                params={"x": x}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}, value=x
            )
        )
    study.ask()  # somebody else is busy
    search = OptunaSearch(storage=storage, study_name="mine")

    def make() -> SearcherHarness:
        return SearcherHarness(search, {"x": tune.uniform(0, 1)})

    adapter = make()
    history = live(adapter, score, trials=14, slots=2)
    assert [trial.value for trial in learned(adapter.searcher)[:2]] == [0.1, 0.2]
    study.tell(2, 0.7)
    study.add_trial(
        optuna.trial.create_trial(
            params={"x": 0.9}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}, value=0.9
        )
    )
    again = make()
    retold(again, history)
    assert again.configs == adapter.configs
    assert len(optuna.load_study(study_name="mine", storage=storage).trials) == 2 + 1 + 14 + 1


def test_a_second_experiment_learns_from_the_first_through_the_storage(tmp_path: Path) -> None:
    storage = storages(tmp_path)["url"]
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=storage, seed=1)
    for n in range(3):
        told(search, f"aaaaa_{n}", n)
    second = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=storage, seed=1)
    second.suggest("bbbbb_0")
    assert [trial.value for trial in learned(second)[:-1]] == [0, 1, 2]


def test_a_storage_with_other_objectives_is_refused(tmp_path: Path) -> None:
    storage = storages(tmp_path)["url"]
    optuna.create_study(storage=storage, study_name="mine", direction="maximize")
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=storage, study_name="mine")
    with pytest.raises(InvalidInputError, match="another study_name"):
        search.suggest("a")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"x": tune.uniform(0, 1), "k": tune.choice(["a", "b"])}, r"'x' in FloatDistribution\(high=10.0"),
        ({"x": tune.loguniform(1, 10), "k": tune.choice(["a", "b"])}, "'x' in FloatDistribution"),
        ({"x": tune.randint(1, 11), "k": tune.choice(["a", "b"])}, "'x' in FloatDistribution"),
        ({"x": tune.uniform(1, 10), "k": tune.choice(["a", "c"])}, "'k' in CategoricalDistribution"),
        ({"x": tune.uniform(1, 10)}, "a parameter 'k', and the search space has none"),
        ({"x": tune.uniform(1, 10), "k": tune.choice(["a", "b"]), "y": tune.uniform(0, 1)}, "no parameter 'y'"),
    ],
)
def test_a_study_with_other_parameters_is_refused_and_left_as_it_was(
    tmp_path: Path, space: dict[str, Any], words: str
) -> None:
    storage = storages(tmp_path)["journal"]
    study = optuna.create_study(storage=storage, study_name="mine")
    kinds = optuna.distributions
    ranges = {"x": kinds.FloatDistribution(1, 10), "k": kinds.CategoricalDistribution(["a", "b"])}
    study.add_trial(optuna.trial.create_trial(params={"x": 2.0, "k": "a"}, distributions=ranges, value=1.0))
    search = OptunaSearch(space, "loss", "min", storage=storage, study_name="mine")
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=f"{words}.*another study_name"):
            search.suggest("a")
    assert len(study.trials) == 1
    assert study.user_attrs == {}
    same = {"x": tune.uniform(1, 10), "k": tune.choice(["a", "b"])}
    OptunaSearch(same, "loss", "min", storage=storage, study_name="mine").suggest("a")


def test_an_experiment_that_has_begun_is_not_refused_later(tmp_path: Path) -> None:
    """Earlier versions did not compare the ranges; what they began continues."""
    storage = storages(tmp_path)["journal"]
    study = optuna.create_study(storage=storage, study_name="mine")
    ranges = {"x": optuna.distributions.FloatDistribution(0, 5)}
    study.add_trial(optuna.trial.create_trial(params={"x": 0.5}, distributions=ranges, value=1.0))
    study.set_user_attr("holdfast_began_with:a", [1, []])
    OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=storage, study_name="mine").suggest("a")


def test_a_storage_that_cannot_be_reached_does_not_stop_the_search(tmp_path: Path) -> None:
    storage = storages(tmp_path)["url"]
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=storage, study_name="mine", seed=1)
    told(search, "a", 1.0)
    study = search._copy._study

    class Broken:
        def add_trial(self, trial: Any) -> None:
            raise OSError("gone")

    search._copy._study = Broken()
    with pytest.warns(RuntimeWarning, match="cannot be copied to the Optuna storage now"):
        told(search, "b", 2.0)
    told(search, "c", 3.0)
    search._copy._study = study
    told(search, "d", 4.0)
    assert [trial.value for trial in study.trials] == [1.0, 2.0, 3.0, 4.0]


def test_a_storage_that_cannot_be_reached_at_the_start_is_named_without_its_password(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path}/nowhere/study.db?password=secret"
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "min", storage=missing, study_name="mine")
    with pytest.raises(StorageError, match="'mine' cannot be read from the storage of OptunaSearch") as raised:
        search.suggest("a")
    assert "secret" not in str(raised.value)
