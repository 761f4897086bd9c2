"""The public interface with an experiment in a bucket: nothing but the address differs."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_trainables import Counter, odd_files, plain, train, with_artifacts

import holdfast as tune
from holdfast.errors import ExperimentExistsError, ExperimentNotFoundError
from holdfast.storage.agent_client import connect
from servers.process import Server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps its mirrors; without it, the machine is empty."""
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(seaweedfs: Server, bucket_name: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> str:
    """The address of a fresh bucket of a server whose credentials are in the environment."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    seaweedfs.bucket(bucket_name)
    return f"s3://{bucket_name}"


@pytest.fixture
def make_tuner(bucket: str) -> Callable[..., tune.Tuner]:
    """`make_tuner(train, x=..., name=...)`; other fields go to the RunConfig."""

    def make(trainable: Any = train, space: Any = None, num_samples: int = 2, **fields: Any) -> tune.Tuner:
        known = {"name": "exp", "storage_path": f"{bucket}/runs", "verbose": 0, "engine": tune.LocalEngine(cpus=2)}
        return tune.Tuner(
            trainable,
            param_space={"x": tune.grid_search([1.0, 2.0])} if space is None else space,
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=1 if space is None else num_samples),
            run_config=tune.RunConfig(**{**known, **fields}),
        )

    return make


@pytest.fixture
def objects(bucket: str) -> Iterator[Callable[..., dict[str, bytes]]]:
    """`objects("runs/exp")`: everything below there."""
    opened = []

    def read(prefix: str) -> dict[str, bytes]:
        opened.append(connect(f"{bucket}/{prefix}"))
        return {stat.key: opened[-1].get(stat.key) for stat in opened[-1].list("")}

    yield read
    for store in opened:
        store.close()


def check_grid(grid: tune.ResultGrid, url: str) -> None:
    """What everybody should see of the experiment, wherever they are."""
    assert (len(grid), grid.num_errors, grid.num_terminated) == (2, 0, 2)
    assert grid.experiment_path == url
    best = grid.get_best_result()
    assert best.config == {"x": 1.0}
    assert best.metrics is not None
    assert best.metrics["step"] == 5
    assert best.path.startswith(url + "/")
    assert best.checkpoint is not None
    assert best.checkpoint.path.startswith(best.path + "/checkpoint_")
    with best.checkpoint.as_directory() as directory:
        assert json.loads((Path(directory) / "state.json").read_text()) == {"step": 5}
        assert (Path(directory) / "deep" / "er" / "weights.bin").stat().st_size == 5000
        assert (Path(directory) / "empty").stat().st_size == 0
    frame = best.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == [1, 2, 3, 4, 5]
    assert len(grid.get_dataframe()) == 2
    assert len(best.best_checkpoints) == 5


def test_an_experiment_in_a_bucket_is_read_straight_from_there(
    make_tuner: Callable[..., tune.Tuner], bucket: str, objects: Callable[..., Any], cache: Path
) -> None:
    url = f"{bucket}/runs/exp"
    check_grid(make_tuner().fit(), url)
    there = objects("runs/exp")
    results = [key for key in there if key.endswith("/result.json")]
    tables = [key for key in there if key.endswith("/progress.csv")]
    assert len(results) == len(tables) == 2
    for key in results:
        assert [json.loads(line)["step"] for line in there[key].splitlines()] == [1, 2, 3, 4, 5]
    for key in tables:
        rows = list(csv.DictReader(io.StringIO(there[key].decode())))
        assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert {"params.json", "params.pkl"} <= {key.rpartition("/")[2] for key in there}
    shutil.rmtree(cache, ignore_errors=True)
    assert tune.Tuner.can_restore(url)
    assert not tune.Tuner.can_restore(f"{bucket}/runs/other")
    check_grid(tune.Tuner.restore(url).get_results(), url)
    shutil.rmtree(cache, ignore_errors=True)
    check_grid(tune.Tuner.restore(url).fit(), url)
    assert objects("runs/exp").keys() >= there.keys()


def test_a_checkpoint_is_opened_by_its_address_alone(make_tuner: Callable[..., tune.Tuner], cache: Path) -> None:
    checkpoint = make_tuner().fit().get_best_result().checkpoint
    assert checkpoint is not None
    shutil.rmtree(cache, ignore_errors=True)
    again = tune.Checkpoint(checkpoint.path)
    with again.as_directory() as directory:
        assert json.loads((Path(directory) / "state.json").read_text()) == {"step": 5}
    again.set_metadata({"note": "good"})
    assert tune.Checkpoint(checkpoint.path).get_metadata() == {"note": "good"}
    copy = Path(again.to_directory())
    assert (copy / "deep" / "er" / "weights.bin").stat().st_size == 5000
    shutil.rmtree(copy)


@pytest.mark.slow
def test_a_failed_trial_goes_on_from_its_checkpoint_in_the_bucket(
    make_tuner: Callable[..., tune.Tuner], tmp_path: Path
) -> None:
    space = {"x": 1.0, "die_at": 3, "marker": str(tmp_path / "marker")}
    grid = make_tuner(space=space, num_samples=1, failure_config=tune.FailureConfig(max_failures=1)).fit()
    (result,) = grid
    assert result.error is None
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_errored_trials_are_restarted_on_an_empty_machine(
    make_tuner: Callable[..., tune.Tuner], tmp_path: Path, bucket: str, cache: Path
) -> None:
    space = {"x": 1.0, "die_at": 3, "marker": str(tmp_path / "marker")}
    grid = make_tuner(space=space, num_samples=1).fit()
    assert grid.num_errors == 1
    shutil.rmtree(cache, ignore_errors=True)
    again = tune.Tuner.restore(f"{bucket}/runs/exp", resume_errored=True).fit()
    (result,) = again
    assert result.error is None
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_class_trainables_keep_their_checkpoints_there(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    config = tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2)
    grid = make_tuner(Counter, space={}, num_samples=1, checkpoint_config=config).fit()
    assert grid.num_errors == 0
    shutil.rmtree(cache, ignore_errors=True)
    (result,) = tune.Tuner.restore(f"{bucket}/runs/exp").get_results()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        assert (Path(directory) / "count").read_text() == "4"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two words größe-β", "a+b=c&d 100%", "x#y a,b;c'd"])
def test_names_that_people_choose(make_tuner: Callable[..., tune.Tuner], bucket: str, name: str, cache: Path) -> None:
    make_tuner(plain, name=name).fit()
    shutil.rmtree(cache, ignore_errors=True)
    url = f"{bucket}/runs/{name}"
    assert tune.Tuner.can_restore(url)
    grid = tune.Tuner.restore(url).get_results()
    assert grid.experiment_path == url
    assert grid.num_terminated == 2


@pytest.mark.slow
def test_files_of_a_checkpoint_keep_their_names(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    names = ["a b", "ä/ö", "back\\slash", "new\nline", "100%25", "+", "#?&", "_x", ".hidden", "d/.e/f"]
    grid = make_tuner(odd_files, space={"names": names}, num_samples=1).fit()
    assert grid.num_errors == 0
    shutil.rmtree(cache, ignore_errors=True)
    (result,) = tune.Tuner.restore(f"{bucket}/runs/exp").get_results()
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        for name in names:
            assert Path(directory, name).read_bytes() == name.encode()


@pytest.mark.slow
def test_a_file_whose_name_no_store_takes_is_named_and_ends_nothing_else(
    make_tuner: Callable[..., tune.Tuner], bucket: str
) -> None:
    """Names that are not Unicode exist on disks alone."""
    grid = make_tuner(odd_files, space={"names": ["bad-\udcff"]}, num_samples=1).fit()
    (result,) = grid
    assert result.checkpoint is None
    assert "not valid UTF-8" in str(result.error)


def test_a_second_experiment_of_the_same_name_is_refused_resumed_or_numbered(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    make_tuner(plain).fit()
    for _ in range(2):
        with pytest.raises(ExperimentExistsError, match=f'Tuner.restore\\("{bucket}/runs/exp"\\)'):
            make_tuner(plain)
        shutil.rmtree(cache, ignore_errors=True)
    grid = make_tuner(plain, if_exists="resume").fit()
    assert grid.experiment_path == f"{bucket}/runs/exp"
    numbered = make_tuner(plain, if_exists="new").fit()
    assert numbered.experiment_path == f"{bucket}/runs/exp_2"
    assert make_tuner(plain, if_exists="new").fit().experiment_path == f"{bucket}/runs/exp_3"


@pytest.mark.slow
def test_a_tuner_that_was_never_run_is_replaced(make_tuner: Callable[..., tune.Tuner], bucket: str) -> None:
    make_tuner(plain)
    grid = make_tuner(plain, space={"x": 5}, num_samples=1).fit()
    assert len(grid) == 1
    assert tune.Tuner.restore(f"{bucket}/runs/exp").get_results()[0].config == {"x": 5}


def test_what_is_not_there_is_said(make_tuner: Callable[..., tune.Tuner], bucket: str) -> None:
    make_tuner(plain).fit()
    with pytest.raises(ExperimentNotFoundError, match=f"{bucket}/runs/other"):
        tune.Tuner.restore(f"{bucket}/runs/other")
    with pytest.raises(ExperimentNotFoundError, match=f"Did you mean {bucket}/runs/exp"):
        tune.Tuner.restore(f"{bucket}/runs")


@pytest.mark.slow
def test_local_dir_is_where_the_mirror_is(
    make_tuner: Callable[..., tune.Tuner], bucket: str, tmp_path: Path, cache: Path
) -> None:
    place = tmp_path / "my disk"
    with pytest.warns(DeprecationWarning, match="local_dir"):
        tuner = make_tuner(local_dir=str(place))
    check_grid(tuner.fit(), f"{bucket}/runs/exp")
    assert len(list(place.glob("exp/.holdfast/spec.json"))) == 1
    check_grid(tune.Tuner.restore(f"{bucket}/runs/exp").fit(), f"{bucket}/runs/exp")
    mirrors = list(cache.rglob("spec.json"))
    assert not mirrors, "a restore on the same machine finds the mirror again"
    shutil.rmtree(place)
    check_grid(tune.Tuner.restore(f"{bucket}/runs/exp").fit(), f"{bucket}/runs/exp")


@pytest.mark.slow
def test_two_experiments_of_one_name_never_meet_in_local_dir(
    make_tuner: Callable[..., tune.Tuner], bucket: str, tmp_path: Path
) -> None:
    place = tmp_path / "my disk"
    with pytest.warns(DeprecationWarning, match="local_dir"):
        grid = make_tuner(local_dir=str(place)).fit()
    assert (place / "exp" / Path(grid[0].path).name).is_dir()
    before = (place / "exp" / ".holdfast" / "spec.json").read_bytes()
    with (
        pytest.warns(DeprecationWarning, match="local_dir"),
        pytest.raises(tune.TuneError, match=f"{bucket}/other/exp.*{bucket}/runs/exp"),
    ):
        make_tuner(local_dir=str(place), storage_path=f"{bucket}/other")
    assert (place / "exp" / ".holdfast" / "spec.json").read_bytes() == before
    local = tune.RunConfig(name="mine", storage_path=place, verbose=0)
    tune.Tuner(plain, run_config=local).fit()
    with (
        pytest.warns(DeprecationWarning, match="local_dir"),
        pytest.raises(tune.TuneError, match=f"{bucket}/runs/mine.*{place / 'mine'}"),
    ):
        make_tuner(local_dir=str(place), name="mine")


@pytest.mark.slow
def test_upload_dir_is_an_older_word_for_it(make_tuner: Callable[..., tune.Tuner], bucket: str) -> None:
    with pytest.warns(DeprecationWarning, match="upload_dir"):
        config = tune.SyncConfig(upload_dir=f"{bucket}/older")
    grid = make_tuner(storage_path=None, sync_config=config).fit()
    check_grid(grid, f"{bucket}/older/exp")
    assert tune.Tuner.can_restore(f"{bucket}/older/exp")


@pytest.mark.slow
def test_options_of_the_address_are_kept(
    seaweedfs: Server, make_tuner: Callable[..., tune.Tuner], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint and region stand in the URL, and nowhere else."""
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name)
    query = f"?endpoint_url={seaweedfs.endpoint}&region=us-east-1"
    grid = make_tuner(storage_path=f"{bucket}/runs{query}").fit()
    assert grid.num_errors == 0
    assert grid.experiment_path.startswith(f"{bucket}/runs/exp?")
    best = tune.Tuner.restore(grid.experiment_path).get_results().get_best_result()
    assert best.checkpoint is not None
    with best.checkpoint.as_directory() as directory:
        assert json.loads((Path(directory) / "state.json").read_text()) == {"step": 5}


