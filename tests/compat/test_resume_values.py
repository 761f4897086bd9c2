"""``tune.run(resume=...)``: every value that any generation had."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from compat_trainables import Count, score

import holdfast
from holdfast.compat import tune
from holdfast.compat.running import parse_resume

pytestmark = pytest.mark.filterwarnings("ignore:tune.run.. takes older spellings:DeprecationWarning")
HERE = Path(__file__).parent
SOURCE = str(Path(holdfast.__file__).parent.parent)


def run(storage: Path, trainable: Any = score, **given: Any) -> Any:
    return tune.run(trainable, **{"storage_path": storage, "verbose": 0, **given})


def names(storage: Path) -> list[str]:
    return sorted(path.name for path in storage.iterdir())


@pytest.mark.parametrize(
    ("value", "way", "unfinished", "errored"),
    [
        (False, "", "resume", "skip"),
        (None, "", "resume", "skip"),
        (True, "AUTO", "resume", "skip"),
        ("AUTO", "AUTO", "resume", "skip"),
        ("LOCAL", "LOCAL", "resume", "skip"),
        ("REMOTE", "REMOTE", "resume", "skip"),
        ("PROMPT", "PROMPT", "resume", "skip"),
        ("ERRORED_ONLY", "LOCAL", "skip", "restart"),
        ("AUTO+ERRORED", "AUTO", "resume", "resume"),
        ("LOCAL+RESTART_ERRORED", "LOCAL", "resume", "restart"),
        ("AUTO+ERRORED_ONLY", "AUTO", "skip", "resume"),
        ("REMOTE+RESTART_ERRORED_ONLY", "REMOTE", "skip", "restart"),
    ],
)
def test_each_value_says_where_from_and_which_trials(value: Any, way: str, unfinished: str, errored: str) -> None:
    resume = parse_resume(value)
    assert (resume.way, resume.trials.unfinished.value, resume.trials.errored.value) == (way, unfinished, errored)


@pytest.mark.parametrize("value", ["SOMETIMES", "AUTO+SOMETIMES", "", "+ERRORED", 3])
def test_any_other_value_is_refused_with_a_list(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Invalid resume setting.*PROMPT.*\+RESTART_ERRORED_ONLY"):
        run(tmp_path, resume=value)
    assert names(tmp_path) == []


def test_the_last_block_of_the_guide_run_twice_resumes(tmp_path: Path) -> None:
    """``tune.run(my_trainable, checkpoint_freq=10, local_dir="~/path/to/results", resume=True)``, without a name."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            from holdfast.compat import tune

            class my_trainable(tune.Trainable):
                def setup(self, config):
                    self.x = 0
                def step(self):
                    self.x += 1
                    print("step", self.x, flush=True)
                    if self.x == 15 and sys.argv[1:] == ["killed"]:
                        os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
                        signal.pause()
                    return {"x": self.x, "done": self.x == 20}
                def save_checkpoint(self, checkpoint_dir):
                    return {"x": self.x}
                def load_checkpoint(self, checkpoint):
                    self.x = checkpoint["x"]

            os.environ["DRIVER"] = str(os.getpid())
            analysis = tune.run(
                my_trainable,
                checkpoint_freq=10,
                local_dir="~/path/to/results",
                resume=True
            )
            print("rows", len(analysis.trials), analysis.trials[0].last_result["iterations_since_restore"])
            """
        )
    )
    environment = {"PYTHONPATH": SOURCE, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    assert go("killed").returncode == -9
    second = go()
    assert "rows 1 10" in second.stdout, second.stderr
    assert "resuming" in second.stderr
    assert names(tmp_path / "path" / "to" / "results") == ["my_trainable"]
    third = go()
    assert "rows 1" in third.stdout
    assert "step" not in third.stdout


def test_what_was_changed_is_ignored_and_one_warning_says_what(tmp_path: Path) -> None:
    given = {"name": "exp", "config": {"x": tune.uniform(0, 1)}, "num_samples": 2, "stop": {"score": 5}}
    first = run(tmp_path, **given)
    changed = {**given, "config": {"x": tune.uniform(5, 6)}, "num_samples": 9, "stop": {"score": 1}}
    with pytest.warns(UserWarning, match=r"config.*num_samples=9.*stop=\{'score': 1\}") as told:
        second = run(tmp_path, resume=True, **changed)
    assert len([warning for warning in told if warning.category is UserWarning]) == 1
    assert second.results.keys() == first.results.keys()
    same = run(tmp_path, resume="AUTO", **given)  # warnings are errors
    assert len(same.trials) == 2
    with pytest.warns(UserWarning, match="config"):
        run(tmp_path, resume=True, **{**given, "config": {"other": 1}})


def test_auto_begins_if_nothing_is_there_and_local_does_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(tmp_path / "score")):
        run(tmp_path, resume="LOCAL")
    assert names(tmp_path) == []
    assert len(run(tmp_path, resume="AUTO").trials) == 1
    assert names(tmp_path) == ["score"]
    assert len(run(tmp_path, resume="LOCAL").trials) == 1
    assert names(tmp_path) == ["score"]


def test_without_resume_an_existing_name_is_never_mixed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, name="exp", config={"x": 1})
    second = run(tmp_path, name="exp", config={"x": 2}, resume=False)
    assert [trial.config for trial in second.trials] == [{"x": 2}]
    assert names(tmp_path) == ["exp", "exp_2"]
    assert "exp_2" in caplog.text
    assert [trial.config for trial in tune.ExperimentAnalysis(tmp_path / "exp").trials] == [{"x": 1}]


def test_trials_that_failed_are_tried_again_on_request(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.touch()
    storage = tmp_path / "results"
    given = {"name": "exp", "config": {"fails": str(fails), "steps": 3}, "checkpoint_freq": 1}
    with pytest.raises(tune.TuneError, match="did not complete"):
        run(storage, Count, **given)
    fails.unlink()
    with pytest.raises(tune.TuneError, match="did not complete"):
        run(storage, Count, resume=True, **given)
    resumed = run(storage, Count, resume="AUTO+ERRORED", **given)
    assert resumed.trials[0].last_result["iterations_since_restore"] == 2


def test_errored_only_begins_them_anew(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.touch()
    storage = tmp_path / "results"
    given = {"name": "exp", "config": {"fails": str(fails), "steps": 3}, "checkpoint_freq": 1}
    run(storage, Count, raise_on_failed_trial=False, **given)
    fails.unlink()
    resumed = run(storage, Count, resume="ERRORED_ONLY", **given)
    assert resumed.trials[0].last_result["iterations_since_restore"] == 3


# --- asking


def test_prompt_needs_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(ValueError, match="PROMPT"):
        run(tmp_path, resume="PROMPT")
    assert names(tmp_path) == []


PROMPTED = """
import sys
sys.path.insert(0, {here!r})
from compat_trainables import score
from holdfast.compat import tune
analysis = tune.run(score, name="exp", config={{"x": 7}}, resume="PROMPT", storage_path={storage!r}, verbose=0)
print("path", analysis.experiment_path)
"""


@pytest.mark.filterwarnings("ignore:.*keeps its settings:UserWarning")
@pytest.mark.parametrize(("answer", "expected"), [("y", "exp"), ("n", "exp_2")])
def test_prompt_asks_at_a_terminal(tmp_path: Path, answer: str, expected: str) -> None:
    run(tmp_path, name="exp", config={"x": 1})
    before = (tmp_path / "exp" / ".holdfast" / "spec.json").read_bytes()
    ours, theirs = pty.openpty()
    code = PROMPTED.format(here=str(HERE), storage=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        out, err = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert b"Resume from local directory?" in out, err
    assert f"path {tmp_path / expected}" in out.decode(), err
    assert (tmp_path / "exp" / ".holdfast" / "spec.json").read_bytes() == before
    assert [trial.config for trial in tune.ExperimentAnalysis(tmp_path / "exp").trials] == [{"x": 1}]


# --- from a store


def test_remote_needs_an_upload_dir(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="upload_dir"):
        run(tmp_path, resume="REMOTE")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["path", "URI", "sync_config"])
@pytest.mark.parametrize("local_dir", [None, "local"])
def test_an_upload_dir_may_be_a_directory(tmp_path: Path, way: str, local_dir: str | None) -> None:
    """It is where the experiment is, with a ``local_dir`` for copies on this machine, of which there need be none."""
    place = tmp_path / "up"
    given: dict[str, Any] = {"name": "exp", "storage_path": None}
    if way == "sync_config":
        given["sync_config"] = tune.SyncConfig(upload_dir=place.as_uri())
    else:
        given["upload_dir"] = place.as_uri() if way == "URI" else str(place)
    if local_dir is not None:
        given["local_dir"] = str(tmp_path / local_dir)
    with pytest.raises(ValueError, match=r'resume="REMOTE": there is no experiment at .*up/exp'):
        run(tmp_path, resume="REMOTE", **given)
    first = run(tmp_path, **given)
    assert first.experiment_path == str(place / "exp")
    second = run(tmp_path, resume="REMOTE", **given)
    assert second.results.keys() == first.results.keys()


def test_remote_resumes_on_a_machine_that_has_nothing(
    seaweedfs: Any, bucket_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in seaweedfs.environment().items():
        monkeypatch.setenv(variable, value)
    bucket = f"s3://{seaweedfs.bucket(bucket_name)}/runs"
    given = {"name": "exp", "upload_dir": bucket, "storage_path": None, "config": {"steps": 4}, "checkpoint_freq": 2}
    monkeypatch.setenv("HOME", str(tmp_path / "one"))
    with pytest.raises(ValueError, match=f"{bucket}/exp"):
        run(tmp_path, Count, resume="REMOTE", **given)
    first = run(tmp_path, Count, resume="AUTO", **given)
    assert first.experiment_path.startswith(f"{bucket}/exp")
    monkeypatch.setenv("HOME", str(tmp_path / "two"))
    second = run(tmp_path, Count, resume="REMOTE", **given)
    assert second.results.keys() == first.results.keys()


def test_the_checkpoint_to_start_from_travels_with_the_experiment(
    seaweedfs: Any, bucket_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in seaweedfs.environment().items():
        monkeypatch.setenv(variable, value)
    bucket = f"s3://{seaweedfs.bucket(bucket_name)}/runs"
    saved = Path(tune.Checkpoint.from_dict({"x": 7}).to_directory(str(tmp_path / "saved")))
    given = {"name": "exp", "storage_path": bucket, "restore": str(saved)}
    monkeypatch.setenv("HOME", str(tmp_path / "one"))
    assert run(tmp_path, **given).trials[0].last_result["score"] == 7
    saved.rename(tmp_path / "gone")
    monkeypatch.setenv("HOME", str(tmp_path / "two"))
    again = {"resume": "REMOTE", "resume_config": tune.ResumeConfig(finished="restart")}
    assert run(tmp_path, **{**given, **again}).trials[0].last_result["score"] == 7


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_same_name_is_resumed_from_its_upload_directory(
    seaweedfs: Any,
    bucket_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The simple cloud example: "if this experiment exists, we will resume from the last run"."""
    from holdfast.compat import air

    for variable, value in seaweedfs.environment().items():
        monkeypatch.setenv(variable, value)
    sync_config = tune.SyncConfig(upload_dir=f"s3://{seaweedfs.bucket(bucket_name)}/path/")

    def fit(machine: str) -> tune.ResultGrid:
        monkeypatch.setenv("HOME", str(tmp_path / machine))
        tuner = tune.Tuner(
            Count,
            run_config=air.RunConfig(
                name="my-tune-exp",
                local_dir=str(tmp_path / machine / "mypath"),
                sync_config=sync_config,
                checkpoint_config=air.CheckpointConfig(checkpoint_score_attr="max-auc", keep_checkpoints_num=5),
                verbose=0,
            ),
        )
        return tuner.fit()

    first = fit("one")
    assert "resuming" not in caplog.text
    assert (tmp_path / "one" / "mypath" / "my-tune-exp" / Path(first[0].path).name).is_dir()
    second = fit("two")
    assert caplog.text.count("resuming") == 1
    assert [result.metrics["trial_id"] for result in second] == [result.metrics["trial_id"] for result in first]
    assert (tmp_path / "two" / "mypath" / "my-tune-exp").is_dir()
    assert not list((tmp_path / "two").rglob(".cache/holdfast/*/my-tune-exp"))


