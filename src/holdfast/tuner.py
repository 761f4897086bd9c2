"""``Tuner``: the front door. Composes the parts; decides nothing."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any, NoReturn

from holdfast.config import Environment, ResumeConfig, RunConfig, SyncConfig, TuneConfig
from holdfast.config.arguments import KnownArguments, suggestion
from holdfast.controller.driver import Driver, Outcome, make_info
from holdfast.controller.evidence import was_started_in_store
from holdfast.controller.experiment import Experiment, create_experiment
from holdfast.controller.loading import load_experiment
from holdfast.controller.lost_reports import was_started
from holdfast.controller.own_objects import OwnObjects
from holdfast.controller.remote_experiment import can_open, prefer_mirror_in
from holdfast.errors import ExperimentNotFoundError, InvalidInputError, InvalidTypeError, NotRunError, StorageError
from holdfast.messages.warn import ExperimentWarning, warn_user
from holdfast.results import ResultGrid
from holdfast.storage.address import join_address, parse
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import remote_of


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


class Tuner(KnownArguments):
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
        self._driver: Driver | None = None
        self._has_recalled = False  # the user's objects hold what the experiment's have learned
        existing = self._find_existing(run_config)
        self._own = own = OwnObjects(tune_config, run_config)
        tune_config = own.apart(tune_config, begins=existing is None)
        run_config = own.apart(run_config, begins=existing is None)
        if existing is not None:
            self._open(self._load_existing(existing, trainable, param_space, tune_config, run_config))
        else:
            self._experiment = self._create(trainable, param_space, tune_config, run_config)
            self._experiment.notes += own.notes

    @classmethod
    def _refusal(cls, name: str, known: Collection[str]) -> str:
        return f"Tuner() has no argument {name!r}. {_where_it_belongs(name, known)}"

    def _find_existing(self, run_config: RunConfig) -> str | None:
        return find_existing(run_config)

    def _create(self, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig) -> Experiment:
        return create_experiment(trainable, param_space, tune_config, run_config, self._environment)

    def _load_existing(
        self, place: str, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig
    ) -> Experiment:
        """The experiment that ``if_exists="resume"`` has found at ``place``."""
        return load_experiment(
            place,
            trainable,
            param_space,
            run_config.storage_filesystem,
            tune_config=tune_config,
            run_config=run_config,
            by_name=True,
        )

    def _open(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._restored = True

    def fit(self) -> ResultGrid:
        """Run the experiment to its end, or continue it, and return its results.

        A trial's exception does not end the run: it is in ``ResultGrid.errors`` (see ``FailureConfig``). Ctrl+C shuts
        it down gracefully and returns what there is; the restore call is printed.

        When this returns or raises, the searcher, scheduler and stop rule that were passed hold what they have learned.

        Durability:
            When this returns, everything in the returned grid is fsynced under the experiment's root.
        """
        driver = Driver(self._experiment, self._environment, resume=self._resume, takeover=self._takeover)
        self._driver, self._outcome = driver, None
        try:
            outcome = driver.run()
        finally:
            driver.hand_back(self._own)
            self._has_recalled = True
        self._outcome = outcome
        for text in outcome.advice:
            warn_user(text, ExperimentWarning)
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
        if not self._restored and not was_started(self._experiment.root):
            raise NotRunError(
                "The experiment has not been run: call `tuner.fit()` first. (Results of an earlier experiment: "
                "`Tuner.restore(path).get_results()`.)"
            )
        grid = self._stored_grid()
        self._recall()
        return grid

    def _stored_grid(self) -> ResultGrid:
        """What is stored. Of an experiment in a store, its mirror alone does not tell what the store has lost."""
        root, info = self._experiment.root, make_info(self._experiment)
        if root.remote is None:
            return ResultGrid.from_path(root.path, info=info)
        try:
            return ResultGrid.from_path(root.remote.url, info=info, storage_filesystem=root.remote.filesystem)
        except (StorageError, ExperimentNotFoundError):
            if self._driver is None:
                raise
            return ResultGrid.from_path(root.path, info=info)  # a driver of this process has written the mirror

    def _recall(self) -> None:
        """Let searcher, scheduler and stop rule that a restore was given again hold what they had learned."""
        if self._own and not self._has_recalled:
            driver = Driver(self._experiment, self._environment)
            driver.recall()
            driver.hand_back(self._own)
            self._has_recalled = True

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
        error.__cause__ = None  # it is what is raised here
        raise original from error

    @staticmethod
    def _grid(outcome: Outcome) -> ResultGrid:
        return ResultGrid(outcome.state, outcome.info)

    def __repr__(self) -> str:
        return f"Tuner({self._experiment.spec.trainable!r}, root={self._experiment.root.shown!r})"

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
        sync_config: SyncConfig | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        overwrite_trainable: Any = None,
    ) -> Tuner:
        """Open an experiment to continue it, wherever its root is now.

        Args:
            path: The experiment's root; it may have been moved, renamed or copied.
            trainable: The same trainable again, with its code as it is now; None uses the stored one.
            resume_unfinished: Continue trials that had not ended, from their latest checkpoints. False ends them.
            resume_errored: Try trials that ended in ERROR again, from their latest checkpoints.
            restart_errored: Try them again from scratch; ``resume_errored`` wins if both are given.
            param_space: The same space again, to refresh objects in it that could not be stored.
            storage_filesystem: The pyarrow or fsspec file system in which ``path`` is a path.
            sync_config: With the syncer that copied the experiment to ``path``, to bring it here first.
            takeover: Take the experiment from a driver that is still alive; that one stops at its next write.
            tune_config: Other targets for the whole experiment (``num_samples``, ``time_budget_s``,
                ``max_concurrent_trials``) or another ``metric`` and ``mode``; what is left at its default stays as it
                was. Or the same scheduler or searcher again, to correct code of yours in it.
            run_config: Another ``stop``, for trials that have not ended; or the same one or the same callbacks again,
                to correct code; and another ``verbose``, ``progress_reporter`` or ``engine`` for this run. What else
                differs is ignored, with a warning.
            overwrite_trainable: Older spelling of ``trainable``.

        Raises:
            ExperimentNotFoundError: There is no experiment exactly at ``path``.
            ExperimentLockedError: From ``fit()``: another driver is running it.
        """
        if overwrite_trainable is not None:
            warn_user(
                "Tuner.restore(overwrite_trainable=...) is an older spelling: use trainable=...", DeprecationWarning
            )
            trainable = trainable if trainable is not None else overwrite_trainable
        _check_path("restore", path)
        for name, given, kind in (("tune_config", tune_config, TuneConfig), ("run_config", run_config, RunConfig)):
            _checked(given, kind, name)
        tuner: Tuner = object.__new__(cls)  # type: ignore[arg-type]
        tuner._environment = Environment.read()
        tuner._outcome = None
        tuner._takeover = takeover
        tuner._has_recalled = False
        tuner._own = own = OwnObjects(tune_config, run_config)
        tune_config = tune_config and own.apart(tune_config, begins=False)
        run_config = run_config and own.apart(run_config, begins=False)
        errored = "resume" if resume_errored else "restart" if restart_errored else "skip"
        tuner._resume = _resume_config or ResumeConfig(
            unfinished="resume" if resume_unfinished else "skip",  # type: ignore[arg-type]
            errored=errored,  # type: ignore[arg-type]
        )
        tuner._open(
            load_experiment(path, trainable, param_space, storage_filesystem, sync_config, tune_config, run_config)
        )
        return tuner

    @classmethod
    def can_restore(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: Any = None,
        *,
        sync_config: SyncConfig | None = None,
    ) -> bool:
        """Is there an experiment exactly at ``path``? With a syncer that copies there: can that bring one?"""
        _check_path("can_restore", path)
        if sync_config is not None:
            from holdfast.controller.synced_backend import copy_exists

            return copy_exists(os.fspath(path), sync_config)
        return can_open(path, storage_filesystem)


def _where_it_belongs(name: str, known: Collection[str]) -> str:
    if name == "config":
        return "The search space is param_space={...}."
    for kind, argument in ((TuneConfig, "tune_config"), (RunConfig, "run_config")):
        if name in (field.name for field in fields(kind)):
            return f"Write {argument}=tune.{kind.__name__}({name}=...)."
    return suggestion(name, known).strip()


def _check_path(method: str, path: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(
            f"Tuner.{method}() needs the directory of an experiment, got {path!r} of type {type(path).__name__}. "
            'Write for example Tuner.restore("~/holdfast_results/NAME"); `holdfast list DIR` lists the experiments.'
        )


def _checked(value: Any, kind: type[Any], name: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        hint = ""
        if isinstance(value, dict):
            inside = ", ".join(f"{key}={each!r}" for key, each in value.items())
            hint = f" Write {name}=tune.{kind.__name__}({inside})."
        raise InvalidInputError(
            f"`{name}` must be a {kind.__name__}, got {value!r} of type {type(value).__name__}.{hint}"
        )
    return value


def find_existing(run_config: RunConfig) -> str | None:
    """Where the experiment is that ``if_exists="resume"`` continues; a syncer brings it first."""
    if run_config.if_exists != "resume" or run_config.name is None:
        return None
    base = os.fspath(run_config.storage_path or "")
    remote = remote_of(base, run_config.storage_filesystem)
    if remote is not None:
        place = remote.below(run_config.name)
        if not place.exists() or not was_started_in_store(place):
            return None
        if run_config.local_dir is not None:
            prefer_mirror_in(os.fspath(run_config.local_dir), place.url, run_config.storage_filesystem)
        return place.url
    root = Root(os.path.join(parse(base).path, run_config.name))
    if root.exists() and was_started(root):
        return str(root.path)
    sync = run_config.sync_config
    if sync is not None and sync.upload_dir is not None and sync.has_own_syncer:
        from holdfast.controller.synced_backend import copy_exists, fetch_copy

        address = join_address(sync.upload_dir, root.name)
        if copy_exists(address, sync):
            return str(fetch_copy(address, sync, str(root.path.parent))[0].path)
    return None
