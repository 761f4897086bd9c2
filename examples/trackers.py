"""Results in trackers: MLflow, W&B and Aim if they are installed; and TensorBoard, which needs no package here."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import holdfast as tune
from holdfast.cli.main import main as holdfast
from holdfast.integration import AimLoggerCallback, MLflowLoggerCallback, WandbLoggerCallback


def train(config: dict) -> None:
    """Ten steps that converge, with a checkpoint at every fifth."""
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(start, 11):
        loss = (config["lr"] - 0.1) ** 2 + 1 / step
        save = tune.Checkpoint.from_dict({"step": step}) if step % 5 == 0 else None
        tune.report({"loss": loss}, checkpoint=save)


def callbacks(folder: Path) -> list[tune.Callback]:
    """One for each tracker that is installed; all of them work without a server."""
    made: list[tune.Callback] = []
    if find_spec("mlflow"):
        made.append(MLflowLoggerCallback(f"sqlite:///{folder}/mlflow.db", experiment_name="example"))
    if find_spec("wandb"):
        made.append(WandbLoggerCallback(project="example", mode="offline", dir=str(folder)))
    if find_spec("aim"):
        made.append(AimLoggerCallback(repo=str(folder / "aim")))
    return made


def main(storage: str) -> tune.ResultGrid:
    """Run four trials, and write them for TensorBoard."""
    folder = Path(storage).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = callbacks(folder)
    results = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-3, 1.0)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4, seed=5),
        run_config=tune.RunConfig(
            name="trackers", storage_path=str(folder), if_exists="resume", callbacks=chosen, verbose=0
        ),
    ).fit()
    names = ", ".join(type(callback).__name__ for callback in chosen) or "no tracker: none is installed"
    print(f"logged by {names}")
    holdfast(["export", results.experiment_path, str(folder / "tensorboard"), "--to", "tensorboard"])
    return results


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "results")
