"""DurableTrainable: alone it copies what it saves; in an experiment it is a class trainable like any other."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError, SyncError
from holdfast.syncer import BackgroundSyncer, FunctionSyncer, get_cloud_sync_client


class Counts(tune.DurableTrainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.x = config.get("x", 0)

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x, "done": self.x == 4, "place": self.remote_checkpoint_dir}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, int]:
        return {"x": self.x}

    def load_checkpoint(self, checkpoint: dict[str, int]) -> None:
        self.x = checkpoint["x"]


class Recorded:
    """A storage client of the oldest generation: two directories, no answer, and everything is done in ``wait``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False
        self._todo: list[tuple[str, str]] = []

    def sync_up(self, source: str, target: str) -> None:
        self.calls.append("up")
        self._todo.append((source, target))

    def sync_down(self, source: str, target: str) -> None:
        self.calls.append("down")
        self._todo.append((source, target))

    def delete(self, target: str) -> None:
        self.calls.append(f"delete {Path(target).name}")
        shutil.rmtree(target)

    def wait(self) -> None:
        self.calls.append("wait")
        if self.fails:
            raise ConnectionError("the cable was cut")
        for source, target in self._todo:
            shutil.copytree(source, target, dirs_exist_ok=True)
        self._todo.clear()


class Own(Counts):
    def _create_storage_client(self) -> Any:
        return Recorded()


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def make() -> Any:
    """Makes instances that are stopped when the test ends, whose directories go with it."""
    made: list[tune.DurableTrainable] = []

    def build(kind: Callable[..., Any], *args: Any) -> Any:
        made.append(kind(*args))
        return made[-1]

    yield build
    for one in made:
        logdir = one.logdir
        one.stop()
        shutil.rmtree(logdir)


def test_a_checkpoint_is_restored_by_another_instance_after_the_first_ones_directory_is_lost(make, remote):
    first = make(Counts, remote, {"x": 1})
    first.train()
    path = first.save()
    shutil.rmtree(first.logdir)
    os.makedirs(first.logdir)
    second = make(Counts, remote, {})
    second.restore(path)
    assert (second.x, second.iteration) == (2, 1)
    assert second.train()["x"] == 3


def test_a_checkpoint_can_be_named_by_where_its_copy_is(make, remote):
    first = make(Counts, remote)
    first.train()
    copy = first._storage_path(first.save())
    second = make(Counts, remote)
    second.restore(copy)
    assert second.x == 1


def test_saving_copies_waits_and_only_then_returns(make, remote):
    trainable = make(Own, remote)
    trainable.train()
    path = trainable.save()
    assert trainable.storage_client.calls == ["up", "wait"]
    assert Path(remote, Path(path).name, "_dict_checkpoint.pkl").exists()
    trainable.restore(path)
    assert trainable.storage_client.calls == ["up", "wait", "down", "wait"]


def test_a_checkpoint_that_could_not_be_copied_is_not_returned(make, remote):
    trainable = make(Own, remote)
    trainable.train()
    trainable.storage_client.fails = True
    with pytest.raises(ConnectionError, match="the cable was cut") as caught:
        trainable.save()
    (note,) = caught.value.__notes__
    assert note.endswith(f"and not at {remote}.")
    trainable.storage_client.fails = False
    again = make(Counts, remote)
    again.restore(trainable.save())
    assert again.x == 1


def test_a_place_for_the_checkpoint_must_be_in_the_directory_that_is_copied(make, remote, tmp_path):
    trainable = make(Counts, remote)
    trainable.train()
    for elsewhere in (str(tmp_path / "elsewhere"), f"{trainable.logdir}-beside", f"{trainable.logdir}/.."):
        with pytest.raises(InvalidInputError, match="`logdir`, or below it"):
            trainable.save(elsewhere)
    assert not (tmp_path / "elsewhere").exists()
    named = trainable.save(os.path.join(trainable.logdir, "by", "name"))
    other = make(Counts, remote)
    other.restore(named)
    assert other.x == 1
    trainable.save(trainable.logdir)
    assert Path(remote, "_dict_checkpoint.pkl").exists()


def test_a_client_that_is_busy_is_waited_for(make, remote):
    class Busy(Recorded):
        def sync_up(self, source: str, target: str) -> bool:
            super().sync_up(source, target)
            return len(self.calls) > 1

    class Waits(Counts):
        def _create_storage_client(self) -> Any:
            return Busy()

    trainable = make(Waits, remote)
    trainable.train()
    trainable.save()
    assert trainable.storage_client.calls == ["up", "wait", "up", "wait"]


