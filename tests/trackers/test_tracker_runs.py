"""What a run looks like in each tracker, read back with the tracker's own library."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
import readers
from roots import START, RootWriter, small_experiment

import holdfast as tune
from holdfast import integration
from holdfast.cli.export_to import log
from holdfast.cli.main import main as holdfast
from holdfast.errors import StorageError
from holdfast.integration.mlflow import MLflowTracker
from holdfast.integration.trackers.callback import TrackerCallback
from holdfast.results.history import History, open_history

# What the libraries deprecate in one another is nothing that could be changed here.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Four trials: finished, failed, rewound and finished, and one whose driver died."""
    return open_history(small_experiment(tmp_path / "exp").die().path)


def need(module: str) -> Any:
    return pytest.importorskip(module, reason=f"{module} is not installed: make test-trackers")


def export(callback: TrackerCallback, history: History) -> None:
    exporter, held_back = log(callback, history)
    assert (exporter.logged, held_back) == (7, 1)


LOSSES = [[3.0, 2.0, 1.0], [9.0], [5.0, 4.0], [2.5]]


def rows_of(runs: readers.Runs, history: History) -> list[list[float]]:
    assert all(len(found) == 1 for found in runs.values())
    assert all(step == at for (rows,) in runs.values() for at, (step, _) in enumerate(rows, start=1))
    return [[loss for _, loss in runs[trial.id][0]] for trial in history.state.trials]


# --- MLflow


