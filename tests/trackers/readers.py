"""What a tracker's own files say, read with its own library: steps and losses of all runs, by trial."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

Runs = dict[str, list[list[tuple[int, float]]]]

_BLOCK = 1 << 15


def wandb_records(path: Path) -> list[Any]:
    """The messages in a ``.wandb`` file: W&B's messages in frames of LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def read_wandb(folder: Path) -> Runs:
    runs: dict[str, list[tuple[int, float]]] = {}
    trials: dict[str, str] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_records(path):
            if record.WhichOneof("record_type") == "run":
                run_id = record.run.run_id
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                trials[run_id] = config["trial_id"]
                runs.setdefault(run_id, [])
            elif record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                step = record.history.step.num
                runs[run_id].append((step, json.loads(items["loss"])))
    found: Runs = {}
    for run_id, rows in runs.items():
        found.setdefault(trials[run_id], []).append(rows)
    return found


def read_mlflow(folder: Path) -> Runs:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    found: Runs = {}
    for run in client.search_runs(experiments):
        history = client.get_metric_history(run.info.run_id, "loss")
        found.setdefault(run.data.tags["trial_id"], []).append([(each.step, each.value) for each in history])
    return found


def read_comet(folder: Path) -> Runs:
    runs: dict[str, list[tuple[int, float]]] = {}
    trials: dict[str, str] = {}
    for path in sorted((folder / "comet").glob("*.zip")):
        key = path.stem.partition("-")[0]
        with zipfile.ZipFile(path) as archive:
            lines = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        for line in lines:
            metric = line["payload"].get("metric") or {}
            if metric.get("metricName") == "loss":
                runs.setdefault(key, []).append((metric["step"], metric["metricValue"]))
            if line["type"] == "log_other" and line["payload"]["key"] == "trial_id":
                trials[key] = line["payload"]["value"]
    found: Runs = {}
    for key, rows in runs.items():
        found.setdefault(trials[key], []).append(sorted(rows))
    return found


def read_aim(folder: Path) -> Runs:
    from aim import Repo, Run

    repo = Repo.from_path(str(folder / "aim"))
    found: Runs = {}
    for name in repo.list_all_runs():
        run = Run(name, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        rows = []
        for metric in run.metrics():
            if metric.name == "loss":
                frame = metric.dataframe()
                rows = sorted(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))
        found.setdefault(run["trial_id"], []).append(rows)
        run.close()
    return found
