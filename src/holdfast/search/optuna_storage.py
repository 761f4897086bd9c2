"""A study in the user's own storage: what other trials it has, and a copy of ours for Optuna's tools.

The search itself runs on a study in memory, because the experiment's journal is the one truth: a storage that was
written by the driver before a crash would know of questions that nobody remembers to have asked. So the storage is read
once, when the experiment asks for its first configuration, and gets every trial when it has ended, each once however
often the past is told again.

Must never fail the search: a storage that cannot be reached is tried again with the next trial.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError, StorageError
from holdfast.messages.warn import warn_user
from holdfast.search.optuna_space import load_optuna

TRIAL = "holdfast_trial_id"
"""User attribute of our trials in the storage."""

BEGAN = "holdfast_began_with:"
"""User attribute of the study, with an experiment's first trial id: which trials it found."""

CONSTRAINTS = "constraints"
"""What system attributes of trials begin with in which samplers keep the values of constraints."""

_SPEAKERS = (
    "optuna.study.study",
    "optuna.storages._in_memory",
    "optuna.storages._rdb.storage",
    "optuna.storages.journal._storage",
)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep Optuna from announcing each study on the user's terminal; every level is put back at once."""
    loggers = [logging.getLogger(name) for name in _SPEAKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class StudyCopy:
    """The study in the user's storage.

    Args:
        storage: A URL, or one of Optuna's storages.
        name: The study's name there.
        directions: "minimize" or "maximize", one for each objective.
        first: The id of the experiment's first trial, which tells it from others.
    """

    def __init__(self, storage: Any, name: str, directions: Sequence[str], first: str) -> None:
        self._storage = storage
        self._name = name
        self._directions = list(directions)
        self._key = BEGAN + first
        self._waiting: list[tuple[str, Any]] = []
        self._failed = False
        self._study: Any = None
        self._known: set[tuple[str, str]] = set()  # ids, and how the trials have ended: a failed one may run again

    def __getstate__(self) -> dict[str, Any]:
        # A connection belongs to the process that made it.
        return {**self.__dict__, "_study": None, "_known": set()}

    def prior(self, ranges: Mapping[str, Any] | None = None, always: Iterable[str] = ()) -> list[Any]:
        """The finished trials that were there when the experiment began, in order.

        Args:
            ranges: The distributions of all parameters by name; None if they are not known before they are asked for.
            always: Names of the parameters that every trial has.

        Raises:
            InvalidInputError: The study there has other objectives, or at the beginning other parameters.
            StorageError: The storage cannot be used now.
        """
        try:
            self._connect()
            began = self._study.user_attrs.get(self._key)
            trials = self._study.get_trials(deepcopy=False)
            if began is None:
                if ranges is not None:
                    self._check_ranges(trials, ranges, always)
                began = [len(trials), [trial.number for trial in trials if not trial.state.is_finished()]]
                self._study.set_user_attr(self._key, began)
        except InvalidInputError:
            raise
        except Exception as error:
            raise StorageError(
                f"The study {self._name!r} cannot be read from the storage of OptunaSearch ({type(error).__name__}: "
                f"{error}). It is needed at the start, and when an experiment is restored, for the trials that it had "
                "before: the search learns from them. Everything that this experiment has done is in its own journal. "
                "Make the storage available, then call Tuner.restore(path), or start again."
            ) from error
        count, unfinished = began
        return [trial for trial in trials if trial.number < count and trial.number not in unfinished]

    def _check_ranges(self, trials: Sequence[Any], ranges: Mapping[str, Any], always: Iterable[str]) -> None:
        theirs: dict[str, Any] = {}
        for trial in trials:
            theirs |= trial.distributions
            for name, found in trial.distributions.items():
                if name not in ranges:
                    raise self._other_space(f"has a parameter {name!r}, and the search space has none of that name")
                if _facts(found) != _facts(ranges[name]):
                    raise self._other_space(f"has {name!r} in {found}, and the search space in {ranges[name]}")
        lacking = [name for name in always if name not in theirs]
        if theirs and lacking:
            raise self._other_space(f"has no parameter {lacking[0]!r}, which the search space has")

    def _other_space(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"The study {self._name!r} in the given storage {why}. Names and ranges must be those of the study: change "
            "the search space, or give another study_name."
        )

    def add(self, trial_id: str, trial: Any) -> None:
        """Copy a trial that has ended, unless it is there already."""
        self._waiting.append((trial_id, trial))
        try:
            self._connect()
            while self._waiting:
                trial_id, trial = self._waiting[0]
                if (trial_id, trial.state.name) not in self._known:
                    self._study.add_trial(_labelled(trial_id, trial))
                    self._known.add((trial_id, trial.state.name))
                self._waiting.pop(0)
            self._failed = False
        except Exception as error:
            if not self._failed:
                warn_user(
                    f"Trials cannot be copied to the Optuna storage now ({type(error).__name__}: {error}). The search "
                    "continues without it; they are copied with the next trial, or when the experiment is restored.",
                    RuntimeWarning,
                )
            self._failed = True

    def _connect(self) -> None:
        if self._study is not None:
            return
        with quietly():
            study = load_optuna().create_study(
                storage=self._storage, study_name=self._name, directions=self._directions, load_if_exists=True
            )
        found = [direction.name.lower() for direction in study.directions]
        if found != self._directions:
            raise InvalidInputError(
                f"The study {self._name!r} in the given storage has the directions {found}, but this search needs "
                f"{self._directions}. Give another study_name, or the same metric and mode as before."
            )
        trials = study.get_trials(deepcopy=False)
        ours = [trial for trial in trials if TRIAL in trial.user_attrs]
        self._known = {(trial.user_attrs[TRIAL], trial.state.name) for trial in ours}
        self._study = study


def _facts(distribution: Any) -> tuple[Any, ...]:
    """What makes two distributions the same, those of earlier versions of Optuna included."""
    kinds = load_optuna().distributions
    if isinstance(distribution, kinds.CategoricalDistribution):
        return ("choice", *distribution.choices)
    whole = isinstance(distribution, kinds.IntDistribution)
    return whole, distribution.low, distribution.high, distribution.step, distribution.log


def constraints_of(trial: Any) -> dict[str, Any]:
    """The system attributes of a trial that say how far it keeps to constraints."""
    attributes = trial.system_attrs.items()
    return {key: value for key, value in attributes if key.startswith(CONSTRAINTS) and value is not None}


def _labelled(trial_id: str, trial: Any) -> Any:
    """A trial for the storage: without what a sampler keeps for itself."""
    return load_optuna().trial.create_trial(
        state=trial.state,
        values=trial.values,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**trial.user_attrs, TRIAL: trial_id},
        system_attrs=constraints_of(trial),
        intermediate_values=trial.intermediate_values,
    )
