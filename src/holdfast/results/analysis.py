"""``ExperimentAnalysis``: the older way to look at results, with the names that scripts written for it use."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.retention import lookup
from holdfast.core.state import Trial
from holdfast.errors import ExperimentNotFoundError, InvalidInputError
from holdfast.messages.visible import visible
from holdfast.results.best import best_of, best_trial, check_mode, number
from holdfast.results.best import default_metric as metric_of
from holdfast.results.dataframes import flat_row, frame_of, require_pandas
from holdfast.results.grid import last_or_best_frame
from holdfast.results.history import open_history
from holdfast.results.result import Result
from holdfast.results.sources import FoldedTrial
from holdfast.storage.address import is_remote, parse
from holdfast.storage.layout import PRIVATE
from holdfast.views.trials import TrialView

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint

logger = logging.getLogger("holdfast")


class ExperimentAnalysis:
    """The results of an experiment, read from its root without the user's code.

    Args:
        experiment_checkpoint_path: The experiment's root, or a state file in it.
        storage_filesystem: The pyarrow or fsspec file system in which the path is a path.
        trials: Look at these trials only.
        default_metric: What ``best_*`` compare; None takes the one of ``TuneConfig``.
        default_mode: "min" or "max"; None takes the one of ``TuneConfig``.

    Raises:
        ExperimentNotFoundError: (a ValueError) There is no experiment at the path.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str],
        *,
        storage_filesystem: Any = None,
        trials: Sequence[TrialView] | None = None,
        default_metric: str | None = None,
        default_mode: str | None = None,
    ) -> None:
        path = _root_of(os.fspath(experiment_checkpoint_path), storage_filesystem)
        try:
            self._history = open_history(path, filesystem=storage_filesystem)
        except ExperimentNotFoundError as error:
            raise ExperimentNotFoundError(
                f"No experiment snapshot file was found in {path}: there is no journal of holdfast, and files of the "
                f"form 'experiment_state-*.json' are of another tool. {error}"
            ) from None
        info, known = self._history.info, self._history.state
        self.default_metric = default_metric or metric_of(self._history)
        self.default_mode = check_mode(default_mode) if default_mode else info.mode
        if trials is None:
            self._chosen = known.trials
        else:
            self._chosen = [known.trials[known.by_id[each.trial_id]] for each in trials]

    @property
    def experiment_path(self) -> str:
        """The experiment's root, a path or a URI."""
        return self._history.shown

    @property
    def trials(self) -> list[TrialView]:
        """All trials."""
        return [self._history.view(trial) for trial in self._chosen]

    # --- the best by the default metric

    @property
    def best_trial(self) -> TrialView:
        """The trial with the best last value of the default metric."""
        self._require_default("best_trial")
        best = self.get_best_trial()
        if best is None:
            raise InvalidInputError(f"No trial has reported a number for {self.default_metric!r}: none is the best.")
        return best

    @property
    def best_config(self) -> dict[str, Any]:
        """Its parameters."""
        self._require_default("best_config")
        return self._result(self.best_trial).config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Its checkpoint with the best value of the default metric."""
        self._require_default("best_checkpoint")
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_logdir(self) -> str:
        """Its directory."""
        self._require_default("best_logdir")
        return self.best_trial.path

    @property
    def best_dataframe(self) -> Any:
        """All its results as a DataFrame."""
        self._require_default("best_dataframe")
        return self._result(self.best_trial).metrics_dataframe

    @property
    def best_result(self) -> dict[str, Any]:
        """Its last result."""
        self._require_default("best_result")
        return self.best_trial.last_result

    @property
    def best_result_df(self) -> Any:
        """Its last result as a DataFrame of one row, with its id as index."""
        self._require_default("best_result_df")
        return self._last_frame([self._trial(self.best_trial)])

    # --- everything

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by id."""
        return {trial.id: self._history.last(trial) for trial in self._chosen}

    @property
    def results_df(self) -> Any:
        """The last results as a DataFrame, with the trials' ids as index."""
        return self._last_frame(self._chosen)

    @property
    def trial_dataframes(self) -> dict[str, Any]:
        """All results of each trial as DataFrames, by id."""
        return {
            trial.id: frame_of(self._history.rows(trial.n), self._history.copies(trial.n)) for trial in self._chosen
        }

    def fetch_trial_dataframes(self) -> dict[str, Any]:
        """The same as ``trial_dataframes``."""
        return self.trial_dataframes

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """One row for each trial that has reported: its last result, or its best one by ``metric`` and ``mode``."""
        return last_or_best_frame(self._history, self._chosen, metric, mode or (self.default_mode if metric else None))

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """The parameters of each trial, by id.

        Args:
            prefix: Spell keys as ``config/<key>``.
        """
        configs = {trial.id: self._history.config(trial) for trial in self._chosen}
        if not prefix:
            return configs
        return {name: {f"config/{key}": value for key, value in config.items()} for name, config in configs.items()}

    # --- the best by any metric

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> TrialView | None:
        """The best trial, or None (and a warning) if no trial has a value to compare; see ``ResultGrid``."""
        metric, mode = self._objective("get_best_trial", metric, mode)
        if len(self._chosen) == 1:
            return self.trials[0]
        best = best_trial(self._history, self._chosen, metric, mode, scope, filter_nan_and_inf)
        if best is None:
            logger.warning(
                "no best trial: no trial has reported a number for %r%s",
                metric,
                " that is finite" if filter_nan_and_inf else "",
            )
            return None
        return self._history.view(best)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """The parameters of the best trial, or None."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else self._result(best).config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str | None:
        """The directory of the best trial, or None."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.path

    def get_best_checkpoint(
        self, trial: TrialView | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """The trial's kept checkpoint with the best finite value of ``metric``, or None.

        Args:
            trial: A trial, its id or its directory.
            metric: What to compare; None takes the default.
            mode: "min" or "max"; None takes the default.
        """
        metric, mode = self._objective("get_best_checkpoint", metric, mode)
        kept = self._result(trial).best_checkpoints
        return best_of(((number(lookup(metrics, metric)), found) for found, metrics in kept), mode, finite=True)

    def get_last_checkpoint(
        self, trial: TrialView | str | None = None, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """The latest checkpoint of ``trial``, or of the best trial; None if it has none."""
        chosen = trial if trial is not None else self.get_best_trial(metric, mode)
        return None if chosen is None else self._result(chosen).checkpoint

    def get_trial_checkpoints_paths(
        self, trial: TrialView | str, metric: str | None = None
    ) -> list[tuple[str, float | None]]:
        """The paths of the trial's kept checkpoints, each with the value of ``metric``, worst to best."""
        metric = metric or self.default_metric or "training_iteration"
        return [
            (found.path, number(lookup(metrics, metric))) for found, metrics in self._result(trial).best_checkpoints
        ]

    # --- helpers

    def _require_default(self, what: str) -> None:
        self._objective(what, None, None)

    def _objective(self, what: str, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if not metric or not mode:
            missing = "metric" if not metric else "mode"
            raise InvalidInputError(
                f"`{what}` needs a metric and a mode, and no {missing} is provided: pass it to the get_best_* method, "
                f"or ExperimentAnalysis(path, default_{missing}=...), or TuneConfig({missing}=...) when tuning."
            )
        return metric, check_mode(mode)

    def _trial(self, trial: TrialView | str) -> Trial:
        state = self._history.state
        if isinstance(trial, TrialView):
            return state.trials[state.by_id[trial.trial_id]]
        if trial in state.by_id:
            return state.trials[state.by_id[trial]]
        for each in self._chosen:
            if trial.rstrip("/") == self._history.place(each) or os.path.abspath(trial) == self._history.directory(
                each
            ):
                return each
        raise InvalidInputError(f"{trial!r} is neither the id nor the directory of a trial of {self.experiment_path}.")

    def _result(self, trial: TrialView | str) -> Result:
        return Result(FoldedTrial(self._history, self._trial(trial)))

    def _last_frame(self, trials: Sequence[Trial]) -> Any:
        rows = [flat_row(self._history.last(trial)) for trial in trials]
        frame = require_pandas().DataFrame(rows)
        return frame.set_index("trial_id", drop=False) if rows else frame

    def __repr__(self) -> str:
        return visible(f"<ExperimentAnalysis of {len(self._chosen)} trials in {self.experiment_path}>")


def _root_of(path: str, filesystem: Any) -> str:
    """The experiment's root, also if the path is that of a state file in it."""
    if filesystem is None and not is_remote(path):
        path = parse(path).path
    place, mark, options = path.partition("?") if is_remote(path) else (path, "", "")
    place = place.rstrip("/")
    if place.endswith(".json") and not os.path.isdir(place):
        place = place.rpartition("/")[0]
    return place.removesuffix(f"/{PRIVATE}") + mark + options
