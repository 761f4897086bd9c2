"""Runs as trackers show them, and the protocol that each tracker implements.

Owns the ids of runs, how configs and results become flat names and numbers, and which step a row has. All of it is a
function of the journal, so that a second export finds the runs of the first. Must never import a tracker's library.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from holdfast.errors import InvalidInputError
from holdfast.space.exact import shown
from holdfast.views.results import flatten_result

FINISHED = "finished"
FAILED = "failed"
UNFINISHED = ""
"""How the trial of a run stands when the run is closed; an unfinished one may be continued later."""

LEFT_OUT = frozenset({"config", "done", "should_checkpoint"})
"""Keys of a result that are no metrics: the config is shown once, and the others depend on when a row is read."""


class Row(NamedTuple):
    """One surviving result.

    Attributes:
        number: Its place among the rows of its trial, from 0.
        step: Where it stands on the tracker's axis; grows from row to row.
        result: The whole result.
    """

    number: int
    step: int
    result: dict[str, Any]

    @property
    def at_ms(self) -> int:
        """When it was reported, in milliseconds; the same each time it is asked."""
        value: Any = self.result.get("timestamp")
        return int(value * 1000) if is_number(value) and abs(value) < 1e12 else 0


class Logged(NamedTuple):
    """What a tracker has of a run: rows before number ``rows``, and those up to step ``step``, are there."""

    rows: int = 0
    step: int = -1


@dataclass
class RunFacts:
    """One run: the surviving rows of one trial."""

    id: str
    """Derived from experiment and trial. Letters, digits and hyphens, unique in all experiments."""

    trial_id: str
    name: str
    experiment: str
    experiment_uid: str
    tag: str
    """The trial's ``experiment_tag``: the parameters that were searched, in short."""

    config: dict[str, Any]
    """Plain data, nested as the user wrote it."""

    created_at: float
    directory: str
    """The trial's, on this machine."""

    place: str
    """The trial's directory for people: in a store, if the experiment is."""

    root: str
    status: str = UNFINISHED
    error: str = ""
    checkpoint: Any = None
    """The trial's newest ``Checkpoint`` when it has ended; None if it has none."""

    def flat_config(self) -> dict[str, Any]:
        """The config as ``{"a/b": value}``."""
        return {str(key): value for key, value in flatten_result(self.config).items()}


@dataclass
class TrackerTarget:
    """A tracker to be made, perhaps in another process."""

    label: str
    """What the tracker is called in messages and by ``holdfast export --to``."""

    module: str
    kind: str
    arguments: dict[str, Any]

    def make(self) -> Tracker:
        """The tracker; imports its library."""
        made: Tracker = getattr(import_module(self.module), self.kind)(**self.arguments)
        return made


class Tracker(Protocol):
    """Where runs are shown. Every method may raise: the exporter tries again later.

    What is logged twice must be there once: after a crash the last rows may be logged again.
    """

    live: bool
    """Whether rows are logged while a trial runs. Otherwise they are when it ends, and when the exporter does."""

    counts_timesteps: bool
    """Whether a row's step is ``timesteps_total`` if there is one, and not ``training_iteration``."""

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        """Whether the run has ended, with so many rows. A cheap look: False if that cannot be told."""

    def open(self, run: RunFacts) -> Logged:
        """Make the run, or find it; tell what it has."""

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        """Add rows that follow what is there. The run is open."""

    def close(self, run: RunFacts, rows: int) -> None:
        """No more rows for now: ``run.status`` says how the trial stands, ``rows`` how many rows it has by now."""

    def retire(self, run: RunFacts) -> None:
        """Remove or mark a run whose rows were superseded, because its trial began anew; it may not exist."""

    def finish(self) -> None:
        """Everything was logged: send what is still buffered."""


def run_id(uid: str, trial_id: str, generation: int = 0) -> str:
    """The id of a trial's run; a trial that began anew after rows were shown has a new one.

    Example:
        >>> run_id("5f2c9e", "5f2c9_00001")
        '5f2c9-00001-b4559d1f'
        >>> run_id("5f2c9e", "5f2c9_00001", 1)
        '5f2c9-00001-b4559d1f-2'
    """
    digest = hashlib.sha256(f"{uid}/{trial_id}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in trial_id)[:40]
    return f"{readable}-{digest}" + (f"-{generation + 1}" if generation else "")


def is_number(value: Any) -> bool:
    """Whether a value is an int or float; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers(result: Mapping[str, Any], left_out: Iterable[str] = ()) -> dict[str, float]:
    """The numbers of a result by flat names.

    Example:
        >>> numbers({"loss": 0.5, "eval": {"acc": 1, "note": "x"}, "config": {"lr": 1}})
        {'loss': 0.5, 'eval/acc': 1}
    """
    without = LEFT_OUT.union(left_out)
    flat = flatten_result({key: value for key, value in result.items() if key not in without})
    return {str(key): value for key, value in flat.items() if is_number(value) and str(key) not in without}


def plain_config(config: Any) -> dict[str, Any]:
    """A stored config as text, numbers, lists and dicts; an object is named by its type."""
    plain: dict[str, Any] = _named(shown(config))
    return plain


def _named(node: Any) -> Any:
    if isinstance(node, list):
        return [_named(value) for value in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"__object__", "type"}:
        return f"<{node['type']}>"
    return {str(key): _named(value) for key, value in node.items()}


def step_of(result: Mapping[str, Any], before: int, *, timesteps: bool) -> int:
    """The step of a result that follows step ``before``: what the trial counts, if that grows."""
    step = result.get("timesteps_total") if timesteps else None
    step = step or result.get("training_iteration")
    if isinstance(step, float) and math.isfinite(step) and step.is_integer():
        step = int(step)
    if isinstance(step, int) and not isinstance(step, bool) and before < step < 1 << 62:
        return step
    return before + 1


def require_library(module: str, package: str, extra: str) -> None:
    """Refuse to begin without a tracker's library; it is not imported, because that takes seconds.

    Raises:
        ImportError: It is not installed.
    """
    try:
        found = find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise ImportError(
            f"This needs the package {package}, which is not installed. Type: pip install 'holdfast[{extra}]'",
            name=module,
        )


def check_text(owner: str, **given: Any) -> None:
    """Refuse arguments that must be text, or None, and are not."""
    for name, value in given.items():
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise InvalidInputError(f"{owner}({name}={value!r}): {name} must be text that is not empty, or None.")


def read_key_file(owner: str, path: str) -> str:
    """The API key in a file.

    Raises:
        InvalidInputError: There is none.
    """
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            key = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{owner}(api_key_file={path!r}): the file cannot be read: {error}.") from None
    if not key:
        raise InvalidInputError(f"{owner}(api_key_file={path!r}): the file is empty; its first line must be the key.")
    return key
