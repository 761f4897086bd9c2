"""``holdfast import``: an experiment made with Ray Tune, as one that can be read, verified and continued here."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.copy import copy_experiment
from holdfast.cli.printing import print_json, say, size_text
from holdfast.cli.scratch_directories import scratch
from holdfast.display.words import plural
from holdfast.errors import InvalidInputError, StorageError
from holdfast.ray_import.reading import read_experiment
from holdfast.ray_import.writing import Imported, check_target, exists_error, summary, write, write_beside
from holdfast.storage.address import is_remote, parse
from holdfast.storage.remote_root import remote_of

MAX_NOTES = 20


def run(arguments: argparse.Namespace) -> int:
    """Import an experiment."""
    imported = import_experiment(arguments.source, arguments.target, arguments.state or "")
    if arguments.json:
        print_json(imported)
    else:
        say(*_lines(imported))
    return 0


def import_experiment(source: str, target: str, state_name: str = "") -> Imported:
    """Make an experiment of one that Ray Tune has written. The source is not changed.

    Args:
        source: The directory of Ray Tune's experiment.
        target: A path or URI at which nothing is.
        state_name: Which ``experiment_state-*.json`` to read; "" for the last one.

    Durability: when this returns, the experiment survives a loss of power. When it is ended before, there is
    nothing at a local target; what is in a store is no experiment yet, and calling again finishes it.

    Raises:
        ExperimentNotFoundError: The source is no experiment of Ray Tune.
        DamageError: It cannot be read.
        ExperimentExistsError: Something is at the target.
        StorageError: A place refuses or does not answer.
    """
    if is_remote(source):
        raise InvalidInputError(
            f"{source} is not a local directory. Copy it to this machine first, then import the copy."
        )
    path = Path(parse(source).path)
    remote = remote_of(target)
    if remote is not None:
        if remote.exists():
            raise exists_error(remote.url)
        read = read_experiment(path, state_name)
        with scratch(remote) as work_dir:
            local = work_dir / (remote.name or "imported")
            made = write(read, local)
            copy_experiment(str(local), target)
        return summary(read, made, remote.url)
    place = Path(parse(target).path)
    check_target(path, place)
    read = read_experiment(path, state_name)
    try:
        made = write_beside(read, place)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            error.errno,
            f"{path} cannot be imported to {place}: {error}. Nothing was written, and the source is unchanged.",
        ) from error
    return summary(read, made, str(place))


def _lines(imported: Imported) -> list[str]:
    copied = imported.copied
    counts = ", ".join(f"{count} {status}" for status, count in sorted(imported.counts.items()))
    superseded = f" ({copied.superseded} superseded by later attempts)" if copied.superseded else ""
    lines = [
        f"Imported {imported.source} ({imported.state_file}) to {imported.target}:",
        f"  {plural(copied.trials, 'trial')}: {counts}",
        f"  {plural(copied.rows, 'row')}{superseded}",
        f"  {plural(copied.checkpoints, 'checkpoint')}, {size_text(copied.bytes)}",
    ]
    lines += [f"note: {note}" for note in imported.notes[:MAX_NOTES]]
    if len(imported.notes) > MAX_NOTES:
        lines.append(f"note: and {len(imported.notes) - MAX_NOTES} more; `holdfast show PATH --story` has them all")
    lines.append(
        "Not imported: the trainable, the search space, and the state of searcher and scheduler. A searcher that you "
        "pass again learns from the imported trials."
    )
    if imported.left:
        lines.append(f"Pass again: {'; '.join(imported.left)}.")
    for key, kind in imported.placeholders.items():
        lines.append(f"config[{key!r}] was an object ({kind}): pass it again with param_space=.")
    name = imported.trainable or "trainable"
    more = ", param_space=..." if imported.placeholders else ""
    lines.append(f'Resume it: Tuner.restore("{imported.target}", trainable={name}{more}).fit()')
    if not imported.placeholders:
        lines.append("To create more trials, up to num_samples, also pass param_space=.")
    return lines
