"""What the callbacks of all frameworks share: choosing metrics, deciding when to save, and reading a checkpoint back.

Owns the meaning of ``metrics``, ``frequency`` and ``checkpoint_at_end``. Must never import a framework: each one's
module does that, through ``load_framework``.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.trainable.api import checkpoint_dir, get_checkpoint, report, should_checkpoint

PROGRESS = "progress.json"
"""Beside the framework's own file: how far the training was, for the attempt that continues from there."""

Metrics = str | list[str] | tuple[str, ...] | Mapping[str, str] | None
Postprocess = Callable[[dict[str, Any]], dict[str, Any]]


def load_framework(module: str, package: str, extra: str, needs: str = "") -> Any:
    """A module of the framework.

    Args:
        module: Its name.
        package: What it is called where packages are installed from.
        extra: Ours that installs it.
        needs: What to do if it is installed and cannot be imported all the same; "" for installing it again.

    Raises:
        ImportError: It cannot be imported; the message says what to do.
    """
    try:
        with warnings.catch_warnings():
            # What libraries deprecate in one another while they are imported is nothing that users could change.
            warnings.simplefilter("ignore")
            return import_module(module)
    except ImportError as error:
        way = f"Type: pip install 'holdfast[{extra}]'"
        if needs and find_spec(module.partition(".")[0]) is not None:
            way = needs
        raise ImportError(
            f"This integration needs the package {package}, which cannot be imported ({error}). {way}",
            name=getattr(error, "name", None),
        ) from error


class MetricChoice:
    """Which of a framework's metrics are reported, and under which names.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to the framework's.
        postprocess: Changes the framework's metrics before the choice.
    """

    def __init__(self, metrics: Metrics = None, postprocess: Postprocess | None = None) -> None:
        if isinstance(metrics, str):
            metrics = [metrics]
        if metrics is not None and not _are_names(metrics):
            raise InvalidTypeError(
                f"metrics={metrics!r}: expected None for all metrics, a name, a list of names, or a dict from the "
                "names to report to the framework's names."
            )
        if postprocess is not None and not callable(postprocess):
            raise InvalidTypeError(
                f"results_postprocessing_fn={postprocess!r}: expected a function of a dict, or None."
            )
        self._names: dict[str, str] | None = None
        if isinstance(metrics, Mapping):
            self._names = dict(metrics)
        elif metrics is not None:
            self._names = {name: name for name in metrics}
        self._postprocess = postprocess

    def of(self, available: Mapping[str, Any]) -> dict[str, Any]:
        """What to report of what the framework has measured.

        Raises:
            InvalidInputError: A chosen metric does not exist.
        """
        found = dict(available)
        if self._postprocess is not None:
            found = self._postprocess(found)
        if self._names is None:
            return found
        missing = [name for name in self._names.values() if name not in found]
        if missing:
            raise InvalidInputError(
                f"metrics: there is no {missing[0]!r}. The metrics that exist are: {sorted(found)}."
                if found
                else f"metrics: there is no {missing[0]!r}, nor any other metric: the training has no evaluation. "
                "Give it data to evaluate on."
            )
        return {own: found[name] for own, name in self._names.items()}


def _are_names(metrics: Any) -> bool:
    if isinstance(metrics, Mapping):
        return all(isinstance(name, str) for pair in metrics.items() for name in pair)
    return isinstance(metrics, list | tuple) and all(isinstance(name, str) for name in metrics)


class Saving:
    """When a callback saves, and how.

    Args:
        filename: The file in the checkpoint's directory that the framework writes.
        frequency: Save with every so many reports; 0: not while the training runs, unless the driver asks for it.
        at_end: Also save when the training ends.
    """

    def __init__(self, filename: str, frequency: int, at_end: bool) -> None:
        if not isinstance(filename, str) or not filename or os.path.basename(filename) != filename:
            raise InvalidInputError(f"filename={filename!r}: expected the name of a file, without a directory.")
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0:
            raise InvalidInputError(
                f"frequency={frequency!r}: expected an integer number of steps; 0 saves at the end only."
            )
        self.filename = filename
        self.frequency = frequency
        self.at_end = at_end

    def due(self, step: int) -> bool:
        """Whether the report of this step, counted from 1, carries a checkpoint."""
        return bool(self.frequency and step % self.frequency == 0) or should_checkpoint()

    def report(self, metrics: dict[str, Any], write: Callable[[str], None], progress: dict[str, Any]) -> None:
        """Report with a checkpoint: ``write`` gets the path of the framework's file."""
        with checkpoint_dir() as directory:
            write(os.path.join(directory, self.filename))
            with open(os.path.join(directory, PROGRESS), "w", encoding="utf-8") as file:
                json.dump(progress, file)
            report(metrics, checkpoint=Checkpoint.from_directory(directory))

    @contextlib.contextmanager
    def resumed(self) -> Iterator[tuple[str, dict[str, Any]] | None]:
        """The framework's file in the checkpoint that this attempt continues from, and what was noted beside it."""
        checkpoint = get_checkpoint()
        if checkpoint is None:
            yield None
            return
        with file_in(checkpoint, self.filename) as path:
            yield path, progress_beside(path)


@contextlib.contextmanager
def file_in(checkpoint: Checkpoint, filename: str) -> Iterator[str]:
    """The path of a file in a checkpoint, while its directory is there.

    Raises:
        InvalidInputError: The checkpoint has no such file.
    """
    with checkpoint.as_directory() as directory:
        path = os.path.join(directory, filename)
        if not os.path.exists(path):
            found = sorted(name for name in os.listdir(directory) if not name.startswith((".", "_")))
            raise InvalidInputError(
                f"The checkpoint {checkpoint.path} has no file {filename!r}; it has {found}. It is unchanged. "
                "Give the callback the filename that it was saved with, or resume in your own code and report with "
                "TuneReportCallback."
            )
        yield path


def progress_beside(path: str) -> dict[str, Any]:
    """What ``Saving.report`` noted beside a framework's file; empty for a checkpoint from elsewhere."""
    try:
        with open(os.path.join(os.path.dirname(path), PROGRESS), encoding="utf-8") as file:
            progress = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}
