"""``holdfast export --to``: logs an experiment to a tracker, from its journal, without the user's code.

Owns how words of the command line become arguments of a tracker's callback. Logs what the tracker lacks and nothing
else, so it can be repeated, and used after a driver that could not reach the tracker.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from holdfast import integration
from holdfast.cli.printing import say
from holdfast.display.words import plural
from holdfast.errors import InvalidInputError, StorageError
from holdfast.integration.trackers.callback import TrackerCallback
from holdfast.integration.trackers.exporter import Exporter, sole_exporter
from holdfast.integration.trackers.projection import Projection
from holdfast.results.history import History, open_history

CALLBACKS = {
    "aim": "AimLoggerCallback",
    "comet": "CometLoggerCallback",
    "mlflow": "MLflowLoggerCallback",
    "wandb": "WandbLoggerCallback",
}
PLACES = {"aim": "repo", "comet": "offline_directory", "mlflow": "tracking_uri", "wandb": "dir"}
"""The argument that OUT stands for."""

LISTS = frozenset({"excludes", "metrics", "tags"})


def run(arguments: argparse.Namespace) -> int:
    """Log what is missing."""
    if arguments.to == "tensorboard":
        if arguments.set:
            raise InvalidInputError("--set is an argument for a tracker, and TensorBoard takes none: leave it out.")
        return _write_tensorboard(arguments.path, arguments.out)
    callback = make_callback(arguments.to, arguments.out, arguments.set)
    history = open_history(arguments.path)
    exporter, held_back = log(callback, history)
    say(
        f"{callback.label}: {plural(len(history.state.trials), 'trial')}, {plural(exporter.logged, 'row')} logged, "
        f"{exporter.found:,} were there already"
    )
    if held_back:
        say(f"{plural(held_back, 'row')} of unfinished trials left out: resuming the experiment computes them again")
    return 0


def make_callback(tracker: str, out: str | None, words: list[str]) -> TrackerCallback:
    """The tracker's callback, with the arguments of the command line.

    Raises:
        InvalidInputError: It takes no such arguments, or they cannot work, or its library is missing.
    """
    given = dict(_argument(tracker, word) for word in words)
    if out is not None:
        given.setdefault(PLACES[tracker], out)
        if tracker == "comet":
            given.setdefault("online", False)
    kind: Any = getattr(integration, CALLBACKS[tracker])
    known = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    unknown = [] if takes_all else [name for name in given if name not in known]
    if unknown:
        raise InvalidInputError(f"--set {unknown[0]}=...: {tracker} takes only {', '.join(known)}.")
    try:
        callback: TrackerCallback = kind(**given)
    except ImportError as error:
        raise InvalidInputError(str(error)) from error
    return callback


def _argument(tracker: str, word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInputError(f"--set {word!r}: write NAME=VALUE, for example project=digits.")
    if text.lower() in ("true", "false"):
        return name, text.lower() == "true"
    if name == "upload_timeout":
        raise InvalidInputError("--set upload_timeout=...: an export ends when everything is logged; leave it out.")
    if name in LISTS:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if tracker == "mlflow":
            return name, dict(part.partition(":")[::2] for part in parts)
        return name, parts
    return name, text


def log(callback: TrackerCallback, history: History) -> tuple[Exporter, int]:
    """Log what a tracker lacks; returns what was done, and how many rows are held back.

    Raises:
        OwnershipError: Somebody else logs this experiment there.
        StorageError: The tracker refused something; what it took is there.
    """
    projection = Projection(history.info, history.spec, history.position)
    target = callback.target(history.info)
    with sole_exporter(history.spec.uid, target):
        try:
            exporter = Exporter(target.make(), projection)
        except ImportError as error:
            raise InvalidInputError(str(error)) from error
        whole = exporter.advance(closing=True)
    if not whole:
        behind = exporter.behind()
        raise StorageError(
            f"{callback.label}: {plural(behind.rows, 'row')} of {plural(behind.runs, 'trial')} not logged "
            f"({exporter.trouble}). What was logged stays; run the same command again to log the rest."
        )
    return exporter, projection.unsafe_rows()


def _write_tensorboard(path: str, out: str | None) -> int:
    from holdfast.integration.trackers.tensorboard import write_event_files

    history = open_history(path)
    directory = out or f"{history.info.name}_tensorboard"
    written = write_event_files(history, directory)
    say(
        f"{plural(len(history.state.trials), 'trial')} in {directory}: {plural(written, 'file')} written; "
        f"look at them with: tensorboard --logdir {directory}"
    )
    return 0
