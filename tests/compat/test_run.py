"""``tune.run``, ``run_experiments`` and ``Experiment``: arguments of all generations, one meaning each."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from compat_trainables import Count, fail, score
from holdfast.compat.tune.utils import wait_for_gpu

import holdfast
from holdfast.compat import tune
from holdfast.compat.together import how_many_at_once

pytestmark = pytest.mark.filterwarnings("ignore:tune.run.. takes older spellings:DeprecationWarning")

# Those of the oldest generation, in their order.
OLDEST = [
    *("run_or_experiment", "name", "stop", "config", "resources_per_trial", "num_samples", "local_dir", "upload_dir"),
    *("trial_name_creator", "loggers", "sync_to_cloud", "sync_to_driver", "checkpoint_freq", "checkpoint_at_end"),
    *("sync_on_checkpoint", "keep_checkpoints_num", "checkpoint_score_attr", "global_checkpoint_period"),
    *("export_formats", "max_failures", "fail_fast", "restore", "search_alg", "scheduler", "with_server"),
    *("server_port", "verbose", "progress_reporter", "resume", "queue_trials", "reuse_actors", "trial_executor"),
    *("raise_on_failed_trial", "return_trials", "ray_auto_init"),
]


def checkpoints(trial: Any) -> list[str]:
    return sorted(path.name for path in Path(trial.path).glob("checkpoint_*"))


def test_run_is_a_name_of_tune_in_both_spellings() -> None:
    assert tune.run is holdfast.run
    assert tune.run_experiments is holdfast.run_experiments
    assert tune.Experiment is holdfast.Experiment


def test_the_oldest_arguments_can_be_given_by_position() -> None:
    parameters = inspect.signature(tune.run).parameters.values()
    assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == OLDEST


def test_it_returns_an_analysis_with_the_default_metric(tmp_path: Path) -> None:
    analysis = tune.run(
        score,
        name="exp",
        config={"x": tune.grid_search([1, 5, 3])},
        metric="score",
        mode="max",
        storage_path=tmp_path,
        verbose=0,
    )
    assert isinstance(analysis, tune.ExperimentAnalysis)
    assert analysis.best_config == {"x": 5}
    assert analysis.experiment_path == str(tmp_path / "exp")


def test_it_can_return_trials(tmp_path: Path) -> None:
    trials = tune.run(score, num_samples=2, storage_path=tmp_path, verbose=0, return_trials=True)
    assert [trial.status for trial in trials] == ["TERMINATED"] * 2


def test_a_trial_that_fails_for_good_is_an_error_with_the_trials(tmp_path: Path) -> None:
    with pytest.raises(tune.TuneError, match="Trials did not complete") as caught:
        tune.run(fail, storage_path=tmp_path, verbose=0)
    (trial,) = caught.value.args[1]
    assert trial.status == "ERROR"
    analysis = tune.run(fail, storage_path=tmp_path, verbose=0, raise_on_failed_trial=False)
    assert [trial.status for trial in analysis.trials] == ["ERROR"]


def test_checkpoints_are_taken_by_the_older_arguments(tmp_path: Path) -> None:
    config = {"steps": 5}
    by_frequency = tune.run(Count, config=config, checkpoint_freq=2, local_dir=str(tmp_path), verbose=0)
    assert len(checkpoints(by_frequency.trials[0])) == 2
    at_end = tune.run(
        Count, config=config, checkpoint_freq=2, checkpoint_at_end=True, local_dir=str(tmp_path), verbose=0
    )
    assert len(checkpoints(at_end.trials[0])) == 3
    best = tune.run(
        Count,
        config=config,
        checkpoint_freq=1,
        keep_checkpoints_num=1,
        checkpoint_score_attr="min-x",
        local_dir=str(tmp_path),
        verbose=0,
    )
    assert best.get_best_checkpoint(best.trials[0], "x", "min").to_dict() == {"x": 1}


def test_without_being_asked_class_trainables_save_nothing_at_the_end(tmp_path: Path) -> None:
    assert checkpoints(tune.run(Count, storage_path=tmp_path, verbose=0).trials[0]) == []
    config = tune.CheckpointConfig(num_to_keep=1)
    assert checkpoints(tune.run(Count, storage_path=tmp_path, verbose=0, checkpoint_config=config).trials[0]) == []


@pytest.mark.parametrize("gone", [False, True], ids=["", "the checkpoint is gone"])
def test_every_trial_starts_at_the_checkpoint_to_restore(tmp_path: Path, gone: bool) -> None:
    """Also after a resume, and although the checkpoint itself was deleted: the experiment has a copy."""
    first = tune.run(Count, "first", checkpoint_freq=2, storage_path=tmp_path, verbose=0)
    checkpoint = Path(first.trials[0].path) / checkpoints(first.trials[0])[0]
    fails = tmp_path / "fails"
    fails.touch()
    config = {"steps": 4, "fails": str(fails), "n": tune.grid_search([1, 2])}
    second = tune.run(Count, "second", config=config, restore=str(checkpoint), storage_path=tmp_path, verbose=0)
    assert [trial.last_result["x"] for trial in second.trials] == [4, 4]  # never saw step 2, at which it fails
    assert [trial.last_result["training_iteration"] for trial in second.trials] == [2, 2]
    if gone:
        checkpoint.rename(tmp_path / "moved")
        (tmp_path / "second").rename(tmp_path / "renamed")
        restart = tune.ResumeConfig(finished="restart")
        again = tune.run(
            Count, "renamed", config=config, resume=True, resume_config=restart, storage_path=tmp_path, verbose=0
        )
        assert [trial.last_result["x"] for trial in again.trials] == [4, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_of_a_checkpoint_stands_for_the_checkpoint(tmp_path: Path) -> None:
    """Older programs pass on what ``_save`` returned, also a prefix of file names as TensorFlow's savers have."""

    class Older(tune.Trainable):
        def _setup(self, config: dict[str, Any]) -> None:
            self.n = 0

        def _train(self) -> dict[str, Any]:
            self.n += 1
            return {"n": self.n, "done": self.n >= 3}

        def _save(self, checkpoint_dir: str) -> str:
            path = Path(checkpoint_dir) / "model.txt"
            path.write_text(str(self.n))
            return str(path)

        def _restore(self, path: str) -> None:
            self.n = int(Path(path).read_text())

    first = tune.run(Older, "first", checkpoint_freq=2, storage_path=tmp_path, verbose=0)
    checkpoint = Path(first.trials[0].path) / checkpoints(first.trials[0])[0]
    for name in ("model.txt", "model"):
        trials = tune.run(Older, restore=str(checkpoint / name), storage_path=tmp_path, verbose=0).trials
        assert [(trial.last_result["n"], trial.last_result["training_iteration"]) for trial in trials] == [(3, 1)]
    with pytest.raises(ValueError, match="there is no checkpoint"):
        tune.run(Older, restore=str(tmp_path / "nothing"), storage_path=tmp_path, verbose=0)


