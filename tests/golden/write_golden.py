"""Writes a golden root in the present format: ``python write_golden.py TARGET``; done once for each format.

A real experiment is killed twice, so that there are trials of every status and a checkpoint whose commit was cut
short, and packed with what it adds up to (``view.json``). It is made in a neutral place and under neutral names,
because the files are kept for ever.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLACE = Path("/tmp/holdfast-golden")
NAME = "experiment"
DEATHS = ("L2.after:2", "L2.after:12")
STATUSES = {"PENDING", "RUNNING", "TERMINATED", "ERROR"}
TRIES = 50


def summary(root: Path) -> dict[str, Any]:
    """What the history adds up to, as plain data."""
    from holdfast.controller.opening import open_state
    from holdfast.controller.spec import read_spec
    from holdfast.core import events as ev
    from holdfast.journal.reader import read_journal
    from holdfast.storage.layout import Root
    from holdfast.views.results import ResultBuilder, rows_from_events

    spec = read_spec(Root(root))
    state = open_state(root, spec.retention).state
    history = [ev.decode(payload) for _, payload in read_journal(root)]
    rows = rows_from_events(history, None, ResultBuilder(), spec.retention)
    trials = []
    for trial in state.trials:
        facts = {name: getattr(trial, name) for name in ("n", "id", "config", "tag", "status", "attempt", "rows")}
        facts |= {name: getattr(trial, name) for name in ("iteration", "metrics", "total_failures", "cause", "reason")}
        facts["error"] = trial.error and [trial.error.type, trial.error.message]
        facts["checkpoints"] = [[r.index, r.stored, r.row, r.digest, r.metrics] for r in trial.checkpoints]
        facts["surviving"] = [row["sum"] for row in rows.get(trial.n, [])]
        trials.append(facts)
    return {
        "spec": {
            name: getattr(spec, name) for name in ("format", "uid", "trainable", "seed", "metric", "mode", "total")
        },
        "records": len(history),
        "epoch": state.epoch,
        "reports": state.reports,
        "search_ended": state.search_ended,
        "lived_s": state.lived_s,
        "trials": trials,
    }


def drive() -> None:
    """One driver's life, in a process of its own, on a host of no name."""
    import golden_train

    import holdfast as tune
    from holdfast.engines import local_engine
    from holdfast.journal import epoch

    os.environ.pop("HOLDFAST_CRASH", None)  # it is meant for this process alone
    socket.gethostname = lambda: "golden-host"
    local_engine._address = lambda: "192.0.2.1"
    epoch.this_machine = lambda: "golden-machine"
    root = PLACE / NAME
    if tune.Tuner.can_restore(root):
        tune.Tuner.restore(root, takeover=True).fit()
        return
    tune.Tuner(
        golden_train.train,
        param_space={
            "x": tune.uniform(0, 1),
            "kind": tune.grid_search(["plain", "killed once", "failing"]),
            "note": tune.sample_from(golden_train.make_note),
            "fixed": {"list": [1, 2.5, None], "note": golden_train.Note("the same for all")},
        },
        tune_config=tune.TuneConfig(num_samples=2, seed=3, metric="sum", mode="max"),
        run_config=tune.RunConfig(
            name=NAME,
            storage_path=str(PLACE),
            verbose=0,
            stop=tune.stopper.TrialPlateauStopper("sum", std=1e-9),
            engine=tune.LocalEngine(cpus=1),
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="sum"),
        ),
    ).fit()


def make() -> dict[str, Any] | None:
    """An experiment that was killed twice, and its view; None if not every status is in it this time."""
    shutil.rmtree(PLACE, ignore_errors=True)
    code = PLACE / "code"
    code.mkdir(parents=True)
    for name in ("golden_train.py", "write_golden.py"):
        shutil.copy(HERE / name, code)
    for death in DEATHS:
        variables = {"HOLDFAST_CRASH": death, "TUNE_GLOBAL_CHECKPOINT_S": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, str(code / "write_golden.py")], env=os.environ | variables)
        assert done.returncode == -9, done
    view = summary(PLACE / NAME)
    staged = any(record[1] == "staged" for trial in view["trials"] for record in trial["checkpoints"])
    return view if staged and {trial["status"] for trial in view["trials"]} == STATUSES else None


def write(target: Path) -> None:
    """Make the experiment and put it at ``target``, which must not exist."""
    assert not target.exists(), f"{target} exists already: a golden root is never written twice"
    view = next(view for _ in range(TRIES) if (view := make()) is not None)
    shutil.rmtree(PLACE / NAME / ".holdfast" / "logs")
    target.mkdir(parents=True)
    (target / "view.json").write_text(json.dumps(view, indent=1) + "\n")
    shutil.copytree(PLACE / NAME, target / NAME)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    write(Path(sys.argv[1])) if len(sys.argv) > 1 else drive()
