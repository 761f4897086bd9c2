"""XGBoost: callbacks for ``xgboost.train`` and the estimators of ``xgboost.sklearn``.

Owns how a booster is saved and how a training continues from it. Must never change what the rounds compute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoints.checkpoint import Checkpoint
from holdfast.errors import UsageError
from holdfast.integration.reporting import MetricChoice, Metrics, Postprocess, Saving, file_in, load_framework
from holdfast.trainable.api import report

xgboost = load_framework("xgboost", "xgboost", "xgboost")
_TrainingCallback: Any = xgboost.callback.TrainingCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCallback(_TrainingCallback):  # type: ignore[misc]
    """Report the evaluation metrics of every boosting round.

    Metrics are called ``<name of the data>-<metric>``, for example ``eval-logloss``; in ``xgboost.cv`` there are
    ``...-mean`` and ``...-std`` of each.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to XGBoost's.
        results_postprocessing_fn: Gets the dict of metrics and returns the one to choose from.

    Raises:
        InvalidInputError: While training: a metric does not exist; the message lists those that do.

    Example:
        >>> xgboost.train(params, data, evals=[(test, "eval")], callbacks=[TuneReportCallback("eval-logloss")])
    """

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Postprocess | None = None) -> None:
        super().__init__()
        self._choice = MetricChoice(metrics, results_postprocessing_fn)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Called by XGBoost after each round."""
        report(self._choice.of(_flat(evals_log)))
        return False


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report every boosting round, save the booster, and resume from it.

    Resuming needs no further code: when the trial has a checkpoint, ``xgboost.train`` with the same
    ``num_boost_round`` trains only the rounds that are missing. Rounds that were done are not computed again, but
    other callbacks, early stopping for example, see their metrics again and so come to the same state.

    A training without sampling ends with the same trees, bit for bit, as if it had not been interrupted. With
    ``subsample`` or ``colsample_*`` the result is as good but not the same: XGBoost does not save the state of its
    random numbers. Set ``"seed_per_iteration": True`` then, so that a resumed training does not draw the samples of the
    first rounds again.

    Args:
        metrics: See ``TuneReportCallback``.
        filename: The booster's file in the checkpoint; ``.json`` writes JSON, any other name UBJSON.
        frequency: Save every so many rounds. 0 saves only at the end, and when the driver is about to end.
        checkpoint_at_end: Save when the training has ended, with a last report that repeats the metrics of the last
            round unless that was saved.
        results_postprocessing_fn: See ``TuneReportCallback``.

    Raises:
        InvalidInputError: An argument is wrong; or a trial's checkpoint has no file of this name.

    Durability:
        As with ``report``: a saved booster survives the death of every process.

    Example:
        >>> xgboost.train(
        ...     params,
        ...     data,
        ...     num_boost_round=100,
        ...     evals=[(test, "eval")],
        ...     callbacks=[TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=10)],
        ... )
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "model.ubj",
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        super().__init__(metrics, results_postprocessing_fn)
        self._saving = Saving(filename, frequency, checkpoint_at_end)
        self._history: Mapping[str, Any] = {}
        self._skipped = 0  # rounds of this call of xgboost.train that an earlier attempt has done
        self._before = 0  # rounds that were done before this call, if the user resumed without us
        self._done = 0
        self._saved = 0

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = "model.ubj") -> Any:
        """The ``xgboost.Booster`` in a checkpoint.

        Raises:
            InvalidInputError: The checkpoint has no such file.
        """
        booster = xgboost.Booster()
        with file_in(checkpoint, filename) as path:
            booster.load_model(_read(path))
        return booster

    def before_training(self, model: Any) -> Any:
        """Called by XGBoost before the first round."""
        if not isinstance(model, xgboost.Booster):
            raise UsageError("xgboost.cv has many boosters, which are not saved. Use TuneReportCallback with it.")
        self._history, self._skipped, self._before, self._done, self._saved = {}, 0, 0, 0, 0
        with self._saving.resumed() as found:
            if found is None:
                return model
            path, progress = found
            saved = _read(path)
        self._go_on(model, saved, progress)
        return model

    def _go_on(self, model: Any, saved: bytearray, progress: dict[str, Any]) -> None:
        former = xgboost.Booster()
        former.load_model(saved)
        rounds = progress.get("rounds", former.num_boosted_rounds())
        self._saved = rounds
        if model.num_boosted_rounds() == former.num_boosted_rounds():  # given as xgb_model=, with the rounds to add
            self._before = self._done = rounds
            return
        _load(model, saved)
        self._skipped = self._done = rounds
        # Instance attributes hide these methods for the rounds that are done, and go with the last of them.
        model.update = lambda dtrain, iteration, fobj=None: None
        if "history" in progress:
            history = progress["history"]
            model.eval_set = lambda evals, iteration=0, *_more, **_named: _evaluation(history, iteration)
        if not rounds:
            _show_methods(model)

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Called by XGBoost before each round."""
        if epoch == self._skipped:
            _show_methods(model)
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Called by XGBoost after each round."""
        self._history = evals_log
        if epoch < self._skipped:
            return False
        self._done = done = self._before + epoch + 1
        metrics = self._choice.of(_flat(evals_log))
        if self._saving.due(done):
            self._save(model, metrics)
        else:
            report(metrics)
        return False

    def after_training(self, model: Any) -> Any:
        """Called by XGBoost after the last round."""
        _show_methods(model)
        if self._saving.at_end and self._saved != self._done:
            self._save(model, self._choice.of(_flat(self._history)))
        return model

    def _save(self, model: Any, metrics: dict[str, Any]) -> None:
        def write(path: str) -> None:
            with open(path, "wb") as file:
                file.write(model.save_raw("json" if path.endswith(".json") else "ubj"))

        history = {data: {name: list(values) for name, values in of.items()} for data, of in self._history.items()}
        self._saving.report(metrics, write, {"rounds": self._done, "history": history})
        self._saved = self._done


def _read(path: str) -> bytearray:
    with open(path, "rb") as file:
        return bytearray(file.read())


def _load(model: Any, saved: bytearray) -> None:
    """Load trees into a booster that keeps the parameters it was made with.

    ``load_model`` drops them as soon as anybody has asked the booster anything, and a trial may have new ones: what
    population based training changes is in the configuration, not in the checkpoint.
    """
    wanted = json.loads(model.save_config())
    model.load_model(saved)
    loaded = json.loads(model.save_config())
    wanted["learner"]["learner_model_param"] = loaded["learner"]["learner_model_param"]
    for name, value in loaded["learner"]["gradient_booster"].items():
        if name.endswith("_model_param"):
            wanted["learner"]["gradient_booster"][name] = value
    model.load_config(json.dumps(wanted))


def _show_methods(model: Any) -> None:
    for name in ("update", "eval_set"):
        vars(model).pop(name, None)


def _flat(evals_log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The last round's metrics, by ``<name of the data>-<metric>``."""
    flat: dict[str, float] = {}
    for data, metrics in evals_log.items():
        for name, values in metrics.items():
            last = values[-1]
            if isinstance(last, tuple):
                flat[f"{data}-{name}-mean"], flat[f"{data}-{name}-std"] = last
            else:
                flat[f"{data}-{name}"] = last
    return flat


def _evaluation(history: dict[str, dict[str, list[float]]], iteration: int) -> str:
    """What ``Booster.eval_set`` said after this round."""
    scores = [
        f"{data}-{name}:{values[iteration]!r}"
        for data, metrics in history.items()
        for name, values in metrics.items()
        if iteration < len(values)
    ]
    return "\t".join([f"[{iteration}]", *scores])