def test_functions_start_at_the_checkpoint_to_restore_too(tmp_path: Path) -> None:
    saved = Path(tune.Checkpoint.from_dict({"x": 7}).to_directory(str(tmp_path / "saved")))
    analysis = tune.run(score, restore=str(saved), storage_path=tmp_path / "results", verbose=0)
    assert analysis.trials[0].last_result["score"] == 7


def test_models_are_exported_when_a_trial_ends(tmp_path: Path) -> None:
    analysis = tune.run(Count, export_formats=["ONNX", "h5"], stop={"x": 2}, storage_path=tmp_path, verbose=0)
    assert (Path(analysis.trials[0].path) / "exported.txt").read_text() == "onnx,h5"


def test_resources_per_trial_are_what_a_trial_asks_for(tmp_path: Path) -> None:
    tune.register_trainable("named", score)
    analysis = tune.run("named", resources_per_trial={"cpu": 2}, storage_path=tmp_path, verbose=0)
    trial = analysis.trials[0]
    assert trial.placement_group_factory.required_resources == {"CPU": 2.0}
    assert trial.trainable_name == "named"
    wrapped = tune.with_resources(score, {"cpu": 1})
    with pytest.raises(tune.TuneError, match="resources_per_trial"):
        tune.run(wrapped, resources_per_trial={"cpu": 2}, storage_path=tmp_path, verbose=0)


