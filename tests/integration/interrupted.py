"""One experiment per framework: a trial that runs through, and the same training again, killed in its middle.

Owns the script that drives it, the place where the second trial waits to be killed, and what is read from the result.
Run as ``python interrupted.py STORAGE MODULE``: begins the experiment of ``MODULE.train``, or restores it.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import holdfast as tune

HERE = Path(__file__).parent
NAME = "exp"
DEADLINE_S = 180.0
SIDE = "INTEGRATION_TEST_SIDE"


def computed(config: dict[str, Any], step: int) -> None:
    """Called by a trainable for every step that it has computed, counted from 1; waits at one to be killed."""
    if not config["interrupted"]:
        return
    folder = Path(os.environ[SIDE])
    with open(folder / "steps", "a", encoding="utf-8") as file:
        file.write(f"{step}\n")
    if step == config["wait_at"] and not (folder / "waiting").exists():
        (folder / "waiting").touch()
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            time.sleep(0.02)
        raise AssertionError("nobody has killed this trial")


def train(config: dict[str, Any]) -> None:
    """The training of a module, which only trials import: a driver needs no framework, and they take seconds."""
    importlib.import_module(config["module"]).train(config)


def main(storage: str, module: str) -> None:
    root = Path(storage, NAME)
    if tune.Tuner.can_restore(root):
        tuner = tune.Tuner.restore(str(root), trainable=train)
    else:
        tuner = tune.Tuner(
            train,
            param_space={
                "interrupted": tune.grid_search([False, True]),
                "wait_at": 5,
                "steps": 8,
                "module": module,
            },
            run_config=tune.RunConfig(name=NAME, storage_path=storage, verbose=0, engine=tune.LocalEngine(cpus=1)),
        )
    grid = tuner.fit()
    for error in grid.errors:
        print(error, flush=True)
    sys.exit(1 if grid.errors else 0)


def start(folder: Path, module: str) -> subprocess.Popen[bytes]:
    source = str(Path(tune.__file__).parents[1])
    more = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "KERAS_HOME": str(folder)}
    known = {"PYTHONPATH": os.pathsep.join([source, str(HERE)]), SIDE: str(folder), "HOME": str(folder)}
    with open(folder / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / "interrupted.py"), str(folder / "store"), module],
            env={**os.environ, **more, **known},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_and_restore(folder: Path, module: str) -> tuple[tune.Result, tune.Result, list[int], list[int]]:
    """Run the experiment, kill its driver while the second trial is in its middle, and restore it.

    Returns:
        The trial that nobody interrupted, the one that was, and the steps that the latter computed before and after.
    """
    driver = start(folder, module)
    try:
        _wait(driver, folder / "waiting", folder)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    before = _steps(folder)
    (folder / "steps").unlink()
    driver = start(folder, module)
    try:
        code = driver.wait(DEADLINE_S)
    finally:
        driver.kill()
        driver.wait()
    assert code == 0, _output(folder)
    whole, broken = sorted(tune.ResultGrid.from_path(folder / "store" / NAME), key=lambda r: r.config["interrupted"])
    assert (whole.status, broken.status) == ("TERMINATED", "TERMINATED")
    return whole, broken, before, _steps(folder)


def check_same_history(whole: tune.Result, broken: tune.Result, *names: str) -> None:
    """Both trials have reported each step once, with the same metrics."""
    rows = [
        [[row[name] for name in ("training_iteration", *names)] for row in r.metrics_history] for r in (whole, broken)
    ]
    assert rows[0] == rows[1]


def _wait(driver: subprocess.Popen[bytes], place: Path, folder: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not place.exists():
        assert driver.poll() is None, f"the driver ended early:\n{_output(folder)}"
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s in vain:\n{_output(folder)}"
        time.sleep(0.02)


def _steps(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "steps").read_text().splitlines()]


def _output(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace")


if __name__ == "__main__":
    main(*sys.argv[1:])
