"""LightGBM: callbacks for ``lightgbm.train`` and the estimators of ``lightgbm.sklearn``.

Owns how a booster is saved and how a training continues from it. Must never report a round twice.
"""

from __future__ import annotations

from typing import Any

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.errors import UsageError
from holdfast.integration.reporting import MetricChoice, Metrics, Postprocess, Saving, file_in, load_framework
from holdfast.trainable.api import report

lightgbm = load_framework("lightgbm", "lightgbm", "lightgbm")

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCallback:
    """Report the evaluation metrics of every boosting round.

    Metrics are called ``<name of the data>-<metric>``, for example ``valid_0-binary_logloss``; in ``lightgbm.cv``
    there are ``...-mean`` and ``...-stdv`` of each.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to LightGBM's.
        results_postprocessing_fn: Gets the dict of metrics and returns the one to choose from.

    Raises:
        InvalidInputError: While training: a metric does not exist; the message lists those that do.

    Example:
        >>> lightgbm.train(params, data, valid_sets=[test], callbacks=[TuneReportCallback("valid_0-l2")])
    """

    order = 20  # before LightGBM's early stopping, whose last round must be reported too
    before_iteration = False

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Postprocess | None = None) -> None:
        self._choice = MetricChoice(metrics, results_postprocessing_fn)
        # LightGBM sets an order of its own in the object if that has none, whatever its class has.
        self.__dict__["order"] = type(self).order

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        report(self._choice.of(_flat(env)))


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report every boosting round, save the booster, and resume from it.

    Pass ``init_model=callback.init_model`` to ``lightgbm.train`` (or ``fit``) and leave ``num_boost_round`` as it is:
    a trial that has a checkpoint trains the rounds that are missing, and one that has none begins. Without
    ``init_model`` the trial is right as well, but not fast: rounds that were done are computed again, and are not
    reported again.

    With bagging or ``feature_fraction`` LightGBM draws other random numbers after ``init_model`` than it would have
    drawn: the result is as good, but not the same to the bit. Early stopping counts anew.

    Args:
        metrics: See ``TuneReportCallback``.
        filename: The booster's file in the checkpoint, in LightGBM's text format.
        frequency: Save every so many rounds. 0 saves only at the end, and when the driver is about to end.
        checkpoint_at_end: Save with the report of the last round. A training that early stopping ends has no last
            round that is known before: save with a ``frequency`` there.
        results_postprocessing_fn: See ``TuneReportCallback``.

    Raises:
        InvalidInputError: An argument is wrong; or a trial's checkpoint has no file of this name.

    Durability:
        As with ``report``: a saved booster survives the death of every process.

    Example:
        >>> callback = TuneReportCheckpointCallback({"loss": "valid_0-l2"}, frequency=10)
        >>> lightgbm.train(
        ...     params, data, 100, valid_sets=[test], callbacks=[callback], init_model=callback.init_model
        ... )
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "model.txt",
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        super().__init__(metrics, results_postprocessing_fn)
        self._saving = Saving(filename, frequency, checkpoint_at_end)
        self._former: Any = None
        self._progress: dict[str, Any] = {}
        self._looked = False
        self._handed_out = False

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = "model.txt") -> Any:
        """The ``lightgbm.Booster`` in a checkpoint.

        Raises:
            InvalidInputError: The checkpoint has no such file.
        """
        with file_in(checkpoint, filename) as path:
            return lightgbm.Booster(model_file=path)

    @property
    def init_model(self) -> Any:
        """The booster that this trial continues from, for ``lightgbm.train(init_model=...)``; None if it begins."""
        self._look()
        self._handed_out = self._former is not None
        return self._former

    def _look(self) -> None:
        if self._looked:
            return
        with self._saving.resumed() as found:
            if found is not None:
                path, progress = found
                self._former = lightgbm.Booster(model_file=path)
                self._progress = {"rounds": self._former.current_iteration(), "begin": 0, **progress}
        self._looked = True

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        if not isinstance(env.model, lightgbm.Booster):
            raise UsageError("lightgbm.cv has many boosters, which are not saved. Use TuneReportCallback with it.")
        self._look()
        begin, last = env.begin_iteration, env.end_iteration - 1
        done = self._progress.get("rounds", 0)
        if self._handed_out and begin == done:
            # LightGBM adds num_boost_round to the rounds of init_model; the user means all rounds together.
            begin = self._progress["begin"]
            last = begin + (env.end_iteration - env.begin_iteration) - 1
        if env.iteration > last:  # nothing was missing: take back the one round that LightGBM always trains
            env.model.rollback_one_iter()
            self._end(env)
        if env.iteration < done:
            return
        metrics = self._choice.of(_flat(env))
        ends = env.iteration == last
        if self._saving.due(env.iteration - begin + 1) or (ends and self._saving.at_end):
            progress = {"rounds": env.iteration + 1, "begin": begin}
            self._saving.report(metrics, lambda path: env.model.save_model(path, num_iteration=-1), progress)
        else:
            report(metrics)
        if ends and last != env.end_iteration - 1:
            self._end(env)

    def _end(self, env: Any) -> None:
        raise lightgbm.callback.EarlyStopException(env.model.current_iteration() - 1, env.evaluation_result_list)


def _flat(env: Any) -> dict[str, float]:
    """The round's metrics, by ``<name of the data>-<metric>``."""
    flat: dict[str, float] = {}
    for data, name, value, *more in (tuple(result) for result in env.evaluation_result_list or ()):
        deviation = more[1] if len(more) > 1 else None
        if deviation is None:
            flat[f"{data}-{name}"] = value
        else:
            flat[f"{data}-{name}-mean"], flat[f"{data}-{name}-stdv"] = value, deviation
    return flat