@pytest.mark.parametrize("resources", [{"cpu": 2}, {"cpu": 2, "gpu": 0}, tune.PlacementGroupFactory([{"CPU": 2}])])
def test_resources_per_trial_are_what_a_class_asks_for(tmp_path: Path, resources: Any) -> None:
    tune.register_trainable("named class", Count)
    for trainable in (Count, "named class"):
        trials = tune.run(trainable, None, None, None, resources, storage_path=tmp_path, verbose=0).trials
        assert trials[0].placement_group_factory.required_resources == {"CPU": 2.0}


def test_resources_per_trial_are_refused_if_the_class_asks_itself(tmp_path: Path) -> None:
    class Greedy(Count):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return tune.PlacementGroupFactory([{"CPU": config.get("cpus", 1)}])

    for trainable in (Greedy, tune.with_resources(Count, {"cpu": 1})):
        with pytest.raises(tune.TuneError, match="Please clear the `resources_per_trial` option"):
            tune.run(trainable, resources_per_trial={"cpu": 2}, storage_path=tmp_path, verbose=0)


def test_arguments_without_a_meaning_are_ignored_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ignores with_server=True, queue_trials=True"):
        tune.run(score, with_server=True, queue_trials=True, storage_path=tmp_path, verbose=0)


@pytest.mark.filterwarnings("default")
def test_older_spellings_give_one_hint(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"local_dir is now written storage_path.*checkpoint_frequency") as told:
        tune.run(Count, checkpoint_freq=1, local_dir=str(tmp_path), verbose=0)
    assert [warning.filename for warning in told] == [__file__]


BAD = {
    "unknown": ({"num_sampels": 3}, TypeError, r"'num_sampels'.*'num_samples'"),
    "two roots": ({"local_dir": "here", "storage_path": "there"}, ValueError, "storage_path.*local_dir"),
    "checkpoint_freq": (
        {"checkpoint_freq": 1, "checkpoint_config": holdfast.CheckpointConfig(num_to_keep=1)},
        ValueError,
        "checkpoint_config.*checkpoint_freq",
    ),
    "upload_dir": (
        {"upload_dir": "s3://bucket/a", "sync_config": holdfast.SyncConfig(sync_period=3)},
        ValueError,
        r"upload_dir.*sync_config\.upload_dir",
    ),
    "format": ({"export_formats": ["pdf"]}, holdfast.TuneError, "Unsupported import/export format 'pdf'"),
    "restore": ({"restore": "nowhere"}, ValueError, "nowhere"),
    "loggers": ({"loggers": [3]}, TypeError, "loggers"),
}


