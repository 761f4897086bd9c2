"""``Tuner``: the front door. Composes the parts; decides nothing."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.config import Environment, ResumeConfig, RunConfig, TuneConfig
from holdfast.controller.driver import Driver, Outcome, make_info
from holdfast.controller.experiment import (
    Experiment,
    create_experiment,
    load_experiment,
    local_path,
)
from holdfast.controller.spec import Root
from holdfast.errors import InvalidInputError, NotRunError
from holdfast.results import ResultGrid


class _class_only:
    """A classmethod that explains itself when it is called on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None:
            name = self.function.__name__
            raise AttributeError(
                f"`Tuner.{name}` is a classmethod: call it on the class, `tuner = Tuner.{name}(path, ...)`, "
                "not on a Tuner object."
            )
        return self.function.__get__(owner)


class Tuner:
    """Runs an experiment: many trials of one trainable, over a search space.

    Args:
        trainable: A function of one argument ``config``, a ``Trainable`` subclass, or a registered name.
        param_space: The search space; plain values are constants.
        tune_config: What to search: metric, number of samples, scheduler, seed.
        run_config: How to run: name, storage, failure and checkpoint rules, stop criteria, callbacks.

    Example:
        >>> import holdfast as tune
        >>> def train(config):
        ...     return {"loss": (config["x"] - 3) ** 2}
        >>> tuner = tune.Tuner(train, param_space={"x": tune.grid_search([1, 2, 3])},
        ...                    run_config=tune.RunConfig(storage_path=tmp, verbose=0))
        >>> tuner.fit().get_best_result("loss", "min").config
        {'x': 3}

    Durability:
        The constructor already writes the experiment's root: from then on ``Tuner.restore`` works, whatever happens.
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self._environment = Environment.read()
        tune_config = _checked(tune_config, TuneConfig, "tune_config")
        run_config = copy.copy(_checked(run_config, RunConfig, "run_config"))
        self._resume: ResumeConfig | None = None
        self._takeover = False
        self._outcome: Outcome | None = None
        self._restored = False
        existing = _existing_root(run_config)
        if existing is not None:
            self._open(load_experiment(existing.path, trainable, param_space))
        else:
            self._experiment = create_experiment(trainable, param_space, tune_config, run_config, self._environment)

    def _open(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._restored = True

    def fit(self) -> ResultGrid:
        """Run the experiment to its end, or continue it, and return its results.

        A trial's exception does not end the run: it is in ``ResultGrid.errors`` (see ``FailureConfig``). Ctrl+C ends
        it in order and returns what there is; the restore call is printed.

        Durability:
            When this returns, everything in the returned grid is fsynced under the experiment's root.
        """
        driver = Driver(self._experiment, self._environment, resume=self._resume, takeover=self._takeover)
        self._outcome = None
        outcome = driver.run()
        self._outcome = outcome
        self._resume = None  # a second fit() continues; it does not resume errored trials once more
        if outcome.failure is not None:
            self._raise_failure(outcome, *outcome.failure)
        if outcome.exit_code is not None:
            sys.exit(outcome.exit_code)
        return self._grid(outcome)

    def get_results(self) -> ResultGrid:
        """The results of the last ``fit()``; if that raised, or on a restored Tuner, those found in storage."""
        if self._outcome is not None:
            return self._grid(self._outcome)
        if not self._restored and not self._experiment.root.was_started():
            raise NotRunError(
                "The experiment has not been run: call `tuner.fit()` first. (Results of an earlier experiment: "
                "`Tuner.restore(path).get_results()`.)"
            )
        return ResultGrid.from_path(self._experiment.root.path, info=make_info(self._experiment))

    def _raise_failure(self, outcome: Outcome, n: int, pickled: bytes) -> NoReturn:
        """Raise what the trial raised, or, if it died or its exception cannot be loaded here, what is known of it."""
        error = self._grid(outcome)[n].error
        assert error is not None
        try:
            original = pickle.loads(pickled) if pickled else None
        except Exception:
            original = None
        if original is None:
            raise error
        raise original from error

    @staticmethod
    def _grid(outcome: Outcome) -> ResultGrid:
        return ResultGrid(outcome.state, outcome.info)

    def __repr__(self) -> str:
        return f"Tuner({self._experiment.spec.trainable!r}, root={str(self._experiment.root.path)!r})"

    @_class_only
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: dict[str, Any] | None = None,
        storage_filesystem: Any = None,
        _resume_config: ResumeConfig | None = None,
        *,
        takeover: bool = False,
        overwrite_trainable: Any = None,
    ) -> Tuner:
        """Open an experiment to continue it, wherever its root is now.

        Args:
            path: The experiment's root; it may have been moved, renamed or copied.
            trainable: The same trainable again; None uses the stored one.
            resume_unfinished: Continue trials that had not ended, from their latest checkpoints. False ends them.
            resume_errored: Try trials that ended in ERROR again, from their latest checkpoints.
            restart_errored: Try them again from scratch; ``resume_errored`` wins if both are given.
            param_space: The same space again, to refresh objects in it that could not be stored.
            storage_filesystem: For storage that is not a local path.
            takeover: Take the experiment from a driver that is still alive; that one stops at its next write.
            overwrite_trainable: Older spelling of ``trainable``.

        Raises:
            ExperimentNotFoundError: There is no experiment exactly at ``path``.
            ExperimentLockedError: From ``fit()``: another driver is running it.
        """
        if overwrite_trainable is not None:
            warnings.warn(
                "Tuner.restore(overwrite_trainable=...) is an older spelling: use trainable=...",
                DeprecationWarning,
                stacklevel=2,
            )
            trainable = trainable if trainable is not None else overwrite_trainable
        _refuse_filesystem(storage_filesystem)
        tuner: Tuner = object.__new__(cls)  # type: ignore[arg-type]
        tuner._environment = Environment.read()
        tuner._outcome = None
        tuner._takeover = takeover
        errored = "resume" if resume_errored else "restart" if restart_errored else "skip"
        tuner._resume = _resume_config or ResumeConfig(
            unfinished="resume" if resume_unfinished else "skip",  # type: ignore[arg-type]
            errored=errored,  # type: ignore[arg-type]
        )
        tuner._open(load_experiment(path, trainable, param_space))
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Is there an experiment exactly at ``path``?"""
        _refuse_filesystem(storage_filesystem)
        return Root(local_path(path)).exists()


def _refuse_filesystem(given: Any) -> None:
    if given is not None:
        raise InvalidInputError("storage_filesystem is not available in this version of holdfast: use a local path.")


def _checked(value: Any, kind: type[Any], name: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidInputError(f"`{name}` must be a {kind.__name__}, got {value!r} of type {type(value).__name__}.")
    return value


def _existing_root(run_config: RunConfig) -> Root | None:
    """The experiment that ``if_exists="resume"`` continues."""
    if run_config.if_exists != "resume" or run_config.name is None:
        return None
    root = Root(os.path.join(local_path(run_config.storage_path or ""), run_config.name))
    return root if root.exists() and root.was_started() else None