@pytest.mark.slow
def test_artifacts_are_uploaded_if_wanted(make_tuner: Callable[..., tune.Tuner], objects: Callable[..., Any]) -> None:
    make_tuner(with_artifacts, name="no").fit()
    make_tuner(with_artifacts, name="yes", sync_config=tune.SyncConfig(sync_artifacts=True)).fit()
    assert not [key for key in objects("runs/no") if key.endswith("/artifact.txt")]
    assert len([key for key in objects("runs/yes") if key.endswith("/artifact.txt")]) == 2


@pytest.mark.slow
def test_values_and_states_that_are_files_travel_too(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    """Values of the search space that are no plain data, and what a callback remembers."""
    callback = Remembers()
    space = {"x": tune.grid_search([1.0, 2.0]), "odd": tune.choice([{1, 2}, {3}])}
    make_tuner(plain, space=space, num_samples=1, callbacks=[callback]).fit()
    shutil.rmtree(cache, ignore_errors=True)
    tuner = tune.Tuner.restore(f"{bucket}/runs/exp")
    assert all(result.config["odd"] in ({1, 2}, {3}) for result in tuner.get_results())
    (states,) = cache.rglob("callback-states.pkl")
    assert b"seen" in states.read_bytes()


class Remembers(tune.Callback):
    """A callback with a memory."""

    def __init__(self) -> None:
        self.seen = 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.seen += 1

    def get_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class WritesAtTheEnd(Remembers):
    """Leaves a summary of the experiment and of each trial."""

    def __init__(self, mirrors: Path) -> None:
        super().__init__()
        self.mirrors = mirrors

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.seen = 1000
        (spec,) = self.mirrors.rglob("spec.json")
        root = spec.parents[1]
        (root / "summary.txt").write_text("all")
        for folder in root.glob("plain_*"):
            (folder / "plots").mkdir()
            (folder / "plots" / "loss.svg").write_text("curve")


def test_what_callbacks_write_at_the_end_is_uploaded_too(
    make_tuner: Callable[..., tune.Tuner], objects: Callable[..., Any], cache: Path
) -> None:
    make_tuner(plain, callbacks=[WritesAtTheEnd(cache)]).fit()
    there = objects("runs/exp")
    assert there["summary.txt"] == b"all"
    assert sum(key.endswith("/plots/loss.svg") for key in there) == 2
    (local,) = cache.rglob("callback-states.pkl")
    assert there[".holdfast/objects/callback-states.pkl"] == local.read_bytes()
    assert b"seen" in local.read_bytes()


@pytest.mark.slow
def test_the_same_tuner_can_be_run_again(make_tuner: Callable[..., tune.Tuner]) -> None:
    tuner = make_tuner(plain)
    assert tuner.fit().num_terminated == 2
    assert tuner.fit().num_terminated == 2


@pytest.mark.slow
def test_results_can_be_looked_at_while_the_experiment_runs(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    """A second Tuner on the same machine, and so on the same mirror, must not disturb the first."""
    looks: list[int] = []

    class Looks(tune.Callback):
        def on_trial_result(self, **info: Any) -> None:
            looks.append(len(tune.Tuner.restore(f"{bucket}/runs/exp").get_results()))

    grid = make_tuner(callbacks=[Looks()]).fit()
    check_grid(grid, f"{bucket}/runs/exp")
    assert looks
    shutil.rmtree(cache, ignore_errors=True)
    check_grid(tune.Tuner.restore(f"{bucket}/runs/exp").get_results(), f"{bucket}/runs/exp")


def test_an_experiment_is_extended_by_whoever_has_its_address(
    make_tuner: Callable[..., tune.Tuner], bucket: str, cache: Path
) -> None:
    """The new stop rule is a file of its own, which must be in the store before the record that names it."""
    url = f"{bucket}/runs/exp"
    make_tuner(plain, {"x": tune.uniform(0, 1)}, num_samples=1).fit()
    shutil.rmtree(cache)
    more = tune.TuneConfig(num_samples=3)
    rule = tune.RunConfig(stop={"training_iteration": 1}, verbose=0)
    assert len(tune.Tuner.restore(url, tune_config=more, run_config=rule).fit()) == 3
    shutil.rmtree(cache)
    grid = tune.Tuner.restore(url, tune_config=tune.TuneConfig(num_samples=4)).fit()
    assert [result.metrics["training_iteration"] for result in grid][1:] == [1, 1, 1]
    with pytest.raises(ValueError, match="num_samples=2 is smaller"):
        tune.Tuner.restore(url, tune_config=tune.TuneConfig(num_samples=2))