def test_deleting_removes_the_copy_too_and_nothing_else(make, remote, caplog):
    trainable = make(Counts, remote)
    trainable.train()
    old = trainable.save()
    trainable.train()
    new = trainable.save()
    trainable.delete_checkpoint(old)
    assert not Path(old).exists()
    assert [path.name for path in Path(remote).iterdir()] == [Path(new).name]
    with caplog.at_level(logging.WARNING, "holdfast"):
        trainable.delete_checkpoint(old)
    assert "does not exist" in caplog.text
    stranger = make(Counts, remote)
    with pytest.raises(InvalidInputError, match="`logdir`, or below it"):
        stranger.delete_checkpoint(new)
    assert Path(new).exists()
    assert Path(remote, Path(new).name).exists()


def test_what_was_deleted_and_saved_again_under_its_name_is_copied_again(make, remote):
    trainable = make(Counts, remote)
    place = os.path.join(trainable.logdir, "same")
    for x in (1, 2):
        trainable.train()
        saved = trainable.save(place)
        assert make_restored(make, remote, saved).x == x
        trainable.delete_checkpoint(saved)


def make_restored(make: Any, remote: str, saved: str) -> Any:
    other = make(Counts, remote)
    other.restore(saved)
    return other


def test_state_as_bytes_is_copied_nowhere(make, remote):
    first, second = make(Counts, remote), make(Counts, remote)
    first.train()
    second.restore_from_object(first.save_to_object())
    assert second.x == 1
    assert not Path(remote).exists()


def test_what_older_methods_return_inside_the_checkpoint_comes_back(make, remote):
    with pytest.warns(DeprecationWarning, match="older names"):

        class Prefixed(Counts):
            def _save(self, checkpoint_dir):
                Path(checkpoint_dir, "model.index").write_text(str(self.x))
                return os.path.join(checkpoint_dir, "model")

            def _restore(self, checkpoint):
                self.x = int(Path(f"{checkpoint}.index").read_text())

            save_checkpoint = tune.Trainable.save_checkpoint
            load_checkpoint = tune.Trainable.load_checkpoint

    first, second = make(Prefixed, remote), make(Prefixed, remote)
    first.train()
    path = first.save()
    assert path.endswith("/model")
    shutil.rmtree(os.path.dirname(path))
    second.restore(path)
    assert second.x == 1


def test_a_config_in_the_place_of_the_address_is_refused():
    with pytest.raises(InvalidTypeError, match=r"Counts\(remote_checkpoint_dir, config\)"):
        Counts({"x": 1})
    with pytest.raises(InvalidInputError, match="Upload uri must start with one of"):
        Counts("hdfs://somewhere/else")
    with pytest.raises(InvalidInputError, match="Upload uri must start with one of"):
        get_cloud_sync_client("hdfs://somewhere/else")


def test_it_has_its_names():
    import holdfast.trainable

    assert holdfast.trainable.DurableTrainable is tune.DurableTrainable
    assert issubclass(tune.DurableTrainable, tune.Trainable)
    assert set(tune.syncer.__all__) >= {"SyncConfig", "Syncer", "BackgroundSyncer", "CommandSyncer", "FunctionSyncer"}
    assert tune.syncer.SyncError is SyncError


# --- validate_save_restore


@pytest.mark.parametrize("kind", [Counts, Own])
def test_validate_save_restore_goes_through_the_copy(kind):
    assert tune.utils.validate_save_restore(kind, {"x": 5}) is True