@pytest.fixture
def mlflow_uri(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where MLflow keeps runs."""
    need("mlflow")
    shutil.copy(request.getfixturevalue("mlflow_database"), tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


def test_mlflow_has_parameters_metrics_states_and_times(history, tmp_path, mlflow_uri):
    from mlflow.tracking import MlflowClient

    uri = mlflow_uri
    export(integration.MLflowLoggerCallback(uri, experiment_name="digits", tags={"team": 7}), history)
    assert rows_of(readers.read_mlflow(tmp_path), history) == LOSSES
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    runs = {run.data.tags["trial_id"]: run for run in client.search_runs([experiment.experiment_id])}
    done, failed, _, unfinished = (runs[trial.id] for trial in history.state.trials)
    assert done.data.params == {"lr": "0.1"}
    assert done.data.tags["team"] == "7"
    assert done.info.run_name == history.name(history.state.trials[0])
    assert [run.info.status for run in (done, failed, unfinished)] == ["FINISHED", "FAILED", "RUNNING"]
    assert "lr is too large" in failed.data.tags["error"]
    assert START * 1000 <= done.info.start_time < (START + 60) * 1000
    deep = client.get_metric_history(done.info.run_id, "nested/deep")
    assert [(each.step, each.value) for each in deep] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert all(START * 1000 <= each.timestamp < (START + 60) * 1000 for each in deep)
    assert not any(key.startswith("config") for key in done.data.metrics)


def test_mlflow_takes_the_directory_of_a_trial_and_late_parameters(history, tmp_path, mlflow_uri, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)  # artifacts of a database on this machine go into ./mlruns
    uri = mlflow_uri
    callback = integration.MLflowLoggerCallback(uri, save_artifact=True, log_params_on_trial_end=True)
    export(callback, history)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("exp")
    runs = {run.data.tags["trial_id"]: run for run in client.search_runs([experiment.experiment_id])}
    first, last = (runs[history.state.trials[n].id] for n in (0, 3))
    assert first.data.params == {"lr": "0.1"}
    assert last.data.params == {}  # it has not ended
    assert "checkpoint_000002" in [each.path for each in client.list_artifacts(first.info.run_id)]


def test_mlflow_takes_names_that_it_would_refuse(tmp_path, mlflow_uri):
    root = RootWriter(tmp_path / "exp").open()
    n = root.create({"a?b": "x" * 9000, "many": {f"k{k}": k for k in range(150)}})
    root.start(n)
    root.report(n, {"loss": 1.0, "top$": 2.0, "n" * 400: 3.0, "nan": float("nan"), "inf": float("inf")})
    root.end(n)
    root.finish()
    exporter, _ = log(integration.MLflowLoggerCallback(mlflow_uri), open_history(root.path))
    assert exporter.logged == 1


def train_with_mlflow(config: dict[str, Any]) -> None:
    mlflow = integration.setup_mlflow(
        config, tracking_uri=config["uri"], experiment_name="inside", create_experiment_if_not_exists=True
    )
    mlflow.log_metric("loss", 1.0, step=1)
    if not Path(config["mark"]).exists():
        Path(config["mark"]).touch()
        raise ValueError("once")
    tune.report({"loss": 1.0})


def fit_once(train: Any, tmp_path: Path, **config: Any) -> tune.ResultGrid:
    run = tune.RunConfig(
        name="exp",
        storage_path=str(tmp_path / "store"),
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=1),
    )
    space = {"mark": str(tmp_path / "mark"), "net": {"width": 3}, **config}
    return tune.Tuner(train, param_space=space, run_config=run).fit()


def test_setup_mlflow_gives_each_trial_one_run_however_often_it_is_retried(tmp_path, mlflow_uri):
    from mlflow.tracking import MlflowClient

    uri = mlflow_uri
    grid = fit_once(train_with_mlflow, tmp_path, uri=uri)
    assert not grid.errors
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("inside").experiment_id])
    assert run.data.params["net/width"] == "3"
    assert (tmp_path / "mark").exists()


def train_plainly(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"loss": float(step)})


def test_a_database_that_mlflow_was_killed_in_is_named_with_the_way_out(tmp_path):
    """As a kill while MLflow made its tables leaves it: one is there, and MLflow refuses to make it again."""
    need("mlflow")
    path = tmp_path / "half.db"
    database = sqlite3.connect(path)
    database.execute("create table webhooks (webhook_id varchar(256) primary key)")
    database.commit()
    database.close()
    with pytest.raises(StorageError, match=r"is half made .*Move the file away") as caught:
        MLflowTracker(f"sqlite:///{path}")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_of_mlflow_that_is_not_there_does_not_harm_training(tmp_path, caplog):
    need("mlflow")
    address = "http://127.0.0.1:9"  # the port of a service that nobody runs
    callback = integration.MLflowLoggerCallback(address, upload_timeout=2.0)
    run = tune.RunConfig(name="exp", storage_path=str(tmp_path / "store"), verbose=0, callbacks=[callback])
    grid = tune.Tuner(train_plainly, run_config=run).fit()
    assert not grid.errors
    assert len(grid[0].metrics_dataframe) == 3
    said = [message for message in caplog.messages if message.startswith("mlflow: ")]
    assert f"--to mlflow --set tracking_uri={address}" in said[-1]


# --- Weights & Biases


def wandb_runs(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        known: dict[str, Any] = {"config": {}, "keys": set(), "artifacts": []}
        for record in readers.wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                known |= {"id": record.run.run_id, "name": record.run.display_name, "group": record.run.run_group}
                known["project"] = record.run.project
                updates = record.run.config.update
            elif kind == "config":
                updates = record.config.update
            elif kind == "exit":
                known["code"] = record.exit.exit_code
            elif kind == "history":
                known["keys"] |= {item.key or "/".join(item.nested_key) for item in record.history.item}
            elif kind == "artifact":
                known["artifacts"].append(record.artifact.name)
            if kind in ("run", "config"):
                known["config"] |= {item.key: json.loads(item.value_json) for item in updates}
        found[known["config"]["trial_id"]] = known
    return found


def test_wandb_has_config_group_names_and_exit_codes(history, tmp_path):
    need("wandb")
    export(integration.WandbLoggerCallback("p", mode="offline", dir=str(tmp_path)), history)
    assert rows_of(readers.read_wandb(tmp_path), history) == LOSSES
    runs = wandb_runs(tmp_path)
    done, failed, _, unfinished = (runs[trial.id] for trial in history.state.trials)
    assert (done["project"], done["group"]) == ("p", "exp")
    assert done["name"] == history.name(history.state.trials[0])
    assert done["config"]["lr"] == pytest.approx(0.1)
    assert {"loss", "nested/deep", "training_iteration", "time_total_s"} <= done["keys"]
    assert not {"done", "should_checkpoint", "config/lr", "pid", "hostname"} & done["keys"]
    assert [run["code"] for run in (done, failed, unfinished)] == [0, 1, 0]


def test_wandb_leaves_out_what_is_excluded_and_takes_configs_and_checkpoints(history, tmp_path):
    need("wandb")
    callback = integration.WandbLoggerCallback(
        "p",
        group="g",
        excludes=["nested", "time_total_s"],
        log_config=True,
        upload_checkpoints=True,
        mode="offline",
        dir=str(tmp_path),
        tags=["a"],
    )
    export(callback, history)
    run = wandb_runs(tmp_path)[history.state.trials[0].id]
    assert run["group"] == "g"
    assert "config/lr" in run["keys"]
    assert not {"nested/deep", "time_total_s"} & run["keys"]
    assert run["artifacts"] == [f"checkpoint_{history.state.trials[0].id}"]


def test_a_part_that_a_killed_process_left_is_written_again(history, tmp_path):
    need("wandb")
    callback = integration.WandbLoggerCallback("p", mode="offline", dir=str(tmp_path))
    export(callback, history)
    (note,) = (tmp_path / "wandb" / "holdfast").glob(f"{history.state.trials[0].id.replace('_', '-')}-*.json")
    known = json.loads(note.read_text())
    (part,) = known["parts"]
    # As after a kill in the middle: the part exists, and no note says that it is complete.
    note.write_text(json.dumps({**known, "rows": 0, "step": -1, "status": "", "parts": [], "writing": part}))
    exporter, _ = log(callback, history)
    assert exporter.logged == 3
    assert rows_of(readers.read_wandb(tmp_path), history) == LOSSES


def test_an_unfinished_run_is_written_again_as_one_part_unless_it_was_uploaded(tmp_path):
    need("wandb")
    root = RootWriter(tmp_path / "exp").open()
    for n in range(2):
        root.create({"lr": n})
        root.start(n)
        root.report(n, {"loss": 2.0})
        root.save(n, {"f": "x"})
    callback = integration.WandbLoggerCallback("p", mode="offline", dir=str(tmp_path))
    log(callback, open_history(root.path))
    exporter, _ = log(callback, open_history(root.path))
    assert (exporter.logged, exporter.found) == (0, 2)

    (uploaded,) = (tmp_path / "wandb").glob("offline-run-*-abcde-00001-*/*.wandb")
    uploaded.with_name(f"{uploaded.name}.synced").touch()  # as wandb sync does
    for n in range(2):
        root.report(n, {"loss": 1.0})
        root.end(n)
    root.finish()
    log(callback, open_history(root.path))
    assert readers.read_wandb(tmp_path) == {f"abcde_0000{n}": [[(1, 2.0), (2, 1.0)]] for n in range(2)}
    parts = [len(list((tmp_path / "wandb").glob(f"offline-run-*-abcde-0000{n}-*/*.wandb"))) for n in range(2)]
    assert parts == [1, 2]


def train_with_wandb(config: dict[str, Any]) -> None:
    run = integration.setup_wandb(config, project="p", mode="offline", dir=config["dir"])
    run.log({"loss": 1.0})
    run.finish()
    if not Path(config["mark"]).exists():
        Path(config["mark"]).touch()
        raise ValueError("once")
    tune.report({"loss": 1.0})


def test_setup_wandb_resumes_the_run_of_the_trial(tmp_path):
    need("wandb")
    grid = fit_once(train_with_wandb, tmp_path, dir=str(tmp_path))
    assert not grid.errors
    parts = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(parts) == 2
    assert len({part.name for part in parts}) == 1


# --- Comet


def test_comet_has_parameters_tags_and_others(history, tmp_path):
    need("comet_ml")
    callback = integration.CometLoggerCallback(
        online=False, tags=["a"], offline_directory=str(tmp_path / "comet"), project_name="p"
    )
    export(callback, history)
    assert rows_of(readers.read_comet(tmp_path), history) == LOSSES
    first = history.state.trials[0]
    for path in (tmp_path / "comet").glob("*.zip"):
        text = zipfile.ZipFile(path).read("messages.json").decode()
        lines = [json.loads(line) for line in text.splitlines()]
        if any(line["payload"].get("value") == first.id for line in lines):
            break
    params = {
        line["payload"]["param"]["paramName"]: line["payload"]["param"]["paramValue"]
        for line in lines
        if line["payload"].get("param")
    }
    assert float(params["lr"]) == pytest.approx(0.1)
    others = {line["payload"]["key"]: line["payload"]["value"] for line in lines if line["type"] == "log_other"}
    assert others["Name"] == history.name(first)
    assert others["experiment"] == "exp"


# --- Aim


def test_aim_has_hparams_and_chosen_metrics(history, tmp_path):
    need("aim")
    from aim import Repo, Run

    callback = integration.AimLoggerCallback(str(tmp_path / "aim"), experiment_name="digits", metrics=["loss"])
    export(callback, history)
    assert rows_of(readers.read_aim(tmp_path), history) == LOSSES
    repo = Repo.from_path(str(tmp_path / "aim"))
    for name in repo.list_all_runs():
        run = Run(name, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        assert run.experiment == "digits"
        assert set(run["hparams"]) == {"lr"}
        assert {metric.name for metric in run.metrics()} == {"loss"}
        run.close()


# --- TensorBoard


def test_tensorboard_reads_scalars_and_hparams(history, tmp_path, capsys):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    out = tmp_path / "tb"
    words = ["export", str(history.root), "--to", "tensorboard", str(out)]
    assert holdfast(words) == 0
    assert "5 files written" in capsys.readouterr().out
    assert holdfast(words) == 0
    assert "0 files written" in capsys.readouterr().out

    def content(folder: Path, tag: str) -> Any:
        found = EventAccumulator(str(folder)).Reload()
        data = plugin_data_pb2.HParamsPluginData()
        data.ParseFromString(found.SummaryMetadata(tag).plugin_data.content)
        return found, data

    for trial, losses, status in zip(
        history.state.trials, [[3, 2, 1], [9], [5, 4], [2.5, 2]], [1, 2, 1, 3], strict=True
    ):
        found, start = content(Path(out, Path(history.directory(trial)).name), "_hparams_/session_start_info")
        assert start.session_start_info.hparams["lr"].number_value == pytest.approx(0.1 * (trial.n + 1))
        assert start.session_start_info.group_name == trial.id
        assert [event.value for event in found.Scalars("ray/tune/loss")] == losses
        assert [event.step for event in found.Scalars("ray/tune/loss")] == list(range(1, len(losses) + 1))
        _, end = content(Path(out, Path(history.directory(trial)).name), "_hparams_/session_end_info")
        assert end.session_end_info.status == status
    _, data = content(out, "_hparams_/experiment")
    assert [info.name for info in data.experiment.hparam_infos] == ["lr"]
    assert [info.name.tag for info in data.experiment.metric_infos] == ["ray/tune/loss", "ray/tune/nested/deep"]


def test_the_hparams_plugin_itself_lists_every_trial(history, tmp_path):
    """The table that the page of TensorBoard asks for."""
    need("tensorboard")
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    assert holdfast(["export", str(history.root), str(tmp_path / "tb"), "--to", "tensorboard"]) == 0
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tb")).Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path / "tb"))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=10)
    asked = RequestContext()
    request.allowed_statuses.extend([1, 2, 3])
    handler = list_session_groups.Handler(asked, context, "", request)
    groups = handler.run().session_groups
    assert len(groups) == 4
    assert {group.name for group in groups} == {trial.id for trial in history.state.trials}
    losses = sorted(value.value for group in groups for value in group.metric_values if value.name.tag.endswith("loss"))
    assert losses == [1.0, 2.0, 4.0, 9.0]