@pytest.mark.parametrize(("given", "kind", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_anything_is_written(
    given: Any, kind: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        tune.run(score, **given)
    assert list(tmp_path.iterdir()) == []


# --- several


def test_experiments_of_a_dict_a_list_and_alone(tmp_path: Path) -> None:
    spec = {"run": score, "config": {"x": 1}, "num_samples": 2, "storage_path": tmp_path}
    trials = tune.run_experiments({"a": spec, "b": {**spec, "env": "Game-v0"}}, verbose=0)
    assert [trial.config for trial in trials] == [{"x": 1}, {"x": 1}, *[{"x": 1, "env": "Game-v0"}] * 2]
    one = tune.Experiment("c", score, config={"x": 2}, storage_path=tmp_path)
    assert len(tune.run_experiments(one, verbose=0)) == 1
    analyses = tune.run([one, tune.Experiment("d", score, storage_path=tmp_path)], verbose=0)
    assert [Path(each.experiment_path).name for each in analyses] == ["c_2", "d"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "c_2", "d"]


def test_none_is_no_trainable_and_the_message_speaks_of_run(tmp_path: Path) -> None:
    for nothing in (None, [None]):
        with pytest.raises(tune.TuneError, match=r"You need to provide a trainable: tune\.run\(train_function\)"):
            tune.run(nothing, storage_path=tmp_path)


def test_a_specification_needs_a_trainable() -> None:
    with pytest.raises(tune.TuneError, match="No trainable specified!"):
        tune.run_experiments({"a": {"config": {}}})
    with pytest.raises(TypeError, match=r"'num_sampels'.*'num_samples'"):
        tune.Experiment("a", score, num_sampels=3)
    with pytest.raises(TypeError, match="run_experiments"):
        tune.run_experiments([score])


# --- what else scripts of that time use


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_track_logs_what_report_reports(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        from holdfast.compat import tune

        tune.track.log(loss=0.5)

    assert tune.run(train, storage_path=tmp_path, verbose=0).trials[0].last_result["loss"] == 0.5


def test_waiting_for_a_gpu_reads_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-a, 10, 1000'\necho '1, GPU-b, 900, 1000'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert wait_for_gpu(0, target_util=0.05)
    assert wait_for_gpu("GPU-a", target_util=0.01)
    with pytest.raises(RuntimeError, match="90%"):
        wait_for_gpu(1, retry=2, delay_s=0)
    with pytest.raises(ValueError, match="'7'"):
        wait_for_gpu(7)
    smi.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="nvidia-smi"):
        wait_for_gpu(0)


def meets(config: dict[str, Any]) -> None:
    """Ends when the other experiment's trial has begun, too."""
    here = Path(config["place"])
    (here / config["me"]).touch()
    deadline = time.monotonic() + 60
    while not (here / config["other"]).exists():
        assert time.monotonic() < deadline, "the other one did not begin"
        time.sleep(0.01)
    tune.report({"cpus": tune.get_context().get_trial_resources().required_resources["CPU"]})


def experiments(tmp_path: Path, **more: Any) -> dict[str, Any]:
    names = ("first", "second")
    return {
        me: {
            "run": meets,
            "config": {"place": str(tmp_path), "me": me, "other": other},
            "storage_path": tmp_path / "results",
            **more,
        }
        for me, other in (names, names[::-1])
    }


def test_experiments_of_one_call_run_at_the_same_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = tune.run_experiments(experiments(tmp_path))
    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["first", "second"]
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"first", "second"}


class Another(Count):
    """A second class of trials."""


@pytest.mark.parametrize(
    ("change", "at_once"),
    [
        ({}, 2),
        ({"resources_per_trial": {"cpu": 1}}, 2),
        ({"resources_per_trial": {"cpu": 2}}, 1),
        ({"resources_per_trial": {"cpu": 1, "gpu": 1}}, 1),
        ({"search_alg": "random"}, 1),
        ({"name": "the same"}, 1),
    ],
)
def test_experiments_share_the_machine_only_if_they_can(change: dict[str, Any], at_once: int) -> None:
    given = {"name": None, "search_alg": None, "resources_per_trial": None, "export_formats": None}
    for trainables in ((meets, score), (Count, Another)):
        jobs = [(each, {**given, "name": each.__name__, **change}) for each in trainables]
        assert how_many_at_once(jobs) == at_once


def test_ctrl_c_ends_all_experiments_and_they_can_be_resumed(tmp_path: Path) -> None:
    code = f"""
    import sys, time
    from holdfast.compat import tune

    def train(config):
        for step in range(6000):
            time.sleep(0.01)
            tune.report({{"step": step}})

    specs = {{name: {{"run": train, "storage_path": {str(tmp_path)!r}}} for name in ("first", "second")}}
    trials = tune.run_experiments(specs)
    print([trial.status for trial in trials])
    """
    script = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not all(_has_begun(tmp_path / name) for name in ("first", "second")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    script.send_signal(signal.SIGINT)
    out, _ = script.communicate(timeout=60)
    assert script.returncode == 0
    assert out.splitlines()[-1] == "['PENDING', 'PENDING']"
    assert all(holdfast.Tuner.can_restore(tmp_path / name) for name in ("first", "second"))


def _has_begun(root: Path) -> bool:
    """Whether a trial has reported."""
    if not (root / ".holdfast" / "journal").is_dir():
        return False
    return any(result.metrics_history for result in holdfast.ResultGrid.from_path(root))
