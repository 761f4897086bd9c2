"""A small real experiment that is killed with ``kill -9`` halfway and resumes without losing anything.

Trains linear classifiers on scikit-learn's handwritten digits. The training function keeps its own diary: a line,
fsynced, after every ``report()`` that returned. At the end the diary is compared with what holdfast recorded.

Run it with ``make quickstart``.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast as tune

EPOCHS = 25
TRIALS = 8


def train(config: dict) -> None:
    """Train one classifier, saving after each epoch."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, random_state=0)
    model = SGDClassifier(alpha=config["alpha"], eta0=config["eta0"], learning_rate="constant", random_state=0)
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = pickle.loads((Path(directory) / "model.pkl").read_bytes())
        model, start = saved["model"], saved["epoch"]

    for epoch in range(start + 1, EPOCHS + 1):
        model.partial_fit(x_train, y_train, classes=range(10))
        time.sleep(0.05)  # slow enough to watch
        with tune.checkpoint_dir() as directory:
            (Path(directory) / "model.pkl").write_bytes(pickle.dumps({"model": model, "epoch": epoch}))
            tune.report({"accuracy": model.score(x_test, y_test)}, checkpoint=tune.Checkpoint.from_directory(directory))
        write_diary(config["diary"], epoch)


def write_diary(path: str, epoch: int) -> None:
    """Note, durably, that the report of this epoch was acknowledged."""
    with open(path, "a") as diary:
        diary.write(f"{tune.get_context().get_trial_id()} {epoch}\n")
        diary.flush()
        os.fsync(diary.fileno())


def start_experiment(storage: str) -> None:
    """What your own script would do."""
    tune.Tuner(
        train,
        param_space={
            "alpha": tune.loguniform(1e-6, 1e-2),
            "eta0": tune.loguniform(1e-4, 1e-1),
            "diary": str(Path(storage) / "diary.txt"),
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=TRIALS, seed=7),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=storage,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def kill_in_the_middle(storage: str) -> list[str]:
    """Run the experiment in another process and kill that process half-way; returns the diary at that moment."""
    diary = Path(storage) / "diary.txt"
    driver = subprocess.Popen([sys.executable, __file__, "--start", storage])
    while driver.poll() is None:
        lines = diary.read_text().splitlines() if diary.exists() else []
        if len(lines) >= TRIALS * EPOCHS // 2:
            driver.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    driver.wait()
    return diary.read_text().splitlines()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-quickstart-") as storage:
        say("1. Start an experiment: 8 classifiers on handwritten digits.")
        acknowledged = kill_in_the_middle(storage)
        root = str(Path(storage) / "digits")
        say(f"2. Killed with `kill -9` after {len(acknowledged)} acknowledged reports. What is left:")
        subprocess.run([sys.executable, "-m", "holdfast", "status", root], check=True)
        say(f'3. Resume:  Tuner.restore("{root}").fit()')
        results = tune.Tuner.restore(root).fit()
        check(results, acknowledged, Path(storage) / "diary.txt")
        best = results.get_best_result()
        say(f"Best accuracy {best.metrics['accuracy']:.4f} with {shown(best.config)}")


def check(results: tune.ResultGrid, acknowledged: list[str], diary: Path) -> None:
    """Compare what holdfast recorded with the diary that the training function kept for itself."""
    recorded = {(row["trial_id"], row["training_iteration"]) for result in results for row in result.metrics_history}
    before = {(trial, int(epoch)) for trial, epoch in map(str.split, acknowledged)}
    lines = diary.read_text().splitlines()
    rows = sum(len(result.metrics_history) for result in results)
    lost, doubled = before - recorded, rows - len(recorded)
    say(
        f"4. {len(results)} trials finished. Of {len(before)} reports acknowledged before the kill, "
        f"{len(lost)} were lost; {len(lines) - len(set(lines))} epochs were trained twice; "
        f"{rows} rows recorded, {doubled} duplicated."
    )
    if lost or doubled or rows != TRIALS * EPOCHS:
        raise SystemExit("This must not happen: please report it.")


def shown(config: dict) -> dict:
    return {key: round(value, 6) for key, value in config.items() if key != "diary"}


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--start"]:
        start_experiment(sys.argv[2])
    else:
        main()
