"""``holdfast ship``: sends what this machine has of an experiment and its store lacks. Runs no trial.

A driver that could not reach its store leaves everything in the mirror. This one claims the experiment, finishes the
uploads of staged checkpoints, ships the journal and the result files, and lets go. Trials that had not ended stay so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from holdfast.callbacks.result_files import is_of_experiment, is_of_trial
from holdfast.cli.printing import print_json, say
from holdfast.config import Environment
from holdfast.controller.driver import Driver
from holdfast.controller.loading import load_experiment
from holdfast.controller.remote_experiment import mirror_root
from holdfast.errors import InvalidInputError
from holdfast.results.history import History, open_history
from holdfast.results.shipped import unshipped, unshipped_text
from holdfast.storage.remote_root import Remote, remote_of
from holdfast.storage.store import Sending
from holdfast.views.trials import trial_dirname

BATCH = 256
FOR_EVER_S = 30 * 24 * 3600.0  # uploads take as long as they take; a store that does not answer ends them
CLOCK_S = 1.0  # stores know whole seconds only; a file that was written since has another size


def run(arguments: argparse.Namespace) -> int:
    """Send what is missing."""
    remote = remote_of(arguments.path)
    if remote is None:
        raise InvalidInputError(f"{arguments.path!r} is a local directory: there is no store to upload to.")
    mirror = mirror_root(remote)
    if not mirror.private.is_dir():
        raise InvalidInputError(
            f"This machine has nothing of {remote.url} (no {mirror.path}). Run this on the machine where the "
            f"experiment ran, as the same user and with the same HOLDFAST_LOCAL_CACHE_DIR."
        )
    history = open_history(arguments.path)
    if history.root != mirror.path:
        say(f"{remote.url} was resumed on another machine. Everything of it that this machine has is in the store.")
        return 0
    left = unshipped(history)
    if left is not None:
        _drive(remote, takeover=arguments.takeover)
        history = open_history(arguments.path)
    files = list(_stale_files(remote, history))
    for at in range(0, len(files), BATCH):
        remote.store.send(files[at : at + BATCH])
    if arguments.json:
        print_json({**(left or {"records": 0, "checkpoints": 0}), "files": len(files), "left": unshipped(history)})
    else:
        say(_text(remote, left, len(files)))
    return 0


def _text(remote: Remote, left: dict[str, int] | None, files: int) -> str:
    sent = [unshipped_text(left)] if left else []
    if files:
        sent.append(f"{files:,} result files" if files > 1 else "1 result file")
    return f"uploaded to {remote.url}: {', '.join(sent)}" if sent else f"everything is already in {remote.url}"


def _drive(remote: Remote, *, takeover: bool) -> None:
    # As for `resume`: what is stored with the experiment may refer to modules beside the user's script.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    experiment = load_experiment(remote.url, filesystem=remote.filesystem)
    config = experiment.settings.run_config
    config.verbose = 0
    config.callbacks = None
    experiment.settings.tune_config.time_budget_s = None  # nothing is stopped here that a resume would stop
    assert config.failure_config is not None
    config.failure_config.grace_s = FOR_EVER_S
    Driver(experiment, Environment.read(), takeover=takeover, only_ship=True).run()


def _stale_files(remote: Remote, history: History) -> Iterator[Sending]:
    """Result files of the mirror that the store has not, or has in another size or from before."""
    stored = {stat.key: stat for stat in remote.store.list("")}
    for key in _result_files(history, set(stored)):
        path = history.root / key
        facts, known = path.stat(), stored.get(key)
        if known is None or known.size != facts.st_size or known.modified + CLOCK_S < facts.st_mtime:
            yield Sending(str(path), key)


def _result_files(history: History, known: set[str]) -> Iterator[str]:
    """Keys of the mirror's result files, and of other files beside them that the store knows."""
    for name in sorted(os.listdir(history.root)):
        if is_of_experiment(name):
            yield name
    for trial in history.state.trials:
        folder = trial_dirname(history.info, trial)
        try:
            found = sorted(os.listdir(history.root / folder))
        except FileNotFoundError:
            continue
        for name in found:
            key = f"{folder}/{name}"
            if (is_of_trial(name) or key in known) and (history.root / key).is_file():
                yield key
