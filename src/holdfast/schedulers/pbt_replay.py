"""Training one trial with the schedule of configs that a population has found.

Owns the reading of policy files, once and when the scheduler is made: what it read is stored with the experiment, so
that a resumed one does not need the file.
"""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.retention import lookup
from holdfast.errors import InvalidInputError
from holdfast.schedulers.base import TrialScheduler, number
from holdfast.schedulers.explore import perturbed_tag
from holdfast.space.objects import is_marker

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

logger = logging.getLogger("holdfast")


class Change(NamedTuple):
    """From this iteration on, this config."""

    iteration: int
    config: dict[str, Any]


class Schedule(NamedTuple):
    """The config to begin with, and the changes to it in order."""

    first: dict[str, Any]
    changes: list[Change]


class PopulationBasedTrainingReplay(TrialScheduler):
    """Repeats what ``PopulationBasedTraining`` did to one of its trials, with a single trial.

    The trial begins with the config of the oldest ancestor of that trial. Whenever an ancestor was copied, it saves a
    checkpoint and continues from there with the config of the copy.

    Args:
        policy_file: A file ``pbt_policy_<trial id>.txt`` of an experiment.

    Raises:
        InvalidInputError: There is no such file, or it is no policy file.

    Example:
        >>> replay = PopulationBasedTrainingReplay("~/results/exp/pbt_policy_a1b2c_00003.txt")  # doctest: +SKIP
        >>> tune.Tuner(train, tune_config=tune.TuneConfig(scheduler=replay)).fit()  # doctest: +SKIP
    """

    def __init__(self, policy_file: str) -> None:
        path = Path(policy_file).expanduser()
        self._file = path.name
        self._schedule = read_schedule(path)
        self._trial: int | None = None
        self._done = 0  # changes

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        if self._trial not in (None, trial.n):
            raise InvalidInputError(
                "More than one trial was added to a replay of a policy, so the same schedule would be trained several "
                "times. Use TuneConfig(num_samples=1) and a param_space without a grid."
            )
        self._trial = trial.n
        own = view.plain_config(trial)
        if self._schedule is None:
            if not own:
                raise InvalidInputError(
                    f"{self._file} has no policy and the trial has no config, so there is nothing to train with. Give "
                    "a param_space, or another policy file."
                )
            return
        if trial.record.rows:
            return  # an ended trial that continues where it was
        if own and any(not is_marker(value) for value in own.values()):
            logger.warning("The config of the trial, %s, is replaced by that of %s.", own, self._file)
        self._done = 0
        first = self._schedule.first
        view.reconfigure_trial(trial, self._config(first, own), params=first, why=f"{self._file} begins with it")

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        iteration = number(lookup(result, "training_iteration"))
        changes = [] if self._schedule is None else self._schedule.changes[self._done :]
        due = [change for change in changes if iteration is not None and change.iteration <= iteration]
        if not due:
            return self.CONTINUE
        self._done += len(due)
        config = self._config(due[-1].config, view.plain_config(trial))
        tag, why = perturbed_tag(f"replay_{self._file}", config, config), f"as in {self._file}"
        view.reconfigure_trial(trial, config, tag=tag, why=f"{why} at iteration {due[-1].iteration}")
        view.reason = f"continues with the config of iteration {due[-1].iteration}"
        return self.PAUSE

    def _config(self, recorded: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """A recorded config; objects, of which the file has only names, are the trial's own."""
        return {key: self._value(value, own.get(key), str(key)) for key, value in recorded.items()}

    def _value(self, node: Any, mine: Any, path: str) -> Any:
        if is_marker(node):
            if not is_marker(mine):
                raise InvalidInputError(
                    f"{self._file} was recorded with a {node['type']} at {path!r}, which such a file cannot hold. "
                    "Pass it again: put it at the same place in param_space."
                )
            return mine
        if isinstance(node, dict):
            known = mine if isinstance(mine, dict) else {}
            return {key: self._value(value, known.get(key), f"{path}/{key}") for key, value in node.items()}
        if isinstance(node, list):
            items = mine if isinstance(mine, list) else []
            pairs = itertools.zip_longest(node, items[: len(node)])
            return [self._value(value, other, f"{path}/{i}") for i, (value, other) in enumerate(pairs)]
        return node

    def debug_string(self) -> str:
        total = 0 if self._schedule is None else len(self._schedule.changes)
        return f"{type(self).__name__}: {self._done} of {total} changes of {self._file}"

    def get_state(self) -> dict[str, Any] | None:
        return {"trial": self._trial, "done": self._done}

    def set_state(self, state: dict[str, Any]) -> None:
        self._trial, self._done = state["trial"], state["done"]


def read_schedule(path: Path) -> Schedule | None:
    """What a policy file says of its trial's ancestors; None if it is empty.

    Raises:
        InvalidInputError: It is missing, or no policy file.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = (
            "Policy file not found" if isinstance(error, FileNotFoundError) else f"Could not read PBT policy ({error})"
        )
        raise InvalidInputError(
            f"{why}: {path}. Give the path of a file pbt_policy_<trial id>.txt, which PopulationBasedTraining keeps "
            "in an experiment's directory."
        ) from error
    rows = [_row(line, number, path) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    first: dict[str, Any] = {}
    changes: list[Change] = []
    parent = None
    for target, donor, _, iteration, old, new in reversed(rows):
        if parent not in (None, target):
            break  # what came before was overwritten by the copy that is read already
        parent, first = donor, old
        changes.insert(0, Change(iteration, new))
    return Schedule(first, changes) if changes else None


def _row(line: str, number: int, path: Path) -> tuple[str, str, int, int, dict[str, Any], dict[str, Any]]:
    try:
        target, donor, at, iteration, old, new = json.loads(line)
        if not isinstance(iteration, int) or not isinstance(old, dict) or not isinstance(new, dict):
            raise ValueError("not two tags, two iterations and two configs")
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"Could not read PBT policy file: {path}, line {number}: {error}. Each line must be a list of two tags, "
            "two iterations and two configs."
        ) from None
    return target, donor, at, iteration, old, new