class Forgets(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.saves, self.weights = 0, 0, [float("nan"), 0.0]

    def step(self) -> dict[str, Any]:
        self.x += 1
        self.weights = [float("nan"), float(self.x)]
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        self.saves += 1
        return {"x": self.x, "weights": self.weights, "saves": self.saves, "object": object()}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.x = checkpoint["x"]


def test_validate_save_restore_names_what_was_not_loaded():
    with pytest.raises(AssertionError, match=r"Forgets was restored after step 1, but 'weights' of what it would save"):
        tune.utils.validate_save_restore(Forgets)


class Remembers(Forgets):
    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.x, self.weights = checkpoint["x"], checkpoint["weights"]


def test_validate_save_restore_does_not_mind_what_changes_with_each_save():
    assert tune.utils.validate_save_restore(Remembers) is True


class RestoresItself(Remembers):
    def restore(self, checkpoint_path: Any) -> None:
        pass


def test_validate_save_restore_finds_a_restore_that_does_nothing():
    with pytest.raises(AssertionError, match="saved at iteration 1 and restored at 0"):
        tune.utils.validate_save_restore(RestoresItself)


# --- in experiments


def test_in_an_experiment_in_a_directory_its_place_is_the_trials_directory(make_tuner):
    (result,) = make_tuner(Counts, {"x": 1}).fit()
    assert result.error is None
    assert result.metrics["place"] == result.path
    assert result.checkpoint.to_dict()["x"] == 4


def test_in_an_experiment_it_is_retried_from_its_checkpoint(make_tuner, run_config, tmp_path):
    class Fails(Counts):
        def step(self):
            if self.x == 2 and self.iteration == 2 and not Path(self.config["mark"]).exists():
                Path(self.config["mark"]).touch()
                raise RuntimeError("once")
            return super().step()

    (result,) = make_tuner(
        Fails,
        {"mark": str(tmp_path / "mark")},
        failure_config=tune.FailureConfig(max_failures=1),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
    ).fit()
    assert result.error is None
    assert [row["x"] for row in result.metrics_history] == [1, 2, 3, 4]


def test_in_an_experiment_that_a_syncer_copies_its_place_is_the_copy_of_the_trial(make_tuner, tmp_path, storage):
    class Logs(BackgroundSyncer):
        def copy_up(self, local_dir, remote_dir, exclude):
            shutil.copytree(local_dir, remote_dir, dirs_exist_ok=True)

        def copy_down(self, remote_dir, local_dir, exclude):
            shutil.copytree(remote_dir, local_dir, dirs_exist_ok=True)

        def remove(self, remote_dir):
            shutil.rmtree(remote_dir)

    config = tune.SyncConfig(upload_dir=str(tmp_path / "far"), syncer=Logs())
    with pytest.warns(DeprecationWarning, match="local_dir"):
        tuner = make_tuner(Own, storage_path=None, local_dir=str(storage), sync_config=config)
    (result,) = tuner.fit()
    assert result.error is None
    place = Path(result.metrics["place"])
    assert place == tmp_path / "far" / "exp" / Path(result.path).name
    assert list(place.glob("checkpoint_*"))
    # Once: the instance itself has made no copies beside those of the experiment.
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == sorted(
        path.name for path in Path(result.path).glob("checkpoint_*")
    )


def test_in_an_experiment_instances_are_used_again(make_tuner):
    class Reused(Counts):
        def reset_config(self, new_config):
            self.x = new_config["x"]
            return True

    space = {"x": tune.grid_search([0, 1, 2])}
    engine = tune.LocalEngine(cpus=1)
    results = make_tuner(Reused, space, reuse_actors=True, engine=engine).fit()
    assert [result.metrics["place"] for result in results] == [result.path for result in results]


def test_an_own_storage_client_is_not_used_in_an_experiment_and_that_is_said(make_tuner):
    (result,) = make_tuner(Own, log_to_file=True).fit()
    assert result.error is None
    text = Path(result.path, "stderr").read_text() + Path(result.path, "stdout").read_text()
    assert "_create_storage_client() is not used in an experiment" in text


def test_an_instance_inside_a_function_trial_takes_care_of_itself(make_tuner, tmp_path):
    def train(config):
        counts = Counts(config["remote"], {})
        counts.train()
        saved = counts.save()
        again = Counts(config["remote"], {})
        again.restore(saved)
        tune.report({"x": again.x})
        counts.stop()
        again.stop()

    (result,) = make_tuner(train, {"remote": str(tmp_path / "remote")}).fit()
    assert result.metrics["x"] == 1


def test_a_function_of_two_directories_can_be_its_storage_client(make, remote):
    def copy(source: str, target: str) -> None:
        shutil.copytree(source, target, dirs_exist_ok=True)

    class ByFunction(Counts):
        def _create_storage_client(self) -> Any:
            return FunctionSyncer(copy)

    first, second = make(ByFunction, remote), make(ByFunction, remote)
    first.train()
    second.restore(first.save())
    assert second.x == 1
