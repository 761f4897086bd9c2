"""``ResultGrid``: the results of all trials of an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, overload

from holdfast.core.state import State, Status, Trial
from holdfast.errors import InvalidInputError, TrialError
from holdfast.messages.visible import visible
from holdfast.results.best import (
    best_row,
    best_trial,
    check_mode,
    check_reported,
    check_scope,
    default_metric,
    none_found,
)
from holdfast.results.dataframes import flat_row, require_pandas
from holdfast.results.history import History, open_history
from holdfast.results.raised import trial_error
from holdfast.results.result import Result
from holdfast.results.sources import FoldedTrial, filesystem_of
from holdfast.trainable.tracebacks import show_briefly
from holdfast.views.trials import ExperimentInfo


class ResultGrid(Sequence[Result]):
    """The results of all trials of an experiment, in the order in which the trials were created.

    Made by ``Tuner.fit()``. ``ResultGrid.from_path`` opens any experiment, also one that is still running, was killed
    or was moved; it changes nothing and needs none of the user's code.

    Example::

        best = ResultGrid.from_path("~/holdfast_results/digits").get_best_result("loss", "min")
        print(best.config, best.metrics["loss"], best.checkpoint)
    """

    def __init__(self, state: State, info: ExperimentInfo) -> None:
        self._attach(History(state, info))

    @classmethod
    def from_path(
        cls, path: str | os.PathLike[str], *, info: ExperimentInfo | None = None, storage_filesystem: Any = None
    ) -> ResultGrid:
        """The results of the experiment at ``path``, read from its journal.

        Trials that were running when their driver died are shown as a restore will find them: PENDING, with
        everything that they had reported.

        Args:
            path: The experiment's root, a path or a URI.
            info: The experiment's facts if they are known already.
            storage_filesystem: The pyarrow or fsspec file system in which ``path`` is a path.

        Raises:
            ExperimentNotFoundError: There is no experiment exactly there.
            JournalDamagedError: The journal is damaged; nothing was changed.
        """
        grid: ResultGrid = object.__new__(cls)
        grid._attach(open_history(path, info, storage_filesystem))
        return grid

    def _attach(self, history: History) -> None:
        self._history = history
        self._results: dict[int, Result] = {}

    @property
    def experiment_path(self) -> str:
        """The experiment's root, a path or a URI."""
        return self._history.shown

    @property
    def filesystem(self) -> Any:
        """The ``pyarrow.fs.FileSystem`` of the experiment; without pyarrow None, or what stands for its store."""
        return filesystem_of(self._history.info)

    @property
    def tags(self) -> list[str]:
        """The tags of the experiment, as users gave them (``holdfast tag --experiment``)."""
        return list(self._history.state.tags)

    @property
    def notes(self) -> list[str]:
        """What users have noted about the experiment (``holdfast note``), oldest first."""
        return [note.text for note in self._history.state.notes]

    @property
    def errors(self) -> list[TrialError]:
        """One exception for each trial that ended in ERROR: a ``TrialError``, and of the class that was raised."""
        found = (trial_error(self._history, trial) for trial in self._trials())
        return [error for error in found if error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials ended in ERROR."""
        return self._history.state.counts[Status.ERROR]

    @property
    def num_terminated(self) -> int:
        """How many trials ended as they should."""
        return self._history.state.counts[Status.TERMINATED]

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The result of the best trial. If there is exactly one trial, that one.

        Args:
            metric: What to compare; None takes the one of ``TuneConfig``, or ``_metric`` if that names a mode only and
                trainables returned numbers. ``a/b`` is looked up in nested results.
            mode: "min" or "max"; None takes the one of ``TuneConfig``.
            scope: "last" compares the last value that each trial reported, "all" its best one, "avg", "last-5-avg"
                and "last-10-avg" the mean of all, the last five or the last ten.
            filter_nan_and_inf: Leave out values that are NaN or infinite. Otherwise infinite ones count, and NaN wins
                only where there is nothing else.

        Raises:
            InvalidInputError: (a ValueError) No metric or mode is given, or one that does not exist.
            NoResultError: (a RuntimeError) No trial has a value to compare, or the only one never reported the metric.
        """
        if len(self) == 1:
            return self._only(metric, mode)
        metric, mode = metric or default_metric(self._history), mode or self._history.info.mode
        for name, value in (("metric", metric), ("mode", mode)):
            if not value:
                raise InvalidInputError(
                    f"No {name} is provided: pass get_best_result({name}=...), or name one for the whole experiment "
                    f"with TuneConfig({name}=...)."
                )
        assert metric is not None
        best = best_trial(
            self._history, self._trials(), metric, check_mode(mode), check_scope(scope), filter_nan_and_inf
        )
        if best is None:
            raise none_found(self._history, metric, filter_nan_and_inf)
        return self[best.n]

    def _only(self, metric: str | None, mode: str | None) -> Result:
        """The result of the only trial; a metric or mode that was given must be one even then."""
        if mode is not None:
            check_mode(mode)
        check_reported(self._history, self._trials()[0], metric)
        return self[0]

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> Any:
        """One row for each trial that has reported: its last result, or its best one.

        Args:
            filter_metric: Take each trial's row with the best value of this metric instead of its last row; a trial
                that has no finite value of it keeps its last row.
            filter_mode: "min" or "max"; None takes the one of ``TuneConfig``. Without any, the last rows are taken.

        Returns:
            A pandas DataFrame with a column for each key, ``config/<key>`` for parameters, and the trial's id as
            ``logdir``.
        """
        return last_or_best_frame(self._history, self._trials(), filter_metric, filter_mode)

    def to_optuna_study(
        self, metric: str | None = None, mode: str | None = None, *, storage: Any = None, study_name: str | None = None
    ) -> Any:
        """The experiment as an Optuna study, for Optuna's plots, importances and dashboard.

        Trials keep their times and intermediate values. One that a scheduler stopped early is PRUNED, one in ERROR is
        FAIL, one that had not ended is RUNNING or WAITING. Bounds of parameters are those of the values tried.

        Args:
            metric: The objective; None takes the one of ``TuneConfig``.
            mode: "min" or "max"; None takes the one of ``TuneConfig``.
            storage: Where Optuna keeps the study; None keeps it in memory.
            study_name: None takes the experiment's name.

        Raises:
            ImportError: Optuna is not installed.
            InvalidInputError: (a ValueError) There is no objective.

        Example::

            study = ResultGrid.from_path("results/digits").to_optuna_study()
            optuna.visualization.plot_param_importances(study)
        """
        from holdfast.results.optuna_study import make_study

        return make_study(self._history, metric, mode, storage=storage, study_name=study_name)

    # --- plots: each returns the ``matplotlib.axes.Axes`` and needs matplotlib; arguments are in ``holdfast.plots``

    def plot_history(self, metric: str | None = None, mode: str | None = None, *, ax: Any = None) -> Any:
        """The value of each trial in the order in which they ended, and the best one so far."""
        from holdfast.results.plots import plot_history

        return plot_history(self, metric, mode, ax=ax)

    def plot_curves(
        self, metric: str | None = None, *, trials: Sequence[int] | None = None, max_trials: int = 200, ax: Any = None
    ) -> Any:
        """The learning curves of trials; those that were stopped early end with a cross."""
        from holdfast.results.plots import plot_curves

        return plot_curves(self, metric, trials=trials, max_trials=max_trials, ax=ax)

    def plot_importance(self, metric: str | None = None, *, ax: Any = None) -> Any:
        """How much each parameter matters for a metric."""
        from holdfast.results.plots import plot_importance

        return plot_importance(self, metric, ax=ax)

    def plot_edf(self, metric: str | None = None, *, ax: Any = None) -> Any:
        """The share of trials that are not above each value of a metric."""
        from holdfast.results.plots import plot_edf

        return plot_edf(self, metric, ax=ax)

    def plot_slice(self, param: str, metric: str | None = None, *, ax: Any = None) -> Any:
        """A metric over one parameter."""
        from holdfast.results.plots import plot_slice

        return plot_slice(self, param, metric, ax=ax)

    def plot_contour(self, x: str, y: str, metric: str | None = None, *, ax: Any = None) -> Any:
        """A metric over two parameters."""
        from holdfast.results.plots import plot_contour

        return plot_contour(self, x, y, metric, ax=ax)

    def plot_pareto(self, metrics: Sequence[str], modes: Sequence[str] | None = None, *, ax: Any = None) -> Any:
        """Two metrics of all trials, and the front of those that no other trial beats in both."""
        from holdfast.results.plots import plot_pareto

        return plot_pareto(self, metrics, modes, ax=ax)

    def plot_parallel(self, metric: str | None = None, *, params: Sequence[str] | None = None, ax: Any = None) -> Any:
        """Parallel coordinates of all trials."""
        from holdfast.results.plots import plot_parallel

        return plot_parallel(self, metric, params=params, ax=ax)

    def plot_workers(self, *, ax: Any = None) -> Any:
        """What each worker ran and when."""
        from holdfast.results.plots import plot_workers

        return plot_workers(self, ax=ax)

    def plot_lineage(self, param: str | None = None, *, ax: Any = None) -> Any:
        """A parameter of each trial of a population over time."""
        from holdfast.results.plots import plot_lineage

        return plot_lineage(self, param, ax=ax)

    def plot_recovery(self, *, ax: Any = None) -> Any:
        """Every kill, retry, rejected checkpoint and storage outage on one time axis."""
        from holdfast.results.plots import plot_recovery

        return plot_recovery(self, ax=ax)

    # --- a sequence of results

    def _trials(self) -> list[Trial]:
        return self._history.state.trials

    def __len__(self) -> int:
        return len(self._trials())

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [self._result(trial) for trial in self._trials()[index]]
        trials = self._trials()
        try:
            return self._result(trials[index])
        except IndexError:
            there = f"there are {len(trials)} trials, so the last is grid[{len(trials) - 1}]"
            if len(trials) < 2:
                there = "there is one trial, grid[0]" if trials else "the experiment has no trials"
            raise show_briefly(IndexError(f"There is no result {index}: {there}.")) from None

    def __iter__(self) -> Iterator[Result]:
        return map(self._result, self._trials())

    def _result(self, trial: Trial) -> Result:
        result = self._results.get(trial.n)
        if result is None:
            result = self._results[trial.n] = Result(FoldedTrial(self._history, trial))
        return result

    def __repr__(self) -> str:
        from holdfast.display.experiment_facts import NOT_STARTED
        from holdfast.display.tracker import existing_counts

        counts = existing_counts(self._history.state)
        names = {NOT_STARTED: "not started"}
        shown = ", ".join(f"{count} {names.get(status, status)}" for status, count in counts.items() if count)
        return visible(f"<ResultGrid of {self._history.info.name}: {shown or 'no trials'}; {self.experiment_path}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: a table, and below it the page with charts, closed; see ``show``."""
        from holdfast.results.html import grid_html

        folded: str = _pages().folded_frame(self._history)
        return grid_html(self._history) + folded

    def show(self) -> None:
        """Show the page of the experiment in a notebook's cell: overview, trials, charts, as of now.

        It is the page of ``holdfast report``: it needs no server, and it does not change any more.

        Raises:
            NotRunError: This is not a notebook.
        """
        _pages().show(self._history)


def _pages() -> Any:
    """The makers of pages stand above results, so they are found by name."""
    return import_module("holdfast.ui.notebook")


def last_or_best_frame(history: History, trials: Sequence[Trial], metric: str | None, mode: str | None) -> Any:
    """A DataFrame with one row for each trial that has reported."""
    if mode and not metric:
        raise InvalidInputError(f"A mode ({mode!r}) without a metric says nothing: pass the metric as well.")
    mode = mode or history.info.mode
    rows = []
    for trial in trials:
        if trial.metrics is None:
            continue
        row = best_row(history.rows(trial.n), metric, check_mode(mode)) if metric and mode else None
        rows.append(flat_row(row or history.last(trial), logdir=trial.id))
    return require_pandas().DataFrame(rows)