class Unstorable(holdfast.Callback):
    """Counts results; holds something that cannot be pickled, as a callback with a connection does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.results = 0

    def on_trial_result(self, **info: Any) -> None:
        self.results += 1


def test_callbacks_need_not_pickle_and_are_taken_as_they_are_given_now(tmp_path: Path) -> None:
    first, second = Unstorable(), Unstorable()
    allowed = tmp_path / "allowed"
    config = {"allowed": str(allowed)}
    storage = tmp_path / "results"
    begun = run(storage, resources, name="exp", config=config, callbacks=[first], raise_on_failed_trial=False)
    assert [trial.status for trial in begun.trials] == ["ERROR"]
    allowed.touch()
    run(storage, resources, name="exp", config=config, callbacks=[second], resume="LOCAL+ERRORED")
    assert (first.results, second.results) == (1, 1)
    with pytest.raises(holdfast.errors.NotSerializableError):  # the modern spelling stores everything, or says so
        holdfast.Tuner(score, run_config=holdfast.RunConfig(storage_path=tmp_path, callbacks=[first]))


def resources(config: dict[str, Any]) -> None:
    """Reports the CPUs that it was given; works if it is allowed to."""
    tune.report({"cpus": tune.get_context().get_trial_resources().required_resources["CPU"]})
    if not Path(config["allowed"]).exists():
        raise RuntimeError("not yet")


def test_resources_given_anew_are_those_of_trials_that_run_again(tmp_path: Path) -> None:
    config, storage = {"allowed": str(tmp_path / "allowed")}, tmp_path / "results"
    given = {"name": "exp", "config": config, "raise_on_failed_trial": False}
    run(storage, resources, resources_per_trial={"cpu": 1}, **given)
    (tmp_path / "allowed").touch()
    (trial,) = run(storage, resources, resources_per_trial={"cpu": 2}, resume="LOCAL+ERRORED", **given).trials
    assert (trial.status, trial.last_result["cpus"]) == ("TERMINATED", 2)
    (trial,) = run(storage, resources, resources_per_trial={"cpu": 1}, resume="LOCAL+ERRORED", **given).trials
    assert trial.last_result["cpus"] == 2  # it has ended
